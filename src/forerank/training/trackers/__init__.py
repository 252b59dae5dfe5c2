"""Where the numbers of a run go beside metrics.jsonl: one file per tracker, and one line here."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from forerank.console import say
from forerank.errors import unknown

# Name in a recipe (`tracking=NAME`) -> module with a `TITLE` and a function `begin(Begin) -> Tracker`. It is
# imported only where a recipe names it, and refuses that where its library is not installed.
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
    """Receives numbers in the thread that trains. It may raise anything: `Trackers` then leaves it out."""

    def add(self, scalars: Iterable[tuple[str, float]], step: int) -> None:
        """Numbers with their names, at a step."""

    def close(self) -> None:
        """The run has ended, or was interrupted."""


class Trackers:
    """The trackers that a recipe names. One that fails is left out, which is said once; the run goes on."""

    def __init__(self, tracking: str, begin: Begin) -> None:
        self._live: dict[str, Tracker] = {}
        for module in tracker_modules(tracking):
            with self._left_out_if_it_fails(module.TITLE):
                self._live[module.TITLE] = module.begin(begin)

    def add(self, scalars: Sequence[tuple[str, float]], step: int) -> None:
        """Numbers with their names, at a step."""
        for title, tracker in list(self._live.items()):
            with self._left_out_if_it_fails(title):
                tracker.add(scalars, step)

    def close(self) -> None:
        """The run has ended, or was interrupted."""
        for title, tracker in list(self._live.items()):
            with self._left_out_if_it_fails(title):
                tracker.close()

    @contextmanager
    def _left_out_if_it_fails(self, title: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # whatever a network, a server, a disk or a library may raise
            self._live.pop(title, None)
            reason = getattr(error, "strerror", None) or next(iter(str(error).splitlines()), repr(error))
            say(f"no more numbers for {title} ({reason[:200]}): the run goes on")


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
