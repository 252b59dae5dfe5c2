"""Features of the frozen backbone, computed once and kept: training a head then takes seconds, not hours."""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn

from forerank import sharing
from forerank.console import say
from forerank.data import Table
from forerank.errors import InputError
from forerank.files import DamagedFileError, checksum_metadata, load_tensors, write_atomically
from forerank.models import EmbeddingModel
from forerank.models.embedding import channels_last
from forerank.models.feature_cache import features_folder, find_features, image_states
from forerank.models.identity import model_identity
from forerank.models.inference import choose_engine, open_network
from forerank.models.pooling import join_features
from forerank.training.batches import SMALL_IMAGES
from forerank.training.measure import Embedded, Encode, Part, embed, image_part
from forerank.training.processes import Processes, wait_for_all
from forerank.training.recipe import Recipe


def features_key(model: EmbeddingModel, precision: str, table: Table) -> str:
    """A name that changes when the weights below the head, the preprocessing or any image file changes."""
    about = [precision, model.spec["pooling"], model.preprocessing.to_dict()]
    digest = hashlib.sha256(json.dumps(about, sort_keys=True).encode())
    for name, tensor in model.state_dict().items():
        if name.startswith(("head.", "layer_norm.")):
            continue
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    hash_files(digest, table)
    return digest.hexdigest()[:32]


def hash_files(digest: "hashlib._Hash", table: Table) -> None:
    """Add to a digest which files a table names and in which state they are, without reading them."""
    digest.update(f"{table.root.resolve()}\n".encode("utf-8", "surrogateescape"))
    for relative, file in zip(table.path, table.files, strict=True):
        about = file.stat() if file.exists() else None
        state = (about.st_size, about.st_mtime_ns, about.st_ino) if about else None
        digest.update(f"{relative}\0{state}\n".encode("utf-8", "surrogateescape"))
    if table.box is not None:
        digest.update(np.ascontiguousarray(table.box).tobytes())


class _FeaturesOf(nn.Module):
    """The part of a model below its head: images to pooled features (N, C)."""

    def __init__(self, model: EmbeddingModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        return self.model.features(images)


@dataclass(frozen=True)
class FeatureEncoder:
    """Images to pooled features (n, C) float32, and what really computes them."""

    engine: str
    precision: str
    encode: Encode

    def __call__(self, images: Tensor) -> Tensor:
        return self.encode(images)


def feature_encoder(model: EmbeddingModel, precision: str, device: torch.device) -> FeatureEncoder:
    """What computes the features of a model: the fastest engine on a processor in fp32, otherwise torch."""
    if precision == "fp32" and device.type == "cpu":
        key = model_identity(model, head=False)
        network = open_network(_FeaturesOf(model).eval(), model.preprocessing.shape, key, device=str(device))
        return FeatureEncoder(
            network.engine,
            network.precision,
            lambda images: torch.from_numpy(network(images.cpu().numpy())),
        )
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision)

    def encode(images: Tensor) -> Tensor:
        with torch.autocast(device.type, dtype=dtype or torch.bfloat16, enabled=dtype is not None):
            return model.features(channels_last(images)).float()

    return FeatureEncoder("torch", precision, encode)


def part_features(
    model: EmbeddingModel, part: Part, recipe: Recipe, processes: Processes
) -> tuple[Tensor, Table]:
    """Pooled features (n, C) of a part and the table of its readable rows, from the cache if possible.

    Networks that stand side by side have their features in the cache each by itself, so that another
    combination of them computes nothing again.
    """
    known = [_features_of_one(single, part, recipe, processes) for single in model.single_models()]
    features, tables = zip(*known, strict=True)
    if len({len(table) for table in tables}) > 1:
        raise InputError(f"some {part.title} images could be read only at times: check the files, try again")
    return (features[0] if len(features) == 1 else join_features(features)), tables[0]


def _folders(model: EmbeddingModel, precision: str, device: torch.device) -> Iterator[Path]:
    """Where features of a model may be found: those of the engine that is expected, then those of torch.

    Only opening the network tells whether that engine can run it. Where it cannot, torch has computed the
    features, and they lie under its name.
    """
    expected = choose_engine("auto", device.type) if precision == "fp32" else "torch"
    for engine in dict.fromkeys((expected, "torch")):
        yield features_folder(model, engine, precision)


def features_file(model: EmbeddingModel, recipe: Recipe, table: Table, device: torch.device) -> Path:
    """Where the features of a table by one network are kept; if there are none, where they are expected."""
    name = f"{features_key(model, recipe.precision, table)}.safetensors"
    files = [folder / name for folder in _folders(model, recipe.precision, device)]
    return next((file for file in files if file.exists()), files[0])


def _features_of_one(
    model: EmbeddingModel, part: Part, recipe: Recipe, processes: Processes
) -> tuple[Tensor, Table]:
    """The features of a part by one network."""
    features = _kept(model, part.table, recipe, processes.device)
    # On another machine the cache may hold less. Each process computes a share, so then all of them compute.
    found_by_all = all(sharing.exchange(features is not None))
    if features is None or not found_by_all:
        features = _compute(model, part, recipe, processes)
    wait_for_all(processes)
    return features


def _kept(
    model: EmbeddingModel, table: Table, recipe: Recipe, device: torch.device
) -> tuple[Tensor, Table] | None:
    """The features of a table from the cache: kept for this table, or for others that have its images."""
    features = _read(features_file(model, recipe, table, device), table)
    if features is not None:
        return features
    found = (_known_from_other_runs(place, table) for place in _folders(model, recipe.precision, device))
    return next((features for features in found if features is not None), None)


def _compute(model: EmbeddingModel, part: Part, recipe: Recipe, processes: Processes) -> tuple[Tensor, Table]:
    """Compute the features of a part, and keep them under the name of the engine that did it."""
    with sharing.first_of_machine_first():
        encoder = feature_encoder(model, recipe.precision, processes.device)
    sharing.refuse_differences({"engine": encoder.engine, "precision": encoder.precision})
    folder = features_folder(model, encoder.engine, encoder.precision)
    if processes.first:
        by = model.spec["backbone"]
        say(
            f"computing features of {len(part.table):,} {part.title} images by {by}, "
            f"kept in {folder} for other runs"
        )
    # Before anything is read, and before the key: a file that is replaced from now on shows it afterwards.
    before = image_states(part.table.files)
    key = features_key(model, recipe.precision, part.table)
    small = model.preprocessing.resize <= SMALL_IMAGES
    images = image_part(part.table, model.preprocessing, recipe, part.title, cache=small)
    embedded = embed(encoder, images, recipe, processes, title="features of")
    if processes.first:
        _write(folder, key, embedded, part.table, before)
    return torch.from_numpy(embedded.vectors), embedded.table


def _known_from_other_runs(folder: Path, table: Table) -> tuple[Tensor, Table] | None:
    """The features of a table whose images other tables had already, such as its parts."""
    if table.box is not None:  # a part of an image has other features than the file
        return None
    known = find_features(folder, table.files)
    if len(known) < len(table):
        return None
    return torch.stack([known[row] for row in range(len(table))]), table


def _read(file: Path, table: Table) -> tuple[Tensor, Table] | None:
    try:
        stored, _ = load_tensors(file)
    except (OSError, DamagedFileError):  # it is computed again
        return None
    readable = stored["readable"].numpy().astype(bool)
    return stored["features"], table if readable.all() else table.where(readable)


def _write(folder: Path, key: str, embedded: Embedded, table: Table, before: NDArray[np.uint8]) -> None:
    """Keep the features; without room for them the run goes on without.

    Args:
        before: the states (N, 16) of the table's files before they were read.
    """
    unchanged = (before == image_states(table.files)).all(axis=1)
    # A box cuts a part out of the file: such features are not those of the whole image.
    whole = table.box is None
    if not unchanged.all():
        say(f"the features of {(~unchanged).sum():,} images are not kept: the files were just changed")
        if not whole:
            return
        # Nobody knows which bytes of them were read. No table is called like this, so only single images are
        # found here, and the changed ones have no state to be found by.
        key = f"{key}-without-changed"
    readable = np.isin(table.path, embedded.table.path)
    tensors = {
        "states": torch.from_numpy(np.where(unchanged[:, None] & whole, before, np.uint8(0))[readable]),
        "features": torch.from_numpy(embedded.vectors),
        "readable": torch.from_numpy(readable.astype(np.uint8)),
    }
    try:
        file = folder / f"{key}.safetensors"
        write_atomically(file, lambda fresh: save_file(tensors, fresh, checksum_metadata(tensors)))
    except (OSError, SafetensorError) as error:
        say(f"features are not kept for the next run: {error}")
