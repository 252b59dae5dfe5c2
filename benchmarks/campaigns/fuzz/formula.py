"""Formulas of penalties."""

import atheris
import torch

from campaigns.fuzz.target import fuzz

with atheris.instrument_imports(include=["forerank.losses.expression"]):
    from forerank.losses.expression import computable, evaluate_at, read_expression

if __name__ == "__main__":
    at = torch.linspace(0, 5, 4, dtype=torch.float64)

    def read(data: bytes) -> None:
        expression = read_expression(data.decode("utf-8", "replace"))
        if computable(expression):
            evaluate_at(expression, at)

    fuzz(read)
