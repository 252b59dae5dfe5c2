"""The Dockerfile, as far as it can be checked without a container engine."""

import json
import re
import subprocess
from pathlib import Path

import pytest

from forerank.cli import run
from waiting import LIMIT

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def instructions():
    """(instruction, rest of its line) of the Dockerfile, comments and line continuations resolved."""
    text = re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE)
    lines = [line for line in text.replace("\\\n", " ").splitlines() if line.strip()]
    return [tuple(line.split(None, 1)) for line in lines]


def values(instructions, name):
    return [rest for instruction, rest in instructions if instruction == name]


def test_every_instruction_is_known_and_every_copied_file_exists(instructions):
    known = {
        "FROM",
        "ARG",
        "COPY",
        "RUN",
        "WORKDIR",
        "ENV",
        "USER",
        "EXPOSE",
        "HEALTHCHECK",
        "ENTRYPOINT",
        "CMD",
    }
    assert {name for name, _ in instructions} <= known
    copied = [rest.split()[:-1] for rest in values(instructions, "COPY") if not rest.startswith("--from")]
    assert copied
    assert [source for sources in copied for source in sources if not (ROOT / source).exists()] == []


def test_it_has_two_stages_without_a_registry_and_ends_as_a_user_without_rights(instructions):
    stages = values(instructions, "FROM")
    assert len(stages) == 2
    assert all("/" not in stage for stage in stages)  # the engine's own registry, whichever that is
    names = [name for name, _ in instructions]
    last_stage = len(names) - 1 - names[::-1].index("FROM")
    (user,) = [rest for name, rest in instructions[last_stage:] if name == "USER"]
    assert user != "root"
    assert names.index("USER") < names.index("ENTRYPOINT")
    assert "pip" not in " ".join(rest for _, rest in instructions[last_stage:])  # no build tools go along


def test_the_health_check_tells_a_living_server_from_a_dead_one(instructions, site, closed_port):
    (check,) = values(instructions, "HEALTHCHECK")
    command = json.loads(re.sub(r"timeout=\d+\)", f"timeout={LIMIT})", check.partition("CMD ")[2]))
    (port,) = values(instructions, "EXPOSE")
    assert f"127.0.0.1:{port}/" in command[-1]
    alive = [word.replace(f"127.0.0.1:{port}", site.removeprefix("http://")) for word in command]
    dead = [word.replace(f"127.0.0.1:{port}", f"127.0.0.1:{closed_port}") for word in command]
    assert subprocess.run(alive, capture_output=True).returncode == 0
    assert subprocess.run(dead, capture_output=True).returncode != 0


def test_its_command_is_one_that_forerank_takes(instructions, tmp_path, capsys):
    words = json.loads(values(instructions, "ENTRYPOINT")[0]) + json.loads(values(instructions, "CMD")[0])
    assert words[:2] == ["forerank", "serve"]
    (tmp_path / "images").mkdir()
    assert run([word.replace("/data", str(tmp_path)) for word in words[1:]]) == 2
    assert "there is no index" in capsys.readouterr().err
