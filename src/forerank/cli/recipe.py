"""`forerank recipe`."""

from contextlib import suppress

from cyclopts import App

from forerank.console import format_table, print_json
from forerank.errors import MissingExtraError

app = App(
    name="recipe",
    help="The recipes that come with Forerank; every value of one.\n\nExample: forerank recipe show sop",
    help_format="plaintext",
)


@app.command(name="list")
def list_recipes(*, json: bool = False) -> None:
    """The recipes that come with Forerank.

    Parameters
    ----------
    json:
        Print the list as JSON.
    """
    from forerank.training.recipe import recipe_about, recipe_names

    about = {name: recipe_about(name) for name in recipe_names()}
    if json:
        print_json(about)
    else:
        print(format_table(["recipe", "about"], [[name, text] for name, text in about.items()]))


@app.command
def show(source: str, /, *values: str, json: bool = False) -> None:
    """Every value of a recipe, with what it means; the output is a recipe file.

    Wrong keys, values, methods, losses and metrics are refused; forerank train checks the images as well.

    Examples:

        forerank recipe show sop
        forerank recipe show sop variant=authors > my_recipe.yaml

    Parameters
    ----------
    source:
        A recipe's name, a recipe file, a run folder, or a folder of images.
    values:
        Values to change, as key=value.
    json:
        Print the values as JSON.
    """
    from forerank.training.recipe import flatten, load_recipe, recipe_names, recipe_text
    from forerank.training.record import recipe_source

    recipe = load_recipe(recipe_source(source), values)
    if values or source not in recipe_names():  # what comes with Forerank is right, and shown at once
        from forerank.training.methods import check_method
        from forerank.training.prepare import check_choice

        check_choice(recipe.evaluation.choose_by)
        with suppress(MissingExtraError):  # what is not installed here may be right elsewhere
            check_method(recipe)
    if json:
        print_json(flatten(recipe))
    else:
        print(recipe_text(recipe), end="")
