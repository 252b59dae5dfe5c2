"""Ctrl-C and SIGTERM: finish the step, save, say how to resume."""

import shlex
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from forerank.errors import ForerankError

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class InterruptedRun(ForerankError):  # noqa: N818 - stopping when asked is no error
    """The run was asked to stop and did so, saved; the exit code is the shell's for that signal.

    >>> print(InterruptedRun(Path("runs/my birds"), 120, signal.SIGINT))
    stopped after step 120, saved; resume with: forerank train 'runs/my birds'
    >>> print(InterruptedRun(Path("runs/birds"), None, signal.SIGINT))
    stopped while preparing; resume with: forerank train runs/birds
    """

    def __init__(self, run: Path, step: int | None, number: int) -> None:
        when = "while preparing" if step is None else f"after step {step:,}, saved"
        super().__init__(f"stopped {when}; resume with: forerank train {shlex.quote(str(run))}")
        self.exit_code = 128 + number


def leave_signals_to_parent(worker: int) -> None:
    """For image loading processes: Ctrl-C is the parent's business, and SIGTERM ends them at once."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


class Interruption:
    """Which signal asked this process to stop (0: none so far)."""

    def __init__(self) -> None:
        self.signal = 0
        self._at_once = False

    def __enter__(self) -> "Interruption":
        self._previous: dict[int, Any] = {}
        if threading.current_thread() is threading.main_thread():  # elsewhere Python allows no handlers
            self._previous = {number: signal.signal(number, self._note) for number in SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        again, self.signal = self.signal != 0, number
        if again or self._at_once:  # whoever asks twice means now
            raise KeyboardInterrupt

    @contextmanager
    def at_once(self, allowed: bool = True) -> Iterator[None]:
        """Inside, a signal raises KeyboardInterrupt instead of waiting for the end of the step."""
        self._at_once = allowed
        try:
            yield
        finally:
            self._at_once = False
