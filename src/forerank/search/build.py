"""Bring an index up to date with a set of images: embed what is new, keep what is known, drop the rest."""

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from forerank import sharing
from forerank.console import is_text, progress, progress_bar
from forerank.data import Table
from forerank.data.threads import map_in_threads
from forerank.errors import InputError
from forerank.ranking.reranking import Averaging, read_reranking
from forerank.search.add import with_added_images
from forerank.search.build_job import Job, reason
from forerank.search.build_report import BuildReport
from forerank.search.engine import Engine, Meta, Update, open_engine
from forerank.search.images import Images, list_images
from forerank.search.model import refuse_other_model, split_identity, vectors_identity
from forerank.search.rows import Row, hash_bytes, hash_file, open_plain
from forerank.search.streamed import index_stream, open_stream

if TYPE_CHECKING:
    from forerank.models import Retriever

# Images between two points from which a killed run goes on.
PART = 256
# Why a file is left out this time, but not because of what is in it.
GONE = "can no longer be read; run the command again"
CHANGED = "changed while it was being indexed; run the command again"
PASSING = (GONE, CHANGED)


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
        images: a folder, a CSV, a data set's name or a `Table`; tar shards, or an address that fsspec opens:
            these are read as a stream, and no list of them is held.
        address: a folder, or SCHEME:PLACE of another engine.
        split: which part of a data set: "train", "validation", "test" or "all".
        approximate: whether to have an approximate index, if the engine can; None: where it pays.
        replace: build everything again, with another model or where the old index is damaged.
        rehash: read every file again instead of trusting size and time of the unchanged ones; features that
            a training computed are found by size and time, so none of them is taken.
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
    stream = None if isinstance(images, Table) else open_stream(images, split)
    wanted = list_images(images, split) if stream is None else None
    report = BuildReport(str(address))
    try:
        old = _meta_before(engine, replace)
        if old is not None and not replace:
            _agree(str(address), old, retriever, _source(model))
        _open_network_alike(retriever)
        meta = _meta(old, model, retriever)
        report.inference = str(retriever.network)
        if rerank is not None:
            meta["rerank"] = None if refined is None else str(refined)
        save = partial(save_model, retriever.model) if engine.abilities.keeps_model else None
        job = Job(engine, retriever, old, meta, save, approximate, replace, rehash, on_bad, part, report)
        if stream is not None:
            index_stream(job, stream)
        elif wanted is not None:
            _index_list(job, wanted)
        report.approximate = (engine.meta() or {}).get("approximate")
    finally:
        engine.close()
    report.seconds = time.perf_counter() - started
    return report


def _meta_before(engine: Engine, replace: bool) -> Meta | None:
    try:
        return engine.meta()
    except InputError:
        if not replace:
            raise
        return None  # damaged: nothing of it counts


def _agree(address: str, old: Meta, retriever: "Retriever", source: str) -> None:
    """Refuse another model than that of the index, and take the engine that it was computed with."""
    instead = "Give --replace to build it again from nothing, or another place."
    refuse_other_model(address, old["model"], retriever.identity, source, instead)
    _refuse_other_precision(address, old["model"], retriever)
    retriever.engine = split_identity(old["model"]["fingerprint"])[1]
    opened = vars(retriever).get("network")
    if opened is not None and opened.engine != retriever.engine:
        del retriever.network  # it was opened before, by another engine: the next use opens it anew


def _open_network_alike(retriever: "Retriever") -> None:
    """Open the network, and refuse processes whose vectors could not be compared with those of the others."""
    with sharing.first_of_machine_first():
        network = retriever.network
    sharing.refuse_differences(
        {"model": retriever.identity, "engine": network.engine, "precision": network.precision}
    )


def _meta(old: Meta | None, model: object, retriever: "Retriever") -> Meta:
    """What the index is to say about itself, apart from its rows."""
    network = retriever.network
    identity = vectors_identity(retriever.identity, network.engine, network.precision)
    meta = {
        **(old or {}),
        "model": {
            "fingerprint": identity,
            "source": _source(model),
            "name": _name(model, retriever),
            "engine": network.engine,
            "precision": network.precision,
        },
        "scanned": time.time_ns(),
    }
    meta.pop("streamed", None)
    if old is None or old["model"]["fingerprint"] != identity:
        meta.pop("threshold", None)  # similarities of another model mean something else
        meta.pop("rerank", None)  # so does what helped its rankings
    return meta


def _index_list(job: Job, wanted: Images) -> None:
    """Index files that are listed in memory: a folder, a table, a data set."""
    engine, old, report, meta = job.engine, job.old, job.report, job.meta
    known, gone = dict[str, Row](), dict[str, str]()
    try:
        rows_before = list(engine.all_rows()) if old is not None else []
        wanted = with_added_images(wanted, old, rows_before)
        paths = set(wanted.paths)
        for row in rows_before:
            if row.path in paths:
                known[row.path] = row
            else:
                gone[row.path] = row.content
    except InputError:
        if not job.replace:
            raise
        old, known, gone = None, {}, {}  # damaged: nothing of it counts
    rows = _read_rows(wanted, known, job.trusted_until, report, job.on_bad)
    same_model = old is not None and old["model"]["fingerprint"] == meta["model"]["fingerprint"]
    bad_before = old.get("bad", {}) if old is not None and same_model and not job.rehash else {}
    bad = {row.content: bad_before[row.content] for row in rows if row.content in bad_before}
    rows = _leave_out_bad(rows, bad, report, job.on_bad)
    meta["root"] = str(wanted.root)
    meta["labelled"] = any(row.label for row in rows)
    meta["columns"] = sorted({name for row in rows for name in row.columns})
    if not gone and _up_to_date(old, known, rows, meta, job.approximate):
        report.count, report.kept, report.changed = len(rows), len(rows), False
        engine.tidy()
        return
    with job.update() as update:
        finished = set[str]()
        if old is not None and old.get("complete", True):
            finished = {row.content for row in known.values()} | set(gone.values())
        new_bad = _embed(job, update, wanted.root, rows, finished)
        shares = sharing.exchange((new_bad, report.embedded))
        new_bad = {content: why for bad_there, _ in shares for content, why in bad_there.items()}
        report.embedded = sum(embedded for _, embedded in shares)
        rows = _leave_out_bad(rows, new_bad, report, job.on_bad)
        meta["labelled"] = any(row.label for row in rows)
        # Contents that no model will ever see need not be tried again.
        meta["bad"] = bad | {c: why for c, why in new_bad.items() if why not in PASSING}
        rows = sorted(rows, key=lambda row: row.path)
        if sharing.rank() == 0:
            update.complete(rows, meta, job.save_model)
    sharing.exchange(None)  # no process goes on before the index is complete
    report.count = len(rows)
    now = {row.path for row in rows}
    report.removed = len(gone) + sum(path not in now for path in known)


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
            if before is not None and same and state.st_mtime_ns < trusted_until:
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
            report.leave_out(path, outcome, on_bad)
    return rows


def _leave_out_bad(rows: Sequence[Row], bad: dict[str, str], report: BuildReport, on_bad: str) -> list[Row]:
    """The rows whose content is not among the bad ones."""
    for row in rows:
        if row.content in bad:
            report.leave_out(row.path, bad[row.content], on_bad)
    return [row for row in rows if row.content not in bad]


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


def _embed(job: Job, update: Update, root: Path, rows: Sequence[Row], finished: set[str]) -> dict[str, str]:
    """Store the vector of every content that has none yet; content -> reason, for those that get none."""
    report, part = job.report, job.part
    stored = update.stored({row.content for row in rows})
    # From here on vectors are stored. Until now every process has seen the same ones, and so all of them cut
    # the same parts.
    sharing.exchange(None)
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
    reused = _take_known_vectors(job, update, root, todo, stored)
    report.reused = len(reused - stored)
    todo = [row for row in todo if row.content not in reused]
    # Parts are cut the same way however many processes there are and whatever a killed run has stored: an
    # image goes through the network in the same batch, and so its vector is the same bit for bit.
    parts = [todo[start : start + part] for start in range(0, len(todo), part)]
    mine = [rows for rows in parts[sharing.rank() :: sharing.count()] if _contents(rows) - stored]
    with progress_bar("embedding", sum(map(len, mine))) as advance:
        for chunk in mine:
            good, vectors = _embed_part(job.retriever, root, chunk, bad)
            missing = [i for i, row in enumerate(good) if row.content not in stored]
            if missing:
                update.put([good[i] for i in missing], vectors[missing])
                report.embedded += len(missing)
            advance(len(chunk))
    return bad


def _take_known_vectors(
    job: Job, update: Update, root: Path, rows: Sequence[Row], stored: set[str]
) -> set[str]:
    """The contents of `rows` whose vectors follow from features that a training computed, now stored.

    The first process alone looks them up and tells the others: on another machine the cache holds others.
    """
    if job.rehash:  # the cache knows its files by size and time, which are not to be trusted
        return set()
    taken = set[str]()
    if sharing.rank() == 0:
        for positions, vectors in job.retriever.known_vectors([root / row.path for row in rows]):
            block = [rows[position] for position in positions]
            missing = [i for i, row in enumerate(block) if row.content not in stored]
            if missing:
                update.put([block[i] for i in missing], vectors[missing])
            taken |= _contents(block)
    return sharing.exchange(taken)[0]


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
            bad[row.content] = reason(data)
    return [row for row, fine in zip(rows, finite, strict=True) if fine], vectors[finite]
