"""Malformed requests against the real server: no 500, no file from outside, no growing memory.

Seeded raw bytes and odd values for every route, and then schemathesis, which makes requests from the OpenAPI
description and checks the answers against it.
"""

import re
import socket
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import quote

import numpy as np

from campaigns.images import mutated, seed_files
from campaigns.server import SECRET, Server, picture_bytes, serving
from campaigns.tally import Tally

CLIENTS = 8  # at a time: many requests end only after a pause
GROWTH = 100 * 2**20  # bytes that the server and its decoders may gain after the first tenth of the tries
ROUTES = (
    "/", "/docs", "/api/index", "/api/gallery", "/api/values", "/api/search", "/api/rows/{}", "/api/rows",
    "/api/rows/{}/search", "/api/rows/{}/penalties", "/images/{}", "/static/{}", "/{}", "/openapi.json",
    "/api/images", "/api/uploads", "/uploads/{}", "/api/threshold", "/api/map", "/api/map/points",
    "/api/map/accepted", "/healthz", "/metrics",
)  # fmt: skip
NAMES = (
    "k", "after", "limit", "where", "text", "size", "loss", "shown", "x", "like", "unlike", "column", "id",
    "one_per_class", "fold",
)  # fmt: skip
VALUES = (
    "label=red", "colour=red", "=", "1@0,0,1,1", "1@2,0,9,nan", "u0",
    "0", "1", "7", "-1", "24", "96", "200", "201", "1e3", "9" * 30, "NaN", "inf", "true", "null", "small",
    "large", "PNP-Dq", "PNP-O", "__class__", "'; DROP TABLE rows; --", "%", "_", "*", "\\", "\x00", "a" * 600,
    "ß", "🙂", "../../outside.txt", "..%2f..%2foutside.txt", "....//outside.txt", "/etc/passwd",
    "file:///etc/passwd", "%2e%2e/%2e%2e/outside.txt", "{{7*7}}", "<script>", "\ud800", "",
)  # fmt: skip
METHODS = (
    "GET",
    "POST",
    "PUT",
    "DELETE",
    "HEAD",
    "OPTIONS",
    "PATCH",
    "TRACE",
    "CONNECT",
    "get",
    "G\x00T",
    "",
)
HEADERS = (
    "Content-Length: -1", "Content-Length: 99999999999", "Content-Length: 5, 5", "Content-Length: x",
    "Transfer-Encoding: chunked", "Transfer-Encoding: chunked, gzip", "Content-Type: multipart/form-data",
    "Content-Type: image/png", "Content-Encoding: gzip", "Expect: 100-continue", "Range: bytes=0-99999",
    "If-None-Match: *", "Connection: Upgrade\r\nUpgrade: websocket", "Host: evil.example", "X: \x00",
    "X:" + "a" * 300_000,
    "Cookie: " + "a=b; " * 500, "Origin: http://evil.example", ": empty", "no colon", "\tfolded",
)  # fmt: skip


def run(tries: int, seed: int, folder: Path, end: float) -> Tally:
    """Send the requests, a few at a time, then let schemathesis try."""
    tally, statuses = Tally(), Counter[str]()
    seed_files()  # made once, before the threads ask for it
    with serving(folder) as server, ThreadPoolExecutor(CLIENTS) as pool:
        memory = server.memory()

        def attempt(number: int) -> tuple[bytes, bytes] | None:
            if time.monotonic() > end:
                return None
            sent, complete = _request(np.random.default_rng([seed, number]), seed, number)
            return sent, _send(server.port, sent, complete)

        for number, tried in enumerate(pool.map(attempt, range(tries))):
            if tried is None:
                break
            sent, answer = tried
            status = answer[9:12].decode("latin-1") if answer.startswith(b"HTTP/1.1 ") else "closed"
            statuses[status] += 1
            trouble = _trouble(status, answer)
            tally.count(not trouble, f"try {number}: {trouble}: {sent[:120]!r}")
            if number == tries // 10:
                memory = server.memory()
        growth = server.memory() - memory
        tally.count(growth < GROWTH, f"the server grew by {growth / 2**20:.0f} MiB")
        described, failures = _schemathesis(server, max(5, tries // 100), seed, folder)
        tally.survived += described
        for failure in failures:
            tally.count(False, failure)
        tally.count(server.search(picture_bytes()) == 200, "the server no longer answers an ordinary search")
    tracebacks = sum("Traceback" in line for line in server.log)
    tally.count(not tracebacks, f"{tracebacks} tracebacks in the log, first: {''.join(server.log)[:400]}")
    tally.figures = {
        "answers": ", ".join(f"{status} {count:,}" for status, count in sorted(statuses.items())),
        "requests of schemathesis": described + len(failures),
        f"memory gained after the first tenth (at most {GROWTH // 2**20} MiB)": f"{growth / 2**20:.1f} MiB",
        "lines in the server's log": len(server.log),
    }
    return tally


def _trouble(status: str, answer: bytes) -> str:
    if status.startswith("5") and status not in ("501", "503", "505"):
        return f"status {status}"
    if SECRET in answer:
        return "a file from outside of the image root"
    if b"root:" in answer and b"/bin/" in answer:
        return "a file of the system"
    return ""


def _request(rng: np.random.Generator, seed: int, number: int) -> tuple[bytes, bool]:
    """One request, wrong in one or several ways, and whether the server can know where it ends."""

    def one_of(values: tuple[str, ...]) -> str:
        return values[rng.integers(len(values))]

    def escaped(text: str) -> str:
        return text if rng.random() < 0.3 else quote(text, safe="", errors="replace")

    path = one_of(ROUTES).replace("{}", escaped(one_of(VALUES)))
    if rng.random() < 0.6:
        count = int(rng.integers(1, 4))
        path += "?" + "&".join(f"{one_of(NAMES)}={escaped(one_of(VALUES))}" for _ in range(count))
    post = path.startswith(("/api/search", "/api/uploads"))
    method = ("POST" if post else "GET") if rng.random() < 0.8 else one_of(METHODS)
    lines = [f"{method} {path} HTTP/1.{1 if rng.random() < 0.9 else rng.integers(0, 9)}", "Host: localhost"]
    odd = [one_of(HEADERS) for _ in range(rng.integers(0, 3) if rng.random() < 0.5 else 0)]
    complete = not any(
        header.startswith(("Content-Length", "Transfer", "Expect", "Connection")) for header in odd
    )
    lines += odd
    body = b""
    if post or rng.random() < 0.1:
        body = mutated(seed, number)[1] if rng.random() < 0.7 else rng.bytes(int(rng.integers(0, 3000)))
        if rng.random() < 0.9:
            length = len(body) + int(rng.choice([0, 0, 0, 0, -1, 5]))
            complete = complete and length <= len(body)
            lines.append(f"Content-Length: {length}")
    data = ("\r\n".join([*lines, "Connection: close"]) + "\r\n\r\n").encode("utf-8", "replace") + body
    if rng.random() < 0.15:  # raw damage
        broken = bytearray(data)
        for place in rng.integers(len(broken), size=rng.integers(1, 6)):
            broken[place] = int(rng.integers(256))
        data, complete = bytes(broken[: int(rng.integers(1, len(broken) + 1))]), False
    return data, complete


def _send(port: int, data: bytes, complete: bool) -> bytes:
    """Send and read to the end; a request without an end is given up after a moment."""
    answer = b""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=120) as connection:
            connection.sendall(data)
            connection.settimeout(30 if complete else 0.3)
            while (part := connection.recv(65536)) and len(answer) < 2_000_000:
                answer += part
    except OSError:
        pass
    return answer


def _schemathesis(server: Server, examples: int, seed: int, folder: Path) -> tuple[int, list[str]]:
    """How many requests of schemathesis were answered as the description says, and what was not."""
    checks = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
    done = subprocess.run(
        [sys.executable, "-m", "schemathesis.cli", "run", f"{server.site}/openapi.json", "--checks", checks,
         "--max-examples", str(examples), "--seed", str(seed), "--phases", "examples,coverage,fuzzing",
         "--suppress-health-check", "all", "--no-color", "--max-time", "120", "--continue-on-failure"],
        capture_output=True, text=True, timeout=1800, check=False, cwd=folder,  # it leaves a cache there
    )  # fmt: skip
    made = re.search(r"(\d+) generated", done.stdout)
    if made is None:
        return 0, [f"schemathesis did not run: {(done.stdout + done.stderr)[-400:]}"]
    failures = re.findall(r"^- (.+)$", done.stdout, re.MULTILINE) if done.returncode else []
    return int(made[1]) - len(failures), [f"schemathesis: {failure}" for failure in failures]
