"""200 hostile clients at once (slow bodies, half-open connections, bombs) and ordinary searches.

A try is an ordinary search of an indexed image while the others are at it: each is answered, and the 99th
percentile must stay within five times that of the quiet server, measured just before with the same number of
searches. An ordinary upload waits in the same line as theirs: it is answered, or refused with 503 and a
time after which to try again, and it is answered when the others have gone.
"""

import io
import socket
import struct
import threading
import time
import zlib
from contextlib import suppress
from pathlib import Path

import httpx
import numpy as np
from PIL import Image

from campaigns.server import Server, picture_bytes, serving
from campaigns.tally import Tally

CLIENTS, SECONDS, GOAL = 200, 600.0, 5.0
STEADY = 300  # searches from which on they are spread over minutes
PATIENCE = 400.0  # seconds: 64 pictures may wait, two are decoded at a time, each for at most 10 s


def run(tries: int, seed: int, folder: Path, end: float) -> Tally:
    """Measure quietly, then with the hostile clients; both for `tries` searches or ten minutes."""
    tally = Tally()
    rng = np.random.default_rng(seed)
    with serving(folder) as server:
        _searches(server, 20, rng)  # warm up
        quiet, _ = _searches(server, tries, rng)
        before = server.memory()
        stop = threading.Event()
        kinds = (_slow_body, _half_open, _bomb, _many_scans)
        clients = [
            threading.Thread(target=_keep_doing, args=(kinds[i % 4], server.port, stop), daemon=True)
            for i in range(CLIENTS)
        ]
        for client in clients:
            client.start()
        time.sleep(2)
        began = time.monotonic()
        loaded, statuses = _searches(server, tries, rng)
        minutes = (time.monotonic() - began) / 60
        memory = server.memory() - before
        upload, says_when, seconds = _upload(server)
        log = "".join(server.log)
        stop.set()
        for client in clients:
            client.join(0.1)
        again, waited = _upload_again(server)
    for status in statuses:
        tally.count(status == 200, f"an ordinary search answered {status}")
    tally.count(
        upload == 200 or (upload == 503 and says_when),
        f"an ordinary upload answered {upload}, and said when to try again: {says_when}",
    )
    tally.count(again == 200, f"an upload after the hostile clients had gone answered {again}")
    tally.count("Traceback" not in log, f"traceback: {log[:300]}")
    quiet_p99, loaded_p99 = np.quantile(quiet, 0.99), np.quantile(loaded, 0.99)
    ratio = loaded_p99 / quiet_p99
    tally.count(
        ratio <= GOAL, f"the 99th percentile is {ratio:.1f} times the quiet one; the goal is {GOAL:g}"
    )
    tally.figures = {
        "hostile clients at once": f"{CLIENTS} for {minutes:.1f} minutes",
        "p99 of a search, quiet": f"{1000 * quiet_p99:.1f} ms",
        "p99 of a search, with the hostile clients": f"{1000 * loaded_p99:.1f} ms",
        "ratio (goal: at most 5)": round(float(ratio), 2),
        "median, quiet and with them": f"{1000 * np.median(quiet):.1f} ms, {1000 * np.median(loaded):.1f} ms",
        "an ordinary upload among theirs": f"status {upload} after {seconds:.1f} s",
        "the same when they have gone": f"status {again} after {waited:.1f} s",
        "memory gained by server and decoders": f"{memory / 2**20:.0f} MiB",
    }
    return tally


def _upload(server: Server) -> tuple[int, bool, float]:
    """An ordinary picture of a stranger: status (0: none), whether it says when to try again, seconds."""
    began = time.perf_counter()
    try:
        answer = httpx.post(f"{server.site}/api/search", content=picture_bytes(), timeout=PATIENCE)
    except httpx.HTTPError:
        return 0, False, time.perf_counter() - began
    says_when = answer.headers.get("retry-after", "").isdigit()
    return answer.status_code, says_when, time.perf_counter() - began


def _upload_again(server: Server) -> tuple[int, float]:
    """The last status of an ordinary picture that is sent until it is no longer refused, and the seconds."""
    began = time.perf_counter()
    while True:
        status, _, _ = _upload(server)
        waited = time.perf_counter() - began
        if status != 503 or waited > PATIENCE:
            return status, waited
        time.sleep(1)


def _searches(server: Server, count: int, rng: np.random.Generator) -> tuple[list[float], list[int]]:
    """Seconds and status of ordinary searches, one after the other."""
    seconds, statuses = [], []
    pause = 0.3 if count >= STEADY else 0.01
    end = time.monotonic() + SECONDS
    with httpx.Client(timeout=60) as client:
        while len(seconds) < count and time.monotonic() < end:
            row = int(rng.integers(server.rows))
            began = time.perf_counter()
            try:
                statuses.append(client.get(f"{server.site}/api/rows/{row}/search").status_code)
            except httpx.HTTPError:
                statuses.append(0)
            seconds.append(time.perf_counter() - began)
            time.sleep(pause)
    return seconds, statuses


def _keep_doing(attack, port: int, stop: threading.Event) -> None:  # type: ignore[no-untyped-def]
    end = time.monotonic() + 2 * SECONDS
    while not stop.is_set() and time.monotonic() < end:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=15) as connection:
            attack(connection, stop)
        stop.wait(0.2)


def _head(length: int) -> bytes:
    return f"POST /api/search HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n".encode()


def _slow_body(connection: socket.socket, stop: threading.Event) -> None:
    connection.sendall(_head(1_000_000) + bytes(500_000))
    for _ in range(120):
        if stop.wait(0.5):
            return
        connection.sendall(b"x")


def _half_open(connection: socket.socket, stop: threading.Event) -> None:
    connection.sendall(b"GET /api/index HTTP/1.1\r\nHost: loc")
    stop.wait(20)


def _bomb(connection: socket.socket, stop: threading.Event) -> None:
    _post(connection, BOMB, stop)


def _many_scans(connection: socket.socket, stop: threading.Event) -> None:
    _post(connection, SCANS, stop)


def _post(connection: socket.socket, data: bytes, stop: threading.Event) -> None:
    connection.sendall(_head(len(data)) + data)
    while not stop.is_set() and not connection.recv(65536).endswith(b"}"):
        pass
    stop.wait(1)


def _png_bomb(side: int = 7000) -> bytes:
    """A black PNG of 49 million pixels in 50 kB: just below what is taken."""
    lines = zlib.compressobj(9)
    line = bytes(side + 1)
    packed = b"".join(lines.compress(line) for _ in range(side)) + lines.flush()

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", packed) + chunk(b"IEND", b"")


def _progressive(scans: int = 3000) -> bytes:
    """A progressive JPEG whose last scan is repeated: few bytes, long to decode."""
    out = io.BytesIO()
    Image.new("L", (3000, 3000), 90).save(out, "JPEG", progressive=True)
    data = out.getvalue()
    tables = data.rindex(b"\xff\xc4", 0, data.rindex(b"\xff\xda"))
    return data[:tables] + data[tables:-2] * scans + data[-2:]


BOMB, SCANS = _png_bomb(), _progressive()
