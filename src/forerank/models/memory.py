"""Keep freed memory inside the process: on Linux, convolutional networks run several times faster on CPU.

glibc's malloc gives every large block back to the system when it is freed; the next layer asks for it again
and the kernel has to clear the same pages again. `keep_freed_memory` tells malloc to keep them. The price:
the process holds on to its peak memory until it ends, or until `give_back_memory`. The command line does this
for its own process; the library never does it unasked, because the setting belongs to the whole process: call
it first in yours.
"""

import ctypes
import os
import sys
from typing import Any

# Parameters of mallopt(3), from glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_LARGEST = 2**31 - 1  # mallopt takes an int


def keep_freed_memory() -> bool:
    """Tell glibc's malloc to keep large freed blocks; True if it did, False where there is no glibc.

    Variables that the user set (`MALLOC_MMAP_THRESHOLD_`, `MALLOC_TRIM_THRESHOLD_`) are respected.

    >>> keep_freed_memory() in (True, False)
    True
    """
    mallopt = _from_glibc("mallopt")
    if mallopt is None:
        return False
    wanted = {"MALLOC_MMAP_THRESHOLD_": _M_MMAP_THRESHOLD, "MALLOC_TRIM_THRESHOLD_": _M_TRIM_THRESHOLD}
    answers = [mallopt(parameter, _LARGEST) for name, parameter in wanted.items() if name not in os.environ]
    return all(answer == 1 for answer in answers)


def give_back_memory() -> bool:
    """Give freed memory back to the system once, for example after a peak; True if there was any.

    >>> give_back_memory() in (True, False)
    True
    """
    malloc_trim = _from_glibc("malloc_trim")
    return malloc_trim is not None and malloc_trim(0) == 1


def _from_glibc(name: str) -> Any:
    """A function of glibc, or None where there is no glibc."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        return getattr(ctypes.CDLL("libc.so.6"), name)
    except (OSError, AttributeError):  # musl, or no C library by that name
        return None
