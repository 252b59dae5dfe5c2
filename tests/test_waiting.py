"""Waiting ends with the condition, or says what did not happen; and no test has a clock of its own."""

import ast
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import waiting
from waiting import finish, wait_until

# Who has a clock: how tests wait, and what runs them.
CLOCKS = {"waiting.py", "rooms.py"}


def test_waiting_gives_the_first_value_that_counts() -> None:
    values = iter([0, "", None, 7, 8])
    assert wait_until(lambda: next(values), "a number comes") == 7


def test_what_did_not_happen_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "LIMIT", 0)
    with pytest.raises(AssertionError, match="did not happen within 0 s: pigs fly"):
        wait_until(lambda: False, "pigs fly")


def test_nobody_waits_for_a_process_that_has_ended() -> None:
    code = "import sys; sys.exit('no such pig')"
    process = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True)
    with pytest.raises(AssertionError, match="ended before this happened: pigs fly; it said no such pig"):
        wait_until(lambda: False, "pigs fly", process)


def test_no_child_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    hangs = [sys.executable, "-c", "import signal; signal.pause()"]
    children = [subprocess.Popen(hangs, stderr=subprocess.PIPE) for _ in range(2)]
    monkeypatch.setattr(waiting, "LIMIT", 0)
    with pytest.raises(subprocess.TimeoutExpired):
        finish(*children)
    assert [child.returncode for child in children] == [-signal.SIGKILL] * 2


def test_no_test_has_a_clock_of_its_own() -> None:
    """A test that compares durations, or sleeps and hopes, fails on a busy machine."""
    folder = Path(__file__).parent
    found = set()
    for file in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if "time" in [*names, getattr(node, "module", None)]:
                found.add(file.relative_to(folder).as_posix())
    assert found <= CLOCKS
