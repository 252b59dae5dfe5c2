"""Losses by name, for recipes, the command line and figures."""

import warnings
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

from forerank.errors import ForerankWarning, unknown
from forerank.losses.base import RankingLoss
from forerank.losses.named import REQUIRED, NamedLoss

# Each of these files ends in its `LOSSES`. To add a loss, write such a file and name it here.
FILES = ("pnp", "average_precision", "roadmap", "recall", "blackbox")
# An installed package brings losses of its own by an entry point of this group that names a `NamedLoss`.
ENTRY_POINTS = "forerank.losses"

LOSSES: dict[str, NamedLoss] = {
    loss.name: loss for file in FILES for loss in import_module(f"forerank.losses.{file}").LOSSES
}
"""The losses by name. `create_loss` and recipes look a name up here; a new entry adds a loss."""


def known_losses() -> dict[str, NamedLoss]:
    """`LOSSES`, with those of installed packages.

    >>> [*known_losses()][:3]
    ['PNP-O', 'PNP-Iu', 'PNP-Iu_exact']
    """
    _add_installed_losses()
    return LOSSES


def loss_names() -> list[str]:
    """The losses that need no argument; the penalties of a ranked list can be drawn for these.

    >>> "PNP-Dq" in loss_names(), "PNP" in loss_names()
    (True, False)
    """
    return [name for name, loss in known_losses().items() if REQUIRED not in loss.arguments.values()]


def find_loss(name: str) -> NamedLoss:
    """A loss by its name in any case; the PNP losses also by the name of their variant.

    >>> find_loss("smooth-ap").name, find_loss("Dq").name
    ('Smooth-AP', 'PNP-Dq')
    """
    losses = known_losses()
    names = {known.removeprefix("PNP-").casefold(): known for known in losses}
    names |= {known.casefold(): known for known in losses}
    if str(name).casefold() not in names:
        raise unknown("loss", name, losses)
    return losses[names[str(name).casefold()]]


def create_loss(name: str, **arguments: Any) -> RankingLoss:
    """Build a loss from its name, refusing names and arguments that do not exist.

    >>> create_loss("smooth-ap", temperature=0.02).temperature
    0.02
    >>> create_loss("PNP", derivative="1/(1+R)**2").curve.formula
    '1 - 1/(R + 1)'
    >>> create_loss("PNP-Dq", tempreature=0.02)
    Traceback (most recent call last):
    forerank.errors.InputError: unknown argument of PNP-Dq 'tempreature': did you mean 'temperature'? ...
    """
    return find_loss(name).create(**arguments)


@cache
def _add_installed_losses() -> None:
    """Only when a loss is asked for: the packages import this one themselves."""
    for entry in entry_points(group=ENTRY_POINTS):
        try:
            loss = entry.load()
        except Exception as error:  # somebody else's code must not keep every other loss from working
            _warn(f"the loss {entry.name!r} ({entry.value}) cannot be loaded and is left out: {error}")
            continue
        if not isinstance(loss, NamedLoss):
            _warn(f"the loss {entry.name!r} ({entry.value}) is not a NamedLoss and is left out.")
        elif loss.name in LOSSES:
            _warn(f"the loss {loss.name!r} of {entry.value} is left out: there is one of that name already.")
        else:
            LOSSES[loss.name] = loss


def _warn(sentence: str) -> None:
    warnings.warn(sentence, ForerankWarning, stacklevel=3)
