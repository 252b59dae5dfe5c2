"""Many and slow uploads, against the real server in a process of its own."""

import asyncio
import contextlib
import io
import json
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import psutil
import pytest
from PIL import Image
from starlette.requests import Request

from forerank.web.uploads import DECODERS, RefusedUpload, unless_gone

SERVE = """
import json, sys
from forerank.models import keep_freed_memory
from forerank.search import Index
from forerank.web.serving import Limits, serve_index

keep_freed_memory()
serve_index(Index.open(sys.argv[1]), port=0, limits=Limits(**json.loads(sys.argv[2])))
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


def send_almost_all(site: str, size: int) -> socket.socket:
    """Announce `size` bytes, send all but one, and wait."""
    connection = socket.create_connection(("127.0.0.1", int(site.rpartition(":")[2])))
    head = f"POST /api/search HTTP/1.1\r\nHost: localhost\r\nContent-Length: {size}\r\n\r\n"
    connection.sendall(head.encode())
    connection.settimeout(60)
    with contextlib.suppress(OSError):  # refused before everything was sent
        connection.sendall(bytes(size - 1))
    return connection


def read_answer(connection: socket.socket) -> bytes:
    answer = b""
    while not answer.endswith(b"}") and (part := connection.recv(5000)):
        answer += part
    return answer


def test_many_uploads_that_wait_stay_below_the_common_bound(start, picture):
    """60 connections of almost 20 MB would be 1.2 GB; all together may hold 100 MB, which are five of them.

    Nobody's time ends while the others send, so on any machine all but five are refused.
    """
    site, process = start(bytes_together=100_000_000, body_seconds=600)
    assert httpx.post(f"{site}/api/search", content=picture(), timeout=60).status_code == 200
    server = psutil.Process(process.pid)
    before = server.memory_info().rss
    most, statuses = [before], []
    connections = []
    for i in range(60):
        connections.append(send_almost_all(site, 20_000_000))
        most.append(server.memory_info().rss)
        if i % 10 == 0:  # the page stays usable meanwhile
            statuses += [
                httpx.get(site, timeout=60).status_code,
                httpx.get(f"{site}/images/{i}", timeout=60).status_code,
                httpx.get(f"{site}/api/rows/{i}/search", timeout=60).status_code,
            ]
    assert set(statuses) == {200}
    print(f"{(max(most) - before) / 1e6:.0f} MB more than the quiet server")
    assert max(most) - before < 200_000_000  # 100 MB of bodies, 20 MB being joined, and what the page needs
    deadline, refused = time.monotonic() + 120, []
    while len(refused) < 55 and time.monotonic() < deadline:
        refused = select.select(connections, [], [], 1)[0]
    assert len(refused) >= 55
    for answer in map(read_answer, refused):
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b"too many pictures are being sent" in answer
        assert b"\r\nretry-after: 60\r\n" in answer
    for connection in connections:
        connection.close()
    # When the server has seen that they are gone, nothing is held any more.
    while (last := httpx.post(f"{site}/api/search", content=picture(), timeout=60)).status_code == 503:
        assert time.monotonic() < deadline + 60
    assert last.status_code == 200


def test_uploads_that_come_at_once_stay_below_the_bound_and_their_memory_is_given_back(start, picture):
    """Here the bound is met when everybody has sent a part: what the refused ones sent is let go at once."""
    site, process = start(bytes_together=100_000_000, body_seconds=600)
    assert httpx.post(f"{site}/api/search", content=picture(), timeout=60).status_code == 200
    server = psutil.Process(process.pid)
    before = server.memory_info().rss
    with ThreadPoolExecutor(40) as pool:
        connections = list(pool.map(lambda _: send_almost_all(site, 20_000_000), range(40)))
    most = server.memory_info().rss  # malloc keeps its peak until it is told otherwise
    for connection in connections:
        connection.close()
    deadline = time.monotonic() + 60
    while (after := server.memory_info().rss) - before > 50_000_000 and time.monotonic() < deadline:
        time.sleep(0.1)
    print(
        f"{(most - before) / 1e6:.0f} MB more while they waited, {(after - before) / 1e6:.0f} MB afterwards"
    )
    assert most - before < 200_000_000
    assert after - before < 50_000_000


def test_a_picture_that_is_too_large_is_refused_in_a_sentence_that_arrives(start):
    """Also at a client that reads nothing before it has sent everything."""
    site, _ = start(bytes=1_000_000)
    for head in (b"Content-Length: 9000000", b"Transfer-Encoding: chunked"):
        with socket.create_connection(("127.0.0.1", int(site.rpartition(":")[2])), timeout=60) as connection:
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
        await asyncio.sleep(3600)

    async def ask(receive, executor, name):
        request = Request({"type": "http"}, receive)
        return await unless_gone(request, executor, lambda: looked_at.append(name))

    # In a thread of its own: where a browser was started before, this one already has an event loop.
    with ThreadPoolExecutor(1) as executor, ThreadPoolExecutor(1) as loop:
        executor.submit(busy.wait, 60)
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


def test_a_picture_that_is_slow_to_decode_is_ended_and_keeps_nobody_waiting(start, picture):
    site, process = start(decode_seconds=4)
    assert httpx.post(f"{site}/api/search", content=picture(), timeout=60).status_code == 200
    slow = many_scans(20_000)
    assert len(slow) < 5_000_000
    answers = []

    def send():
        answers.append(httpx.post(f"{site}/api/search", content=slow, timeout=120))

    threads = [threading.Thread(target=send) for _ in range(4)]  # more than there are decoders
    for thread in threads:
        thread.start()
    time.sleep(1)
    for i in range(20):
        assert httpx.get(f"{site}/images/{i}?size=large", timeout=20).status_code == 200
        assert httpx.get(f"{site}/api/rows/{i}/search", timeout=20).status_code == 200
    assert len(answers) < 4  # those were answered while the slow ones were being decoded
    for thread in threads:
        thread.join()
    assert [answer.status_code for answer in answers] == [400] * 4
    assert all("takes more than 4 s" in answer.json()["error"] for answer in answers)
    assert httpx.post(f"{site}/api/search", content=picture(), timeout=60).status_code == 200
    # No decoder is left over: the two in use, and the server's own helpers.
    decoders = [p for p in psutil.Process(process.pid).children() if "forerank.web.decoder" in p.cmdline()]
    assert len(decoders) <= 2


def test_a_picture_that_takes_the_decoder_down_is_refused(start, picture):
    site, process = start()
    for _ in range(DECODERS):  # they take turns: now each has been started
        assert httpx.post(f"{site}/api/search", content=picture(), timeout=60).status_code == 200
    assert len(psutil.Process(process.pid).children()) == DECODERS
    for child in psutil.Process(process.pid).children():
        child.send_signal(signal.SIGSTOP)  # so that it dies in the middle of the next picture
    answers = []
    thread = threading.Thread(
        target=lambda: answers.append(httpx.post(f"{site}/api/search", content=picture(), timeout=60))
    )
    thread.start()
    time.sleep(1)
    for child in psutil.Process(process.pid).children():
        child.kill()
    thread.join()
    assert answers[0].status_code == 400
    assert httpx.post(f"{site}/api/search", content=picture(), timeout=60).status_code == 200


def test_a_client_that_goes_away_leaves_no_traceback(start, picture):
    site, process = start()
    for size in (10, 100_000, 5_000_000):
        connection = send_almost_all(site, size)
        connection.close()
    assert httpx.post(f"{site}/api/search", content=picture(), timeout=60).status_code == 200
    process.send_signal(signal.SIGINT)
    process.wait(20)
    log = process.stderr.read()
    assert "Traceback" not in log
    assert len(log.splitlines()) <= 3


def test_decoders_end_with_the_server(start, picture):
    site, process = start()
    assert httpx.post(f"{site}/api/search", content=picture(), timeout=60).status_code == 200
    children = psutil.Process(process.pid).children()
    assert children
    process.kill()  # without a chance to tidy up
    process.wait()
    _, alive = psutil.wait_procs(children, timeout=20)
    assert alive == []


def test_clients_that_never_finish_do_not_keep_the_server_from_ending(start, picture):
    site, process = start()
    assert httpx.post(f"{site}/api/search", content=picture(), timeout=60).status_code == 200
    waiting = [send_almost_all(site, 1000) for _ in range(5)]  # their bodies would be waited for a minute
    process.send_signal(signal.SIGINT)
    process.wait(30)
    for connection in waiting:
        connection.close()
