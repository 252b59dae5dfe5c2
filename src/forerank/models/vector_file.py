"""Pictures from files to a file of vectors, part by part: nothing is held whole, a killed run continues.

A part is a few batches. Its vectors and names lie in the folder NAME.parts beside the output until all parts
are there; then they become the output, and the folder goes. Several processes take turns with the parts. A
part that was damaged meanwhile does not fit its checksum and is embedded again.
"""

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np

from forerank import sharing
from forerank.console import is_text, progress_bar
from forerank.data.sources import Picture, open_pictures
from forerank.errors import InputError
from forerank.files import (
    DamagedFileError,
    file_checksum,
    json_with_checksum,
    only_writer,
    read_json_with_checksum,
    write_atomically,
    write_vectors,
)
from forerank.models.retriever import Retriever

BATCHES = 4  # of a part
LOCK = "LOCK"


def embed_files(
    retriever: Callable[[], Retriever], images: Sequence[str | Path], output: Path, *, on_bad: str = "refuse"
) -> tuple[tuple[int, int], list[str]]:
    """Vectors (N, D) of the pictures of some sources, as `output`.npy with their names as .txt.

    After a kill the same call continues. The processes of a run that `torchrun` started share the parts; the
    result is the same bit for bit, because a part is cut the same way for any number of them.

    Args:
        retriever: called once the pictures are found and the output can be written, so that a wrong path is
            refused before a model is loaded.
        images: folders, images, CSV tables with a column `path`, tar shards, addresses such as s3://...

    Returns:
        The shape of what was written, and the pictures left out under `on_bad="skip"`.
    """
    if output.suffix != ".npy":
        raise InputError(f"the output should end in .npy, not {output.name!r}")
    if not output.resolve().parent.is_dir():
        raise InputError(f"no folder {output.resolve().parent} to write {output.name} into")
    pictures = chain.from_iterable([open_pictures(source) for source in images])
    model = retriever()
    made_with = _made_with(model)
    sharing.refuse_differences(made_with)
    folder = output.with_suffix(".parts")
    with ExitStack() as held:
        if sharing.rank() == 0:
            held.enter_context(only_writer(folder / LOCK, output))
            _begin(folder, made_with)
        sharing.exchange(None)  # the folder is there for everybody
        parts, left_out = 0, list[str]()
        with progress_bar("embedding", None) as advance:
            for number, part in enumerate(_parts(pictures, BATCHES * model.batch_size)):
                parts = number + 1
                if number % sharing.count() == sharing.rank():
                    _embed_part(model, folder / f"{number:08d}", part, on_bad)
                    advance(len(part))
        sharing.exchange(None)  # every part is there
        shape = (0, model.dim)
        if sharing.rank() == 0:
            shape, left_out = _join(folder, parts, output, model.dim)
    sharing.exchange(None)
    return shape, left_out


def _made_with(model: Retriever) -> dict[str, str | int]:
    """Everything that decides the bits of a vector: only parts with the same can become one file."""
    with sharing.first_of_machine_first():
        network = model.network
    return {
        "model": model.identity,
        "engine": network.engine,
        "precision": network.precision,
        "batch_size": model.batch_size,
    }


def _begin(folder: Path, made_with: dict[str, str | int]) -> None:
    """Keep the parts that an earlier run of the same model has left; parts of another one are removed."""
    state, text = folder / "model.json", json.dumps(made_with) + "\n"
    if not (state.is_file() and state.read_text(errors="replace") == text):
        for file in folder.iterdir():
            if file.name != LOCK:
                file.unlink()
    write_atomically(state, text)


def _parts(pictures: Iterator[Picture], size: int) -> Iterator[list[Picture]]:
    while part := list(islice(pictures, size)):
        yield part


def _embed_part(model: Retriever, place: Path, part: Sequence[Picture], on_bad: str) -> None:
    """Write the vectors of a part, unless an earlier run has written those of the same names."""
    names = [picture.name for picture in part]
    if (earlier := _whole_part(place)) is not None and earlier["all"] == names:
        return
    named = [picture for picture in part if is_text(picture.name)]
    if len(named) < len(part) and on_bad == "refuse":
        nameless = next(name for name in names if not is_text(name))
        raise InputError(f"{nameless}: the name is not UTF-8: rename the file, or leave it out (skip)")
    vectors = model.embed(named, progress=False, on_bad=on_bad)
    good = ~np.isnan(vectors[:, 0])
    kept = [picture.name for picture, fine in zip(named, good, strict=True) if fine]
    vectors_file = place.with_suffix(".npy")
    write_vectors(vectors_file, (int(good.sum()), model.dim), [vectors[good]])
    about = {"all": names, "kept": kept, "vectors": file_checksum(vectors_file)}
    write_atomically(place.with_suffix(".json"), json_with_checksum(about))


def _whole_part(place: Path) -> dict[str, Any] | None:
    """Names of a part whose two files are there and undamaged; None for any other."""
    try:
        about = read_json_with_checksum(place.with_suffix(".json"))
        return about if about["vectors"] == file_checksum(place.with_suffix(".npy")) else None
    except (FileNotFoundError, DamagedFileError):
        return None


def _join(folder: Path, parts: int, output: Path, dim: int) -> tuple[tuple[int, int], list[str]]:
    """Turn all parts into the output; the shape, and the names that were left out."""
    places = [folder / f"{number:08d}" for number in range(parts)]
    left_out, count = list[str](), 0
    for place in places:
        names = _whole_part(place)
        if names is None:
            raise InputError(f"{place}.npy is damaged: give the same command again to embed that part again.")
        count += len(names["kept"])
        kept = set(names["kept"])
        left_out += [name for name in names["all"] if name not in kept]

    def write_names(file: Path) -> None:
        with file.open("w", encoding="utf-8") as lines:
            for place in places:
                kept = read_json_with_checksum(place.with_suffix(".json"))["kept"]
                lines.writelines(f"{name}\n" for name in kept)

    write_vectors(output, (count, dim), (np.load(place.with_suffix(".npy")) for place in places))
    write_atomically(output.with_suffix(".txt"), write_names)
    shutil.rmtree(folder)
    return (count, dim), left_out
