"""Weights & Biases: offline files in the run folder; WANDB_MODE=online sends them to the server."""

import os
from collections.abc import Iterable

from forerank.errors import require
from forerank.files import write_atomically
from forerank.training.trackers import Begin

wandb = require("wandb")

TITLE = "W&B"
RUN_ID = "wandb-run-id.txt"  # in the run folder, so that a resumed run goes on in the same W&B run


class WandbRun:
    """One W&B run. `wandb sync` sends an offline run later."""

    def __init__(self, begin: Begin) -> None:
        known = begin.run / RUN_ID
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

    def add(self, scalars: Iterable[tuple[str, float]], step: int) -> None:
        """Numbers with their names, at a step."""
        self._run.log(dict(scalars), step=step)

    def close(self) -> None:
        """Write everything down and end the run."""
        self._run.finish()


begin = WandbRun  # what `TRACKERS` asks of a module
