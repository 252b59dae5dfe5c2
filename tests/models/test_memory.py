"""keep_freed_memory: its effect seen from outside, as page faults, in a process of its own."""

import subprocess
import sys

import pytest

from waiting import LIMIT

CODE = """
import resource, sys, torch
if sys.argv[1] == "keep":
    from forerank.models import keep_freed_memory
    assert keep_freed_memory()
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):  # 64 MB each; the heap settles before counting
    torch.ones(16_000_000)
start = faults()
for _ in range(10):
    torch.ones(16_000_000)
print(faults() - start)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="a matter of glibc")
def test_large_blocks_are_not_given_back() -> None:
    def count(mode: str) -> int:
        done = subprocess.run(
            [sys.executable, "-c", CODE, mode], check=True, capture_output=True, timeout=LIMIT
        )
        return int(done.stdout)

    assert count("keep") * 5 < count("plain")
