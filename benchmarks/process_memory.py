"""The peak memory of a process, as Linux counts it.

`resource.getrusage` would be shorter, but its peak is at least that of the process that started this one: a
benchmark started from a large process (a test suite, for example) would report the memory of its parent.
"""

import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path


def peak_bytes() -> int:
    """The largest resident size this process has had since it began, or since the last `forget_peak`."""
    return _status("VmHWM")


def resident_bytes() -> int:
    """The resident size of this process now."""
    return _status("VmRSS")


def forget_peak() -> None:
    """Let the peak start again from the present resident size."""
    Path("/proc/self/clear_refs").write_text("5")


def run_and_watch(command: Sequence[str]) -> int:
    """Run a command to its end; the largest resident size it had in bytes, looked up every 20 ms."""
    most = 0
    with subprocess.Popen(command) as process:
        while process.poll() is None:
            with suppress(OSError, StopIteration):  # it may end between the two calls
                most = max(most, _status("VmHWM", str(process.pid)))
            time.sleep(0.02)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return most


def _status(name: str, process: str = "self") -> int:
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return 1024 * int(next(line.split()[1] for line in lines if line.startswith(name)))
