"""What strangers may try."""

import io
import os
import re
import socket
import zipfile
from contextlib import suppress
from pathlib import Path

import httpx
import pytest
from PIL import Image

import forerank.web
from claimed_png import claimed_png
from forerank.search import Index, build_index
from forerank.web.serving import is_loopback
from forerank.web.uploads import Limits
from waiting import LIMIT

from .conftest import get, post

HERE = Path(forerank.web.__file__).parent


def zipped() -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("a.txt", "a")
    return out.getvalue()


BROKEN = {
    "text": b"hello",
    "html": b"<html><script>alert(1)</script></html>",
    "svg": b'<svg xmlns="http://www.w3.org/2000/svg"/>',
    "pdf": b"%PDF-1.4\n%%EOF",
    "eps": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n",
    "zip": zipped(),
    "pickle": b"\x80\x04\x95\x0b\x00\x00\x00\x00\x00\x00\x00\x8c\x07builtin\x94.",
    "zeros": bytes(5000),
    "empty png": claimed_png(10, 10),
    "jpeg head": b"\xff\xd8\xff\xe0" + bytes(50),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_picture_answers_400_with_a_sentence(site, name):
    answer = post(f"{site}/api/search", content=BROKEN[name])
    assert answer.status_code == 400
    assert answer.json()["error"].startswith("this is not a picture that can be read: ")


def test_half_a_picture_answers_400(site, picture):
    whole = picture()
    answer = post(f"{site}/api/search", content=whole[: len(whole) // 2])
    assert answer.status_code == 400


def test_the_name_and_the_stated_type_do_not_matter(site, picture):
    answer = post(f"{site}/api/search", content=picture(), headers={"content-type": "text/html"})
    assert answer.status_code == 200
    fake = post(f"{site}/api/search", content=b"no", headers={"content-type": "image/jpeg"})
    assert fake.status_code == 400


def test_a_form_with_a_file_is_the_same_as_its_bytes(site, picture):
    data = picture()
    by_form = post(f"{site}/api/search", files={"image": ("../../a.jpg", data)})
    assert by_form.json()["hits"] == post(f"{site}/api/search", content=data).json()["hits"]


FORMS = {
    "no file": ({"data": {"label": "a"}, "files": {"": (None, b"")}}, 400, "no file"),
    "an empty file": ({"files": {"image": ("a.jpg", b"")}}, 400, "no file"),
    "two files": ({"files": [("a", ("a", b"1")), ("b", ("b", b"2"))]}, 400, "more than one file"),
    "no boundary": ({"content": b"x", "headers": {"content-type": "multipart/form-data"}}, 400, "cannot be"),
    "torn": (
        {"content": b"--b\r\nnonsense", "headers": {"content-type": "multipart/form-data; boundary=b"}},
        400,
        "",
    ),
    "very many fields": (
        {"files": [(f"f{i}", (None, b"1")) for i in range(200)]},
        413,
        "at most 50 fields",
    ),
    "a long field": ({"files": {"label": (None, b"x" * 5000)}}, 413, "at most 50 fields"),
    "no UTF-8": ({"files": {"label": (None, b"\xff")}}, 400, "UTF-8"),
}


@pytest.mark.parametrize("name", FORMS)
def test_a_form_that_is_no_picture_is_refused_with_a_sentence(site, name):
    request, status, words = FORMS[name]
    answer = post(f"{site}/api/search", **request)
    assert answer.status_code == status, answer.text
    assert words in answer.json()["error"]


def test_a_form_has_the_same_bounds_as_bytes(index, serving, picture):
    with serving(index, limits=Limits(bytes=100_000)) as site:
        large = {"image": ("a.jpg", bytes(100_001))}
        assert post(f"{site}/api/search", files=large).status_code == 413


def test_too_many_bytes_are_not_even_read(index, serving):
    with serving(index, limits=Limits(bytes=100_000)) as site:
        sent = []

        def endless():
            for _ in range(200_000):
                sent.append(1)
                yield b"x" * 10_000

        announced = post(f"{site}/api/search", content=b"x" * 100_001)
        assert announced.status_code == 413
        try:
            streamed = post(f"{site}/api/search", content=endless())
            assert streamed.status_code == 413
        except (httpx.WriteError, httpx.RemoteProtocolError, httpx.ReadError):
            pass  # the server hung up while we were still sending
        assert (
            len(sent) < 20_000
        )  # 200 MB of 2 GB at the most; what the sockets' buffers take is not in our hands
        assert get(f"{site}/api/index").status_code == 200


def test_too_many_pixels_are_not_decoded(site, index, serving, picture):
    bomb = post(f"{site}/api/search", content=claimed_png(60_000, 60_000))
    assert bomb.status_code == 400
    assert "pixels" in bomb.json()["error"]
    with serving(index, limits=Limits(pixels=160 * 160 - 1)) as strict:
        assert post(f"{strict}/api/search", content=picture()).status_code == 400


TRAVERSALS = [
    "/images/../../../../etc/passwd",
    "/images/..%2f..%2f..%2fetc%2fpasswd",
    "/images/%2e%2e/%2e%2e/etc/passwd",
    "/images//etc/passwd",
    "/images/1/../../../etc/passwd",
    "/images/..\\..\\etc\\passwd",
    "/static/../app.py",
    "/static/%2e%2e/app.py",
    "/static/..%2fapp.py",
    "/static/....//app.py",
    "/static//etc/passwd",
    "/api/rows/..%2f1",
    "/../../etc/passwd",
    "/images/1%00.jpg",
    "/images/-1",
    "/images/99999999999999999999999",
    "/images/1e3",
    "/images/0x10",
]


def send(site: str, request: bytes) -> socket.socket:
    """Send bytes as they are."""
    host, port = site.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)), timeout=LIMIT)
    with suppress(ConnectionError):  # it is refused before everything is sent
        connection.sendall(request)
    return connection


def read(connection: socket.socket) -> bytes:
    """All that comes until the server closes the connection."""
    answer = b""
    with connection, suppress(ConnectionResetError):
        while part := connection.recv(65_536):
            answer += part
    return answer


@pytest.mark.parametrize("path", TRAVERSALS)
def test_no_file_of_the_server_can_be_reached(site, path):
    answer = read(send(site, f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()))
    assert re.match(rb"HTTP/1\.1 4\d\d ", answer), answer[:200]
    assert b"root:x" not in answer
    assert b"create_app" not in answer


def test_links_that_lead_outside_are_not_shown(tmp_path, retriever, serving, picture):
    root, secret = tmp_path / "images", tmp_path / "secret"
    root.mkdir()
    secret.mkdir()
    (secret / "diary.jpg").write_bytes(picture())
    for name in ("plain.jpg", "replaced.jpg", "gone.jpg", "pipe.jpg", "text.jpg"):
        (root / name).write_bytes(picture(seed=len(name)))
    (root / "link.jpg").symlink_to(secret / "diary.jpg")
    (root / "inside.jpg").symlink_to(root / "plain.jpg")
    build_index(retriever, root, tmp_path / "index")
    (root / "replaced.jpg").unlink()
    (root / "replaced.jpg").symlink_to("/etc/passwd")
    (root / "gone.jpg").unlink()
    (root / "pipe.jpg").unlink()
    os.mkfifo(root / "pipe.jpg")
    (root / "text.jpg").write_text("root:x:0:0 is not a picture")
    index = Index.open(tmp_path / "index", model=retriever)
    ids = {row.path: row.id for row in index.engine.page(limit=10)}
    with serving(index) as site:
        for name in ("link.jpg", "replaced.jpg", "gone.jpg", "pipe.jpg", "text.jpg"):
            answer = get(f"{site}/images/{ids[name]}")
            assert answer.status_code == 404, name
            assert answer.headers["content-type"] == "application/json"
            assert b"root:x" not in answer.content
        for name in ("plain.jpg", "inside.jpg"):
            assert get(f"{site}/images/{ids[name]}").status_code == 200


def test_an_image_root_is_not_left_by_a_path_in_the_index(index):
    from dataclasses import replace

    from forerank.errors import InputError

    row = index.engine.rows([0])[0]
    for path in ("../../etc/passwd", "/etc/passwd", "a/../../../x"):
        with pytest.raises(InputError, match="outside the image root"):
            index.file(replace(row, path=path))


def malformed() -> list[bytes]:
    host = b"Host: localhost\r\n"
    requests = [
        b"",
        b"\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + host + b"X: " + b"a" * 100_000 + b"\r\n\r\n",
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n" + host + b"\r\n",
        b"POST /api/search HTTP/1.1\r\n" + host + b"Content-Length: 1000\r\n\r\nshort",
        b"POST /api/search HTTP/1.1\r\n" + host + b"Content-Length: -5\r\n\r\n",
        b"POST /api/search HTTP/1.1\r\n" + host + b"Content-Length: abc\r\n\r\n",
        b"POST /api/search HTTP/1.1\r\n" + host + b"Transfer-Encoding: chunked\r\n\r\nZZZ\r\n",
        b"POST /api/search HTTP/1.1\r\n" + host + b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n",
        b"DELETE /images/1 HTTP/1.1\r\n" + host + b"\r\n",
        b"TRACE / HTTP/1.1\r\n" + host + b"\r\n",
        b"GET /api/gallery?limit=-1 HTTP/1.1\r\n" + host + b"\r\n",
        b"GET /api/gallery?limit=1e9&after=x HTTP/1.1\r\n" + host + b"\r\n",
        b"GET /api/rows/nan/search?k=0 HTTP/1.1\r\n" + host + b"\r\n",
        b"GET /api/gallery?text=%ff%fe%00 HTTP/1.1\r\n" + host + b"\r\n",
        b"GET /api/gallery?text=' OR 1=1 -- HTTP/1.1\r\n" + host + b"\r\n",
    ]
    import random

    dice = random.Random(0)
    while len(requests) < 100:
        whole = bytearray(
            b"POST /api/search?k=3 HTTP/1.1\r\n" + host + b"Content-Length: 20\r\n\r\n" + b"\xff\xd8" * 10
        )
        for _ in range(dice.randrange(1, 12)):
            whole[dice.randrange(len(whole))] = dice.randrange(256)
        requests.append(bytes(whole))
    return requests


def test_a_hundred_malformed_requests_do_not_take_it_down(index, serving, picture):
    """A request without an end is never answered: all connections are closed when the server ends."""
    requests = malformed()
    assert len(requests) == 100
    with serving(index, limits=Limits(body_seconds=1)) as site:
        connections = [send(site, request) for request in requests]
        assert get(f"{site}/api/index").json()["images"] == 80
        assert post(f"{site}/api/search", content=picture()).status_code == 200
    answered = 0
    for request, answer in zip(requests, map(read, connections), strict=True):
        answered += bool(answer)
        assert b"Traceback" not in answer
        assert not answer.startswith(b"HTTP/1.1 5"), (request[:80], answer[:200])
    assert answered > 50


def test_text_from_outside_is_never_part_of_a_query_language(site):
    for text in ("'; DROP TABLE rows; --", '" or 1 == 1', "%", "_", "\\"):
        assert get(f"{site}/api/gallery", params={"text": text}).json()["rows"] == []
        assert get(f"{site}/api/gallery", params={"where": f"label={text}"}).json()["rows"] == []
    assert get(f"{site}/api/index").json()["images"] == 80


def test_a_foreign_name_is_refused_on_loopback(site, index, serving):
    assert get(site, headers={"host": "evil.example"}).status_code == 421
    assert get(site, headers={"host": "localhost:1"}).status_code == 200
    with serving(index, only_loopback=False) as public:
        assert get(public, headers={"host": "shop.example"}).status_code == 200


def test_headers_keep_the_page_to_itself(site):
    for path in ("/", "/docs", "/api/index", "/images/1", "/static/page.js", "/nothing"):
        headers = get(site + path).headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert "server" not in headers


def test_loopback_is_the_default():
    import inspect

    from forerank.cli.serve import serve
    from forerank.web.serving import serve_index

    assert is_loopback(inspect.signature(serve_index).parameters["host"].default)
    assert is_loopback(inspect.signature(serve).parameters["host"].default)
    assert [is_loopback(host) for host in ("::1", "127.8.8.8", "::", "192.168.1.5", "example.org")] == [
        True,
        True,
        False,
        False,
        False,
    ]


def test_the_page_names_no_outside_address():
    for file in [*HERE.glob("static/*"), *HERE.glob("templates/*")]:
        text = file.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"(https?:)?//[a-z0-9-]+\.[a-z]", text), file


def test_names_with_markup_are_shown_as_text(tmp_path, retriever, serving):
    """A label is data: the penalties' figure, the only markup made of labels here, escapes it."""
    root = tmp_path / "images"
    for label, shade in (("<img src=x onerror=alert(1)>", 10), ("b", 200)):
        (root / label.replace("/", "")).mkdir(parents=True)
        for i in range(2):
            Image.new("RGB", (64, 64), (shade + i, 0, 0)).save(root / label / f"{i}.png")
    build_index(retriever, root, tmp_path / "index")
    with serving(Index.open(tmp_path / "index", model=retriever)) as site:
        figure = get(f"{site}/api/rows/0/penalties").json()["figure"]
    assert "<img" not in figure
    assert "&lt;img" in figure


def test_the_address_listened_on_is_answered_to(index):
    from starlette.testclient import TestClient

    from forerank.web.app import create_app

    with TestClient(create_app(index, host="127.0.0.2"), base_url="http://127.0.0.2:8000") as client:
        assert client.get("/api/index").status_code == 200
        assert client.get("/api/index", headers={"host": "evil.example"}).status_code == 421
