"""What the targets share: our own errors are answers, everything else is a finding."""

import os
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import atheris

from forerank.errors import ForerankError


def fuzz(read: Callable[[bytes], object]) -> None:
    """Let atheris call `read` with inputs that reach new code."""

    def one_input(data: bytes) -> None:
        with suppress(ForerankError):
            read(data)

    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()


def place_for(name: str) -> Path:
    """A file to be written anew for every input, in memory where there is such a place."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    return Path(tempfile.mkdtemp(prefix="forerank-fuzz-", dir=memory)) / name
