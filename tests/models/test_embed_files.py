"""Embedding from every kind of source: streamed, shared out, resumed, and the same bit for bit."""

import csv
import io
import subprocess
import sys
import tarfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from forerank.cli import run
from forerank.data.sources import open_pictures
from forerank.errors import InputError
from forerank.models import Retriever, create_model, embed_files, save_model
from waiting import LIMIT


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Fourteen pictures in two folders."""
    for i in range(14):
        place = tmp_path / "images" / f"class{i % 2}"
        place.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(i).integers(0, 256, (32, 32), dtype=np.uint8)
        Image.fromarray(pixels).save(place / f"{i:02d}.png")
    return tmp_path / "images"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("model")
    save_model(create_model("glyphnet", embedding_dim=8), place)
    return place


@pytest.fixture
def embedded(model: Path, tmp_path: Path) -> Callable[..., tuple[Any, list[str]]]:
    """Vectors and names of some sources, with parts of four pictures."""

    def embed(*sources: str | Path, on_bad: str = "refuse") -> tuple[Any, list[str]]:
        output = tmp_path / "out.npy"
        embed_files(lambda: Retriever.load(model, batch_size=1), sources, output, on_bad=on_bad)
        assert not output.with_suffix(".parts").exists()
        return np.load(output), output.with_suffix(".txt").read_text().splitlines()

    return embed


def write_shard(file: Path, pictures: list[Path]) -> None:
    """A shard as WebDataset writes it: key.png beside key.cls."""
    with tarfile.open(file, "w") as archive:
        for number, picture in enumerate(pictures):
            for ending, data in (("png", picture.read_bytes()), ("cls", b"3")):
                member = tarfile.TarInfo(f"{number:06d}.{ending}")
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))


@pytest.fixture
def shards(folder: Path, tmp_path: Path) -> Path:
    place = tmp_path / "shards"
    place.mkdir()
    pictures = sorted(folder.rglob("*.png"))
    write_shard(place / "shard-000000.tar", pictures[:8])
    write_shard(place / "shard-000001.tar", pictures[8:])
    return place


def test_every_source_gives_the_vectors_of_the_folder(
    folder: Path, shards: Path, tmp_path: Path, embedded: Callable[..., tuple[Any, list[str]]]
) -> None:
    fsspec = pytest.importorskip("fsspec")
    vectors, names = embedded(folder)
    assert names == [str(file) for file in sorted(folder.rglob("*.png"))]
    table = tmp_path / "table.csv"
    with table.open("w", newline="") as lines:
        writer = csv.writer(lines)
        writer.writerows([["label", "path"], *(["a", str(Path(n).relative_to(tmp_path))] for n in names)])
    memory = fsspec.filesystem("memory")
    memory.put(str(folder), "/bucket/images/", recursive=True)
    memory.put(str(shards), "/bucket/shards/", recursive=True)
    sources = [table, shards, "memory://bucket/images", "memory://bucket/shards"]
    for source in sources:
        there, named = embedded(source)
        assert there.tobytes() == vectors.tobytes(), source
        assert len(set(named)) == 14
    memory.rm("/bucket", recursive=True)


def test_a_shard_that_is_cut_off_is_said_and_nothing_is_lost(
    shards: Path, tmp_path: Path, model: Path, embedded: Callable[..., tuple[Any, list[str]]]
) -> None:
    whole = (shards / "shard-000001.tar").read_bytes()
    with tarfile.open(shards / "shard-000001.tar") as archive:
        members = archive.getmembers()
    cuts = {
        members[4].offset_data + 10: "cut off after 2 whole images",
        members[5].offset_data + 512: "cut off after 3 whole images",  # between two members
        members[4].offset + 100: "cut off after 2 whole images",
        100: "not a tar archive",
    }
    for cut, said in cuts.items():
        (shards / "shard-000001.tar").write_bytes(whole[:cut])
        with pytest.raises(InputError, match=rf"shard-000001\.tar is {said}"):
            embedded(shards)
        assert len(list((tmp_path / "out.parts").glob("*.npy"))) == 2  # the parts of the first shard
    damaged = bytearray(whole)
    damaged[members[4].offset] ^= 1  # the first letter of a name: the header does not fit its checksum
    (shards / "shard-000001.tar").write_bytes(damaged)
    with pytest.raises(InputError, match=r"shard-000001\.tar is damaged after 2 images: copy it again"):
        embedded(shards)
    (shards / "shard-000001.tar").write_bytes(whole)
    assert len(embedded(shards)[1]) == 14


def test_an_interrupted_run_goes_on_and_changes_nothing(
    folder: Path, model: Path, tmp_path: Path, embedded: Callable[..., tuple[Any, list[str]]]
) -> None:
    vectors, _ = embedded(folder)
    calls = []

    def load(stop: int) -> Retriever:
        retriever = Retriever.load(model, batch_size=1)
        embed = retriever.embed

        def embed_until(*arguments: Any, **options: Any) -> Any:
            if len(calls) == stop:
                raise KeyboardInterrupt
            calls.append(1)
            return embed(*arguments, **options)

        retriever.embed = embed_until  # type: ignore[method-assign]
        return retriever

    output = tmp_path / "again.npy"
    with pytest.raises(KeyboardInterrupt):
        embed_files(lambda: load(2), [folder], output)
    assert not output.exists()
    embed_files(lambda: load(99), [folder], output)
    assert len(calls) == 4  # two parts before, two after
    assert np.load(output).tobytes() == vectors.tobytes()


@pytest.mark.parametrize("name", ["00000000.npy", "00000000.json", "model.json"])
def test_a_damaged_part_of_an_interrupted_run_is_embedded_again(
    name: str, folder: Path, model: Path, tmp_path: Path, embedded: Callable[..., tuple[Any, list[str]]]
) -> None:
    vectors, _ = embedded(folder)
    output = tmp_path / "again.npy"
    for damaged in (lambda c: c[:-1], lambda c: c[:-3] + bytes([c[-3] ^ 1]) + c[-2:], lambda c: b"\xff"):
        retriever = Retriever.load(model, batch_size=1)
        parts = iter([retriever.embed, retriever.embed])  # and no third
        retriever.embed = lambda *a, parts=parts, **o: next(parts)(*a, **o)  # type: ignore[method-assign]
        with pytest.raises(StopIteration):
            embed_files(lambda retriever=retriever: retriever, [folder], output)  # type: ignore[misc]
        file = output.with_suffix(".parts") / name
        file.write_bytes(damaged(file.read_bytes()))
        embed_files(lambda: Retriever.load(model, batch_size=1), [folder], output)
        assert np.load(output).tobytes() == vectors.tobytes()


def test_two_processes_write_what_one_writes(folder: Path, model: Path, tmp_path: Path) -> None:
    common = ["embed", str(model), str(folder), "--batch-size", "1", "-o"]
    assert run([*common, str(tmp_path / "one.npy")]) == 0
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*launcher, "-m", "forerank", *common, str(tmp_path / "two.npy")]
    two = subprocess.run(command, capture_output=True, text=True, check=False)
    assert two.returncode == 0, two.stderr[-2000:]
    assert two.stdout.count("14 vectors of 8") == 1  # only the first process speaks
    for ending in (".npy", ".txt"):
        one = (tmp_path / "one.npy").with_suffix(ending).read_bytes()
        assert (tmp_path / "two.npy").with_suffix(ending).read_bytes() == one


# The command itself; the second process computes with torch.
UNLIKE = """
import os
from forerank.cli import main
from forerank.models import Retriever
load, engine = Retriever.load, ["openvino", "torch"][int(os.environ["RANK"])]
Retriever.load = lambda source, **options: load(source, **{**options, "engine": engine})
main()
"""


def test_processes_with_two_engines_are_refused(folder: Path, model: Path, tmp_path: Path) -> None:
    """Their vectors differ in the last digits, and in one file nobody could tell them apart."""
    pytest.importorskip("openvino")
    (tmp_path / "unlike.py").write_text(UNLIKE)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*launcher, str(tmp_path / "unlike.py"), "embed", str(model), str(folder), "--batch-size", "1"]
    output = tmp_path / "two.npy"
    refused = subprocess.run([*command, "-o", str(output)], capture_output=True, text=True, check=False)
    assert refused.returncode != 0
    ours = [line for line in refused.stderr.splitlines() if "forerank: processes" in line]
    assert len(ours) == 1, refused.stderr
    assert "processes 0 and 1 of this run differ in engine (openvino and torch)" in ours[0]
    assert not output.exists()


def test_a_second_run_into_the_same_file_is_refused(folder: Path, model: Path, tmp_path: Path) -> None:
    """Another process has begun, with another batch size: its parts are not touched."""
    output = tmp_path / "out.npy"
    begun = threading.Event()
    done = threading.Event()

    def slow() -> Retriever:
        retriever = Retriever.load(model, batch_size=2)
        embed = retriever.embed

        def embed_and_wait(*arguments: Any, **options: Any) -> Any:
            vectors = embed(*arguments, **options)
            begun.set()
            assert done.wait(LIMIT)
            return vectors

        retriever.embed = embed_and_wait  # type: ignore[method-assign]
        return retriever

    first = threading.Thread(target=embed_files, args=(slow, [folder], output))
    first.start()
    assert begun.wait(LIMIT)
    try:
        with pytest.raises(InputError, match=r"another process is writing to .*out\.npy: wait until it is"):
            embed_files(lambda: Retriever.load(model, batch_size=1), [folder], output)
    finally:
        done.set()
        first.join()
    assert len(np.load(output)) == 14
    embed_files(lambda: Retriever.load(model, batch_size=1), [folder], output)  # nothing stays locked


DIES = """
import os, signal, sys
from pathlib import Path
from forerank.models import Retriever, embed_files
from forerank.training.processes import joined

model, images, output = sys.argv[1:]
with joined("cpu") as processes:
    def load():
        retriever = Retriever.load(model, batch_size=1)
        embed, calls = retriever.embed, []
        def embed_or_die(*arguments, **options):
            if not processes.first and calls:
                os.kill(os.getpid(), signal.SIGKILL)
            calls.append(1)
            return embed(*arguments, **options)
        retriever.embed = embed_or_die
        return retriever
    embed_files(load, [images], Path(output))
"""


def test_the_part_of_a_killed_process_is_done_by_the_next_run(
    folder: Path, model: Path, tmp_path: Path
) -> None:
    """Parts of four of fourteen pictures: the second process has parts 1 and 3, and dies at part 3."""
    common = ["embed", str(model), str(folder), "--batch-size", "1", "-o"]
    assert run([*common, str(tmp_path / "one.npy")]) == 0
    (tmp_path / "dies.py").write_text(DIES)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*launcher, str(tmp_path / "dies.py"), str(model), str(folder), str(tmp_path / "two.npy")]
    killed = subprocess.run(command, capture_output=True, text=True, check=False)
    assert killed.returncode != 0
    assert "Signal 9" in killed.stderr  # torchrun tells which rank died, and how
    assert not (tmp_path / "two.npy").exists()
    done = {file.name for file in (tmp_path / "two.parts").glob("*.npy")}
    assert "00000001.npy" in done
    assert "00000003.npy" not in done
    command = [*launcher, "-m", "forerank", *common, str(tmp_path / "two.npy")]
    again = subprocess.run(command, capture_output=True, text=True, check=False)
    assert again.returncode == 0, again.stderr[-2000:]
    for ending in (".npy", ".txt"):
        one = (tmp_path / "one.npy").with_suffix(ending).read_bytes()
        assert (tmp_path / "two.npy").with_suffix(ending).read_bytes() == one


def test_a_table_is_read_line_by_line(tmp_path: Path) -> None:
    """The pictures of a long table are made as they are asked for: few are alive at any time."""
    import tracemalloc

    table = tmp_path / "long.csv"
    with table.open("w") as lines:
        lines.write("path,label\n")
        lines.writelines(f"images/{i:08d}.jpg,{i // 10}\n" for i in range(100_000))
    next(open_pictures(table))  # what is imported on the way does not count
    tracemalloc.start()
    count = sum(1 for _ in open_pictures(table))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 100_000
    assert peak < 2**21  # a list of the pictures would take ten times as much


def test_sources_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    (tmp_path / "no.csv").write_text("image,label\n1.jpg,a\n")
    with pytest.raises(InputError, match=r"has no column 'path': its columns are image, label"):
        open_pictures(tmp_path / "no.csv")
    with pytest.raises(InputError, match="there are no image files at memory://nothing"):
        open_pictures("memory://nothing")
    with pytest.raises(InputError, match="cannot open nowhere://x"):
        open_pictures("nowhere://x")


def test_a_picture_from_a_shard_is_named_when_it_is_bad(
    tmp_path: Path, embedded: Callable[..., tuple[Any, list[str]]]
) -> None:
    (tmp_path / "bad.png").write_bytes(b"no picture")
    write_shard(tmp_path / "one.tar", [tmp_path / "bad.png"])
    with pytest.raises(InputError, match=r"one\.tar/000000\.png: not an image"):
        embedded(tmp_path / "one.tar")
