"""`forerank serve` as a process."""

import http.client
import json
import signal
from urllib.parse import quote

import pytest

from forerank.cli import run
from waiting import LIMIT

from .conftest import get, post, serve_command


def test_the_command_serves_and_ends(shapes_index, picture):
    with serve_command(shapes_index) as process:
        line = process.stderr.readline()
        assert line.startswith("80 images at http://127.0.0.1:")
        site = line.split()[3]
        assert "Find it again" in get(site).text
        # The index brings its own copy of the model: nothing else is needed to answer.
        answer = post(f"{site}/api/search", content=picture("blue", "square")).json()
        assert "blue" in answer["hits"][0]["label"]
        # The longest address within the bounds of the API is read to its end and answered in JSON.
        lengths = [("where", 10, 500), ("like", 32, 120), ("unlike", 32, 120), ("text", 1, 200)]
        parts = [f"{name}={quote('𝒳') * length}" for name, count, length in lengths for _ in range(count)]
        connection = http.client.HTTPConnection(site.rpartition("/")[2], timeout=LIMIT)
        connection.request("GET", f"/api/search?{'&'.join(parts)}")
        refused = connection.getresponse()
        assert refused.status == 400
        assert "a condition is COLUMN=VALUE" in json.loads(refused.read())["error"]
        connection.close()
        process.send_signal(signal.SIGINT)
        assert process.wait(LIMIT) == 0


def test_a_port_that_is_taken(site, shapes_index, capsys):
    port = site.rpartition(":")[2]
    assert run(["serve", str(shapes_index), "--port", port]) == 2
    assert "Try another --port" in capsys.readouterr().err


@pytest.mark.parametrize("size", ["upload-megabytes", "upload-megapixels"])
def test_limits_can_be_set(shapes_index, size, picture):
    with serve_command(shapes_index, f"--{size}", "0.001") as process:
        site = process.stderr.readline().split()[3]
        assert post(f"{site}/api/search", content=picture()).status_code in (400, 413)
