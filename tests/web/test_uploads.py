"""Many and slow uploads, against the real server in a process of its own."""

import asyncio
import contextlib
import io
import json
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import psutil
import pytest
from PIL import Image
from starlette.requests import Request

from forerank.web.uploads import DECODERS, RefusedUpload, unless_gone
from waiting import LIMIT, wait_until

from .conftest import get, post

SERVE = """
import json, sys
from forerank.models import keep_freed_memory
from forerank.search import Index
from forerank.web import uploads
from forerank.web.serving import Limits, serve_index

keep_freed_memory()
limits = json.loads(sys.argv[2])
uploads.LINGER_SECONDS = limits.pop("linger_seconds", uploads.LINGER_SECONDS)
serve_index(Index.open(sys.argv[1]), port=0, limits=Limits(**limits))
"""


@pytest.fixture
def start(shapes_index):
    """Start a server with some limits: its address and its process; what it logs is read at the end."""
    processes = []

    def started(**limits):
        command = [sys.executable, "-c", SERVE, str(shapes_index), json.dumps(limits)]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        processes.append(process)
        return process.stderr.readline().split()[3], process

    yield started
    for process in processes:
        process.kill()
        process.communicate()


def announce(site: str, size: int) -> socket.socket:
    """Announce a picture of `size` bytes."""
    connection = socket.create_connection(("127.0.0.1", int(site.rpartition(":")[2])), LIMIT)
    head = f"POST /api/search HTTP/1.1\r\nHost: localhost\r\nContent-Length: {size}\r\n\r\n"
    connection.sendall(head.encode())
    return connection


def send_almost_all(site: str, size: int) -> socket.socket:
    """Announce `size` bytes, send all but one, and wait."""
    connection = announce(site, size)
    with contextlib.suppress(OSError):  # refused before everything was sent
        connection.sendall(bytes(size - 1))
    return connection


def read_answer(connection: socket.socket) -> bytes:
    answer = b""
    while not answer.endswith(b"}") and (part := connection.recv(5000)):
        answer += part
    return answer


def memory(process: subprocess.Popen[str], name: str) -> int:
    """What Linux says of a process, in bytes: VmRSS is its memory, VmHWM the most of it since `use_all`."""
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(name))


def use_all(site: str, process: subprocess.Popen[str], picture: bytes) -> int:
    """Ask once for everything, so that all modules and the model are loaded; the server's memory then."""
    for _ in range(DECODERS):
        assert post(f"{site}/api/search", content=picture).status_code == 200
    for path in ("", "/images/0", "/api/rows/0/search", "/api/rows/0/penalties"):
        assert get(f"{site}{path}").status_code == 200
    Path(f"/proc/{process.pid}/clear_refs").write_text("5")  # VmHWM starts again from here
    return memory(process, "VmRSS")


needs_peak = pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="peak memory is read from Linux's /proc"
)


@needs_peak
def test_many_uploads_that_wait_stay_below_the_common_bound(start, picture):
    """60 connections of almost 20 MB would be 1.2 GB; all together may hold 100 MB, which are five of them.

    Nobody's time ends while the others send, so on any machine all but five are refused.
    """
    times = {"body_seconds": LIMIT, "linger_seconds": LIMIT}
    site, process = start(bytes_together=100_000_000, **times)
    before = use_all(site, process, picture())
    connections = []
    for i in range(60):
        connections.append(send_almost_all(site, 20_000_000))
        if i % 10 == 0:  # the page stays usable meanwhile
            for path in ("", f"/images/{i}", f"/api/rows/{i}/search"):
                assert get(f"{site}{path}").status_code == 200
    waiting = memory(process, "VmHWM") - before
    for connection in connections:
        connection.sendall(b"\0")  # the last byte: whoever was refused is answered now
    answers = [read_answer(connection) for connection in connections]
    most = memory(process, "VmHWM") - before
    print(f"{waiting / 1e6:.0f} MB more than the quiet server, {most / 1e6:.0f} MB when five are complete")
    assert waiting < 200_000_000  # 100 MB of bodies, and what the page needs
    assert most < 300_000_000  # each of the five is joined to one piece
    refused = [answer for answer in answers if answer.startswith(b"HTTP/1.1 503 ")]
    assert len(refused) >= 55
    for answer in refused:
        assert b"too many pictures are being sent" in answer
        assert b"\r\nretry-after: 60\r\n" in answer
    assert [answer for answer in answers if not answer.startswith((b"HTTP/1.1 503 ", b"HTTP/1.1 400 "))] == []
    for connection in connections:
        connection.close()
    assert post(f"{site}/api/search", content=picture()).status_code == 200  # nothing is held any more


@needs_peak
def test_uploads_that_come_at_once_stay_below_the_bound_and_their_memory_is_given_back(start, picture):
    """Here the bound is met when everybody has sent a part: what the refused ones sent is let go at once."""
    site, process = start(bytes_together=100_000_000, body_seconds=LIMIT)
    before = use_all(site, process, picture())
    with ThreadPoolExecutor(40) as pool:
        connections = list(pool.map(lambda _: send_almost_all(site, 20_000_000), range(40)))
    for connection in connections:
        connection.close()
    # When the server has seen that they are gone, nothing is held any more.
    wait_until(
        lambda: post(f"{site}/api/search", content=picture()).status_code != 503, "pictures are taken again"
    )
    assert memory(process, "VmHWM") - before < 200_000_000
    wait_until(lambda: memory(process, "VmRSS") - before < 50_000_000, "the memory is given back")


def test_a_picture_that_is_too_large_is_refused_in_a_sentence_that_arrives(start):
    """Also at a client that reads nothing before it has sent everything, and at one that sends no more."""
    site, _ = start(bytes=1_000_000)
    with contextlib.closing(announce(site, 9_000_000)) as connection:
        connection.sendall(b"some bytes, and then no more")
        assert read_answer(connection).startswith(b"HTTP/1.1 413 ")
    site, _ = start(bytes=1_000_000, linger_seconds=LIMIT)
    for head in (b"Content-Length: 9000000", b"Transfer-Encoding: chunked"):
        with socket.create_connection(("127.0.0.1", int(site.rpartition(":")[2])), LIMIT) as connection:
            connection.sendall(b"POST /api/search HTTP/1.1\r\nHost: localhost\r\n" + head + b"\r\n\r\n")
            for _ in range(9):
                size = b"" if head.startswith(b"Content") else b"f4240\r\n"
                connection.sendall(size + bytes(1_000_000) + (b"\r\n" if size else b""))
            if head.startswith(b"Transfer"):
                connection.sendall(b"0\r\n\r\n")
            answer = read_answer(connection)
        assert answer.startswith(b"HTTP/1.1 413 ")
        assert b"the picture has more than 1 MB" in answer


def test_a_picture_whose_sender_has_gone_is_not_looked_at():
    """Otherwise everybody would wait for the pictures of an attacker who left."""
    busy, looked_at = threading.Event(), []

    async def left():
        return {"type": "http.disconnect"}

    async def stays():
        await asyncio.Event().wait()

    async def ask(receive, executor, name):
        request = Request({"type": "http"}, receive)
        return await unless_gone(request, executor, lambda: looked_at.append(name))

    # In a thread of its own: where a browser was started before, this one already has an event loop.
    with ThreadPoolExecutor(1) as executor, ThreadPoolExecutor(1) as loop:
        executor.submit(busy.wait, LIMIT)
        with pytest.raises(RefusedUpload, match="went away"):
            loop.submit(asyncio.run, ask(left, executor, "left")).result()
        busy.set()
        loop.submit(asyncio.run, ask(stays, executor, "stays")).result()
    assert looked_at == ["stays"]


def test_a_body_that_does_not_arrive_in_time_is_refused(start):
    site, _ = start(body_seconds=1)
    connection = send_almost_all(site, 1000)
    answer = read_answer(connection)
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"the picture did not arrive within 1 s" in answer


def many_scans(scans: int) -> bytes:
    """A progressive JPEG of a grey plane whose last scan is repeated: few bytes, long to decode."""
    out = io.BytesIO()
    Image.new("L", (6000, 6000), 90).save(out, "JPEG", progressive=True)
    data = out.getvalue()
    last = data.rindex(b"\xff\xda")  # start of the last scan, which ends where the file does
    tables = data.rindex(b"\xff\xc4", 0, last)
    return data[:tables] + data[tables:-2] * scans + data[-2:]


def decoders(process: subprocess.Popen[str]) -> list[psutil.Process]:
    return [p for p in psutil.Process(process.pid).children() if "forerank.web.decoder" in p.cmdline()]


def work_of(child: psutil.Process) -> float:
    """Seconds of processor time that a process has used."""
    return child.cpu_times().user


def test_a_picture_that_is_slow_to_decode_is_ended(start, picture):
    """A usual picture needs some milliseconds of the four seconds that are allowed here."""
    site, process = start(decode_seconds=4)
    slow = many_scans(20_000)
    assert len(slow) < 5_000_000
    with ThreadPoolExecutor(3) as pool:  # more than there are decoders
        answers = list(pool.map(lambda _: post(f"{site}/api/search", content=slow), range(3)))
    assert [answer.status_code for answer in answers] == [400] * 3
    assert all("takes more than 4 s" in answer.json()["error"] for answer in answers)
    assert post(f"{site}/api/search", content=picture()).status_code == 200
    assert len(decoders(process)) <= DECODERS  # none is left over


def test_slow_pictures_keep_nobody_waiting_and_one_that_kills_its_decoder_is_refused(start, picture):
    site, process = start(decode_seconds=LIMIT)
    for _ in range(DECODERS):  # they take turns: now each has been started
        assert post(f"{site}/api/search", content=picture()).status_code == 200
    children, slow, answers = decoders(process), many_scans(20_000), []
    assert len(children) == DECODERS
    before = [work_of(child) for child in children]

    def send():
        with contextlib.suppress(httpx.TransportError):  # the server is killed before it answers the last one
            answers.append(post(f"{site}/api/search", content=slow))

    threads = [threading.Thread(target=send) for _ in range(DECODERS + 1)]
    for thread in threads:
        thread.start()
    wait_until(
        lambda: (
            all(work_of(child) > had for child, had in zip(children, before, strict=True))
            and f"forerank_uploads_in_progress {DECODERS + 1}.0" in get(f"{site}/metrics").text
        ),
        "all decoders work, and a picture waits for one of them",
    )
    for i in range(20):
        assert get(f"{site}/images/{i}?size=large").status_code == 200
        assert get(f"{site}/api/rows/{i}/search").status_code == 200
    assert answers == []
    for child in children:
        child.kill()  # as a codec does that a picture takes down
    wait_until(lambda: len(answers) == DECODERS, "their pictures are answered")
    assert [answer.status_code for answer in answers] == [400] * DECODERS
    assert post(f"{site}/api/search", content=picture()).status_code == 200
    for last in [process, *decoders(process)]:  # one still works on the last picture, and would for minutes
        last.kill()
    for thread in threads:
        thread.join()


def test_a_client_that_goes_away_leaves_no_traceback(start, picture):
    site, process = start()
    for size in (10, 100_000, 5_000_000):
        connection = send_almost_all(site, size)
        connection.close()
    assert post(f"{site}/api/search", content=picture()).status_code == 200
    process.send_signal(signal.SIGINT)
    process.wait(LIMIT)
    log = process.stderr.read()
    assert "Traceback" not in log
    assert len(log.splitlines()) <= 3


def test_decoders_end_with_the_server(start, picture):
    site, process = start()
    assert post(f"{site}/api/search", content=picture()).status_code == 200
    children = psutil.Process(process.pid).children()
    assert children
    process.kill()  # without a chance to tidy up
    process.wait()
    _, alive = psutil.wait_procs(children, timeout=LIMIT)
    assert alive == []


def test_clients_that_never_finish_do_not_keep_the_server_from_ending(start, picture):
    site, process = start(body_seconds=10 * LIMIT)  # as long as it would wait for their pictures
    assert post(f"{site}/api/search", content=picture()).status_code == 200
    waiting = [send_almost_all(site, 1000) for _ in range(5)]
    wait_until(lambda: "forerank_uploads_in_progress 5.0" in get(f"{site}/metrics").text, "five are sending")
    process.send_signal(signal.SIGINT)
    process.wait(LIMIT)
    for connection in waiting:
        connection.close()
