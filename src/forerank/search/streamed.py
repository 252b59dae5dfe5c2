"""Index pictures that come as a stream: tar shards, or addresses that fsspec opens.

A part is read, hashed, embedded and stored before the next one; the rows wait in a temporary file. So memory
does not grow with the number of pictures, and each is read once.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import numpy as np

from forerank import sharing
from forerank.console import is_text, progress_bar
from forerank.data import BadImageError
from forerank.data.decode import bad_image_if_it_fails
from forerank.data.sources import Picture, is_stream, open_pictures, remote
from forerank.data.threads import map_in_threads
from forerank.errors import InputError
from forerank.search.build_job import Job, reason
from forerank.search.engine import Update
from forerank.search.rows import Row, hash_bytes
from forerank.search.rows_on_disk import RowsOnDisk, rows_on_disk

BLOCK = 4096  # rows that processes exchange at once


@dataclass(frozen=True)
class PictureStream:
    """Pictures one after the other, and where the paths of their rows start from."""

    root: str
    pictures: Iterator[Picture]


def open_stream(source: str | Path, split: str = "all") -> PictureStream | None:
    """A source as a stream; None where it is no shard and no address.

    >>> open_stream("photos") is None
    True
    """
    if not is_stream(source):
        return None
    if split != "all":
        raise InputError(f"{source} is not divided into parts: leave out --split.")
    if "://" in str(source):
        return PictureStream(remote.folder_of(str(source)), open_pictures(source))
    place = Path(source).expanduser().absolute()
    return PictureStream(str(place if place.is_dir() else place.parent), open_pictures(place))


def index_stream(job: Job, stream: PictureStream) -> None:
    """Make an index hold exactly the pictures of a stream."""
    report, meta = job.report, job.meta
    with rows_on_disk() as rows:
        if job.old is not None and not job.replace:
            rows.remember(job.engine.all_rows())
        with job.update() as update:
            with progress_bar("embedding", None) as advance:
                for number, part in enumerate(_parts(stream.pictures, job.part)):
                    if number % sharing.count() == sharing.rank():
                        indexed = _index_part(job, update, stream.root, part, rows)
                        rows.add((number, row) for row in indexed)
                        advance(len(part))
            _gather(rows, job)
            counts = 0, 0
            if sharing.rank() == 0:
                rows.sort()
                meta |= {"root": stream.root, "streamed": True, "bad": {}}
                meta |= {"labelled": rows.labelled(), "columns": rows.column_names()}
                meta.pop("added", None)
                update.complete(rows, meta, job.save_model)
                counts = len(rows), rows.removed()
        # No process goes on before the index is complete.
        report.count, report.removed = sharing.exchange(counts)[0]


def _parts(pictures: Iterator[Picture], size: int) -> Iterator[list[Picture]]:
    while part := list(islice(pictures, size)):
        yield part


def _index_part(
    job: Job, update: Update, root: str, part: Sequence[Picture], before: RowsOnDisk
) -> list[Row]:
    """Store the vectors of a part that are not stored yet; the rows of its pictures."""
    paths = {picture.name: picture.name.removeprefix(root).lstrip("/") for picture in part}
    known = before.known([path for path in paths.values() if is_text(path)])

    def look(picture: Picture) -> tuple[Row, bytes | None] | str:
        path = paths[picture.name]
        texts = (path, picture.label, *picture.columns, *picture.columns.values())
        if not all(map(is_text, texts)):
            return "its name, its label or a column is not UTF-8"
        row = Row(path, picture.label, "", picture.size, picture.modified, columns=picture.columns)
        old = known.get(path)
        same = old is not None and (old.size, old.modified) == (row.size, row.modified)
        if old is not None and same and 0 <= row.modified < job.trusted_until:
            return replace(row, content=old.content), None
        try:
            with bad_image_if_it_fails(picture.name, "cannot be read"):
                data = _bytes(picture)
        except BadImageError as error:
            return error.reason
        return replace(row, content=hash_bytes(data)), data

    looked = list(map_in_threads(look, part, workers=8))
    rows = [outcome[0] for outcome in looked if not isinstance(outcome, str)]
    stored = update.stored_rows(rows)
    finished = job.old is None or job.old.get("complete", True)
    todo: dict[str, bytes] = {}  # content -> picture, of all that an uninterrupted run would embed
    kept: list[Row] = []
    for picture, outcome in zip(part, looked, strict=True):
        if isinstance(outcome, str):
            job.report.leave_out(paths[picture.name], outcome, job.on_bad)
            continue
        row, data = outcome
        kept.append(row)
        was = known.get(row.path)
        if finished and was is not None and was.content == row.content and row.content in stored:
            job.report.kept += 1
        else:
            job.report.resumed += row.content in stored
            todo[row.content] = _bytes(picture) if data is None else data
    bad = _embed(job, update, todo, kept, stored)
    for row in kept:
        if row.content in bad:
            job.report.leave_out(row.path, bad[row.content], job.on_bad)
    return [row for row in kept if row.content not in bad]


def _embed(
    job: Job, update: Update, todo: dict[str, bytes], rows: Sequence[Row], stored: set[str]
) -> dict[str, str]:
    """Embed a part, always in the same batches; content -> reason, for contents without a vector."""
    if not todo.keys() - stored:
        return {}
    vectors = job.retriever.embed(list(todo.values()), progress=False, on_bad="skip")
    finite = [bool(row.all()) for row in np.isfinite(vectors)]
    place = {content: i for i, content in enumerate(todo)}
    bad = {content: reason(todo[content]) for content, i in place.items() if not finite[i]}
    missing = [row for row in rows if row.content in place and row.content not in stored | bad.keys()]
    if missing:
        update.put(missing, vectors[[place[row.content] for row in missing]])
        job.report.embedded += len(missing)
    return bad


def _bytes(picture: Picture) -> bytes:
    data = picture.read()
    return data if isinstance(data, bytes) else data.read_bytes()


def _gather(rows: RowsOnDisk, job: Job) -> None:
    """Give the first process the rows of all of them, and every process the sums of what they did."""
    if sharing.count() == 1:
        return
    report, first = job.report, sharing.rank() == 0
    mine = iter(()) if first else rows.blocks(BLOCK)
    most = max(sharing.exchange(0 if first else math.ceil(len(rows) / BLOCK)))
    for _ in range(most):
        for share in sharing.gather(next(mine, [])):
            rows.add(share)
    reports = sharing.exchange(report)
    report.skipped = {path: why for each in reports for path, why in each.skipped.items()}
    report.embedded, report.kept, report.resumed = (
        sum(each.embedded for each in reports),
        sum(each.kept for each in reports),
        sum(each.resumed for each in reports),
    )
