"""The wheel, built and installed into a new environment."""

import os
import re
import shlex
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from waiting import LIMIT

ROOT = Path(__file__).parents[2]

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin folder of a new environment that has Forerank from its wheel.

    torch and the other dependencies are borrowed from the environment that runs the tests, by a .pth file:
    downloading a gigabyte again would test the registry and not the wheel. What is ours comes from the wheel
    alone: modules, the command, recipes, the published numbers, the files of the search page. The .pth
    files of the borrowed folder are not followed, so an editable install of the checkout stays invisible.
    """
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    build = [
        "wheel",
        "--no-deps",
        "--no-index",
        "--no-build-isolation",
        "--wheel-dir",
        str(folder),
        str(ROOT),
    ]
    subprocess.run([*pip, *build], check=True)
    (wheel,) = folder.glob("forerank-*.whl")
    home = folder / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True)
    python = home / "bin" / "python"
    subprocess.run(
        [*pip, "--python", str(python), "install", "--no-deps", "--no-index", str(wheel)], check=True
    )
    (site_packages,) = home.glob("lib/python*/site-packages")
    (site_packages / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python.parent


@pytest.fixture
def variables(environment: Path) -> dict[str, str]:
    """The environment variables of somebody who has activated the new environment."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return {**kept, "PATH": f"{environment}{os.pathsep}{os.environ['PATH']}"}


@pytest.fixture
def run(variables: dict[str, str], tmp_path: Path) -> Run:
    """Run a line of shell in an empty folder; a failure shows what the command said."""

    def run_line(line: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(line, shell=True, cwd=tmp_path, env=variables, capture_output=True, text=True)
        assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
        return done

    return run_line


@pytest.fixture
def serve(variables: dict[str, str], tmp_path: Path) -> Iterator[Callable[[str], str]]:
    """Start `forerank serve` on a free port; its address. It must end well at Ctrl-C."""
    started: list[subprocess.Popen[str]] = []

    def start(line: str) -> str:
        command = [*shlex.split(line), "--port", "0"]
        process = subprocess.Popen(command, cwd=tmp_path, env=variables, stderr=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stderr
        said = process.stderr.readline()
        address = re.search(r"http://\S+", said)
        assert address, said + process.stderr.read()
        return address[0]

    yield start
    for process in started:
        process.send_signal(signal.SIGINT)
        try:
            assert process.wait(LIMIT) == 0
        finally:
            process.kill()
            process.communicate()
