"""How tests wait: for something that can be seen, up to a limit that only a test that hangs meets.

The only clock and the only pause of the tests are here. No test asserts how long something took: a
machine may do other work beside it.
"""

import subprocess
import time
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")
LIMIT = 900  # seconds; for children, requests, threads and browsers as well
PAUSE = 0.01


def wait_until(
    condition: Callable[[], T],
    what: str,
    process: "subprocess.Popen[Any] | None" = None,
    pause: float = PAUSE,
) -> T:
    """The first value of the condition that counts as true; `what` says what is waited for.

    Args:
        process: what it depends on; when it has ended and the condition still does not hold, waiting ends.
        pause: seconds between two looks.
    """
    end = time.monotonic() + LIMIT
    while True:
        ended = process is not None and process.poll() is not None
        if value := condition():
            return value
        assert not ended, f"the process ended before this happened: {what}; it said {_said(process)}"
        assert time.monotonic() < end, f"this did not happen within {LIMIT} s: {what}"
        time.sleep(pause)


def _said(process: "subprocess.Popen[Any] | None") -> str:
    return "\n".join(str(part) for part in process.communicate(timeout=LIMIT) if part) if process else ""


def finish(*processes: "subprocess.Popen[Any]") -> list[tuple[Any, Any]]:
    """Wait for children that need each other: what each wrote to its pipes. None is left behind."""
    try:
        return [process.communicate(timeout=LIMIT) for process in processes]
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.communicate()
