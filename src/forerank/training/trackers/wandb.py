"""Weights & Biases: offline files in the run folder; WANDB_MODE=online sends them to the server."""

import os
from collections.abc import Iterable
from typing import Any

from forerank.console import say
from forerank.errors import require
from forerank.files import write_atomically
from forerank.training.trackers import Begin

wandb = require("wandb")

RUN_ID = "wandb-run-id.txt"  # in the run folder, so that a resumed run goes on in the same W&B run


class WandbRun:
    """One W&B run; if it fails, training goes on without it. `wandb sync` sends an offline run later."""

    def __init__(self, begin: Begin) -> None:
        self._run: Any = None
        known = begin.run / RUN_ID
        try:
            self._run = wandb.init(
                project=os.environ.get("WANDB_PROJECT", "forerank"),
                name=begin.run.name,
                id=known.read_text(encoding="utf-8").strip() if begin.step and known.is_file() else None,
                resume="allow",
                mode=os.environ.get("WANDB_MODE", "offline"),  # nothing is sent unless asked for
                dir=str(begin.run),
                config=dict(begin.values),
                settings=wandb.Settings(silent=True, console="off", disable_git=True, save_code=False),
            )
            write_atomically(known, self._run.id + "\n")
        except Exception as error:  # whatever a network, a server or the library may raise
            self._drop(error)

    def add(self, scalars: Iterable[tuple[str, float]], step: int) -> None:
        """Numbers with their names, at a step."""
        if self._run is None:
            return
        try:
            self._run.log(dict(scalars), step=step)
        except Exception as error:
            self._drop(error)

    def close(self) -> None:
        """Write everything down and end the run."""
        if self._run is not None:
            try:
                self._run.finish()
            except Exception as error:
                self._drop(error)

    def _drop(self, error: Exception) -> None:
        self._run = None
        say(f"no more numbers for W&B ({str(error).splitlines()[0][:200]}): the run goes on")


begin = WandbRun  # what `TRACKERS` asks of a module
