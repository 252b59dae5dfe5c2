"""Pictures from files to a file of vectors, part by part: nothing is held whole, a killed run continues.

A part is a few batches. Its vectors and names lie in the folder NAME.parts beside the output until all parts
are there; then they become the output, and the folder goes. Several processes take turns with the parts.
"""

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from itertools import chain, islice
from pathlib import Path

import numpy as np

from forerank import sharing
from forerank.console import is_text, progress_bar
from forerank.data.sources import Picture, open_pictures
from forerank.errors import InputError
from forerank.files import only_writer, write_atomically, write_vectors
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
    folder = output.with_suffix(".parts")
    with ExitStack() as held:
        if sharing.rank() == 0:
            held.enter_context(only_writer(folder / LOCK, output))
            _begin(folder, model)
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


def _begin(folder: Path, model: Retriever) -> None:
    """Keep the parts that an earlier run of the same model has left; parts of another one are removed."""
    network = model.network
    made_with = {
        "model": model.identity,
        "engine": network.engine,
        "precision": network.precision,
        "batch_size": model.batch_size,
    }
    state = folder / "model.json"
    if not (state.is_file() and json.loads(state.read_text()) == made_with):
        for file in folder.iterdir():
            if file.name != LOCK:
                file.unlink()
    write_atomically(state, json.dumps(made_with) + "\n")


def _parts(pictures: Iterator[Picture], size: int) -> Iterator[list[Picture]]:
    while part := list(islice(pictures, size)):
        yield part


def _embed_part(model: Retriever, place: Path, part: Sequence[Picture], on_bad: str) -> None:
    """Write the vectors of a part, unless an earlier run has written those of the same names."""
    names = [picture.name for picture in part]
    vectors_file, names_file = place.with_suffix(".npy"), place.with_suffix(".json")
    if vectors_file.is_file() and _read_names(names_file)["all"] == names:
        return
    named = [picture for picture in part if is_text(picture.name)]
    if len(named) < len(part) and on_bad == "refuse":
        nameless = next(name for name in names if not is_text(name))
        raise InputError(f"{nameless}: the name is not UTF-8: rename the file, or leave it out (skip)")
    vectors = model.embed(named, progress=False, on_bad=on_bad)
    good = ~np.isnan(vectors[:, 0])
    kept = [picture.name for picture, fine in zip(named, good, strict=True) if fine]
    vectors_file.unlink(missing_ok=True)
    write_atomically(names_file, json.dumps({"all": names, "kept": kept}))
    write_vectors(vectors_file, (int(good.sum()), model.dim), [vectors[good]])


def _read_names(file: Path) -> dict[str, list[str]]:
    names: dict[str, list[str]] = json.loads(file.read_text())
    return names


def _join(folder: Path, parts: int, output: Path, dim: int) -> tuple[tuple[int, int], list[str]]:
    """Turn all parts into the output; the shape, and the names that were left out."""
    places = [folder / f"{number:08d}" for number in range(parts)]
    left_out, count = list[str](), 0
    for place in places:
        names = _read_names(place.with_suffix(".json"))
        count += len(names["kept"])
        kept = set(names["kept"])
        left_out += [name for name in names["all"] if name not in kept]

    def write_names(file: Path) -> None:
        with file.open("w", encoding="utf-8") as lines:
            for place in places:
                lines.writelines(f"{name}\n" for name in _read_names(place.with_suffix(".json"))["kept"])

    write_vectors(output, (count, dim), (np.load(place.with_suffix(".npy")) for place in places))
    write_atomically(output.with_suffix(".txt"), write_names)
    shutil.rmtree(folder)
    return (count, dim), left_out
