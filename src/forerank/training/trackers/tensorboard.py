"""TensorBoard events, written by the thread that trains.

tensorboardX would write them from a thread of its own: when the disk is full that thread dies, and the run
waits for ever at its full queue. One short write per step costs nothing, and this thread sees it fail.
"""

import os
import socket
import struct
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from forerank.training.trackers import Begin

TITLE = "TensorBoard"


class Board:
    """An event file in a folder.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> board = Board(folder, purge_step=None)
    >>> board.add([("loss", 0.5)], step=1); board.close()
    >>> [file.name.startswith("events.out.tfevents.") for file in folder.iterdir()]
    [True]
    """

    def __init__(self, folder: Path, purge_step: int | None) -> None:
        """Begin a file; events of earlier files from `purge_step` on are no longer shown."""
        name = f"events.out.tfevents.{time.time():.6f}.{socket.gethostname()}.{os.getpid()}"
        folder.mkdir(parents=True, exist_ok=True)
        self._file = (folder / name).open("wb", buffering=0)
        self._write(file_version="brain.Event:2", step=purge_step or 0)
        if purge_step is not None:
            from tensorboardX.proto.event_pb2 import SessionLog

            self._write(step=purge_step, session_log=SessionLog(status=SessionLog.START))

    def add(self, scalars: Iterable[tuple[str, float]], step: int) -> None:
        """Numbers with their names, at a step."""
        from tensorboardX.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=name, simple_value=value) for name, value in scalars]
        self._write(step=step, summary=Summary(value=values))

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _write(self, **event: Any) -> None:
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.record_writer import masked_crc32c

        content = Event(wall_time=time.time(), **event).SerializeToString()
        length = struct.pack("<Q", len(content))
        sums = [struct.pack("<I", masked_crc32c(part)) for part in (length, content)]
        self._file.write(length + sums[0] + content + sums[1])


def begin(begin: Begin) -> Board:
    """Begin an event file in the run folder."""
    return Board(begin.run / "tensorboard", purge_step=begin.step + 1 if begin.step else None)
