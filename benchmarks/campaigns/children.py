"""Work in a child process that can be killed: forked, so that it starts with everything imported."""

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

LONGEST = 900.0  # seconds that a child may take before it is given up


class Child:
    """A forked process that calls `work()`; what it prints goes to a file."""

    def __init__(self, work: Callable[[], object], log: Path) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        self.log = log
        self.pid = os.fork()
        if self.pid == 0:
            code = 1
            try:
                out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
                os.dup2(out, 1)
                os.dup2(out, 2)
                work()
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)

    def wait(self, seconds: float) -> int | None:
        """The exit code (negative: a signal), or None if it is still running after some seconds."""
        end = time.monotonic() + seconds
        while True:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                return os.waitstatus_to_exitcode(status)
            if time.monotonic() >= end:
                return None
            time.sleep(min(0.005, max(0.0, end - time.monotonic())))

    def kill(self) -> None:
        """SIGKILL, and wait for the end."""
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)

    def must_end_well(self) -> None:
        """Wait for the end; raise with what it said if it failed or takes too long."""
        code = self.wait(LONGEST)
        if code is None:
            self.kill()
            raise RuntimeError(f"a child did not end within {LONGEST:g} s")
        if code != 0:
            raise RuntimeError(f"a child ended with code {code}: {self.log.read_text()[-400:]}")
