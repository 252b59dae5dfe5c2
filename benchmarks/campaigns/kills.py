"""SIGKILL at random moments of training and indexing: what is resumed equals what was not interrupted.

A round is up to five kills of one piece of work and then its end. After every kill what was saved must still
be readable; at the end everything must equal the uninterrupted work bit for bit. A kill is lost if either
fails. Nothing that was acknowledged before a kill may be missing afterwards.
"""

import hashlib
import os
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np

from campaigns.children import Child
from campaigns.pictures import QUICK, draw_stripes
from campaigns.tally import Tally
from milvus_servers import RealMilvusServer

KILLS_PER_ROUND = 5
FEW = 50  # kills: for fewer, a Milvus server is not worth its start
# Imported before the forks, so that kills meet the work and not the imports. Not Milvus: it starts threads.
IMPORTED = (
    "sympy", "numba", "forerank.training.loop", "forerank.training.methods.divide_and_conquer",
    "forerank.ranking.hard_compiled", "forerank.search.build", "forerank.search.folder", "forerank.models",
    "forerank.data.open", "forerank.data.folder", "forerank.search.add", "forerank.search.corrections",
    "forerank.training.refitting",
)  # fmt: skip


@dataclass(frozen=True)
class Work:
    """Something that can be killed and begun again at the same place."""

    do: Callable[[Path], object]
    check: Callable[[Path], object]  # raises if what was saved in a place cannot be read
    outcome: Callable[[Path], dict[str, Any]]  # what must be equal at the end
    share: int = 1  # of all kills


def run(tries: int, seed: int, folder: Path, end: float) -> Tally:
    """Spread the kills over all kinds of work."""
    for module in IMPORTED:
        import_module(module)
    import torch

    torch.set_num_threads(1)
    os.environ["FORERANK_CACHE"] = str(folder / "cache")
    tally, kinds = Tally(), Counter[str]()
    server = RealMilvusServer(folder / "milvus") if find_spec("milvus") and tries >= FEW else None
    try:
        if server is not None:
            server.start()
        all_work = works(draw_stripes(folder / "stripes"), server.address if server else None)
        _spread(tries, seed, folder, end, all_work, tally, kinds)
    finally:
        if server is not None:
            server.kill()
    tally.figures = {f"kills in {name}": count for name, count in kinds.items()}
    return tally


def _spread(
    tries: int, seed: int, folder: Path, end: float, all_work: Mapping[str, Work], tally: Tally,
    kinds: Counter[str],
) -> None:  # fmt: skip
    shares = sum(work.share for work in all_work.values())
    rng = np.random.default_rng(seed)
    begun, spent = time.monotonic(), 0  # the time until `end` is shared by the kinds of work
    for name, work in all_work.items():
        wanted = ceil(tries * work.share / shares)
        if time.monotonic() > end:
            break
        seconds, expected = _uninterrupted(work, folder / "whole" / name)
        spent += work.share
        rounds, its_end = 0, begun + (end - begun) * spent / shares
        while wanted > 0 and rounds < 10 * tries and time.monotonic() < its_end:
            kills = _round(name, work, min(wanted, KILLS_PER_ROUND), seconds, expected, rng, folder, tally)
            wanted, rounds = wanted - kills, rounds + 1
            kinds[name] += kills


def _uninterrupted(work: Work, place: Path) -> tuple[float, dict[str, Any]]:
    """How long the work takes (the second time: files of the first are cached), and what comes out."""
    for name in ("first", "second"):
        (place / name).mkdir(parents=True)
        began = time.monotonic()
        Child(lambda here=place / name: work.do(here), place / f"{name}.log").must_end_well()
        seconds = time.monotonic() - began
    return seconds, work.outcome(place / "second")


def _round(
    name: str, work: Work, kills: int, seconds: float, expected: dict[str, Any], rng: np.random.Generator,
    folder: Path, tally: Tally,
) -> int:  # fmt: skip
    """Kill a piece of work some times, let it end and compare; the number of kills that met it running."""
    place = Path(tempfile.mkdtemp(prefix=f"{name.replace(' ', '-')}-", dir=folder))
    moments: list[float] = []
    trouble = ""
    try:
        for _ in range(kills):
            moment = float(rng.uniform(0, seconds))
            child = Child(lambda: work.do(place), folder / "child.log")
            code = child.wait(moment)
            if code is None:
                child.kill()
                moments.append(round(moment, 3))
                work.check(place)
            elif code == 0:
                break  # it ended before: the next round begins anew
            else:
                raise RuntimeError(f"it ended with code {code}: {(folder / 'child.log').read_text()[-400:]}")
        Child(lambda: work.do(place), folder / "child.log").must_end_well()
        found = work.outcome(place)
        different = [key for key in expected.keys() | found.keys() if not _equal(expected, found, key)]
        if different:
            trouble = f"{len(different)} things differ from the uninterrupted, first {sorted(different)[0]}"
    except Exception as error:
        trouble = f"{type(error).__name__}: {error}"
    for moment in moments:
        tally.count(not trouble, f"{name}, killed after {moment} s: {trouble}")
    if trouble and not moments:
        tally.count(False, f"{name}: {trouble}")
    shutil.rmtree(place, ignore_errors=True)
    return len(moments) or bool(trouble)


def _equal(a: dict[str, Any], b: dict[str, Any], key: str) -> bool:
    return key in a and key in b and bool(np.array_equal(a[key], b[key]))


def works(images: Path, milvus: str | None = None) -> dict[str, Work]:
    """Everything that is killed, by name; with the address of a Milvus server, also loads into it."""
    full, head = [*QUICK, "mode=full", "memory=40", "ema=0.9"], [*QUICK, "mode=head"]
    clusters = [
        *QUICK,
        "mode=full",
        "method=divide-and-conquer",
        "method.clusters=2",
        "method.renew_epochs=1",
    ]
    server = {}
    if milvus is not None:
        server["index vectors, Milvus server"] = Work(
            _fill(milvus), _acknowledged(milvus), _filled(milvus), 2
        )
    return {
        "audit corrections": Work(_correct(images), _corrected(images), _corrections(images), 2),
        "adding images": Work(_add, _added, _index_outcome, 2),
        "index folder": Work(_index(images, "index"), _readable_index, _index_outcome, 4),
        "index vectors, folder": Work(_fill("index"), _acknowledged("index"), _filled("index"), 4),
        "index vectors, Milvus file": Work(_fill("m.db"), _acknowledged("m.db"), _filled("m.db"), 2),
        **server,
        "full training": _training(images, full, 3),
        "head training": _training(images, head, 1),
        "training with a method's state": _training(images, clusters, 2),
        # Without classes that judge, the last step is kept: a model that did not learn is not refitted.
        "refit": Work(_refit(images, [*full, "validation=0"]), _readable_refit, _refit_outcome, 2),
    }


def _training(images: Path, values: list[str], share: int) -> Work:
    def do(place: Path) -> None:
        from forerank.training import load_recipe, train

        train(load_recipe(images, values), place / "run")

    return Work(do, _readable_run, _run_outcome, share)


def _refit(images: Path, values: list[str]) -> Callable[[Path], None]:
    """Train a measured run and then once more on all classes; a finished run is only looked at."""

    def do(place: Path) -> None:
        from forerank.training import load_recipe, refit, train

        train(load_recipe(images, values), place / "run")
        refit(place / "run")

    return do


def _readable_refit(place: Path) -> None:
    _readable_run(place)
    _readable_run(place / "run", "refit")


def _refit_outcome(place: Path) -> dict[str, Any]:
    again = _run_outcome(place / "run", "refit")
    return {**_run_outcome(place), **{f"refit {key}": value for key, value in again.items()}}


def _readable_run(place: Path, name: str = "run") -> None:
    """The last and the best checkpoint, if there are any, are whole."""
    for link in ("last", "best"):
        if (place / name / link).exists():
            _checkpoint(place / name / link)


def _checkpoint(folder: Path) -> dict[str, Any]:
    from forerank.files import load_tensors, read_json_with_checksum

    found: dict[str, Any] = {
        f"{folder.name} {key}": value for key, value in read_json_with_checksum(folder / "state.json").items()
    }
    for file in ("model.safetensors", "state.safetensors"):
        found |= {f"{folder.name} {key}": t.numpy() for key, t in load_tensors(folder / file)[0].items()}
    return found


def _run_outcome(place: Path, name: str = "run") -> dict[str, Any]:
    """Weights, moments, bank and running mean of both checkpoints, and every loss and validation."""
    from forerank.training import read_history

    kept = ("step", "loss", "validation", "test")
    rows = [{key: row[key] for key in kept if key in row} for row in read_history(place / name)]
    return {
        "history": str(rows),
        **_checkpoint(place / name / "last"),
        **_checkpoint(place / name / "best"),
    }


def _index(images: Path, name: str) -> Callable[[Path], None]:
    """Index half of the classes, then all: the second is an update of the first."""

    def do(place: Path) -> None:
        from forerank.data import open_table
        from forerank.models import Retriever, create_model
        from forerank.search import build_index

        table = open_table(images)
        model = Retriever(create_model("glyphnet", embedding_dim=16, pooling="gem", pretrained=False))
        halves = np.arange(len(table)) % 2 == 0
        if not (place / name / "CURRENT").exists():
            build_index(model, table.where(halves), place / name, part=8)
        build_index(model, table, place / name, part=8)

    return do


def _readable_index(place: Path) -> None:
    from forerank.search.engine import open_engine

    engine = open_engine(place / "index")
    if engine.meta() is not None:
        engine.verify()
        if engine.count() not in (48, 96):
            raise RuntimeError(f"{engine.count()} rows are neither the old index nor the new one")
    engine.close()


def _index_outcome(place: Path) -> dict[str, Any]:
    from forerank.search.engine import open_engine

    engine = open_engine(place / "index")
    found: dict[str, Any] = {}
    for rows, vectors in engine.scan():
        found |= {row.path: vector for row, vector in zip(rows, vectors, strict=True)}
        found |= {f"{row.path} says": f"{row.label} {row.content}" for row in rows}
    engine.close()
    return found


# -- decisions about labels, and images added to an index: each is acknowledged when the call has returned ---

DECISIONS, ADDED = 60, 6


def _correct(images: Path) -> Callable[[Path], None]:
    def do(place: Path) -> None:
        from forerank.data import open_table
        from forerank.search.corrections import Corrections

        corrections = Corrections(place / "corrections.jsonl", open_table(images), "model")
        done = {decision.row for decision in corrections.decisions().values()}
        acknowledged = os.open(place / "acknowledged", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for row in range(DECISIONS):
            if row not in done:
                corrections.decide(row, "change", f"label {row}")
                os.write(acknowledged, f"{row}\n".encode())
        corrections.close()

    return do


def _corrections(images: Path) -> Callable[[Path], dict[str, Any]]:
    def outcome(place: Path) -> dict[str, Any]:
        from forerank.data import open_table
        from forerank.search.corrections import Corrections

        corrections = Corrections(place / "corrections.jsonl", open_table(images), "model")
        found = {str(d.row): str(d.label) for d in corrections.decisions().values()}
        corrections.close()
        return found

    return outcome


def _corrected(images: Path) -> Callable[[Path], None]:
    def check(place: Path) -> None:
        told = (place / "acknowledged").read_text().split() if (place / "acknowledged").exists() else []
        missing = set(told) - _corrections(images)(place).keys()
        if missing:
            raise RuntimeError(f"{len(missing)} acknowledged decisions are missing")

    return check


def _add(place: Path) -> None:
    """Begin an index of two images and add others one by one, as the server does."""
    from forerank.search.add import NewImage, add_images
    from forerank.search.engine import open_engine
    from forerank.search.index import Index

    rows, vectors = _rows_and_vectors()
    if open_engine(place / "index").meta() is None:
        engine = open_engine(place / "index")
        with engine.update(DIM, "model") as update:
            update.put(rows[:2], vectors[:2])
            update.complete(
                rows[:2], {"model": {"fingerprint": "model"}, "root": str(place / "images")}, None
            )
        engine.close()
    acknowledged = os.open(place / "acknowledged", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for i in range(2, 2 + ADDED):
        index = Index(open_engine(place / "index"))
        if rows[i].path not in {row.path for row in index.engine.all_rows()}:
            add_images(index, [NewImage(rows[i].path, bytes([i]), rows[i].label, {}, vectors[i])])
            os.write(acknowledged, f"{rows[i].path}\n".encode())
        index.close()


def _added(place: Path) -> None:
    told = (place / "acknowledged").read_text().split() if (place / "acknowledged").exists() else []
    if told:
        missing = set(told) - _index_outcome(place).keys()
        if missing:
            raise RuntimeError(f"{len(missing)} acknowledged images are missing")


# -- vectors put into an engine directly: each part is acknowledged in a file when `put` has returned --------

ROWS, PART, DIM = 120, 10, 16


def _rows_and_vectors() -> tuple[list[Any], Any]:
    from forerank.search.engine import unit_vectors
    from forerank.search.rows import Row, hash_bytes

    rows = [Row(f"{i:03}.png", str(i % 7), hash_bytes(bytes([i])), 1, 1, columns={}) for i in range(ROWS)]
    return rows, unit_vectors(np.random.default_rng(7).normal(size=(ROWS, DIM)))


def _address(place: Path, name: str) -> str:
    """Of an index in a place: a folder, a Milvus file, or a collection of a server."""
    if name.startswith("milvus:"):
        return f"{name}#kills_{hashlib.sha256(bytes(place)).hexdigest()[:12]}"
    return f"milvus:{place / name}" if name.endswith(".db") else str(place / name)


def _fill(name: str) -> Callable[[Path], None]:
    def do(place: Path) -> None:
        from forerank.search.engine import open_engine

        rows, vectors = _rows_and_vectors()
        engine = open_engine(_address(place, name))
        acknowledged = os.open(place / "acknowledged", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        with engine.update(DIM, "model") as update:
            stored = update.stored([row.content for row in rows])
            for start in range(0, ROWS, PART):
                new = [i for i in range(start, start + PART) if rows[i].content not in stored]
                if new:
                    update.put([rows[i] for i in new], vectors[new])
                    os.write(acknowledged, "".join(f"{rows[i].content}\n" for i in new).encode())
            update.complete(rows, {"model": {"fingerprint": "model"}, "root": "."}, None)
        engine.close()

    return do


def _acknowledged(name: str) -> Callable[[Path], None]:
    """What was acknowledged is stored: looked at by another process, as after a restart."""

    def look(place: Path) -> None:
        from forerank.search.engine import open_engine

        told = (place / "acknowledged").read_text().split() if (place / "acknowledged").exists() else []
        engine = open_engine(_address(place, name))
        if told:
            with engine.update(DIM, "model") as update:
                missing = set(told) - update.stored(told)
            if missing:
                raise RuntimeError(f"{len(missing)} of {len(told)} acknowledged vectors are missing")
        engine.close()

    def check(place: Path) -> None:
        Child(lambda: look(place), place.parent / "check.log").must_end_well()

    return check


def _filled(name: str) -> Callable[[Path], dict[str, Any]]:
    """Every row with its vector, read by another process: Milvus must not be imported before a fork."""

    def read(place: Path) -> None:
        from forerank.search.engine import open_engine

        engine = open_engine(_address(place, name))
        rows, vectors = zip(*engine.scan(), strict=True)
        paths = [row.path for part in rows for row in part]
        order = np.argsort(paths)
        np.savez(place / "filled.npz", paths=np.array(paths)[order], vectors=np.concatenate(vectors)[order])
        engine.close()

    def outcome(place: Path) -> dict[str, Any]:
        Child(lambda: read(place), place.parent / "check.log").must_end_well()
        return dict(np.load(place / "filled.npz", allow_pickle=False))

    return outcome
