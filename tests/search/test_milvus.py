"""What only Milvus has: a server that goes away, and rows that arrive one batch at a time."""

import json
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("pymilvus")
pytest.importorskip("milvus_lite")

from forerank.errors import ForerankError, InputError
from forerank.search import Index, milvus_connection, milvus_records, milvus_update, open_engine


@pytest.fixture
def own_server(milvus_server, tmp_path):
    server = type(milvus_server)(tmp_path / "data")
    server.start()
    yield server
    server.kill()


def test_a_server_that_is_killed_and_comes_back_loses_nothing(
    own_server, make_rows, random_vectors, meta, capsys, when_waiting
):
    rows, vectors = make_rows([f"a/{i:03d}.png" for i in range(90)]), random_vectors(90)
    engine = open_engine(own_server.address)
    with engine.update(16, "model-a") as update:
        update.put(rows[:30], vectors[:30])
        own_server.kill()
        waits = when_waiting(own_server.start)
        update.put(rows[30:60], vectors[30:60])  # fails, waits, tries again, succeeds
        assert waits
        own_server.kill()
        own_server.start()
        update.put(rows[60:], vectors[60:])
        update.complete(rows, meta, None)
    assert "trying again in" in capsys.readouterr().err
    catalogue = {row.path: row for row in engine.all_rows()}
    assert len(catalogue) == engine.count() == 90
    np.testing.assert_array_equal(engine.vectors([catalogue[row.path].id for row in rows]), vectors)
    engine.close()


def test_a_server_that_stays_away_is_told_in_a_sentence(monkeypatch, closed_port):
    monkeypatch.setattr(milvus_connection, "ATTEMPTS", 2)
    address = f"milvus:http://127.0.0.1:{closed_port}"
    with pytest.raises(ForerankError, match=f"cannot reach {address}"):
        open_engine(address).meta()


def test_a_half_loaded_index_says_so(tmp_path, make_rows, random_vectors, capsys):
    engine = open_engine(f"milvus:{tmp_path / 'half.db'}")
    with engine.update(16, "model-a") as update:
        update.put(make_rows(["a/1.png"]), random_vectors(1))
    index = Index(engine)
    assert "only partly loaded" in capsys.readouterr().err
    assert len(index.search_vectors(random_vectors(1), 5)[0]) == 1
    with pytest.raises(InputError, match="no copy of its model"):
        index.search("x.png")
    engine.close()


def test_an_update_that_was_killed_is_finished_by_the_next(tmp_path, model_folder, image_folder):
    """A changed image was stored, its old row not yet deleted: both have the same path."""
    from PIL import Image

    from forerank.search import build_index
    from forerank.search.rows import Row, hash_file

    address = f"milvus:{tmp_path / 'killed.db'}"
    build_index(model_folder, image_folder, address)
    file = image_folder / "class0" / "00.png"
    Image.new("L", (32, 32), 99).save(file)
    content, state = hash_file(file)
    engine = open_engine(address)
    fingerprint = engine.meta()["model"]["fingerprint"]
    with engine.update(16, fingerprint) as update:
        row = Row("class0/00.png", "class0", content, state.st_size, state.st_mtime_ns)
        update.put([row], np.eye(1, 16, dtype=np.float32))
    assert engine.count() == 13
    assert engine.meta()["complete"] is False
    engine.close()
    assert build_index(model_folder, image_folder, address).count == 12
    engine = open_engine(address)
    assert engine.count() == 12
    assert engine.meta()["complete"] is True
    engine.close()


def test_another_process_has_the_file(tmp_path, fill, make_rows, random_vectors):
    import subprocess
    import sys

    address = f"milvus:{tmp_path / 'own.db'}"
    engine = open_engine(address)
    fill(engine, make_rows(["a/1.png"]), random_vectors(1))
    code = "import sys; from forerank.search import open_engine; print(open_engine(sys.argv[1]).count())"
    blocked = subprocess.run(
        [sys.executable, "-c", code, address], capture_output=True, text=True, check=False
    )
    assert "another process has it open" in blocked.stderr
    engine.close()
    free = subprocess.run([sys.executable, "-c", code, address], capture_output=True, text=True, check=True)
    assert free.stdout.strip() == "1"


def test_two_contents_with_one_id_live_side_by_side(tmp_path, make_rows, random_vectors, meta, monkeypatch):
    """One chance in 2^53 becomes certainty: every row wants the same id."""
    monkeypatch.setattr(milvus_update, "id_of", lambda content, path: milvus_update.LARGEST_ID)
    rows, vectors = make_rows(["a/1.png", "a/2.png", "a/3.png"]), random_vectors(3)
    engine = open_engine(f"milvus:{tmp_path / 'same.db'}")
    for _ in range(2):
        with engine.update(16, "model-a") as update:
            for row, vector in zip(rows, vectors, strict=True):
                if row.content not in update.stored([row.content]):
                    update.put([row], vector[None])
            update.complete(rows, meta, None)
    catalogue = {row.path: row for row in engine.all_rows()}
    assert len(catalogue) == 3
    np.testing.assert_array_equal(engine.vectors([catalogue[row.path].id for row in rows]), vectors)
    engine.close()


def test_an_update_never_holds_all_rows(tmp_path, fill, make_rows, random_vectors, meta, monkeypatch):
    """What the server holds is looked at in batches: rows alive stay within a few batches of those given."""
    import gc

    from forerank.search.rows import Row

    monkeypatch.setattr(milvus_records, "BATCH_ROWS", 50)
    rows, vectors = make_rows([f"a/{i:04d}.png" for i in range(2000)]), random_vectors(2000)
    engine = open_engine(f"milvus:{tmp_path / 'many.db'}")
    fill(engine, rows, vectors)
    alive = []
    call = engine._call

    def counted(*arguments, **options):
        alive.append(sum(type(thing) is Row for thing in gc.get_objects()))
        return call(*arguments, **options)

    monkeypatch.setattr(engine, "_call", counted)
    gc.freeze()  # only what is made from here on is counted, so that counting is quick
    try:
        with engine.update(16, "model-a") as update:
            assert len(update.stored({row.content for row in rows})) == 2000
            update.complete(rows[5:], meta, None)
    finally:
        gc.unfreeze()
    assert len(alive) > 30
    assert max(alive) < 500
    assert engine.count() == 1995
    engine.close()


def test_a_second_load_into_one_collection_is_refused(milvus_server, make_rows, random_vectors, meta):
    import subprocess
    import sys

    address = milvus_server.address + "#claimed"
    engine, rows, vectors = open_engine(address), make_rows(["a/1.png", "a/2.png"]), random_vectors(2)
    code = (
        "import sys; from forerank.search import open_engine\n"
        "with open_engine(sys.argv[1]).update(16, 'model-a'): print('in', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, address]
    first = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert first.stdout.readline() == b"in\n"
    refusal = rf"another load is writing to .* \(process {first.pid} on"
    with pytest.raises(InputError, match=refusal), engine.update(16, "model-a"):
        pass
    first.kill()  # its claim stays behind
    first.communicate()
    with engine.update(16, "model-a") as update:
        update.put(rows, vectors)
        update.complete(rows, meta, None)
    assert engine.count() == 2
    engine.close()


def test_a_claim_of_another_machine_ends_by_its_age(tmp_path, monkeypatch):
    from forerank.search import milvus_claim

    engine = open_engine(f"milvus:{tmp_path / 'claims.db'}")
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(milvus_claim.socket, "gethostname", lambda: "elsewhere")
        with engine.update(16, "model-a"):
            records = engine._call(
                "query", "forerank_meta", filter="id >= 2", output_fields=["id", "body", "vector"]
            )
    engine._call("upsert", "forerank_meta", [dict(records[0])])  # as a killed process leaves it
    with pytest.raises(InputError, match=r"on elsewhere\)"), engine.update(16, "model-a"):
        pass
    monkeypatch.setattr(milvus_claim, "STALE_SECONDS", 0.0)
    with engine.update(16, "model-a"):
        pass
    engine.close()


def test_a_server_that_is_too_old_is_refused_and_an_older_one_says_what_it_lacks(
    real_milvus, fill, make_rows, random_vectors, capsys, monkeypatch
):
    from forerank.search.engine import Filter

    engine = open_engine(real_milvus.address + "#old")
    fill(engine, make_rows(["shoes/1.png", "hats/2.png"]), random_vectors(2))
    assert engine._connection.version == (2, 3)
    assert [row.path for row in engine.page(where=Filter(text="OES"))] == ["shoes/1.png"]
    assert "older than Milvus 2.4" in capsys.readouterr().err
    engine.close()
    monkeypatch.setattr(milvus_connection, "OLDEST", (2, 9))
    with pytest.raises(InputError, match=r"is Milvus 2\.3: Forerank needs 2\.9 or newer"):
        open_engine(real_milvus.address + "#old").meta()


def test_a_full_disk_of_the_server_is_said_in_a_sentence(
    milvus_server, tmp_path, make_rows, random_vectors, meta
):
    """The server's data lie in a file system of 24 MB that the test fills, and empties again."""

    class Small(type(milvus_server)):
        def command(self):
            self.data.mkdir(exist_ok=True)
            mount = 'mount -t tmpfs -o size=24m none "$0" && exec "$@"'
            return ["unshare", "-rm", "sh", "-c", mount, str(self.data), *super().command()]

    server = Small(tmp_path / "data")
    try:
        server.start()
    except (RuntimeError, OSError):
        pytest.skip("this machine does not let its users mount a file system of their own")
    try:
        ballast = Path(f"/proc/{server.process.pid}/root{server.data}/ballast")
        rows, vectors = make_rows([f"a/{i:04d}.png" for i in range(1500)]), random_vectors(1500, 128)
        engine = open_engine(server.address)
        full = rf"cannot upsert at {server.address}: the disk of the server is full; what was acknowledged is"
        with engine.update(128, "model-a") as update:
            update.put(rows[:500], vectors[:500])
            with suppress(OSError), ballast.open("wb", buffering=0) as file:
                while True:
                    file.write(bytes(2**12))
            with pytest.raises(ForerankError, match=full):
                update.put(rows[500:], vectors[500:])
        ballast.unlink()
        with engine.update(128, "model-a") as update:
            stored = update.stored({row.content for row in rows})
            assert {row.content for row in rows[:500]} <= stored
            new = [i for i, row in enumerate(rows) if row.content not in stored]
            update.put([rows[i] for i in new], vectors[new])
            update.complete(rows, meta, None)
        catalogue = {row.path: row for row in engine.all_rows()}
        assert len(catalogue) == engine.count() == 1500
        np.testing.assert_array_equal(engine.vectors([catalogue[row.path].id for row in rows]), vectors)
        engine.close()
    finally:
        server.kill()


def test_a_real_server_finds_the_true_neighbours(real_milvus, tmp_path):
    """Its own choice of an index looks at few candidates: without more of them 4 to 6 of 100 are missed."""
    script, numbers = Path(__file__).parents[2] / "benchmarks" / "milvus.py", tmp_path / "numbers.json"
    command = [sys.executable, str(script), "--address", real_milvus.address + "#recall", "--rows", "20000"]
    subprocess.run([*command, "--json", str(numbers)], check=True)
    measured = json.loads(numbers.read_text())
    assert measured["Milvus"]["recall@10"] > 0.98
    assert measured["folder, exact"]["recall@10"] > 0.999
    assert measured["Milvus"]["client MiB"] < 1024
