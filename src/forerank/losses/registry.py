"""Losses by name, for recipes and the command line."""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

from forerank.errors import InputError, unknown
from forerank.losses.average_precision import SmoothAPLoss, SupAPLoss
from forerank.losses.base import RankingLoss
from forerank.losses.pnp import VARIANTS, PNPLoss
from forerank.losses.recall import RecallAtKLoss

# Name -> what builds it from keyword arguments.
LOSSES: dict[str, Callable[..., RankingLoss]] = {
    **{f"PNP-{variant}": partial(PNPLoss, variant) for variant in VARIANTS},
    "PNP": PNPLoss.from_derivative,
    "Smooth-AP": SmoothAPLoss,
    "Sup-AP": SupAPLoss,
    "Recall@k": RecallAtKLoss,
}
"""The losses by name. `create_loss` and recipes look a name up here; a new entry adds a loss."""


def create_loss(name: str, **arguments: Any) -> RankingLoss:
    """Build a loss from its name, in any case, refusing names and arguments that do not exist.

    >>> create_loss("smooth-ap", temperature=0.02).temperature
    0.02
    >>> create_loss("PNP", derivative="1/(1+R)**2").curve.formula
    'R/(R + 1)'
    >>> create_loss("PNP-Dq", tempreature=0.02)
    Traceback (most recent call last):
    forerank.errors.InputError: unknown argument of PNP-Dq 'tempreature': did you mean 'temperature'? ...
    """
    names = {known.casefold(): known for known in LOSSES}
    found = names.get(str(name).casefold())
    if found is None:
        raise unknown("loss", name, LOSSES)
    valid = accepted_arguments(found)
    for argument in arguments:
        if argument not in valid:
            raise unknown(f"argument of {found}", argument, valid)
    missing = [argument for argument, required in valid.items() if required and argument not in arguments]
    if missing:
        raise InputError(f"the loss {found} needs the argument {missing[0]!r}.")
    return LOSSES[found](**arguments)


def accepted_arguments(name: str) -> dict[str, bool]:
    """Argument -> whether it must be given.

    >>> [*accepted_arguments("Smooth-AP")]
    ['temperature', 'count_self', 'linear_tail', 'gather', 'chunk_size']
    """
    parameters = inspect.signature(LOSSES[name]).parameters.values()
    return {p.name: p.default is p.empty for p in parameters if p.kind is not p.VAR_KEYWORD}


# What PNP-style curves do not cover. R_P and R_N: positives and negatives before a positive.
FORMULAS = {
    "PNP": ("integral of the derivative", "yours, such as 1/(1+R)**2"),
    "Smooth-AP": ("R_N / (1 + R_P + R_N)", "(1 + R_P) / (1 + R_P + R_N)^2"),
    "Sup-AP": ("R_N / (1 + R_P + R_N), R_P hard, R_N above", "(1 + R_P) / (1 + R_P + R_N)^2"),
    "Recall@k": ("1 - sigmoid((k - 1 - R_P - R_N) / t) |P| / min(k, |P|)", "that of the sigmoid"),
}


def describe_losses() -> list[dict[str, str]]:
    """Every loss as a row: name, formula, derivative, arguments.

    >>> describe_losses()[4]["name"], describe_losses()[4]["derivative"]
    ('PNP-Ds', '1 / (1 + R)')
    """
    rows = []
    for name in LOSSES:
        if name in FORMULAS:
            formula, derivative = FORMULAS[name]
        else:
            curve = VARIANTS[name.removeprefix("PNP-")](4.0, 2.0)
            formula, derivative = curve.formula, curve.derivative
        arguments = ", ".join(accepted_arguments(name))
        rows.append({"name": name, "formula": formula, "derivative": derivative, "arguments": arguments})
    return rows
