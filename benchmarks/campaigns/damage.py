"""Bytes flipped and files cut short in every kind of file that is read: refused by name, or the right answer.

Files that programs wrote carry checksums: what is read from a damaged one must be refused by one of our
errors, or be the same as before (damage in a cache leads to computing again). Files that people write (a
recipe, a CSV, a tar shard) carry none: another value there is another request, so only the way of refusing is
tried. The file of corrections is a journal: one that was cut says fewer decisions, never other ones.
"""

import hashlib
import os
import pickle
import shutil
import tarfile
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from campaigns.children import Child
from campaigns.pictures import QUICK, draw_stripes
from campaigns.tally import Tally
from forerank.errors import ForerankError


@dataclass(frozen=True)
class Kind:
    """A kind of file: where one lies, and what is read from it, as something that can be compared."""

    file: Path
    read: Callable[[], Any]
    by_people: bool = False
    journal: bool = False  # the beginning of what was read before is a right answer


def run(tries: int, seed: int, folder: Path, end: float) -> Tally:
    """Damage one file at a time, read it in a child process and put it back."""
    import torch

    torch.set_num_threads(1)
    os.environ["FORERANK_CACHE"] = str(folder / "cache")
    Child(lambda: _write_everything(folder), folder / "child.log").must_end_well()
    kinds = _kinds(folder)
    expected = {name: _in_child(kind.read, folder) for name, kind in kinds.items()}
    tally, counts = Tally(), Counter[str]()
    names = list(kinds)
    for first in range(0, tries, PER_CHILD):
        if time.monotonic() > end:
            break
        kind = kinds[name := names[first // PER_CHILD % len(names)]]
        numbers = range(first, min(first + PER_CHILD, tries))
        for outcome, sentence in _try_in_child(kind, expected[name], numbers, seed, folder):
            counts[outcome] += 1
            tally.count(outcome != "lost", f"{name}: {sentence}")
    tally.figures = {**counts, "kinds of files": ", ".join(kinds)}
    return tally


PER_CHILD = 10


def _try_in_child(
    kind: Kind, expected: Any, numbers: range, seed: int, folder: Path
) -> list[tuple[str, str]]:
    """Outcome and sentence of some tries; a child that crashes loses the try it was at."""
    whole = kind.file.read_bytes()
    journal = folder / "outcomes"
    journal.write_bytes(b"")

    def work() -> None:
        for number in numbers:
            rng = np.random.default_rng([seed, number])
            kind.file.write_bytes(damaged(whole, rng))
            outcome = _outcome(kind, expected)
            with journal.open("ab") as out:
                pickle.dump((outcome[0], f"try {number}: {outcome[1]}"), out)

    child = Child(work, folder / "child.log")
    code = child.wait(120)
    if code is None:
        child.kill()
    kind.file.write_bytes(whole)
    outcomes = []
    with journal.open("rb") as read:
        while read.peek(1):
            outcomes.append(pickle.load(read))
    if code != 0:
        outcomes.append(("lost", f"try {numbers[len(outcomes)]}: the process ended with {code}"))
    return outcomes


def _outcome(kind: Kind, expected: Any) -> tuple[str, str]:
    try:
        found = kind.read()
    except ForerankError as error:
        places = (kind.file.name, *kind.file.parts[-4:])
        # A wrong value in a recipe is refused by its key.
        named = kind.by_people or any(place in str(error) for place in places)
        return ("refused", "") if named else ("lost", f"the sentence names no file: {error}")
    except Exception as error:
        return "lost", f"{type(error).__name__}: {error}"
    if kind.by_people:
        return "read as another request", ""
    if kind.journal and found == expected[: len(found)] != expected:
        return "the beginning of a journal", ""
    return ("the same answer", "") if found == expected else ("lost", "another answer, silently")


def damaged(content: bytes, rng: np.random.Generator) -> bytes:
    """Some flipped bits, a stretch of zeros, or a cut."""
    data = bytearray(content)
    how, place = rng.integers(4), int(rng.integers(len(data)))
    if how == 0:
        del data[place:]
    elif how == 1:
        data[place : place + 64] = bytes(len(data[place : place + 64]))
    else:
        for place in rng.integers(len(data), size=1 if how == 2 else 5):
            data[place] ^= 1 << int(rng.integers(8))
    return bytes(data)


def _in_child(read: Callable[[], Any], folder: Path) -> Any:
    answer = folder / "answer"
    Child(lambda: answer.write_bytes(pickle.dumps(read())), folder / "child.log").must_end_well()
    return pickle.loads(answer.read_bytes())


def _write_everything(folder: Path) -> None:
    from forerank.data import open_table
    from forerank.models import Retriever, create_model, save_model
    from forerank.search import Index, build_index, calibrate
    from forerank.search.corrections import Corrections
    from forerank.search.map import make_map
    from forerank.training import load_recipe, train

    images = draw_stripes(folder / "stripes")
    model = create_model("glyphnet", embedding_dim=16, pooling="gem", pretrained=False)
    save_model(model, folder / "model")
    build_index(Retriever(model), images, folder / "index", approximate=True)
    calibrate(Index.open(folder / "index"), precision=0.05, min_answers=2)
    train(load_recipe(images, [*QUICK, "mode=full"]), folder / "run")
    train(load_recipe(images, [*QUICK, "mode=head"]), folder / "head")
    (folder / "own.yaml").write_text((folder / "run" / "recipe.yaml").read_text())
    open_table(images).write_csv(folder / "table.csv")
    (folder / "labels.csv").write_text("label,is_query\n" + "cup,1\njug,0\n" * 20)
    np.save(folder / "vectors.npy", np.eye(8, dtype=np.float32))
    make_map(Index.open(folder / "index"))
    corrections = Corrections(folder / "corrections.jsonl", open_table(images), "model")
    for row in range(20):
        corrections.decide(row, "change", f"label {row}")
    corrections.close()
    with tarfile.open(folder / "shard.tar", "w") as shard:
        for file in sorted((images / "class_03").iterdir()):
            shard.add(file, file.name)
    _leave_parts(model, images, folder)


class _InterruptedError(Exception):
    """Before the parts are joined."""


def _leave_parts(model: Any, images: Path, folder: Path) -> None:
    """The parts of `forerank embed` as a run leaves them that was killed at its end."""
    from forerank.models import Retriever, vector_file

    def interrupted(*_: Any) -> Any:
        raise _InterruptedError

    join, vector_file._join = vector_file._join, interrupted
    with suppress(_InterruptedError):
        vector_file.embed_files(lambda: Retriever(model), [images], folder / "embedded.npy")
    vector_file._join = join


def _kinds(folder: Path) -> dict[str, Kind]:
    generation = next((folder / "index").glob("generation-*"))
    last = (folder / "run" / "last").resolve()
    features = max((folder / "cache" / "features").rglob("*.safetensors"), key=lambda f: f.stat().st_size)
    return {
        "model weights": Kind(folder / "model" / "model.safetensors", lambda: _model(folder / "model")),
        "checkpoint state": Kind(last / "state.json", lambda: _resumed(folder / "run")),
        "checkpoint tensors": Kind(last / "state.safetensors", lambda: _resumed(folder / "run")),
        "checkpoint weights": Kind(last / "model.safetensors", lambda: _resumed(folder / "run")),
        "recipe of a run": Kind(folder / "run" / "recipe.yaml", lambda: _run_recipe(folder / "run")),
        "results of a run": Kind(folder / "run" / "results.json", lambda: _results(folder / "run")),
        "features": Kind(features, lambda: _features(features)),
        "index pointer": Kind(folder / "index" / "CURRENT", lambda: _search(folder)),
        "index meta data and threshold": Kind(generation / "meta.json", lambda: _search(folder)),
        "index rows": Kind(generation / "rows.sqlite", lambda: _search(folder)),
        "index vectors": Kind(generation / "vectors.npy", lambda: _search(folder)),
        "index graph": Kind(generation / "hnsw.faiss", lambda: _search(folder)),
        "model of an index": Kind(generation / "model" / "model.safetensors", lambda: _search(folder)),
        "map of an index": Kind(folder / "index" / "map.npz", lambda: _map(folder)),
        "vectors of a part": Kind(
            folder / "embedded.parts" / "00000000.npy", lambda: _embedded_from_parts(folder)
        ),
        "names of a part": Kind(
            folder / "embedded.parts" / "00000000.json", lambda: _embedded_from_parts(folder)
        ),
        "corrections": Kind(folder / "corrections.jsonl", lambda: _decisions(folder), journal=True),
        "tar shard": Kind(folder / "shard.tar", lambda: _shard(folder), by_people=True),
        "recipe": Kind(folder / "own.yaml", lambda: _recipe(folder / "own.yaml"), by_people=True),
        "table": Kind(folder / "table.csv", lambda: _table(folder / "table.csv"), by_people=True),
        "label file": Kind(folder / "labels.csv", lambda: _label_file(folder), by_people=True),
        "embeddings of people's own": Kind(
            folder / "vectors.npy", lambda: _embeddings(folder), by_people=True
        ),
    }


def _model(folder: Path) -> str:
    from forerank.models import load_model

    digest = hashlib.sha256()
    for name, tensor in sorted(load_model(folder).state_dict().items()):
        digest.update(name.encode() + tensor.numpy().tobytes())
    return digest.hexdigest()


def _resumed(run: Path) -> str:
    from forerank.training.checkpoint import load_state

    names = ("step", "validated", "best", "best_step", "stale", "broken")
    state, tensors = load_state(run / "last", names)
    digest = hashlib.sha256(repr(sorted(state.items())).encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(name.encode() + tensor.numpy().tobytes())
    return digest.hexdigest() + _model(run / "last")


def _run_recipe(run: Path) -> str:
    from forerank.training.record import begun_recipe

    return repr(begun_recipe(run))


def _results(run: Path) -> str:
    from forerank.training.outcome import finished_outcome

    return repr(finished_outcome(run).results)


def _features(file: Path) -> str:
    """What is found of a cache file; a damaged one counts as absent and is computed again."""
    from forerank.files import load_tensors

    tensors, _ = load_tensors(file)
    return repr({name: hashlib.sha256(t.numpy().tobytes()).hexdigest() for name, t in tensors.items()})


def _search(folder: Path) -> str:
    from forerank.search import Index

    index = Index.open(folder / "index")
    image = next((folder / "stripes" / "class_03").iterdir())
    answer = repr(index.search(image, 10).to_dict()) + repr([row.path for row in index.engine.all_rows()])
    index.close()
    return answer


def _map(folder: Path) -> str:
    from forerank.search import Index
    from forerank.search.map import read_map

    index = Index.open(folder / "index")
    found = read_map(index)
    index.close()
    return "none" if found is None else repr((found.ids.tolist(), found.positions.tolist(), found.names))


def _embedded_from_parts(folder: Path) -> str:
    """What `forerank embed` gives when it continues with the parts."""
    from forerank.models import Retriever, load_model
    from forerank.models.vector_file import embed_files

    with tempfile.TemporaryDirectory(dir=folder) as place:
        output = Path(place) / "embedded.npy"
        shutil.copytree(folder / "embedded.parts", output.with_suffix(".parts"))
        embed_files(lambda: Retriever(load_model(folder / "model")), [folder / "stripes"], output)
        names = output.with_suffix(".txt").read_bytes()
        return hashlib.sha256(output.read_bytes() + names).hexdigest()


def _decisions(folder: Path) -> list[str]:
    from forerank.data import open_table
    from forerank.search.corrections import Corrections

    corrections = Corrections(folder / "corrections.jsonl", open_table(folder / "stripes"), "model")
    found = [repr(decision) for decision in corrections.decisions().values()]
    corrections.close()
    return found


def _shard(folder: Path) -> str:
    from forerank.data.sources import open_pictures

    return repr([(picture.name, len(picture.read())) for picture in open_pictures(folder / "shard.tar")])


def _recipe(file: Path) -> str:
    from forerank.training import load_recipe

    return repr(load_recipe(file))


def _table(file: Path) -> str:
    from forerank.data import open_table

    return repr(open_table(file).label.tolist())


def _label_file(folder: Path) -> str:
    from forerank.metrics.files import read_labels

    return repr(read_labels(folder / "labels.csv"))


def _embeddings(folder: Path) -> str:
    from forerank.errors import InputError
    from forerank.metrics import evaluate
    from forerank.metrics.files import read_embeddings

    try:
        return repr(dict(evaluate(read_embeddings(folder / "vectors.npy"), [0, 1] * 4, nmi=False)))
    except InputError as error:  # a value that is not finite is refused by its row
        raise InputError(f"vectors.npy: {error}") from error
