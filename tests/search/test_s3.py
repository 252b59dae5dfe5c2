"""Shards, tables and folders in a real S3 server on this machine: moto, through s3fs."""

import io
import json
import tarfile
import urllib.request

import numpy as np
import pytest

from forerank.cli import run
from forerank.errors import InputError
from forerank.search import Index, build_index, open_engine

s3fs = pytest.importorskip("s3fs", reason="needs the extra 's3'")
moto = pytest.importorskip("moto.server")


@pytest.fixture
def bucket(monkeypatch, tmp_path):
    """An S3 file system with the empty bucket `shop`, found by its address in AWS_ENDPOINT_URL."""
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "someone")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "something")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    s3fs.S3FileSystem.clear_instance_cache()
    system = s3fs.S3FileSystem()
    system.mkdir("shop")
    yield system
    s3fs.S3FileSystem.clear_instance_cache()
    reset = urllib.request.Request(f"http://{host}:{port}/moto-api/reset", method="POST")
    urllib.request.urlopen(reset).close()  # what is stored belongs to the process and outlives the server
    server.stop()


def shard(pictures):
    """The bytes of a shard."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for number, picture in enumerate(pictures):
            for ending, data in (("png", picture.read_bytes()), ("cls", picture.parent.name.encode())):
                member = tarfile.TarInfo(f"{number:06d}.{ending}")
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))
    return out.getvalue()


@pytest.fixture
def filled(bucket, image_folder):
    pictures = sorted(image_folder.rglob("*.png"))
    bucket.pipe_file("shop/shards/0.tar", shard(pictures[:5]))
    bucket.pipe_file("shop/shards/1.tar", shard(pictures[5:]))
    for picture in pictures:
        bucket.pipe_file(f"shop/images/{picture.relative_to(image_folder)}", picture.read_bytes())
    lines = [f"images/{p.relative_to(image_folder)},{p.parent.name}" for p in pictures]
    bucket.pipe_file("shop/table.csv", "\n".join(["path,label", *lines]).encode())
    return bucket


def stored(address):
    engine = open_engine(address)
    found = {r.content: (r.label, v.tobytes()) for part in engine.scan() for r, v in zip(*part, strict=True)}
    engine.close()
    return found


def test_index_from_s3_gives_the_index_of_the_folder(filled, image_folder, model_folder, tmp_path, capsys):
    build_index(model_folder, image_folder, tmp_path / "folder")
    expected = stored(tmp_path / "folder")
    for source in ("s3://shop/shards", "s3://shop/images", "s3://shop/table.csv"):
        place = tmp_path / f"{source.rpartition('/')[2]}.index"
        assert run(["index", str(model_folder), source, "-o", str(place)]) == 0
        assert "12 images (12 embedded" in capsys.readouterr().out
        assert stored(place) == expected, source
    query = str(next(image_folder.rglob("*.png")))
    assert run(["search", str(tmp_path / "shards.index"), query, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["root"] == "s3://shop/shards"
    assert answer["hits"][0]["similarity"] > 0.999
    one = build_index(model_folder, "s3://shop/shards/0.tar", tmp_path / "one")
    assert one.count == 5
    assert stored(tmp_path / "one").keys() <= expected.keys()


def test_the_page_reads_pictures_from_s3(filled, image_folder, model_folder, tmp_path):
    pytest.importorskip("fastapi")
    from forerank.web.pictures import PictureStore

    build_index(model_folder, "s3://shop/shards", tmp_path / "index")
    index = Index.open(tmp_path / "index")
    shown = {PictureStore(index).read(row) for row in index.engine.all_rows()}
    assert shown == {file.read_bytes() for file in image_folder.rglob("*.png")}
    index.close()


def test_embed_from_s3_gives_the_vectors_of_the_folder(filled, image_folder, model_folder, tmp_path):
    assert run(["embed", str(model_folder), str(image_folder), "-o", str(tmp_path / "folder.npy")]) == 0
    expected = np.load(tmp_path / "folder.npy")
    for source in ("s3://shop/shards", "s3://shop/images", "s3://shop/table.csv"):
        assert run(["embed", str(model_folder), source, "-o", str(tmp_path / "s3.npy")]) == 0
        assert np.load(tmp_path / "s3.npy").tobytes() == expected.tobytes(), source


def test_what_is_wrong_at_s3_is_said_in_a_sentence(filled, model_folder, tmp_path):
    whole = filled.cat_file("shop/shards/1.tar")
    filled.pipe_file("shop/shards/1.tar", whole[: len(whole) // 2])
    with pytest.raises(InputError, match=r"s3://shop/shards/1\.tar is cut off after \d whole images"):
        build_index(model_folder, "s3://shop/shards", tmp_path / "index")
    for source in ("s3://shop/nothing", "s3://nowhere/x", "s3://shop/nothing.tar", "s3://nowhere/x.csv"):
        with pytest.raises(InputError, match=source.split("//")[1].split(".")[0]):
            build_index(model_folder, source, tmp_path / "index")
