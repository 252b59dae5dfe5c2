"""Features that were computed before, found again by the image files and by what computed them."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from forerank.data.cache import cache_folder
from forerank.files import DamagedFileError, load_tensors

if TYPE_CHECKING:
    from torch import Tensor

    from forerank.models.embedding import EmbeddingModel


def features_folder(model: "EmbeddingModel", engine: str, precision: str) -> Path:
    """Where the features below a model's head are kept, as one engine computes them in one precision."""
    from forerank.models.identity import model_identity

    return cache_folder() / "features" / f"{model_identity(model, head=False)}-{engine}-{precision}"


def image_states(files: Sequence[Path]) -> NDArray[np.uint8]:
    """(N, 16): for each file a hash of its place, size, time and inode; its content is not read.

    The time at which the inode was changed (st_ctime) is left out. It would show new bytes under an old time,
    but it also moves with every hard link (`cp -al`, a backup), every renaming and every change of rights,
    and hours of computing would be thrown away with it. `forerank index --rehash` is there for such files.
    """
    states = np.zeros((len(files), 16), dtype=np.uint8)
    for row, file in enumerate(files):
        try:
            about = file.stat()
        except OSError:
            continue  # zeros: never found again
        told = f"{file.resolve()}\0{about.st_size}\0{about.st_mtime_ns}\0{about.st_ino}"
        digest = hashlib.blake2b(told.encode("utf-8", "surrogateescape"), digest_size=16).digest()
        states[row] = np.frombuffer(digest, dtype=np.uint8)
    return states


def find_features(folder: Path, files: Sequence[Path]) -> "dict[int, Tensor]":
    """Position in `files` -> features (C,), for the files whose features lie in a folder of the cache.

    The features are mapped from the disk: they take memory only when they are read.
    """
    wanted = {state.tobytes(): position for position, state in enumerate(image_states(files))}
    wanted.pop(bytes(16), None)
    cached: dict[int, Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        try:
            stored, _ = load_tensors(file)
        except (OSError, DamagedFileError):  # it is computed again
            continue
        for state, features in zip(stored["states"].numpy(), stored["features"], strict=True):
            position = wanted.get(state.tobytes())
            if position is not None:
                cached[position] = features
    return cached
