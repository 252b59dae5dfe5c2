"""Engines for the tests: the local folder, a Milvus Lite file, servers of Milvus Lite and of Milvus."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from forerank.search.rows import Row, hash_bytes
from milvus_servers import MilvusServer, RealMilvusServer


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
def when_waiting(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], list[float]]:
    """``waits = when_waiting(act)``: `act()`, when a request to Milvus has failed and will be repeated."""
    from forerank.search import milvus_connection

    def arranged(act: Callable[[], object]) -> list[float]:
        waits: list[float] = []

        def wait(seconds: float, sleep: Callable[[float], None] = milvus_connection.time.sleep) -> None:
            waits.append(seconds)
            if len(waits) == 1:
                act()
            else:
                sleep(seconds)

        monkeypatch.setattr(milvus_connection, "time", SimpleNamespace(sleep=wait))
        return waits

    return arranged


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine from outside: one file, `plain_engine.py`, and one line."""
    from forerank.search.engine import ENGINES

    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    monkeypatch.setitem(ENGINES, "plain", "plain_engine:PlainEngine")


ENGINES = ["folder", "plain", "milvus file"]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Every kind of engine; a real Milvus, where a collection takes seconds, only in the engines' suite.

    Outside that suite a server of Milvus Lite is long: the file of Milvus Lite is the same engine.
    """
    if "address" in metafunc.fixturenames:
        own = metafunc.module.__name__.endswith("test_engines")
        server = "milvus server" if own else pytest.param("milvus server", marks=pytest.mark.long)
        real = [pytest.param("real milvus", marks=pytest.mark.long)] if own else []
        metafunc.parametrize("address", [*ENGINES, server, *real], indirect=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whatever asks for a real Milvus is long: Milvus Lite, file and server, guards the same promises."""
    for item in items:
        if {"real_milvus", "mortal_milvus"} & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.long)


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
def keep_features(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path, Path, Path], None]:
    """Compute the features of a folder's images by a model and keep them in a cache, as a training does."""

    def keep(model: Path, images: Path, cache: Path) -> None:
        import torch

        from forerank.data import open_table
        from forerank.models import load_model
        from forerank.training import load_recipe
        from forerank.training.features import part_features
        from forerank.training.measure import image_part
        from forerank.training.processes import Processes

        loaded, table = load_model(model).eval(), open_table(images)
        recipe = load_recipe(images, ["backbone=glyphnet", "precision=fp32"])
        part = image_part(table, loaded.preprocessing, recipe, "some", cache=False)
        with monkeypatch.context() as there:
            there.setenv("FORERANK_CACHE", str(cache))
            part_features(loaded, part, recipe, Processes(0, 1, torch.device("cpu")))

    return keep


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
