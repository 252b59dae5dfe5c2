"""Recipes in YAML."""

import atheris

from campaigns.fuzz.target import fuzz, place_for

with atheris.instrument_imports(include=["forerank.training.recipe", "forerank.training.sections", "yaml"]):
    from forerank.training.recipe import load_recipe

if __name__ == "__main__":
    file = place_for("recipe.yaml")

    def read(data: bytes) -> None:
        file.write_bytes(data)
        load_recipe(file)

    fuzz(read)
