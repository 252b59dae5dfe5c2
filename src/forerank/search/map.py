"""The whole collection as a map: every image has a place in a plane, near images near each other."""

import io
import struct
import zipfile
import zlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from forerank.console import progress_bar
from forerank.errors import InputError
from forerank.files import write_atomically
from forerank.search.engine import Filter, Ids, Vectors
from forerank.search.exact import top_k
from forerank.search.index import Index

BLOCK = 1024
PAGE = 8192
EXACT = 20_000  # images up to which neighbours are compared in all dimensions
NARROW = 64  # dimensions beyond that


@dataclass(frozen=True)
class Map:
    """Places of images: `ids` (M,), `positions` (M, 2) between 0 and 1, and a label code for each."""

    ids: npt.NDArray[np.int64]
    positions: npt.NDArray[np.float32]
    labels: npt.NDArray[np.uint32]  # (M,) places in `names`
    names: tuple[str, ...]
    missing: int  # images of the index that came after the map was made


# What a damaged .npz raises; RuntimeError: it claims to be encrypted or packed by an unknown method.
UNREADABLE = (
    OSError,
    ValueError,
    KeyError,
    RuntimeError,
    EOFError,
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
)


def make_map(index: Index, *, seed: int = 0) -> int:
    """Compute the map of an index and store it beside it; how many images it shows.

    Places are kept by the content of the files, so a map stays useful when images are added, renamed or
    removed later; only new contents have no place until it is made again.
    """
    from forerank.metrics.layout import NEIGHBOURS, lay_out

    file = index.engine.map_file()
    if file is None:
        raise InputError(
            f"{index.engine.address} has no place for a map, which is kept with an index in a local folder: "
            "build one of the same images with forerank index."
        )
    contents, parts = dict[str, None](), []
    for rows, vectors in index.engine.scan():
        first = {row.content: i for i, row in reversed(list(enumerate(rows))) if row.content not in contents}
        new = sorted(first.values())  # a copy has the place of its original
        contents |= {rows[i].content: None for i in new}
        parts.append(np.asarray(vectors)[new])
    if not contents:
        raise InputError(f"{index.engine.address} is empty: there is nothing to draw a map of.")
    vectors = np.concatenate(parts)
    positions = lay_out(vectors, *_nearest(vectors, min(NEIGHBOURS, len(vectors))), seed=seed)
    packed = io.BytesIO()
    np.savez(
        packed,
        contents=np.array(list(contents), "S32"),
        positions=positions,
        model=np.array(index.meta["model"]["fingerprint"]),
    )
    write_atomically(file, packed.getvalue())
    return len(positions)


def read_map(index: Index) -> Map | None:
    """The stored map, for the rows that the index has now; None where there is none for its model."""
    file = index.engine.map_file()
    if file is None or not file.exists():
        return None
    try:
        with np.load(file, allow_pickle=False) as stored:
            if str(stored["model"]) != index.meta["model"]["fingerprint"]:
                return None  # another model puts images elsewhere
            places = {content: i for i, content in enumerate(stored["contents"].astype(str).tolist())}
            positions = stored["positions"]
    except UNREADABLE as error:
        raise InputError(f"{file} is damaged ({error}): make it again with forerank map.") from error
    codes: dict[str, int] = {}
    ids, where, labels, missing = list[int](), list[int](), list[int](), 0
    for row in index.engine.all_rows():
        place = places.get(row.content)
        if place is None:
            missing += 1
            continue
        ids.append(row.id)
        where.append(place)
        labels.append(codes.setdefault(row.label, len(codes)))
    return Map(
        np.array(ids, np.int64),
        np.asarray(positions, np.float32)[np.array(where, np.int64)],
        np.array(labels, np.uint32),
        tuple(codes),
        missing,
    )


def accepted_points(index: Index, made: Map, where: Filter) -> npt.NDArray[np.bool_]:
    """Which points of a map a filter accepts (M,)."""
    accepted, after = list[int](), -1
    while rows := index.engine.page(after, PAGE, where):
        accepted += [row.id for row in rows]
        after = rows[-1].id
    return np.isin(made.ids, np.array(accepted, np.int64))


def _nearest(vectors: Vectors, k: int) -> tuple[Ids, Vectors]:
    """The k nearest (N, k) of every vector, itself among them, and their similarities."""
    searched = vectors
    if len(vectors) > EXACT and vectors.shape[1] > NARROW:
        # A hundred thousand images against each other: in fewer dimensions, as maps usually are.
        centred = vectors - vectors.mean(axis=0)
        axes = np.linalg.eigh(centred.T @ centred)[1][:, -NARROW:]
        searched = np.ascontiguousarray(centred @ axes, dtype=np.float32)
        searched /= np.maximum(np.linalg.norm(searched, axis=1, keepdims=True), 1e-12)
    nearest = np.empty((len(vectors), k), np.int64)
    similarities = np.empty((len(vectors), k), np.float32)
    with progress_bar("comparing", len(vectors)) as advance:
        for start in range(0, len(vectors), BLOCK):
            part = slice(start, start + BLOCK)
            nearest[part], similarities[part] = top_k(searched[part], searched, k)
            advance(len(nearest[part]))
    return nearest, similarities
