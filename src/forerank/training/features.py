"""Features of the frozen backbone, computed once and kept: training a head then takes seconds, not hours."""

import hashlib
import json
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn

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


def feature_encoder(model: EmbeddingModel, precision: str, device: torch.device) -> Encode:
    """Images to pooled features (n, C) float32: by the fastest engine on a processor in fp32."""
    if precision == "fp32" and device.type == "cpu":
        key = model_identity(model, head=False)
        network = open_network(_FeaturesOf(model).eval(), model.preprocessing.shape, key, device=str(device))
        return lambda images: torch.from_numpy(network(images.cpu().numpy()))
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision)

    def encode(images: Tensor) -> Tensor:
        with torch.autocast(device.type, dtype=dtype or torch.bfloat16, enabled=dtype is not None):
            return model.features(channels_last(images)).float()

    return encode


def features_engine(precision: str, device: torch.device) -> str:
    """The engine that `feature_encoder` takes."""
    return choose_engine("auto", device.type) if precision == "fp32" else "torch"


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


def features_file(model: EmbeddingModel, recipe: Recipe, table: Table, device: torch.device) -> Path:
    """Where the features of a table by one network are kept."""
    folder = features_folder(model, features_engine(recipe.precision, device), recipe.precision)
    return folder / f"{features_key(model, recipe.precision, table)}.safetensors"


def _features_of_one(
    model: EmbeddingModel, part: Part, recipe: Recipe, processes: Processes
) -> tuple[Tensor, Table]:
    """The features of a part by one network."""
    file = features_file(model, recipe, part.table, processes.device)
    features = _read(file, part.table) or _known_from_other_runs(file.parent, part.table)
    if features is None:
        if processes.first:
            where = f"kept in {file.parent} for other runs"
            of = f"by {model.spec['backbone']}"
            say(f"computing features of {len(part.table):,} {part.title} images {of}, {where}")
        small = model.preprocessing.resize <= SMALL_IMAGES
        images = image_part(part.table, model.preprocessing, recipe, part.title, cache=small)
        encoder = feature_encoder(model, recipe.precision, processes.device)
        embedded = embed(encoder, images, recipe, processes, title="features of")
        features = torch.from_numpy(embedded.vectors), embedded.table
        if processes.first:
            _write(file, embedded, part.table)
    wait_for_all(processes)
    return features


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


def _write(file: Path, embedded: Embedded, table: Table) -> None:
    """Keep the features; without room for them the run goes on without."""
    readable = np.isin(table.path, embedded.table.path)
    # A box cuts a part out of the file: such features are not those of the whole image.
    whole = table.box is None
    states = image_states(embedded.table.files) if whole else np.zeros((len(embedded.table), 16), np.uint8)
    tensors = {
        "states": torch.from_numpy(states),
        "features": torch.from_numpy(embedded.vectors),
        "readable": torch.from_numpy(readable.astype(np.uint8)),
    }
    try:
        write_atomically(file, lambda fresh: save_file(tensors, fresh, checksum_metadata(tensors)))
    except (OSError, SafetensorError) as error:
        say(f"features are not kept for the next run: {error}")
