"""An index from tar shards and addresses: the rows of the folder, each picture read once, nothing listed."""

import io
import json
import os
import subprocess
import sys
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from forerank.data.sources import tar_shards
from forerank.errors import InputError
from forerank.models import Retriever
from forerank.search import Index, build_index, open_engine

fsspec = pytest.importorskip("fsspec")


def write_shard(file: Path, pictures: list[Path]) -> None:
    """A shard as WebDataset writes it: key.png, key.cls (the folder's name) and key.json."""
    with tarfile.open(file, "w") as archive:
        for number, picture in enumerate(pictures):
            about = json.dumps({"price": number, "tags": ["x"]}).encode()
            parts = (("cls", picture.parent.name.encode()), ("png", picture.read_bytes()), ("json", about))
            for ending, data in parts:
                member = tarfile.TarInfo(f"{number:06d}.{ending}")
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))


@pytest.fixture
def shards(image_folder: Path, tmp_path: Path) -> Path:
    place = tmp_path / "shards"
    place.mkdir()
    pictures = sorted(image_folder.rglob("*.png"))
    write_shard(place / "shard-000000.tar", pictures[:7])
    write_shard(place / "shard-000001.tar", pictures[7:])
    return place


def stored(address):
    """Rows and vectors by content: paths are those of the source."""
    engine = open_engine(address)
    rows = {r.content: (r.label, v.tobytes()) for part in engine.scan() for r, v in zip(*part, strict=True)}
    engine.close()
    return rows


@pytest.fixture
def counted(model_folder, monkeypatch):
    """The model, and how many pictures went through it."""
    retriever = Retriever.load(model_folder)
    embed, numbers = retriever.embed, []

    def embed_counted(images, **options):
        numbers.append(len(images))
        return embed(images, **options)

    monkeypatch.setattr(retriever, "embed", embed_counted)
    return retriever, numbers


def test_shards_give_the_index_of_the_folder(address, shards, image_folder, counted, tmp_path):
    retriever, numbers = counted
    build_index(retriever, image_folder, tmp_path / "folder", part=4)
    del numbers[:]
    report = build_index(retriever, shards, address, part=4)
    assert (report.count, report.embedded, numbers) == (12, 12, [4, 4, 4])
    assert stored(address) == stored(tmp_path / "folder")
    index = Index.open(address)
    row = index.engine.page(limit=1, where=index.filter(["price=2"]))[0]
    assert row.path in ("shard-000000.tar/000002.png", "shard-000001.tar/000002.png")
    assert index.columns == ("price",)
    index.close()


def test_run_again_only_what_changed_is_read_and_embedded(shards, counted, tmp_path, monkeypatch):
    retriever, numbers = counted
    os.utime(shards / "shard-000000.tar", (1, 1))  # long ago: trusted
    os.utime(shards / "shard-000001.tar", (1, 1))
    build_index(retriever, shards, tmp_path / "index", part=4)
    before = stored(tmp_path / "index")
    del numbers[:]
    with monkeypatch.context() as nothing_is_read:

        def refuse(*_):
            raise AssertionError("a picture was read")

        nothing_is_read.setattr("forerank.search.streamed._bytes", refuse)
        report = build_index(retriever, shards, tmp_path / "index", part=4)
    assert (report.kept, report.embedded, report.removed, numbers) == (12, 0, 0, [])
    assert stored(tmp_path / "index") == before
    (shards / "shard-000001.tar").unlink()
    report = build_index(retriever, shards, tmp_path / "index", part=4)
    assert (report.count, report.kept, report.removed, numbers) == (7, 7, 5, [])


def test_an_address_gives_the_index_of_the_folder(image_folder, shards, model_folder, tmp_path):
    build_index(model_folder, image_folder, tmp_path / "folder")
    memory = fsspec.filesystem("memory")
    for file in (*image_folder.rglob("*.png"), *shards.iterdir()):
        memory.pipe_file(f"/streamed/{file.relative_to(tmp_path)}", file.read_bytes())
    table = "path,label,colour\n" + "".join(
        f"images/{file.relative_to(image_folder)},{file.parent.name},red\n"
        for file in sorted(image_folder.rglob("*.png"))
    )
    memory.pipe_file("/streamed/table.csv", table.encode())
    expected = stored(tmp_path / "folder")
    for name in ("images", "shards", "table.csv"):
        assert build_index(model_folder, f"memory://streamed/{name}", tmp_path / f"{name}.index").count == 12
        assert stored(tmp_path / f"{name}.index") == expected, name
    one = build_index(model_folder, "memory://streamed/shards/shard-000000.tar", tmp_path / "one")
    assert one.count == 7
    assert stored(tmp_path / "one").keys() <= expected.keys()
    assert Index.open(tmp_path / "table.csv.index").columns == ("colour",)
    memory.rm("/streamed", recursive=True)


def test_hidden_names_are_passed_over_as_in_a_folder(image_folder, model_folder, tmp_path):
    """macOS puts ._NAME beside every file of an archive, and copies of folders bring __MACOSX along."""
    first, *_ = sorted(image_folder.rglob("*.png"))
    names = ("./cup/1.png", "./cup/._1.png", "__MACOSX/cup/2.png", ".cache/3.png")
    shards = tmp_path / "shards"
    shards.mkdir()
    with tarfile.open(shards / "one.tar", "w") as archive:
        for name in names:
            archive.add(first, name)
    (shards / "._one.tar").write_bytes(b"what macOS knows of the file")
    memory = fsspec.filesystem("memory")
    for name in names:
        memory.pipe_file(f"/hidden/{name.removeprefix('./')}", first.read_bytes())
    for number, source in enumerate((shards, "memory://hidden")):
        assert build_index(model_folder, source, tmp_path / str(number)).count == 1
    memory.rm("/hidden", recursive=True)


def test_a_shard_that_is_cut_off_is_said_and_nothing_is_lost(shards, counted, tmp_path):
    retriever, numbers = counted
    build_index(retriever, shards, tmp_path / "whole", part=4)
    second = shards / "shard-000001.tar"
    whole = second.read_bytes()
    second.write_bytes(whole[: len(whole) // 2])
    del numbers[:]
    with pytest.raises(InputError, match=r"shard-000001\.tar is cut off after \d whole images: copy it"):
        build_index(retriever, shards, tmp_path / "index", part=4)
    assert open_engine(tmp_path / "index").meta() is None
    done = sum(numbers)
    assert done >= 4
    second.write_bytes(whole)
    report = build_index(retriever, shards, tmp_path / "index", part=4)
    assert (report.resumed, report.embedded) == (done, 12 - done)
    assert stored(tmp_path / "index") == stored(tmp_path / "whole")


def test_a_bad_picture_is_left_out_and_named(shards, image_folder, model_folder, tmp_path):
    (image_folder / "class0" / "bad.png").write_bytes(b"no picture")
    write_shard(shards / "shard-000002.tar", [image_folder / "class0" / "bad.png"])
    report = build_index(model_folder, shards, tmp_path / "index")
    assert report.count == 12
    assert list(report.skipped) == ["shard-000002.tar/000000.png"]
    with pytest.raises(InputError, match=r"cannot index shard-000002\.tar/000000\.png: not an image"):
        build_index(model_folder, shards, tmp_path / "strict", on_bad="refuse")


def test_two_processes_index_what_one_indexes(shards, model_folder, tmp_path):
    program = tmp_path / "shared.py"
    program.write_text(
        "import sys\n"
        "from forerank.search import build_index\n"
        "from forerank.training.processes import joined\n"
        "with joined('cpu') as processes:\n"
        "    report = build_index(*sys.argv[1:], part=2)\n"
        "    if processes.first: print(report.count, report.embedded)\n"
    )
    build_index(model_folder, shards, tmp_path / "one", part=2)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*launcher, str(program), str(model_folder), str(shards), str(tmp_path / "two")]
    two = subprocess.run(command, capture_output=True, text=True, check=False)
    assert two.returncode == 0, two.stderr[-2000:]
    assert two.stdout.split() == ["12", "12"]
    assert stored(tmp_path / "two") == stored(tmp_path / "one")


def test_a_picture_named_twice_has_its_last_label_with_any_number_of_processes(
    image_folder, model_folder, tmp_path
):
    """The second mention is in the third part, of the first process; the first one in that of the second."""
    names = [file.relative_to(tmp_path) for file in sorted(image_folder.rglob("*.png"))]
    named = [*names[:4], names[3], *names[4:], names[3]]
    lines = [f"{name},label{number}" for number, name in enumerate(named)]
    (tmp_path / "table.csv").write_text("\n".join(["path,label", *lines]))
    table = (tmp_path / "table.csv").as_uri()
    build_index(model_folder, table, tmp_path / "one", part=2)
    program = tmp_path / "shared.py"
    program.write_text(
        "import sys\n"
        "from forerank.search import build_index\n"
        "from forerank.training.processes import joined\n"
        "with joined('cpu'):\n"
        "    count = build_index(*sys.argv[1:], part=2).count\n"
        "    sys.stdout.write(f'{count}\\n')\n"  # at once: the lines of two processes must not mix
    )
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    for count, place in (("2", "two"), ("3", "three")):
        command = [*launcher[:-1], count, str(program), str(model_folder), table, str(tmp_path / place)]
        many = subprocess.run(command, capture_output=True, text=True, check=False)
        assert many.returncode == 0, many.stderr[-2000:]
        assert many.stdout.split() == ["12"] * int(count)
        assert stored(tmp_path / place) == stored(tmp_path / "one")
    content = {row.path: row.label for row in open_engine(tmp_path / "two").all_rows()}
    assert content[str(names[3])] == "label13"


def test_the_page_shows_pictures_of_shards(shards, image_folder, model_folder, tmp_path):
    from PIL import Image

    pytest.importorskip("fastapi")
    from forerank.search.add import NewImage, add_images
    from forerank.web.pictures import PictureStore

    build_index(model_folder, shards, tmp_path / "index")
    index = Index.open(tmp_path / "index")
    shown = {PictureStore(index).read(row) for row in index.engine.all_rows()}
    assert shown == {file.read_bytes() for file in image_folder.rglob("*.png")}
    assert Image.open(io.BytesIO(next(iter(shown)))).size == (32, 32)
    new = NewImage("a/1.png", b"", "a", {}, np.eye(1, 16, dtype=np.float32)[0])
    with pytest.raises(InputError, match="lie in shards or at an address"):
        add_images(index, [new])
    for outside in ("file:///etc/hostname", "/etc/hostname", "shard-000000.tar/../../x.png"):
        with pytest.raises(InputError, match="leads outside the image root"):
            PictureStore(index).read(replace(next(index.engine.all_rows()), path=outside))
    index.close()


def test_an_archive_beside_images_is_not_taken_for_a_shard(shards, image_folder, model_folder, tmp_path):
    (shards / "shard-000000.tar").rename(image_folder / "backup.tar")
    assert build_index(model_folder, image_folder, tmp_path / "index").count == 12
    memory = fsspec.filesystem("memory")
    memory.put(str(image_folder), "/beside/", recursive=True)
    assert build_index(model_folder, "memory://beside/images", tmp_path / "there").count == 12
    assert stored(tmp_path / "there") == stored(tmp_path / "index")
    memory.rm("/beside", recursive=True)


def test_memory_does_not_grow_with_the_number_of_rows(tmp_path, make_rows):
    """Rows wait in a file: few of them are alive at any time."""
    import gc

    from forerank.search.rows import Row
    from forerank.search.rows_on_disk import rows_on_disk

    def alive() -> int:
        return sum(type(thing) is Row for thing in gc.get_objects())

    before = alive()
    with rows_on_disk() as rows:
        for start in range(0, 40_000, 1000):
            rows.add((start, row) for row in make_rows([f"{i:06d}.png" for i in range(start, start + 1000)]))
        rows.sort()
        assert len(rows) == 40_000
        most, paths = 0, []
        for i, row in enumerate(rows):
            paths.append(row.path)
            if i % 5000 == 0:
                most = max(most, alive() - before)
        assert most <= 9000
        assert paths == [f"{i:06d}.png" for i in range(40_000)]


def test_rows_are_counted_once(make_rows):
    """SQLite counts by reading every row; a large index is gone through in thousands of slices."""
    from forerank.search.rows_on_disk import rows_on_disk

    asked = []
    with rows_on_disk() as rows:
        rows.add((0, row) for row in make_rows([f"{i}.png" for i in range(10)]))
        rows.sort()
        rows._database.set_trace_callback(asked.append)
        parts = [len(rows[start : start + 4]) for start in range(0, len(rows), 4)]
    assert parts == [4, 4, 2]
    assert len(asked) == 3
    assert not [query for query in asked if "count" in query]


def test_labels_that_are_no_text_are_refused(tmp_path):
    with tarfile.open(tmp_path / "bad.tar", "w") as archive:
        member = tarfile.TarInfo("1.json")
        member.size = 1
        archive.addfile(member, io.BytesIO(b"{"))
    with pytest.raises(InputError, match=r"bad\.tar/1\.json is not JSON in UTF-8"):
        list(tar_shards.pictures([str(tmp_path / "bad.tar")]))
