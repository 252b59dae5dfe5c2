"""Engines for the tests: the local folder, a Milvus Lite file, servers of Milvus Lite and of Milvus."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from forerank.search.rows import Row, hash_bytes


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class MilvusServer:
    """`milvus-lite server` as a process of its own, that can be killed and started again."""

    def __init__(self, data: Path) -> None:
        self.data, self.port = data, free_port()
        self.process: subprocess.Popen[bytes] | None = None
        self.address = f"milvus:http://127.0.0.1:{self.port}"

    def command(self) -> list[str]:
        command = [sys.executable, "-m", "milvus_lite.cmdline", "server", "--data-dir", str(self.data)]
        return [*command, "--host", "127.0.0.1", "--port", str(self.port)]

    def environment(self) -> dict[str, str]:
        return dict(os.environ)

    def start(self) -> None:
        # A session of its own: what the server starts is killed with it.
        log = self.data.with_suffix(".log")
        with log.open("wb") as out:
            self.process = subprocess.Popen(
                self.command(),
                stdout=out,
                stderr=subprocess.STDOUT,
                env=self.environment(),
                start_new_session=True,
            )
        for _ in range(6000):
            if self.answers():
                return
            if self.process.poll() is not None:
                break
            time.sleep(0.1)
        self.kill()
        said = log.read_text(errors="replace")[-2000:]
        raise RuntimeError(f"{type(self).__name__} did not start: {said or 'it said nothing'}")

    def answers(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def kill(self) -> None:
        if self.process is not None:
            children = []
            with suppress(psutil.NoSuchProcess, ProcessLookupError):  # it has ended by itself
                children = psutil.Process(self.process.pid).children(recursive=True)
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            psutil.wait_procs(children, timeout=10)  # they hold ports and locks until they are gone
            self.process = None


class RealMilvusServer(MilvusServer):
    """Milvus standalone, from the package `milvus`: a process that starts another one, the server."""

    # The launcher takes the next port where one is not free. Without SO_REUSEADDR a port on which a killed
    # server had connections counts as taken for a minute, and the server would come back at another address.
    lease = 60  # seconds after which a server that got no processor time gives up
    LAUNCHER = """
import socket, sys, milvus
bind = socket.socket.bind
def bind_again(self, address):
    self.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bind(self, address)
socket.socket.bind = bind_again
sys.exit(milvus.main())
"""

    def command(self) -> list[str]:
        return [sys.executable, "-c", self.LAUNCHER, "--data", str(self.data), "--proxy-port", str(self.port)]

    def environment(self) -> dict[str, str]:
        """Its own etcd on ports of its own: where another one has the usual 2380, the server crashes."""
        settings = self.data / "etcd.json"
        if not settings.exists():  # the ports are part of what etcd stores
            clients, peers = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
            settings.parent.mkdir(parents=True, exist_ok=True)
            urls = {
                "listen-client-urls": clients,
                "advertise-client-urls": clients,
                "listen-peer-urls": peers,
                "initial-advertise-peer-urls": peers,
                "initial-cluster": f"default={peers}",
            }
            settings.write_text(json.dumps(urls))
        own = {"ETCD_CONFIG_PATH": str(settings), "COMMON_SESSION_TTL": str(self.lease)}
        return {**super().environment(), **own}

    def answers(self) -> bool:
        """Whether it serves: the port opens some seconds before."""
        if not super().answers():
            return False
        from grpc import RpcError
        from pymilvus import MilvusClient, MilvusException

        try:
            client = MilvusClient(f"http://127.0.0.1:{self.port}", timeout=5)
            client.list_collections(timeout=5)  # pymilvus may have kept a connection to the server before
        except (MilvusException, RpcError):
            return False
        client.close()
        return True


@pytest.fixture(scope="session")
def milvus_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MilvusServer]:
    pytest.importorskip("pymilvus")
    pytest.importorskip("milvus_lite")
    server = MilvusServer(tmp_path_factory.mktemp("milvus"))
    server.start()
    yield server
    server.kill()


def _real_milvus(data: Path, lease: int = RealMilvusServer.lease) -> Iterator[RealMilvusServer]:
    """A real Milvus; where it cannot run the tests are skipped, except in CI."""
    in_ci = os.environ.get("CI") == "true"
    if not in_ci:
        pytest.importorskip("pymilvus")
        pytest.importorskip("milvus", reason="the package `milvus` is not installed (Linux x86-64 only)")
    server = RealMilvusServer(data)
    server.lease = lease
    try:
        server.start()
    except RuntimeError as error:
        if in_ci:
            raise
        pytest.skip(str(error))
    yield server
    server.kill()


@pytest.fixture(scope="session")
def real_milvus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealMilvusServer]:
    """Started once, for all tests that do it no harm."""
    yield from _real_milvus(tmp_path_factory.mktemp("real_milvus"))


@pytest.fixture(scope="module")
def mortal_milvus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealMilvusServer]:
    """A real Milvus that the tests of one module may kill.

    A server that comes back waits until the lease of the one that was killed has run out.
    """
    yield from _real_milvus(tmp_path_factory.mktemp("mortal_milvus"), lease=10)


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine from outside: one file, `plain_engine.py`, and one line."""
    from forerank.search.engine import ENGINES

    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    monkeypatch.setitem(ENGINES, "plain", "plain_engine:PlainEngine")


ENGINES = ["folder", "plain", "milvus file", "milvus server"]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Every kind of engine; a real Milvus, where a collection takes seconds, only in the engines' suite."""
    if "address" in metafunc.fixturenames:
        own = metafunc.module.__name__.endswith("test_engines")
        metafunc.parametrize("address", [*ENGINES, "real milvus"] if own else ENGINES, indirect=True)


@pytest.fixture
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A fresh place for an index, once for every kind of engine."""
    if request.param == "folder":
        return str(tmp_path / "index")
    if request.param == "plain":
        request.getfixturevalue("plain")
        return f"plain:{tmp_path}"
    pytest.importorskip("pymilvus")
    pytest.importorskip("milvus_lite")
    if request.param == "milvus file":
        return f"milvus:{tmp_path / 'index.db'}"
    server = request.getfixturevalue("real_milvus" if request.param == "real milvus" else "milvus_server")
    return f"{server.address}#test_{tmp_path.name.replace('-', '_')}"


def _make_rows(names: list[str], labels: list[str] | None = None, salt: str = "") -> list[Row]:
    labels = labels or [name.partition("/")[0] for name in names]
    return [
        Row(name, label, hash_bytes((name + salt).encode()), len(name), 1_000)
        for name, label in zip(names, labels, strict=True)
    ]


def _random_vectors(count: int, dim: int = 16, seed: int = 0) -> Any:
    vectors = np.random.default_rng(seed).normal(size=(count, dim)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


@pytest.fixture(scope="session")
def make_rows() -> Callable[..., list[Row]]:
    """Rows of made-up files."""
    return _make_rows


@pytest.fixture(scope="session")
def random_vectors() -> Callable[..., Any]:
    """Unit vectors (count, dim)."""
    return _random_vectors


@pytest.fixture(scope="session")
def meta() -> dict[str, Any]:
    """What an index of a made-up model says about itself."""
    return META


META = {"model": {"fingerprint": "model-a", "source": "a"}, "root": "/images"}


@pytest.fixture
def fill() -> Callable[..., None]:
    """Put rows and vectors into an engine in one update."""

    def filled(
        engine: Any,
        rows: list[Row],
        vectors: Any,
        meta: dict[str, Any] | None = None,
        approximate: bool | None = None,
    ) -> None:
        with engine.update(vectors.shape[1], "model-a", approximate) as update:
            have = update.stored({row.content for row in rows})
            new = [i for i, row in enumerate(rows) if row.content not in have]
            update.put([rows[i] for i in new], vectors[new])
            update.complete(rows, meta or META, None)

    return filled


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small saved model with made-up weights."""
    return _saved_model(tmp_path_factory.mktemp("model"), seed=0)


@pytest.fixture(scope="session")
def other_model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same architecture with other weights."""
    return _saved_model(tmp_path_factory.mktemp("other_model"), seed=1)


def _saved_model(folder: Path, seed: int) -> Path:
    import torch

    from forerank.models import create_model, save_model

    model = create_model("glyphnet", embedding_dim=16)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.05)
    save_model(model, folder)
    return folder


@pytest.fixture
def image_folder(tmp_path: Path) -> Path:
    """Twelve small pictures in three class folders."""
    from PIL import Image

    folder = tmp_path / "images"
    for i in range(12):
        (folder / f"class{i % 3}").mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(i).integers(0, 256, (32, 32), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"class{i % 3}" / f"{i:02d}.png")
    return folder
