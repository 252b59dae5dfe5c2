"""Where the numbers of a run go beside metrics.jsonl: one file per tracker, and one line here."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from forerank.errors import unknown

# Name in a recipe (`tracking=NAME`) -> module with a function `begin(Begin) -> Tracker`. A module is imported
# only where a recipe names it, and refuses that where its library is not installed.
TRACKERS: dict[str, str] = {
    "tensorboard": "forerank.training.trackers.tensorboard",
    "mlflow": "forerank.training.trackers.mlflow",
    "wandb": "forerank.training.trackers.wandb",
}


@dataclass(frozen=True)
class Begin:
    """What a tracker is told at the beginning of a run, or when a run is resumed."""

    run: Path  # the run folder
    name: str  # of the recipe
    values: Mapping[str, Any]  # of the recipe, by dotted key
    step: int  # 0, or the step after which the run is resumed: later numbers are written again


class Tracker(Protocol):
    """Receives numbers in the thread that trains. One that fails says so once and lets the run go on."""

    def add(self, scalars: Iterable[tuple[str, float]], step: int) -> None:
        """Numbers with their names, at a step."""

    def close(self) -> None:
        """The run has ended, or was interrupted."""


def begin_tracking(tracking: str, begin: Begin) -> list[Tracker]:
    """The trackers that a recipe names, separated by commas; "none" stands for none."""
    return [module.begin(begin) for module in tracker_modules(tracking)]


def tracker_modules(tracking: str) -> list[ModuleType]:
    """The modules of these trackers; one whose library is not installed is refused."""
    return [import_module(TRACKERS[name]) for name in tracker_names(tracking)]


def tracker_names(tracking: str) -> list[str]:
    """The names in `tracking`; an unknown one is refused.

    >>> tracker_names("tensorboard,mlflow"), tracker_names("none")
    (['tensorboard', 'mlflow'], [])
    """
    names = [name.strip() for name in tracking.split(",")]
    if names == ["none"]:
        return []
    for name in names:
        if name not in TRACKERS:
            raise unknown("tracker", name, (*TRACKERS, "none"))
    return names
