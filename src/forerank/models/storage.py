"""Models on disk: `model.safetensors` (weights, and in its header how to build the model) and `model.json`.

The header makes the weights file whole by itself, so one rename puts a new model in place of an old one; the
JSON beside it says the same to people and other programs.
"""

import json
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forerank import __version__
from forerank.console import say
from forerank.errors import InputError
from forerank.files import checksum_metadata, load_tensors, write_atomically

if TYPE_CHECKING:
    from forerank.models.embedding import EmbeddingModel

FORMAT, VERSION = "forerank-model", 1
# Where a run keeps the model that was trained once more, on all classes.
REFIT = "refit"


def save_model(model: "EmbeddingModel", folder: str | Path) -> None:
    """Write a model to a folder, atomically."""
    from safetensors.torch import save

    folder = Path(folder)
    about = {"format": FORMAT, "version": VERSION, "forerank": __version__, **model.spec}
    weights = {key: value.detach().cpu().contiguous() for key, value in model.state_dict().items()}
    content = save(weights, metadata=checksum_metadata(weights, {FORMAT: json.dumps(about)}))
    write_atomically(folder / "model.json", json.dumps(about, indent=2))
    write_atomically(folder / "model.safetensors", content)


def saved_folder(name: str) -> Path | None:
    """The folder of the saved model that a name points to: itself, or a run folder's `best`; else None."""
    folder = Path(name).expanduser()
    for place in (folder, folder / "best"):
        if (place / "model.safetensors").is_file() and (place / "model.json").is_file():
            return place
    return None


def shipped_model(name: str) -> str:
    """The model to use of a run: the one trained on all classes if it is finished, else the run's own.

    >>> shipped_model("efficientnet-lite0")
    'efficientnet-lite0'
    """
    refit = Path(name).expanduser() / REFIT
    finished = (refit / "results.json").is_file() and saved_folder(str(refit)) is not None
    return str(refit) if finished else name


def model_to_use(name: str, *, measured: bool) -> str:
    """The measured model of a run, or that of `shipped_model`; a message says so if it is another one."""
    chosen = name if measured else shipped_model(name)
    if chosen != name:
        say(f"the model is {chosen}, trained on all classes; --measured takes the one that was measured")
    return chosen


def load_model(folder: str | Path) -> "EmbeddingModel":
    """The model in a folder (or in a run folder's `best`), in evaluation mode, on the CPU; asks no network.

    Raises:
        InputError: no model there, or a file that is damaged, foreign or of a newer format.
    """
    from forerank.models.backbones import load_weights
    from forerank.models.embedding import build_from_spec

    place = saved_folder(str(folder))
    if place is None:
        raise InputError(
            f"no saved model in {folder}: expected model.safetensors and model.json there (or in best/)"
        )
    file = place / "model.safetensors"
    about = _about(file)
    weights, _ = load_tensors(file)
    try:
        model = build_from_spec(about)
    except (KeyError, TypeError) as error:
        raise InputError(f"{file} does not describe a complete model: {error}") from error
    load_weights(model, weights, str(file))
    return model.eval()


def saved_spec(folder: str | Path) -> dict[str, Any]:
    """What a saved model is, as `EmbeddingModel.spec` says it, without reading its weights.

    >>> import tempfile; from forerank.models import create_model
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_model(create_model("glyphnet", embedding_dim=8, pooling="gem"), folder)
    ...     saved_spec(folder)["pooling"]
    'gem'
    """
    place = saved_folder(str(folder))
    if place is None:
        raise InputError(f"no saved model in {folder}")
    return _about(place / "model.safetensors")


def _about(file: Path) -> dict[str, Any]:
    """What a weights file says of itself in its header."""
    try:
        with file.open("rb") as handle:
            (length,) = struct.unpack("<Q", handle.read(8))
            header = json.loads(handle.read(length)) if length < 100_000_000 else {}
        about = json.loads(header["__metadata__"][FORMAT])
    except KeyError:
        raise InputError(
            f"{file} is not a model of ours: for bare weights use timm:NAME@{file.name}"
        ) from None
    except (OSError, ValueError, struct.error, TypeError) as error:
        raise InputError(f"{file} is damaged or not a safetensors file ({error})") from error
    if about.get("version") != VERSION:
        raise InputError(
            f"{file} has model format {about.get('version')}, and this forerank reads {VERSION}: upgrade it"
        )
    return {key: value for key, value in about.items() if key not in ("format", "version", "forerank")}
