"""A real Milvus that is killed (SIGKILL) in the middle of a load and started again on its data."""

import numpy as np
import pytest

pytest.importorskip("pymilvus")

from forerank.errors import ForerankError
from forerank.models import Retriever
from forerank.search import build_index, milvus, milvus_connection, open_engine
from forerank.search.milvus_update import MilvusUpdate


def stored(address):
    engine = open_engine(address)
    rows = {
        row.path: (row.label, row.content, vector.tobytes())
        for part in engine.scan()
        for row, vector in zip(*part, strict=True)
    }
    engine.close()
    return rows


def test_a_load_waits_for_the_server_and_goes_on(
    mortal_milvus, make_rows, random_vectors, meta, monkeypatch, capsys, when_waiting
):
    monkeypatch.setattr(milvus_connection, "PATIENT_ATTEMPTS", 60)  # the machine may be very busy
    rows, vectors = make_rows([f"a/{i:04d}.png" for i in range(3000)]), random_vectors(3000)
    address = f"{mortal_milvus.address}#waits"
    engine = open_engine(address)
    with engine.update(16, "model-a") as update:
        for start in range(0, 3000, 500):
            if start == 1500:
                mortal_milvus.kill()
                when_waiting(mortal_milvus.start)
            update.put(rows[start : start + 500], vectors[start : start + 500])
        update.complete(rows, meta, None)
    assert "trying again in" in capsys.readouterr().err
    assert engine.count() == 3000
    assert engine.meta()["complete"] is True
    engine.close()
    expected = {r.path: (r.label, r.content, v.tobytes()) for r, v in zip(rows, vectors, strict=True)}
    assert stored(address) == expected


@pytest.mark.parametrize("moment", ["storing", "completing"])
def test_the_command_run_again_gives_the_index_of_an_uninterrupted_run(
    mortal_milvus, moment, model_folder, image_folder, tmp_path, monkeypatch
):
    """Killed between two parts, or when all rows are stored and the index is about to be called complete."""
    address = f"{mortal_milvus.address}#{moment}"
    build_index(model_folder, image_folder, tmp_path / "uninterrupted", part=2)
    retriever = Retriever.load(model_folder)
    embed, put, write_meta = retriever.embed, MilvusUpdate.put, milvus.MilvusEngine._write_meta
    acknowledged = []

    def embed_or_kill(*arguments, **options):
        if moment == "storing" and len(acknowledged) == 6:
            mortal_milvus.kill()
        return embed(*arguments, **options)

    def put_noted(self, rows, vectors):
        put(self, rows, vectors)
        acknowledged.extend(row.path for row in rows)

    def write_meta_or_kill(self, meta):
        if meta["complete"]:
            mortal_milvus.kill()
        write_meta(self, meta)

    monkeypatch.setattr(retriever, "embed", embed_or_kill)
    with monkeypatch.context() as first_run:
        first_run.setattr(MilvusUpdate, "put", put_noted)
        first_run.setattr(milvus_connection, "PATIENT_ATTEMPTS", 2)  # the server does not come back by itself
        if moment == "completing":
            first_run.setattr(milvus.MilvusEngine, "_write_meta", write_meta_or_kill)
        with pytest.raises(ForerankError, match=rf"^cannot \w+ at {address}: [^\n]+$"):
            build_index(retriever, image_folder, address, part=2)
    assert len(acknowledged) == (6 if moment == "storing" else 12)

    mortal_milvus.start()
    monkeypatch.setattr(milvus_connection, "PATIENT_ATTEMPTS", 60)
    kept = stored(address)
    assert set(acknowledged) <= set(kept)
    monkeypatch.setattr(retriever, "embed", embed)
    report = build_index(retriever, image_folder, address, part=2)
    assert (report.count, report.resumed) == (12, len(kept))
    assert stored(address) == stored(tmp_path / "uninterrupted")
    assert open_engine(address).meta()["complete"] is True


def test_a_search_finds_its_way_back(mortal_milvus, fill, make_rows, random_vectors, monkeypatch):
    monkeypatch.setattr(milvus_connection, "PATIENT_ATTEMPTS", 60)
    rows, vectors = make_rows(["a/1.png", "b/2.png", "c/3.png"]), random_vectors(3)
    engine = open_engine(f"{mortal_milvus.address}#searched")
    fill(engine, rows, vectors)
    before = engine.search(vectors, 2)
    mortal_milvus.kill()
    mortal_milvus.start()
    after = engine.search(vectors, 2)
    np.testing.assert_array_equal(after.ids, before.ids)
    assert [row.path for row in engine.rows(after.ids[:, 0].tolist())] == [row.path for row in rows]
    engine.close()
