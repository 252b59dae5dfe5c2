"""Progress bars are seen by people and by nobody else."""

import io
import os
import pty
import subprocess
import sys

import nbclient
import nbformat
import pytest

from forerank.console import say_if_slow
from waiting import LIMIT, wait_until

COUNT = """
from forerank.console import progress
assert list(progress(range(3), "counting")) == [0, 1, 2]
"""


def test_a_terminal_sees_the_bar_and_a_pipe_sees_nothing() -> None:
    piped = subprocess.run([sys.executable, "-c", COUNT], capture_output=True, check=True)
    assert piped.stdout == piped.stderr == b""
    ours, theirs = pty.openpty()
    subprocess.run(
        [sys.executable, "-c", COUNT], stderr=theirs, check=True, env={**os.environ, "TERM": "xterm"}
    )
    os.close(theirs)
    seen = io.BytesIO()
    try:
        while part := os.read(ours, 4096):
            seen.write(part)
    except OSError:  # Linux says so at the end
        pass
    os.close(ours)
    assert b"counting" in seen.getvalue()


def test_a_notebook_sees_the_bar() -> None:
    cell = f"from forerank.console import in_notebook\nassert in_notebook()\n{COUNT}"
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell)])
    nbclient.NotebookClient(notebook, timeout=LIMIT).execute()
    outputs = notebook.cells[0].outputs
    assert any("application/vnd.jupyter.widget-view+json" in o.get("data", {}) for o in outputs)


def test_a_wait_is_explained_only_if_it_is_one(capsys: pytest.CaptureFixture[str]) -> None:
    with say_if_slow("never said", after=LIMIT):
        pass
    assert capsys.readouterr().err == ""
    with say_if_slow("compiling", after=0):
        said = wait_until(lambda: capsys.readouterr().err, "the wait is explained")
    assert said == "compiling\n"
