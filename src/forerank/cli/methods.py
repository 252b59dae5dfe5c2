"""`forerank methods`."""

from forerank.console import format_table, print_json


def methods(name: str | None = None, /, *, json: bool = False) -> None:
    """List the methods of the literature to train with: forerank train ./my_images method=NAME.

    Examples:

        forerank methods
        forerank methods divide-and-conquer
        forerank train ./my_images method=divide-and-conquer method.clusters=4

    Parameters
    ----------
    name:
        One method: its paper, options, recipe values, and where it differs from its paper.
    json:
        Print as JSON.
    """
    from forerank.training.methods import METHODS, describe_method

    described = [describe_method(key) for key in (METHODS if name is None else [name])]
    if json:
        print_json(described)
    elif name is None:
        header = ["method", "about", "deviations", "paper"]
        rows = [[d["method"], d["about"], len(d["deviations"]), d["paper"]] for d in described]
        print(format_table(header, rows))
    else:
        for key, value in described[0].items():
            lines = [value] if isinstance(value, str) else value
            for number, line in enumerate(lines or ["none"]):
                print(f"{'' if number else key + ':':<12} {line}")
