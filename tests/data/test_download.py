"""Downloads from a real server that breaks off, lies and cannot resume."""

import hashlib
import io
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from forerank.data import download as module
from forerank.data.data_set import Archive
from forerank.data.download import DownloadError, download, download_data_set, unpack
from forerank.data.registry import DATA_SETS
from forerank.errors import InputError

CONTENT = bytes(range(256)) * 3000
MD5 = hashlib.md5(CONTENT).hexdigest()


class Server(ThreadingHTTPServer):
    content = CONTENT
    break_after: int | None = None  # bytes after which the line is cut
    ranges = True
    asked: list[str | None]


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        wanted = self.headers.get("Range")
        self.server.asked.append(wanted)
        if self.path == "/missing":
            self.send_error(404)
            return
        begin = int(wanted[len("bytes=") : -1]) if wanted and self.server.ranges else 0
        rest = self.server.content[begin:]
        if wanted and self.server.ranges and not rest:
            self.send_error(416)
            return
        self.send_response(206 if begin else 200)
        self.send_header("Content-Length", str(len(rest)))
        self.end_headers()
        if self.server.break_after is not None:
            rest = rest[: self.server.break_after]
            self.close_connection = True
        self.wfile.write(rest)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(("127.0.0.1", 0), Handler) as running:
        running.asked = []
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def address(server: Server, path: str = "/set.tgz") -> str:
    return f"http://127.0.0.1:{server.server_port}{path}"


def test_a_whole_file_arrives(server: Server, tmp_path: Path) -> None:
    download(address(server), tmp_path / "x.tgz", md5=MD5, size=len(CONTENT))
    assert (tmp_path / "x.tgz").read_bytes() == CONTENT
    assert not (tmp_path / "x.tgz.part").exists()


def test_a_line_that_keeps_breaking_is_taken_up_again(server: Server, tmp_path: Path) -> None:
    server.break_after = 200_000
    download(address(server), tmp_path / "x.tgz", md5=MD5)
    assert (tmp_path / "x.tgz").read_bytes() == CONTENT
    assert server.asked == [None, "bytes=200000-", "bytes=400000-", "bytes=600000-"]


def test_a_later_run_goes_on_from_the_part(server: Server, tmp_path: Path) -> None:
    (tmp_path / "x.tgz.part").write_bytes(CONTENT[:500_000])
    download(address(server), tmp_path / "x.tgz", md5=MD5)
    assert server.asked == ["bytes=500000-"]
    (tmp_path / "y.tgz.part").write_bytes(CONTENT)  # all had arrived, only the rename was missing
    download(address(server), tmp_path / "y.tgz", md5=MD5)
    assert (tmp_path / "y.tgz").read_bytes() == CONTENT


def test_a_server_that_cannot_resume_starts_again(server: Server, tmp_path: Path) -> None:
    server.ranges = False
    (tmp_path / "x.tgz.part").write_bytes(b"old bytes of something else")
    download(address(server), tmp_path / "x.tgz", md5=MD5)
    assert (tmp_path / "x.tgz").read_bytes() == CONTENT


def test_a_wrong_checksum_or_size_leaves_no_file(server: Server, tmp_path: Path) -> None:
    with pytest.raises(DownloadError, match=r"has the checksum .* was expected"):
        download(address(server), tmp_path / "x.tgz", md5="0" * 32)
    with pytest.raises(DownloadError, match="bytes where 5 were expected"):
        download(address(server), tmp_path / "x.tgz", size=5)
    assert list(tmp_path.iterdir()) == []


def test_giving_up_keeps_what_arrived(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module.time, "sleep", lambda seconds: None)
    (tmp_path / "x.tgz.part").write_bytes(CONTENT[:1000])
    server.break_after = 0
    with pytest.raises(DownloadError, match=r"1,000 bytes are kept in .*x\.tgz\.part"):
        download(address(server), tmp_path / "x.tgz", md5=MD5, tries=3)
    assert len(server.asked) == 3
    with pytest.raises(DownloadError, match="answered 404"):
        download(address(server, "/missing"), tmp_path / "z.tgz")


def test_nothing_is_overwritten(server: Server, tmp_path: Path) -> None:
    (tmp_path / "x.tgz").write_text("mine")
    with pytest.raises(InputError, match="will not be overwritten"):
        download(address(server), tmp_path / "x.tgz")
    (tmp_path / "cub").mkdir()
    (tmp_path / "cub" / "mine.txt").write_text("mine")
    with pytest.raises(InputError, match="will not be overwritten"):
        download_data_set("cub", tmp_path / "cub")
    assert server.asked == []


def tar_of(names: list[str]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for name in names:
            info = tarfile.TarInfo(name)
            info.size = 4
            tar.addfile(info, io.BytesIO(b"text"))
    return out.getvalue()


def test_a_data_set_is_fetched_checked_unpacked(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.content = tar_of(["CUB_200_2011/images.txt", "CUB_200_2011/images/a.jpg"])
    archive = Archive(address(server), md5=hashlib.md5(server.content).hexdigest())
    monkeypatch.setitem(DATA_SETS, "cub", replace(DATA_SETS["cub"], archives=(archive,)))
    folder = download_data_set("cub", tmp_path / "sets" / "cub")
    assert (folder / "CUB_200_2011" / "images.txt").read_text() == "text"
    assert [p.name for p in (tmp_path / "sets").iterdir()] == ["cub"]
    with pytest.raises(InputError, match="cannot be downloaded without asking"):
        download_data_set("vehicle_id", tmp_path / "v")


def test_archives_cannot_write_outside_their_folder(tmp_path: Path) -> None:
    (tmp_path / "evil.tgz").write_bytes(tar_of(["../outside.txt"]))
    with pytest.raises(DownloadError):
        unpack(tmp_path / "evil.tgz", tmp_path / "in" / "side")
    with zipfile.ZipFile(tmp_path / "evil.zip", "w") as archive:
        archive.writestr("../outside.txt", "text")
    unpack(tmp_path / "evil.zip", tmp_path / "in" / "zip")
    assert not list(tmp_path.rglob("../outside.txt"))
    assert not (tmp_path / "outside.txt").exists()
    assert not (tmp_path / "in" / "outside.txt").exists()
    (tmp_path / "no.zip").write_text("not an archive")
    with pytest.raises(InputError, match="neither a zip nor a tar"):
        unpack(tmp_path / "no.zip", tmp_path / "x")
    cut = tar_of([f"{i}.txt" for i in range(200)])
    (tmp_path / "cut.tgz").write_bytes(cut[: len(cut) // 2])
    with pytest.raises(DownloadError, match="is damaged"):
        unpack(tmp_path / "cut.tgz", tmp_path / "y")
    assert not (tmp_path / "y").exists()
