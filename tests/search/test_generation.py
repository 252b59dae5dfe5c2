"""A local index is the old one or the new one, at whatever moment its writer is killed."""

import os
import shutil
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest

from forerank.errors import ForerankError, InputError
from forerank.files import json_with_checksum, read_json_with_checksum
from forerank.search import Row, generation, open_engine, positions
from forerank.search.engine import Filter
from forerank.search.journal import Journal, Journals
from waiting import LIMIT

# The steps of putting a new state in force, each killed just before and just after.
# (a number: which call of it is meant)
MOMENTS = [
    "write_rows",
    "_write_vectors",
    "save_model",
    "write_atomically 1",
    "publish",
    "sync_tree",
    "sync_folder 1",
]
MOMENTS += ["sync_folder 2", "sync_folder 3", "write_atomically 2", "sweep 2"]

CUT = """
import os, signal, sys
import numpy as np
from forerank import files
from forerank.search import folder, generation
from forerank.search.rows import Row

address, moment, when = sys.argv[1:]
moment, _, number = moment.partition(" ")

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

def save_model(folder):
    folder.mkdir()
    (folder / "model.json").write_text("{}")

if moment == "save_model":
    save_model = (lambda real: lambda f: (when == "before" and die(), real(f), die()))(save_model)
else:
    owner = folder._FolderUpdate if moment == "_write_vectors" else generation
    if hasattr(files, moment):
        owner = files
    real = getattr(owner, moment)
    calls = []
    def cut(*arguments):
        calls.append(1)
        if len(calls) < int(number or 1):
            return real(*arguments)
        if when == "before":
            die()
        real(*arguments)
        die()
    setattr(owner, moment, cut)

rows = [Row(f"{i}.png", "new", f"{i:032x}", 1, 1) for i in range(5, 15)]
vectors = np.eye(16, dtype=np.float32)[5:15]
engine = folder.FolderEngine(address)
with engine.update(16, "model-a") as update:
    new = [i for i, row in enumerate(rows) if not update.stored([row.content])]
    update.put([rows[i] for i in new], vectors[new])
    update.complete(rows, {"model": {"fingerprint": "model-a"}}, save_model)
"""


def state(address):
    engine = open_engine(address)
    rows, vectors = next(iter(engine.scan()))
    engine.close()
    assert len({row.label for row in rows}) == 1
    numbers = [int(row.path.removesuffix(".png")) for row in rows]
    np.testing.assert_array_equal(vectors[np.argsort(numbers)], np.eye(16, dtype=np.float32)[sorted(numbers)])
    return rows[0].label, sorted(numbers)


def test_killed_at_any_moment_it_is_the_old_index_or_the_new(tmp_path, fill):
    old = [Row(f"{i}.png", "old", f"{i:032x}", 1, 1) for i in range(10)]
    engine = open_engine(tmp_path / "kept")
    fill(engine, old, np.eye(16, dtype=np.float32)[:10])
    seen = []
    for moment in MOMENTS:
        for when in ("before", "after"):
            address = tmp_path / f"{moment}-{when}".replace(" ", "-")
            shutil.copytree(tmp_path / "kept", address)
            killed = subprocess.run(
                [sys.executable, "-c", CUT, str(address), moment, when], capture_output=True, check=False
            )
            assert killed.returncode == -signal.SIGKILL, (moment, when, killed.stderr.decode()[-800:])
            label, numbers = state(address)
            assert numbers == (list(range(10)) if label == "old" else list(range(5, 15)))
            seen.append(label)
            # What the killed one had stored is not embedded again, and what it left behind goes away.
            again = open_engine(address)
            with again.update(16, "model-a") as update:
                contents = {f"{i:032x}" for i in range(5, 15)}
                assert update.stored(contents) == contents
            again.tidy()
            assert len(list(address.glob("generation-*"))) == 1
            assert not list(address.glob("building-*"))
    assert set(seen) == {"old", "new"}


def test_positions_are_those_of_a_dictionary(monkeypatch):
    """Sorted arrays and the newest entries together; contents that end with zeros, and some given twice."""
    monkeypatch.setattr(positions, "FEWEST_RECENT", 50)
    generator, table, expected = np.random.default_rng(0), positions.Positions(), {}
    for start in range(0, 600, 7):
        contents = [f"{n:02x}{'00' * 15}" for n in generator.integers(0, 200, 7)]
        contents += [generator.bytes(16).hex() for _ in range(3)]
        expected |= dict(zip(contents, range(start, start + 10), strict=True))
        table.add(contents, range(start, start + 10))
    assert table.contents() == set(expected)
    assert table.find(list(expected)).tolist() == list(expected.values())
    assert table.find(["ab" * 16, "00" * 15 + "01"]).tolist() == [-1, -1]


def test_a_torn_journal_gives_what_is_whole(tmp_path, random_vectors):
    vectors = random_vectors(6, 8)
    names = [f"{i:032x}" for i in range(6)]
    journal = Journal(tmp_path / "log", 8, "model")
    journal.append(names[:4], vectors[:4])
    journal.close()
    whole = (tmp_path / "log").read_bytes()
    for cut in range(1, 4 * (16 + 32 + 4), 13):
        (tmp_path / "log").write_bytes(whole[:-cut])
        torn = Journal(tmp_path / "log", 8, "model")
        assert torn.contents() == set(names[: (4 * 52 - cut) // 52])
        torn.append(names[4:], vectors[4:])
        torn.close()
        again = Journal(tmp_path / "log", 8, "model")
        np.testing.assert_array_equal(again.vectors(again.find(names[4:]).tolist()), vectors[4:])
        again.close()


def test_a_flipped_bit_in_the_journal_is_not_believed(tmp_path, random_vectors):
    journal = Journal(tmp_path / "log", 8, "model")
    journal.append([f"{i:032x}" for i in range(3)], random_vectors(3, 8))
    journal.close()
    content = bytearray((tmp_path / "log").read_bytes())
    content[-60] ^= 1
    (tmp_path / "log").write_bytes(content)
    assert len(Journal(tmp_path / "log", 8, "model").contents()) == 1


def test_a_journal_of_another_model_is_started_anew(tmp_path, random_vectors):
    journal = Journal(tmp_path / "log", 8, "model")
    journal.append(["00" * 16], random_vectors(1, 8))
    journal.close()
    assert Journal(tmp_path / "log", 8, "other").contents() == set()


@pytest.mark.parametrize("content", [b"../../etc\n", b"generation-\xb00\n", b"generation-0\x0001", b""])
def test_a_pointer_that_leads_elsewhere_is_refused(tmp_path, content):
    (tmp_path / generation.CURRENT).write_bytes(content)
    with pytest.raises(InputError, match="damaged"):
        open_engine(tmp_path).meta()


def test_an_index_of_a_newer_format_is_refused(tmp_path, fill, make_rows, random_vectors):
    engine = open_engine(tmp_path / "index")
    fill(engine, make_rows(["a/1.png"]), random_vectors(1))
    file = next((tmp_path / "index").glob("generation-*/meta.json"))
    file.write_text(json_with_checksum({**read_json_with_checksum(file), "format": 4}))
    with pytest.raises(InputError, match="index format 4; this version reads 3"):
        open_engine(tmp_path / "index").meta()


def test_the_lock_goes_with_the_process(tmp_path, make_rows, random_vectors):
    """A killed writer blocks nobody."""
    code = "import sys; from forerank.search import open_engine\n"
    code += "with open_engine(sys.argv[1]).update(16, 'm'): print('in', flush=True); sys.stdin.read()"
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "index")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout.readline() == b"in\n"
    with (
        pytest.raises(InputError, match="another process is writing"),
        open_engine(tmp_path / "index").update(16, "m"),
    ):
        pass
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    with open_engine(tmp_path / "index").update(16, "m"):
        pass


@pytest.mark.parametrize("name", ["vectors.npy", "rows.sqlite", "meta.json"])
def test_a_flipped_bit_is_detected_when_a_small_index_is_opened(
    tmp_path, fill, make_rows, random_vectors, name
):
    fill(open_engine(tmp_path / "index"), make_rows(["a/1.png", "a/2.png"]), random_vectors(2))
    file = next((tmp_path / "index").glob(f"generation-*/{name}"))
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    with pytest.raises(InputError, match=f"{name} is damaged"):
        open_engine(tmp_path / "index").meta()


def test_a_large_index_is_verified_on_demand_and_before_its_vectors_are_taken_over(
    tmp_path, fill, make_rows, random_vectors, monkeypatch
):
    monkeypatch.setattr(generation, "VERIFIED_WHEN_OPENED", 0)
    rows, vectors = make_rows(["a/1.png", "a/2.png"]), random_vectors(2)
    engine = open_engine(tmp_path / "index")
    fill(engine, rows, vectors)
    assert engine.verify() > 0
    file = next((tmp_path / "index").glob("generation-*/vectors.npy"))
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    engine = open_engine(tmp_path / "index")
    assert engine.meta() is not None
    with pytest.raises(InputError, match=r"vectors.npy is damaged: it does not fit its checksum"):
        engine.verify()
    with engine.update(vectors.shape[1], engine.meta()["model"]["fingerprint"]) as update:
        assert update.stored([row.content for row in rows]) == set()


def test_a_cell_of_another_type_is_damage(tmp_path, fill, make_rows, random_vectors, monkeypatch):
    """As a stranger's index may have it, or a large one that was not verified."""
    import sqlite3

    monkeypatch.setattr(generation, "VERIFIED_WHEN_OPENED", 0)
    fill(open_engine(tmp_path / "index"), make_rows(["a/1.png"]), random_vectors(1))
    file = next((tmp_path / "index").glob("generation-*/rows.sqlite"))
    with sqlite3.connect(file) as database:
        database.execute("UPDATE rows SET columns = ?", (b"{\xff",))
    database.close()
    with pytest.raises(InputError, match=r"rows.sqlite is damaged"):
        open_engine(tmp_path / "index").rows([0])


def test_names_in_the_database_that_are_no_text_are_damage(
    tmp_path, fill, make_rows, random_vectors, monkeypatch
):
    """Python then raises UnicodeDecodeError, not one of the database. Found by the campaign `readers`."""
    monkeypatch.setattr(generation, "VERIFIED_WHEN_OPENED", 0)
    fill(open_engine(tmp_path / "index"), make_rows(["a/1.png"]), random_vectors(1))
    file = next((tmp_path / "index").glob("generation-*/rows.sqlite"))
    content = bytearray(file.read_bytes())
    content[4095 : 4095 + 46] = b"\xff" * 41 + b"\0RRdc"  # the end of the page with the names
    file.write_bytes(content)
    with pytest.raises(InputError, match=r"rows.sqlite is damaged"):
        open_engine(tmp_path / "index").rows([0])


def test_a_content_without_a_vector_is_an_error_with_advice(tmp_path, make_rows, random_vectors, meta):
    """As when a process of a run has left its share out."""
    rows = make_rows([f"{i}.jpg" for i in range(4)])
    engine = open_engine(tmp_path / "index")
    with engine.update(16, "model-a") as update:
        update.put(rows[:3], random_vectors(3))
        with pytest.raises(ForerankError, match=rf"vector of the image with the content {rows[3].content}"):
            update.complete(rows, meta, None)
    journals = Journals(tmp_path / "index", 16, "model-a", 0)
    assert len(journals.vectors([row.content for row in rows[:3]])) == 3  # what was stored is still there
    journals.close()


def test_a_search_is_answered_by_one_state_though_another_is_put_in_force(
    tmp_path, fill, make_rows, random_vectors, monkeypatch
):
    """The page closes its engine when an index was built again, while other threads still search."""
    names = [f"{'ab'[i % 2]}/{i:02d}.jpg" for i in range(40)]
    rows, vectors = make_rows(names), random_vectors(40)
    reader, writer = open_engine(tmp_path / "index"), open_engine(tmp_path / "index")
    fill(writer, rows, vectors)
    real = generation.sql_condition
    monkeypatch.setattr(generation, "sql_condition", lambda where: [replace_the_state(), real(where)][1])

    def replace_the_state():
        monkeypatch.setattr(generation, "sql_condition", real)
        fill(writer, rows[1:], vectors[1:])  # every row gets another id
        reader.close()

    nearest = reader.search(vectors[:1], 20, Filter(label="a"))
    assert sorted(nearest.ids[0].tolist()) == list(range(0, 40, 2))
    assert (nearest.ids[0, 0], reader.count()) == (0, 39)
    nearest = reader.search(vectors[1:2], 20, Filter(label="b"))
    assert sorted(nearest.ids[0].tolist()) == list(range(0, 40, 2))


def test_a_scan_gives_each_row_its_own_vector_though_the_index_is_replaced(
    tmp_path, fill, make_rows, random_vectors
):
    rows, vectors = make_rows([f"{i:02d}.jpg" for i in range(40)]), random_vectors(40)
    engine = open_engine(tmp_path / "index")
    fill(engine, rows, vectors)
    scan, paths = engine.scan(batch=10), engine.all_rows()
    seen = [next(scan)]
    first = next(paths).path
    fill(engine, rows[5:], vectors[5:])
    seen += scan
    assert [row.path for part, _ in seen for row in part] == [row.path for row in rows]
    np.testing.assert_array_equal(np.concatenate([part for _, part in seen]), vectors)
    assert [first, *(row.path for row in paths)] == [row.path for row in rows]
    assert engine.count() == 35
    engine.close()


def test_closing_waits_for_a_query_of_another_thread(tmp_path, fill, make_rows, random_vectors):
    engine = open_engine(tmp_path / "index")
    fill(engine, make_rows([f"{i:02d}.jpg" for i in range(40)]), random_vectors(40))
    closing = threading.Thread(target=engine.close)

    def read_text(cell):
        if closing.ident is None:  # the first row of the query is read, the others are not
            closing.start()
            closing.join(0.5)  # time enough for one that does not wait
        return cell.decode()

    engine._open().database.text_factory = read_text
    assert len(engine.page()) == 40
    closing.join(LIMIT)
    assert engine._opened is None
    assert len(engine.page()) == 40  # it is opened again
    engine.close()
