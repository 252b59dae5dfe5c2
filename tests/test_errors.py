"""Errors for people."""

import importlib.metadata
import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import forerank.errors
from forerank.errors import (
    EXTRAS,
    InputError,
    MissingExtraError,
    install_command,
    installed_version,
    nearest,
    require,
    unknown,
)
from forerank.machine import PURPOSES

ROOT = Path(__file__).parents[1]
OPTIONAL = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


def test_a_missing_optional_part_names_the_command_that_adds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)  # what an absent package looks like to import
    with pytest.raises(MissingExtraError) as raised:
        require("faiss")
    said = "this needs the package 'faiss', which is not installed: "
    assert str(raised.value) == said + install_command("search")


def test_a_missing_part_of_no_extra_is_added_by_its_own_name() -> None:
    with pytest.raises(MissingExtraError, match=r"'no_such_part\.inner', .*pip install no_such_part$"):
        require("no_such_part.inner")


def test_a_broken_optional_part_shows_its_own_error(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_part.py").write_text("import something_it_needs")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="something_it_needs"):
        require("broken_part")


def test_every_extra_has_a_purpose_and_is_one_that_pip_knows() -> None:
    assert set(EXTRAS.values()) == set(PURPOSES) == set(OPTIONAL) - {"app", "all", "docs", "dev"}


def inner(extra: str) -> set[str]:
    """The extras that an extra of ours contains."""
    return {name for line in OPTIONAL[extra] for name in re.findall(r"^forerank\[(.*)]$", line)}


def test_an_extra_installs_the_modules_that_are_looked_for() -> None:
    """Both sides, for every extra: the packages that pip installs, and those whose absence is noticed."""
    packages = importlib.metadata.packages_distributions()
    for extra in PURPOSES:
        named = {re.split(r"[^\w.-]", line)[0] for line in OPTIONAL[extra]} - {"forerank"}
        modules = [module for module, of in EXTRAS.items() if of == extra]
        looked_for = {packages[module][0].replace("_", "-").lower() for module in modules}
        assert looked_for == named, extra


def test_what_a_practitioner_installs() -> None:
    """The environment of `make demo` has what the README shows; `all` leaves nothing out."""
    (app,), (everything,) = inner("app"), inner("all")
    assert set(app.split(",")) < set(everything.split(",")) == set(PURPOSES)
    shown = (ROOT / "README.md").read_text() + (ROOT / "docs" / "tutorial.md").read_text()
    needed = {
        " serve ": "web",
        " map ": "map",
        "--onnx": "onnx",
        "--minutes": "budget",
        "quality=best": "weights",
    }
    for words, extra in needed.items():
        assert words in shown, words
        assert extra in app.split(","), extra
    assert "--editable '.[app]'" in (ROOT / "Makefile").read_text()


Install = Callable[..., None]


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Install a Forerank of which only the metadata exist, in a shell that finds the right pip."""
    monkeypatch.setenv("PATH", sysconfig.get_path("scripts"))
    monkeypatch.chdir(tmp_path)

    def install(origin: Any = None, requires: str = "torch>=2.4") -> None:
        information = tmp_path / "site" / "forerank-0.1.0.dist-info"
        information.mkdir(parents=True)
        about = f"Metadata-Version: 2.1\nName: forerank\nVersion: 0.1.0\nRequires-Dist: {requires}\n"
        (information / "METADATA").write_text(about)
        if origin is not None:
            text = origin if isinstance(origin, str) else json.dumps(origin)
            (information / "direct_url.json").write_text(text)
        monkeypatch.syspath_prepend(information.parent)

    return install


def test_from_an_index_the_name_is_enough(installed: Install) -> None:
    installed()
    assert install_command("budget") == "pip install 'forerank[budget]'"
    assert install_command("budget", "map") == "pip install 'forerank[budget,map]'"


@pytest.mark.parametrize(
    "origin", ["", "no JSON", "[]", "{}", '{"url": "https://example.org/x", "vcs_info": {}}', '{"url": 7}']
)
def test_broken_metadata_do_not_hide_what_is_missing(origin: str, installed: Install) -> None:
    installed(origin)
    assert install_command("budget") == "pip install 'forerank[budget]'"


def test_without_metadata_the_name_is_left(monkeypatch: pytest.MonkeyPatch, installed: Install) -> None:
    monkeypatch.setattr(sys, "path", [])
    assert install_command("timm").endswith("pip install 'forerank[timm]'")


@pytest.mark.parametrize(("editable", "words"), [(True, "--editable "), (False, "")])
def test_from_a_checkout_the_folder_is_named(
    editable: bool, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, installed: Install
) -> None:
    folder = tmp_path / "my checkout"
    folder.mkdir()
    installed({"url": folder.as_uri(), "dir_info": {"editable": editable} if editable else {}})
    assert install_command("map") == f"pip install {words}'{folder}[map]'"
    monkeypatch.chdir(folder)
    assert install_command("map") == f"pip install {words}'.[map]'"


def test_the_versions_of_a_checkout_are_kept_where_they_are_those_that_are_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, installed: Install
) -> None:
    folder, torch = tmp_path / "my checkout", installed_version("torch")
    folder.mkdir()
    installed({"url": folder.as_uri(), "dir_info": {"editable": True}})
    (folder / "constraints.txt").write_text(f"# exact\nsomething==1\nTorch=={torch.partition('+')[0]}\n")
    expected = f"pip install --constraint 'my checkout/constraints.txt' --editable '{folder}[timm]'"
    assert install_command("timm") == expected
    monkeypatch.chdir(folder)
    assert install_command("timm") == "pip install --constraint constraints.txt --editable '.[timm]'"
    # Another torch is one that the user chose: the file would replace it.
    (folder / "constraints.txt").write_text("torch==2.4.0\n")
    assert install_command("timm") == f"pip install --editable '.[timm]' torch=={torch}"
    assert install_command("map") == "pip install --editable '.[map]'"


def test_from_an_index_torch_is_kept_too(installed: Install) -> None:
    installed()
    assert (
        install_command("timm", "s3")
        == f"pip install 'forerank[timm,s3]' torch=={installed_version('torch')}"
    )


def test_from_a_wheel_the_file_is_named_while_it_exists(tmp_path: Path, installed: Install) -> None:
    wheel = tmp_path / "my wheels" / "forerank-0.1.0-py3-none-any.whl"
    wheel.parent.mkdir()
    wheel.touch()
    installed({"url": wheel.as_uri(), "archive_info": {}})
    assert install_command("map") == f"pip install 'forerank[map] @ {wheel.as_uri()}'"
    assert "my%20wheels" in install_command("map")
    wheel.unlink()
    assert install_command("map") == "pip install 'forerank[map]'"


def test_from_a_repository_the_same_commit_is_named(installed: Install) -> None:
    vcs = {"vcs": "git", "requested_revision": "main", "commit_id": "1a2b3c"}
    installed({"url": "https://example.org/forerank.git", "vcs_info": vcs})
    expected = "pip install 'forerank[map] @ git+https://example.org/forerank.git@1a2b3c'"
    assert install_command("map") == expected


def put_program(folder: Path, name: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text("#!/bin/sh\n")
    (folder / name).chmod(0o755)


def test_a_pip_of_another_environment_is_not_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, installed: Install
) -> None:
    installed()
    put_program(tmp_path / "other", "pip")
    monkeypatch.setenv("PATH", f"{tmp_path / 'other'}{os.pathsep}{sysconfig.get_path('scripts')}")
    assert install_command("map") == f"{shlex.quote(sys.executable)} -m pip install 'forerank[map]'"
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "my environment" / "bin" / "python"))
    assert install_command("map") == "'my environment/bin/python' -m pip install 'forerank[map]'"
    # An environment of uv has no pip; with one, uv is not needed.
    put_program(tmp_path / "other", "uv")
    (tmp_path / "other" / "pip").unlink()
    monkeypatch.setenv("PATH", str(tmp_path / "other"))
    assert install_command("map").startswith("'my environment/bin/python' -m pip")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    expected = "uv pip install --python 'my environment/bin/python' 'forerank[map]'"
    assert install_command("map") == expected


def test_the_current_folder_may_have_been_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, installed: Install
) -> None:
    (tmp_path / "checkout").mkdir()
    (tmp_path / "gone").mkdir()
    installed({"url": (tmp_path / "checkout").as_uri(), "dir_info": {}})
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert install_command("map") == f"pip install '{tmp_path / 'checkout'}[map]'"


PROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "{name}"
version = "0.1.0"
requires-python = ">=3.11"
[tool.hatch.build]
dev-mode-dirs = ["."]
[project.optional-dependencies]
budget = ["small-part"]
"""


def write_project(folder: Path, name: str, module: Path | None = None) -> Path:
    package = folder / name.replace("-", "_")
    package.mkdir(parents=True)
    (folder / "pyproject.toml").write_text(PROJECT.format(name=name))
    (package / "__init__.py").touch()
    if module:
        shutil.copy(module, package)
    return folder


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small Forerank as checkout, wheel and repository, and with what its extra needs."""
    folder = tmp_path_factory.mktemp("install")
    checkout = write_project(folder / "my checkout", "forerank", Path(forerank.errors.__file__))
    part = write_project(folder / "part", "small-part")
    for source in (checkout, part):
        build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-index", "--no-build-isolation"]
        subprocess.run([*build, "--wheel-dir", str(folder / "my wheels"), str(source)], check=True)
    shutil.copytree(checkout, folder / "repository")
    author = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    for words in (["init", "--quiet"], ["add", "."], [*author, "commit", "--quiet", "--message", "first"]):
        subprocess.run(["git", *words], cwd=folder / "repository", check=True)
    return folder


@pytest.mark.long
@pytest.mark.parametrize(
    "source",
    [
        "'{folder}/my checkout'",
        "--editable '{folder}/my checkout'",
        "'{folder}/my wheels/forerank-0.1.0-py3-none-any.whl'",
        "git+https://git.example.org/repository",
        "git+file://{folder}/repository",
        "--find-links '{folder}/my wheels' forerank",  # as from an index: by name
    ],
)
def test_the_command_that_is_printed_works(source: str, project: Path, tmp_path: Path) -> None:
    """In a real environment with a space in its name: install, ask for the command, run it as it stands."""
    python = tmp_path / "my environment" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", str(python.parent.parent)], check=True)
    (site_packages,) = python.parent.parent.glob("lib/python*/site-packages")
    (site_packages / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")  # hatchling
    # Options of pip that stand for what an index offers; the command itself stays as it was printed.
    options = (
        f"--quiet --no-index --no-build-isolation --find-links {shlex.quote(str(project / 'my wheels'))}"
    )

    def run(line: str) -> str:
        variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        variables |= {  # git finds the host's repositories in the folder
            "GIT_CONFIG_COUNT": "1",
            "GIT_CONFIG_KEY_0": f"url.file://{project}/.insteadOf",
            "GIT_CONFIG_VALUE_0": "https://git.example.org/",
        }
        done = subprocess.run(line, shell=True, cwd=tmp_path, env=variables, capture_output=True, text=True)
        assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
        return done.stdout.strip()

    run(f"'{python}' -m pip install {options} {source.format(folder=project)}")
    command = run(f"'{python}' -c \"from forerank.errors import install_command as c; print(c('budget'))\"")
    assert not list(site_packages.glob("small_part"))
    run(f"{command} {options}")
    assert list(site_packages.glob("small_part")), command
    again = run(f"'{python}' -c \"from forerank.errors import install_command as c; print(c('budget'))\"")
    assert again == command  # it came from the same place


def test_nothing_is_suggested_where_nothing_is_near() -> None:
    assert nearest("zzzz", ["alpha", "temperature"]) is None
    assert "did you mean" not in str(unknown("key", "zzzz", ["alpha"]))


def test_the_beginning_of_a_name_is_near_enough() -> None:
    assert nearest("divid", ["mic", "divide-and-conquer"]) == "divide-and-conquer"
    assert nearest("di", ["mic", "divide-and-conquer"]) is None


def test_input_errors_are_value_errors() -> None:
    assert issubclass(InputError, ValueError)
    assert InputError.exit_code == 2
