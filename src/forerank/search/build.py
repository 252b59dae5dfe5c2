"""Bring an index up to date with a set of images: embed what is new, keep what is known, drop the rest."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from forerank import sharing
from forerank.console import is_text, progress, progress_bar, say
from forerank.data import Table
from forerank.data.threads import map_in_threads
from forerank.errors import InputError
from forerank.ranking.reranking import Averaging, read_reranking
from forerank.search.add import with_added_images
from forerank.search.engine import Update, open_engine
from forerank.search.images import Images, list_images
from forerank.search.model import refuse_other_model, split_identity, vectors_identity
from forerank.search.rows import Row, hash_bytes, hash_file, open_plain

if TYPE_CHECKING:
    from forerank.models import Retriever

# Images between two points from which a killed run goes on.
PART = 256
# A file changed this shortly before it was looked at may change again without its time showing it.
RACY_NANOSECONDS = 2_000_000_000
# Why a file is left out this time, but not because of what is in it.
GONE = "can no longer be read; run the command again"
CHANGED = "changed while it was being indexed; run the command again"
PASSING = (GONE, CHANGED)


@dataclass
class BuildReport:
    """What an update of an index did."""

    address: str
    count: int = 0
    embedded: int = 0  # images that went through the model in this run
    reused: int = 0  # images whose features training had computed
    resumed: int = 0  # images embedded by an earlier run that was killed
    kept: int = 0  # images whose bytes the index already knew
    removed: int = 0  # rows of the old index that are gone
    seconds: float = 0.0
    skipped: dict[str, str] = field(default_factory=dict)  # path -> why
    changed: bool = True
    approximate: dict[str, Any] | None = None

    def __str__(self) -> str:
        if not self.changed:
            return f"{self.address} is up to date: {self.count:,} images"
        rate = f", {self.embedded / self.seconds:.0f} images/s" if self.embedded and self.seconds else ""
        return (
            f"{self.address}: {self.count:,} images ({self.embedded:,} embedded, {self.reused:,} from the "
            f"features of a training, {self.resumed:,} taken over from an interrupted run, "
            f"{self.kept:,} kept, {self.removed:,} removed, {len(self.skipped):,} unreadable) "
            f"in {self.seconds:.1f} s{rate}"
        )


def build_index(
    model: "str | Path | Retriever",
    images: str | Path | Table,
    address: str | Path,
    *,
    split: str = "all",
    approximate: bool | None = None,
    replace: bool = False,
    rehash: bool = False,
    on_bad: str = "skip",
    precision: str = "fp32",
    rerank: str | None = None,
    part: int = PART,
) -> BuildReport:
    """Make the index at `address` hold exactly these images.

    Only contents that the index does not know are embedded. After an interruption the same call continues;
    until it is finished a local index stays as it was. The processes of a run that `torchrun` started share
    the images out, and the result is the same bit for bit.

    Args:
        model: a run or model folder, a backbone's name, or a `forerank.models.Retriever`.
        images: a folder, a CSV, a data set's name or a `Table`.
        address: a folder, or SCHEME:PLACE of another engine.
        split: which part of a data set: "train", "validation", "test" or "all".
        approximate: whether to have an approximate index, if the engine can; None: where it pays.
        replace: build everything again, with another model or where the old index is damaged.
        rehash: read every file again instead of trusting size and time of the unchanged ones.
        on_bad: "skip" leaves unreadable images out and reports them; "refuse" stops at the first.
        precision: "fp32", or "bf16" where the processor has it; an index keeps the one it was built with.
        rerank: how searches are refined, as `forerank.metrics.evaluate` takes it; "none": not at all; None:
            as the index has it.
        part: images between two points from which an interrupted run goes on.

    Example:
        >>> import tempfile, numpy as np
        >>> from PIL import Image
        >>> from forerank.models import Retriever, create_model
        >>> folder = Path(tempfile.mkdtemp())
        >>> (folder / "images").mkdir()
        >>> for shade in (0, 128, 255):
        ...     Image.fromarray(np.full((32, 32), shade, np.uint8)).save(folder / f"images/{shade}.png")
        >>> retriever = Retriever(create_model("glyphnet", embedding_dim=8))
        >>> build_index(retriever, folder / "images", folder / "index").count
        3
    """
    started = time.perf_counter()
    from forerank.models import Retriever, save_model

    engine = open_engine(address)  # first: a wrong place is refused before a model is loaded
    if approximate is not None and not engine.abilities.approximate:
        raise InputError(
            f"the engine of {address} chooses its own kind of index: leave out --approximate and --exact."
        )
    refined = read_reranking(rerank)
    if isinstance(refined, Averaging) and not engine.abilities.averages:
        raise InputError(f"the engine of {address} cannot average: give --rerank expansion or reciprocal.")
    retriever = model if isinstance(model, Retriever) else Retriever.load(model, precision=precision)
    source = _source(model)
    wanted = list_images(images, split)
    try:
        try:
            old = engine.meta()
            known, gone = dict[str, Row](), dict[str, str]()
            rows_before = list(engine.all_rows()) if old is not None else []
            wanted = with_added_images(wanted, old, rows_before)
            paths = set(wanted.paths)
            for row in rows_before:
                if row.path in paths:
                    known[row.path] = row
                else:
                    gone[row.path] = row.content
        except InputError:
            if not replace:
                raise
            old, known, gone = None, {}, {}  # damaged: nothing of it counts
        if old is not None and not replace:
            instead = "Give --replace to build it again from nothing, or another place."
            refuse_other_model(str(address), old["model"], retriever.identity, source, instead)
            _refuse_other_precision(str(address), old["model"], retriever)
            retriever.engine = split_identity(old["model"]["fingerprint"])[1]
        network = retriever.network
        identity = vectors_identity(retriever.identity, network.engine, network.precision)
        report = BuildReport(str(address))
        scanned = time.time_ns()
        trust = 0 if rehash or old is None else int(old.get("scanned", 0))
        rows = _read_rows(wanted, known, trust, report, on_bad)
        same_model = old is not None and old["model"]["fingerprint"] == identity
        bad_before = old.get("bad", {}) if old is not None and same_model and not rehash else {}
        bad = {row.content: bad_before[row.content] for row in rows if row.content in bad_before}
        rows = _leave_out_bad(rows, bad, report, on_bad)
        meta = {
            **(old or {}),
            "model": {
                "fingerprint": identity,
                "source": source,
                "name": _name(model, retriever),
                "engine": network.engine,
                "precision": network.precision,
            },
            "root": str(wanted.root),
            "scanned": scanned,
            "labelled": any(row.label for row in rows),
            "columns": sorted({name for row in rows for name in row.columns}),
        }
        if not same_model:
            meta.pop("threshold", None)  # similarities of another model mean something else
            meta.pop("rerank", None)  # so does what helped its rankings
        if rerank is not None:
            meta["rerank"] = None if refined is None else str(refined)
        if not gone and _up_to_date(old, known, rows, meta, approximate):
            report.count, report.kept, report.changed = len(rows), len(rows), False
            engine.tidy()
        else:
            first = sharing.rank() == 0
            if not first:
                sharing.exchange(None)  # wait until the first process has begun the update
            with engine.update(retriever.dim, identity, approximate, sharing.rank()) as update:
                if first:
                    sharing.exchange(None)
                finished = set[str]()
                if old is not None and old.get("complete", True):
                    finished = {row.content for row in known.values()} | set(gone.values())
                new_bad = _embed(update, retriever, wanted.root, rows, finished, report, part)
                shares = sharing.exchange((new_bad, report.embedded))
                new_bad = {content: why for bad_there, _ in shares for content, why in bad_there.items()}
                report.embedded = sum(embedded for _, embedded in shares)
                rows = _leave_out_bad(rows, new_bad, report, on_bad)
                meta["labelled"] = any(row.label for row in rows)
                # Contents that no model will ever see need not be tried again.
                meta["bad"] = bad | {c: why for c, why in new_bad.items() if why not in PASSING}
                rows = sorted(rows, key=lambda row: row.path)
                keep_model = engine.abilities.keeps_model
                if first:
                    update.complete(rows, meta, partial(save_model, retriever.model) if keep_model else None)
            sharing.exchange(None)  # no process goes on before the index is complete
            report.count = len(rows)
            now = {row.path for row in rows}
            report.removed = len(gone) + sum(path not in now for path in known)
        report.approximate = (engine.meta() or {}).get("approximate")
    finally:
        engine.close()
    report.seconds = time.perf_counter() - started
    return report


def _refuse_other_precision(address: str, stored: dict[str, str], retriever: "Retriever") -> None:
    """Vectors of one index come from one precision."""
    _, _, made = split_identity(stored["fingerprint"])
    if made != retriever.precision:
        raise InputError(
            f"{address} holds vectors computed in {made}, not {retriever.precision}: "
            f"give --precision {made}, or --replace to build it anew."
        )


def _source(model: object) -> str:
    """What to call the model: a folder's full path, a backbone's name."""
    if isinstance(model, str | Path):
        place = Path(model).expanduser()
        return str(place.resolve()) if place.exists() else str(model)
    return "a model in memory"


def _name(model: object, retriever: "Retriever") -> str:
    """What to call the model on a page: its folder, or its backbone."""
    if isinstance(model, str | Path):
        return Path(model).expanduser().resolve().name
    return str(retriever.model.spec["backbone"])


def _read_rows(
    wanted: Images, known: dict[str, Row], trusted_until: int, report: BuildReport, on_bad: str
) -> list[Row]:
    """A row for every file, hashing those whose size or time says that they may be new."""

    def look(item: tuple[str, str, dict[str, str]]) -> Row | str:
        path, label, columns = item
        if not (is_text(path) and is_text(label)):
            return "its name is not UTF-8: rename it"
        if not all(is_text(name) and is_text(value) for name, value in columns.items()):
            return "one of its columns is not UTF-8: save the CSV as UTF-8"
        file, before = wanted.root / path, known.get(path)
        try:
            state = file.stat()
            same = before is not None and (before.size, before.modified) == (state.st_size, state.st_mtime_ns)
            if before is not None and same and state.st_mtime_ns < trusted_until - RACY_NANOSECONDS:
                return Row(path, label, before.content, before.size, before.modified, columns=columns)
            content, state = hash_file(file)
        except OSError as error:
            return f"cannot be read: {error.strerror}"
        return Row(path, label, content, state.st_size, state.st_mtime_ns, columns=columns)

    items = list(zip(wanted.paths, wanted.labels, wanted.columns, strict=True))
    mine = items[sharing.rank() :: sharing.count()]
    looked = progress(map_in_threads(look, mine, workers=8), "looking at files", len(mine))
    outcomes: list[Row | str] = [""] * len(items)
    for process, share in enumerate(sharing.exchange(list(looked))):
        outcomes[process :: sharing.count()] = share
    rows = []
    for (path, _, _), outcome in zip(items, outcomes, strict=True):
        if isinstance(outcome, Row):
            rows.append(outcome)
        else:
            _leave_out(report, path, outcome, on_bad)
    return rows


def _leave_out_bad(rows: Sequence[Row], bad: dict[str, str], report: BuildReport, on_bad: str) -> list[Row]:
    """The rows whose content is not among the bad ones."""
    for row in rows:
        if row.content in bad:
            _leave_out(report, row.path, bad[row.content], on_bad)
    return [row for row in rows if row.content not in bad]


def _leave_out(report: BuildReport, path: str, reason: str, on_bad: str) -> None:
    if on_bad == "refuse":
        raise InputError(f"cannot index {path}: {reason}")
    report.skipped[path] = reason
    if len(report.skipped) <= 5 and sharing.rank() == 0:
        say(f"left out {path}: {reason}")


def _up_to_date(
    old: dict[str, Any] | None,
    known: dict[str, Row],
    rows: Sequence[Row],
    meta: dict[str, Any],
    approximate: bool | None,
) -> bool:
    """Whether a finished index already holds exactly these rows."""
    # Counted too: a load into Milvus that was killed may have left two rows of one path.
    if old is None or not old.get("complete", True) or not len(known) == len(rows) == old["count"]:
        return False
    if old["model"]["fingerprint"] != meta["model"]["fingerprint"] or old.get("root") != meta["root"]:
        return False
    if old.get("rerank") != meta.get("rerank"):
        return False
    if approximate is not None and bool(old.get("approximate")) != approximate:
        return False

    return all(row.path in known and replace(known[row.path], id=row.id) == row for row in rows)


def _embed(
    update: Update,
    retriever: "Retriever",
    root: Path,
    rows: Sequence[Row],
    finished: set[str],
    report: BuildReport,
    part: int,
) -> dict[str, str]:
    """Store the vector of every content that has none yet; content -> why, of those that can have none."""
    stored = update.stored({row.content for row in rows})
    before = finished & stored
    new: dict[str, Row] = {}  # one file of each content is enough
    for row in rows:
        if row.content in before:
            report.kept += 1
            continue
        report.resumed += row.content in stored
        new.setdefault(row.content, row)
    bad: dict[str, str] = {}  # content -> why
    todo = list(new.values())
    reused = retriever.known_vectors([root / row.path for row in todo])
    fresh = [position for position in reused if todo[position].content not in stored]
    if fresh and sharing.rank() == 0:
        update.put([todo[position] for position in fresh], np.stack([reused[p] for p in fresh]))
    report.reused = len(fresh)
    todo = [row for position, row in enumerate(todo) if position not in reused]
    # Parts are cut the same way however many processes there are and whatever a killed run has stored: an
    # image goes through the network in the same company, and so its vector is the same bit for bit.
    parts = [todo[start : start + part] for start in range(0, len(todo), part)]
    mine = [rows for rows in parts[sharing.rank() :: sharing.count()] if _contents(rows) - stored]
    with progress_bar("embedding", sum(map(len, mine))) as advance:
        for chunk in mine:
            good, vectors = _embed_part(retriever, root, chunk, bad)
            missing = [i for i, row in enumerate(good) if row.content not in stored]
            if missing:
                update.put([good[i] for i in missing], vectors[missing])
                report.embedded += len(missing)
            advance(len(chunk))
    return bad


def _contents(rows: Sequence[Row]) -> set[str]:
    return {row.content for row in rows}


def _embed_part(
    retriever: "Retriever", root: Path, rows: Sequence[Row], bad: dict[str, str]
) -> tuple[list[Row], Any]:
    """Vectors of some files. Each is read once, so that vector and content hash speak of the same bytes."""
    sources: list[bytes] = []
    for row in rows:
        try:
            with open_plain(root / row.path) as file:
                data = file.read()
        except OSError:
            data, bad[row.content] = b"", GONE
        if data and hash_bytes(data) != row.content:
            data, bad[row.content] = b"", CHANGED
        sources.append(data)
    vectors = retriever.embed(sources, progress=False, on_bad="skip")
    finite = [bool(row.all()) for row in np.isfinite(vectors)]
    for row, data, fine in zip(rows, sources, finite, strict=True):
        if not fine and row.content not in bad:
            bad[row.content] = _reason(data)
    return [row for row, fine in zip(rows, finite, strict=True) if fine], vectors[finite]


def _reason(data: bytes) -> str:
    from forerank.data import BadImageError, read_image

    try:
        read_image(data)
    except BadImageError as error:
        return error.reason
    return "the model gave no finite vector for it"
