"""Add some images to an index: written durably, and found by searches when this returns."""

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np

from forerank.errors import ForerankError, InputError
from forerank.files import write_atomically
from forerank.search.engine import Meta, Vectors, open_engine
from forerank.search.images import Images
from forerank.search.index import Index
from forerank.search.rows import Row, hash_bytes

# Name of a Pillow format -> how its files are called.
SUFFIXES = {
    "JPEG": ".jpg",
    "PNG": ".png",
    "WEBP": ".webp",
    "GIF": ".gif",
    "BMP": ".bmp",
    "TIFF": ".tif",
    "HEIF": ".heic",
}
LONGEST_NAME = 200  # bytes of one folder's name; file systems take 255


@dataclass(frozen=True)
class NewImage:
    """An image to be added: its bytes, what is known of it, and its vector (D,)."""

    path: str  # where it is to lie below the image root
    data: bytes
    label: str
    columns: dict[str, str]
    vector: Vectors


def place_of(data: bytes, label: str, kind: str) -> str:
    """Where an image is to lie: in the folder of its label, under the name of its content.

    So the same image with the same label is the same file, and a folder that is indexed again has the same
    labels.

    >>> place_of(b"", "red star", "PNG")
    'red star/cae66941d9efbd404e4d88758ea67670.png'
    """
    if kind not in SUFFIXES:
        raise InputError(f"images of the kind {kind} cannot be added: send {', '.join(SUFFIXES)}.")
    parts = label.split("/") if label else []
    for part in parts:
        hidden, unclean = part.startswith("."), "\\" in part or not part.isprintable() or part != part.strip()
        if not part or hidden or unclean or len(part.encode()) > LONGEST_NAME:
            raise InputError(f"the label {label[:60]!r} cannot be the name of a folder: choose another one.")
    return str(PurePosixPath(*parts, hash_bytes(data) + SUFFIXES[kind]))


def add_images(index: Index, images: Sequence[NewImage]) -> None:
    """Write the files and make the index hold their rows as well; the vectors come from the index's model.

    When this returns everything is on the disk. The ids of the rows that were there do not change. The whole
    index is written again: add many images at once where it is large.
    """
    if index.meta.get("streamed"):
        raise InputError(
            f"the images of {index.engine.address} lie in shards or at an address: add new ones there and "
            "index them again."
        )
    rows: dict[str, Row] = {}
    vectors: dict[str, Vectors] = {}
    for image in images:
        row = Row(image.path, image.label, hash_bytes(image.data), len(image.data), 0, columns=image.columns)
        file = index.file(row)
        write_atomically(file, image.data)
        state = file.stat()
        rows[row.path] = Row(
            row.path, row.label, row.content, row.size, state.st_mtime_ns, columns=row.columns
        )
        vectors[row.content] = image.vector
    engine = open_engine(index.engine.address)  # its own: the one that answers searches stays as it is
    try:
        old = engine.meta()
        identity = index.meta["model"]["fingerprint"]
        if old is None or old["model"]["fingerprint"] != identity:
            raise ForerankError("the index was just rebuilt with another model: send the image again.")
        approximate = bool(old.get("approximate")) if engine.abilities.approximate else None
        with engine.update(index.dim, identity, approximate) as update:
            # Inside: nobody else writes now, and what others wrote before is seen.
            model, before = engine.model_folder(), list(engine.all_rows())
            merged = [rows.pop(row.path, row) for row in before]
            merged += rows.values()
            stored = update.stored([*vectors, *(row.content for row in before)])
            if any(row.content not in stored and row.content not in vectors for row in before):
                raise InputError(f"{engine.address} is damaged: see forerank verify {engine.address}.")
            new = [c for c in vectors if c not in stored]
            by_content = {row.content: row for row in merged}
            if new:
                update.put([by_content[c] for c in new], np.stack([vectors[c] for c in new]))
            meta = _meta_with(engine.meta() or old, merged, [image.path for image in images])
            update.complete(merged, meta, None if model is None else lambda folder: _link_tree(model, folder))
    finally:
        engine.close()


def _meta_with(meta: Meta, rows: Sequence[Row], added: Sequence[str]) -> Meta:
    return {
        **meta,
        "labelled": any(row.label for row in rows),
        "columns": sorted({name for row in rows for name in row.columns}),
        "added": sorted({*meta.get("added", ()), *added}),
    }


def _link_tree(source: Path, target: Path) -> None:
    """The same files in another folder: those of a generation never change, so nothing is copied."""
    shutil.copytree(source, target, copy_function=os.link)


def with_added_images(wanted: Images, old: Meta | None, rows: Sequence[Row]) -> Images:
    """What an index is to hold when it is built again: also the images that were added to it.

    They stay until their files are deleted. What the source says of one of them counts; where it says
    nothing beyond the label, the columns that came with the image are kept.
    """
    added = set(old.get("added", ())) if old is not None and old.get("root") == str(wanted.root) else set()
    if not added:
        return wanted
    place = {path: i for i, path in enumerate(wanted.paths)}
    paths, labels, columns = list(wanted.paths), list(wanted.labels), list(wanted.columns)
    for row in rows:
        if row.path not in added:
            continue
        if row.path not in place and (wanted.root / row.path).is_file():
            paths.append(row.path)
            labels.append(row.label)
            columns.append(dict(row.columns))
        elif row.path in place and not columns[place[row.path]]:
            columns[place[row.path]] = dict(row.columns)
    return Images(wanted.root, paths, labels, columns)
