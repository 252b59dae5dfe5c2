"""Building: incremental by content, resumable, and either the old index or the new one after a kill."""

import os
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from forerank.data import Table
from forerank.errors import InputError
from forerank.models import Retriever
from forerank.search import Index, build_index, open_engine


def vectors_by_path(address):
    engine = open_engine(address)
    try:
        return {row.path: vector for rows, vs in engine.scan() for row, vector in zip(rows, vs, strict=True)}
    finally:
        engine.close()


def same_as_from_scratch(address, model_folder, image_folder, labels=True):
    """Whether an index holds what embedding every image anew gives."""
    files = sorted(image_folder.rglob("*.png"))
    expected = Retriever.load(model_folder).embed(files, progress=False)
    have = vectors_by_path(address)
    assert set(have) == {file.relative_to(image_folder).as_posix() for file in files}
    for file, vector in zip(files, expected, strict=True):
        np.testing.assert_allclose(have[file.relative_to(image_folder).as_posix()], vector, atol=1e-5)


def test_only_new_and_changed_images_are_embedded(address, model_folder, image_folder):
    first = build_index(model_folder, image_folder, address)
    assert (first.count, first.embedded, first.kept) == (12, 12, 0)
    again = build_index(model_folder, image_folder, address)
    assert not again.changed
    assert again.embedded == 0

    shutil.move(image_folder / "class0/00.png", image_folder / "class1/moved.png")
    Image.new("L", (32, 32), 77).save(image_folder / "class1/01.png")
    Image.new("L", (32, 32), 200).save(image_folder / "class2/new.png")
    (image_folder / "class2/02.png").unlink()
    third = build_index(model_folder, image_folder, address)
    assert (third.count, third.embedded, third.kept, third.removed) == (12, 2, 10, 2)
    same_as_from_scratch(address, model_folder, image_folder)


def test_a_change_that_size_and_time_do_not_show_is_seen(tmp_path, model_folder, image_folder):
    """The file is rewritten with as many bytes in the same tick as the scan: only its content tells."""
    file = image_folder / "class0/00.png"
    Image.new("L", (32, 32), 10).save(file.with_suffix(".bmp"))
    file.with_suffix(".bmp").rename(file)
    build_index(model_folder, image_folder, tmp_path / "index")
    stamp = file.stat()
    Image.new("L", (32, 32), 240).save(file.with_suffix(".bmp"))
    file.with_suffix(".bmp").rename(file)
    os.utime(file, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    assert file.stat().st_size == stamp.st_size
    assert build_index(model_folder, image_folder, tmp_path / "index").embedded == 1


def test_old_files_are_not_read_again_unless_asked(tmp_path, model_folder, image_folder, monkeypatch):
    for file in image_folder.rglob("*.png"):
        os.utime(file, ns=(0, 10**9))
    build_index(model_folder, image_folder, tmp_path / "index")
    import forerank.search.build as build

    read = []
    monkeypatch.setattr(
        build, "hash_file", lambda path, real=build.hash_file: read.append(path) or real(path)
    )
    build_index(model_folder, image_folder, tmp_path / "index")
    assert read == []
    build_index(model_folder, image_folder, tmp_path / "index", rehash=True)
    assert len(read) == 12


def test_with_rehash_no_features_are_taken_that_size_and_time_lead_to(
    tmp_path, model_folder, image_folder, keep_features, monkeypatch
):
    """New bytes of the same size, written into the same file, with the old time."""
    file = image_folder / "class0/00.png"
    Image.new("L", (32, 32), 10).save(file, "BMP")
    cache, stamp = tmp_path / "cache", file.stat()
    keep_features(model_folder, image_folder, cache)
    monkeypatch.setenv("FORERANK_CACHE", str(cache))
    assert build_index(model_folder, image_folder, tmp_path / "trusting").reused == 12
    pixels = np.random.default_rng(99).integers(0, 256, (32, 32), dtype=np.uint8)
    with file.open("r+b") as same_file:
        Image.fromarray(pixels).save(same_file, "BMP")
    os.utime(file, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    assert (file.stat().st_size, file.stat().st_ino) == (stamp.st_size, stamp.st_ino)
    report = build_index(model_folder, image_folder, tmp_path / "index", rehash=True)
    assert (report.reused, report.embedded) == (0, 12)
    same_as_from_scratch(tmp_path / "index", model_folder, image_folder)


def test_a_retriever_that_is_open_already_takes_the_engine_of_the_index(tmp_path, model_folder, image_folder):
    pytest.importorskip("openvino")
    place = tmp_path / "index"
    build_index(Retriever.load(model_folder, engine="openvino"), image_folder, place)
    open_engine(place).change_meta({"threshold": {"similarity": 0.5}})
    retriever = Retriever.load(model_folder, engine="torch")
    assert retriever.network.engine == "torch"  # open from here on
    Image.new("L", (32, 32), 77).save(image_folder / "class0/new.png")
    report = build_index(retriever, image_folder, place)
    assert (report.count, report.embedded, report.kept) == (13, 1, 12)
    meta = open_engine(place).meta()
    assert (meta["model"]["engine"], meta["threshold"]) == ("openvino", {"similarity": 0.5})


def test_unreadable_images_are_left_out_and_named(tmp_path, model_folder, image_folder):
    (image_folder / "class0/broken.png").write_bytes(b"not a picture")
    whole = (image_folder / "class1/01.png").read_bytes()
    (image_folder / "class1/torn.png").write_bytes(whole[: len(whole) // 2])
    report = build_index(model_folder, image_folder, tmp_path / "index")
    assert set(report.skipped) == {"class0/broken.png", "class1/torn.png"}
    assert "not an image" in report.skipped["class0/broken.png"]
    assert report.count == 12
    with pytest.raises(InputError, match="cannot index"):
        build_index(model_folder, image_folder, tmp_path / "strict", on_bad="refuse")


def test_another_model_is_refused_with_the_reason(address, model_folder, other_model_folder, image_folder):
    build_index(model_folder, image_folder, address)
    with pytest.raises(InputError, match=r"built with another model.*cannot be compared"):
        build_index(other_model_folder, image_folder, address)
    with pytest.raises(InputError, match=r"built with another model.*cannot be compared"):
        Index.open(address, model=other_model_folder)
    same_as_from_scratch(address, model_folder, image_folder)


def test_replace_builds_anew_with_another_model(tmp_path, model_folder, other_model_folder, image_folder):
    build_index(model_folder, image_folder, tmp_path / "index")
    report = build_index(other_model_folder, image_folder, tmp_path / "index", replace=True)
    assert report.embedded == 12
    same_as_from_scratch(tmp_path / "index", other_model_folder, image_folder)


def test_a_flat_folder_has_no_labels(tmp_path, model_folder, image_folder):
    flat = tmp_path / "flat"
    flat.mkdir()
    for file in image_folder.rglob("*.png"):
        shutil.copy(file, flat / file.name)
    build_index(model_folder, flat, tmp_path / "index")
    index = Index.open(tmp_path / "index")
    assert not index.meta["labelled"]
    assert index.search(flat / "03.png", 1)[0].path == "03.png"


def test_an_index_has_no_pickle_and_needs_only_its_folder(tmp_path, model_folder, image_folder):
    build_index(model_folder, image_folder, tmp_path / "index")
    moved = tmp_path / "elsewhere"
    shutil.move(tmp_path / "index", moved)
    for file in moved.rglob("*"):
        if file.is_file():
            assert b"\x80\x04\x95" not in file.read_bytes(), f"{file} looks pickled"
    assert Index.open(moved).search(image_folder / "class0/00.png", 1)[0].path == "class0/00.png"


def test_a_damaged_index_is_refused_by_name(tmp_path, model_folder, image_folder):
    build_index(model_folder, image_folder, tmp_path / "index")
    vectors = next((tmp_path / "index").glob("generation-*/vectors.npy"))
    vectors.write_bytes(vectors.read_bytes()[:-100])
    with pytest.raises(InputError, match=r"vectors\.npy is damaged"):
        Index.open(tmp_path / "index")


def cut_vectors(index):
    file = next(index.glob("generation-*/vectors.npy"))
    file.write_bytes(file.read_bytes()[:-100])


def spoil_rows(index):
    file = next(index.glob("generation-*/rows.sqlite"))
    file.write_bytes(b"x" * file.stat().st_size)


DAMAGE = {
    "vectors cut": cut_vectors,
    "rows spoiled": spoil_rows,
    "no meta data": lambda index: next(index.glob("generation-*/meta.json")).unlink(),
    "no generation": lambda index: shutil.rmtree(next(index.glob("generation-*"))),
    "pointer spoiled": lambda index: (index / "CURRENT").write_text("nonsense\n"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_what_is_damaged_is_said_and_built_anew_with_replace(tmp_path, model_folder, image_folder, damage):
    build_index(model_folder, image_folder, tmp_path / "index")
    DAMAGE[damage](tmp_path / "index")
    with pytest.raises(InputError, match=r"damaged.*--replace builds it again from nothing"):
        Index.open(tmp_path / "index").search(image_folder / "class0/00.png")
    with pytest.raises(InputError, match="--replace builds it again from nothing"):
        build_index(model_folder, image_folder, tmp_path / "index")
    assert build_index(model_folder, image_folder, tmp_path / "index", replace=True).embedded == 12
    same_as_from_scratch(tmp_path / "index", model_folder, image_folder)


def test_what_is_no_plain_file_or_has_no_name_is_left_out(tmp_path, model_folder, image_folder):
    os.mkfifo(image_folder / "class0" / "pipe.png")
    (image_folder / "class1" / "nowhere.png").symlink_to(tmp_path / "gone.png")
    nameless = os.fsencode(image_folder / "class2") + b"/\xff.png"
    shutil.copy(image_folder / "class2" / "02.png", nameless)
    paths = [file.relative_to(image_folder).as_posix() for file in sorted(image_folder.rglob("*.png"))]
    table = Table(paths, [path.partition("/")[0] for path in paths], ["test"] * len(paths), root=image_folder)
    report = build_index(model_folder, table, tmp_path / "index")
    assert report.count == 12
    assert report.skipped == {
        "class0/pipe.png": "cannot be read: not a plain file",
        "class1/nowhere.png": "cannot be read: No such file or directory",
        "class2/\udcff.png": "its name is not UTF-8: rename it",
    }


def test_an_index_with_an_unreadable_image_is_up_to_date(address, model_folder, image_folder):
    (image_folder / "class0/broken.png").write_bytes(b"not a picture")
    assert build_index(model_folder, image_folder, address).changed
    again = build_index(model_folder, image_folder, address)
    assert not again.changed
    assert "not an image" in again.skipped["class0/broken.png"]
    shutil.copy(image_folder / "class0/00.png", image_folder / "class0/broken.png")
    assert build_index(model_folder, image_folder, address).count == 13


def test_a_folder_with_other_things_is_not_taken_for_an_index(model_folder, image_folder):
    with pytest.raises(InputError, match="holds other things"):
        build_index(model_folder, image_folder, image_folder)


def test_two_writers_do_not_meet(tmp_path, model_folder, image_folder):
    engine = open_engine(tmp_path / "index")
    with engine.update(16, "somebody"), pytest.raises(InputError, match="another process is writing"):
        build_index(model_folder, image_folder, tmp_path / "index")


KILLED = """
import sys
import forerank.search.build as build
from forerank.models import Retriever

model, images, address = sys.argv[1:]
slow = Retriever.load(model)
embed = slow.embed
def embed_aloud(*arguments, **options):
    print("part", flush=True)
    sys.stdin.readline()  # waits until the test has seen it
    return embed(*arguments, **options)
slow.embed = embed_aloud
build.build_index(slow, images, address, part=2)
"""


def test_killed_while_embedding_goes_on_where_it_was(address, model_folder, image_folder):
    """Six parts of two images, killed when the fourth begins: three are acknowledged, none is lost."""
    if address.startswith("plain:"):
        pytest.skip("this engine lives in the memory of one process")
    command = [sys.executable, "-c", KILLED, str(model_folder), str(image_folder), address]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True)
    for part in range(4):
        assert process.stdout.readline() == b"part\n", process.stderr.read()[-800:]
        if part < 3:
            process.stdin.write(b"go on\n")
            process.stdin.flush()
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    report = build_index(model_folder, image_folder, address)
    assert (report.count, report.resumed, report.embedded) == (12, 6, 6)
    same_as_from_scratch(address, model_folder, image_folder)


def test_a_reader_keeps_its_generation_while_a_writer_replaces_it(tmp_path, model_folder, image_folder):
    build_index(model_folder, image_folder, tmp_path / "index")
    reader = Index.open(tmp_path / "index")
    reader.search(image_folder / "class0/00.png", 3)
    (image_folder / "class0/00.png").unlink()
    build_index(model_folder, image_folder, tmp_path / "index")
    assert len(reader) == 12
    assert len(reader.search_row(0, 20)) == 11
    assert len(Index.open(tmp_path / "index")) == 11
