"""Inference engines: the vectors of torch, converted once, torch not needed afterwards, honest refusals."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from forerank import machine
from forerank.errors import ForerankError, InputError
from forerank.models import Retriever, create_model, inference, save_model
from forerank.models.inference import cached_network, choose_engine, open_network
from forerank.search import Index, build_index
from waiting import LIMIT

openvino = pytest.importorskip("openvino")
BOTH = "efficientnet-lite0@32px+efficientnet-lite0@64px"


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORERANK_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def images(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    for i in range(6):
        file = tmp_path / "images" / f"class{i % 3}" / f"{i}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (70, 90, 3), dtype=np.uint8)).save(file)
    return tmp_path / "images"


@pytest.mark.parametrize("name", ["efficientnet-lite0@64px", BOTH, "glyphnet"])
def test_openvino_gives_the_vectors_of_torch(name: str, images: Path) -> None:
    model = create_model(name, embedding_dim=16)
    files = sorted(images.rglob("*.png"))
    by_torch = Retriever(model, device="cpu", engine="torch", batch_size=4)
    by_openvino = Retriever(model, device="cpu", engine="openvino", batch_size=4)
    np.testing.assert_allclose(by_openvino.embed(files), by_torch.embed(files), atol=1e-5)
    assert by_openvino.network.difference is not None
    assert by_openvino.network.difference < 1e-5
    assert "openvino fp32, differs from torch by at most" in str(by_openvino.network)
    assert str(by_torch.network) == "torch fp32"


def test_automatic_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose_engine("auto", "cpu") == "openvino"
    assert choose_engine("auto", "cuda") == "torch"
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert choose_engine("auto", "cpu") == "torch"
    with pytest.raises(InputError, match="unknown inference engine 'openvno': did you mean 'openvino'"):
        choose_engine("openvno", "cpu")


def test_a_network_that_differs_is_not_used(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = create_model("glyphnet", embedding_dim=4).eval()
    monkeypatch.setattr(inference, "TOLERANCE", {"fp32": -1.0})
    with pytest.raises(ForerankError, match="differs from torch by"):
        open_network(model, (1, 32, 32), "k", engine="openvino")
    assert open_network(model, (1, 32, 32), "k").engine == "torch"
    assert "openvino is not used for this network" in capsys.readouterr().err


def test_a_precision_that_the_processor_lacks_is_refused_and_never_faked() -> None:
    model = create_model("glyphnet", embedding_dim=4).eval()
    has_bf16 = "BF16" in openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    if has_bf16:
        network = open_network(model, (1, 32, 32), "k", engine="openvino", precision="bf16")
        assert 1e-5 < (network.difference or 0) < 0.1
    else:
        with pytest.raises(InputError, match="cannot compute in bf16 on this processor"):
            open_network(model, (1, 32, 32), "k", engine="openvino", precision="bf16")
        with pytest.raises(InputError, match="no instructions for bf16"):
            open_network(model, (1, 32, 32), "k", precision="bf16")
    network = open_network(model, (1, 32, 32), "k", engine="torch", precision="bf16")
    views = np.random.default_rng(0).standard_normal((2, 1, 32, 32), dtype=np.float32)
    exact = model(torch.from_numpy(views)).detach().numpy()
    assert 1e-5 < np.abs(network(views) - exact).max() < 0.1


@pytest.mark.parametrize("backbone", ["efficientnet-lite0@64px", "glyphnet"])
def test_an_index_knows_its_engine_keeps_it_and_is_searched_without_torch(
    backbone: str, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_model(create_model(backbone, embedding_dim=None), tmp_path / "model")
    place = tmp_path / "i.index"
    assert "vectors by openvino fp32, differs from torch by at most" in str(
        build_index(tmp_path / "model", images, place)
    )
    about = Index.open(place).meta["model"]
    assert (about["engine"], about["precision"]) == ("openvino", "fp32")
    converted = sorted((tmp_path / "cache" / "networks").iterdir())
    assert len(converted) == 1
    code = (
        "import sys\n"
        "from forerank.cli import run\n"
        f"assert run(['search', {str(place)!r}, {str(images / 'class1' / '4.png')!r}, '--json']) == 0\n"
        "assert 'torch' not in sys.modules, 'torch was loaded'\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 0, done.stderr
    first = json.loads(done.stdout)["hits"][0]
    assert first["path"] == "class1/4.png"
    assert first["similarity"] == pytest.approx(1, abs=1e-5)
    # Where openvino would not be chosen any more, what is added still comes from the engine of the index.
    monkeypatch.setattr(
        inference, "choose_engine", lambda engine, device: "torch" if engine == "auto" else engine
    )
    Image.new("RGB", (80, 80), "red").save(images / "class0" / "new.png")
    assert build_index(tmp_path / "model", images, place).embedded == 1
    assert Index.open(place).meta["model"]["engine"] == "openvino"
    with pytest.raises(InputError, match=r"computed in fp32, not bf16: give --precision fp32"):
        build_index(tmp_path / "model", images, place, precision="bf16")
    # With a damaged network in the cache the search loads the model, converts it anew and finds the same.
    (converted[0] / "network.xml").write_text("damaged")
    shutil.rmtree(converted[0] / "compiled-fp32")
    matches = Index.open(place).search(images / "class1" / "4.png", k=1)
    assert matches[0].path == "class1/4.png"
    assert matches[0].similarity == pytest.approx(1, abs=1e-5)


def test_an_index_takes_over_the_features_that_training_computed(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from forerank.training import load_recipe, train

    for source in sorted(images.rglob("*.png")):  # more classes, so that some can be held out
        for i in range(3):
            target = images / f"class{source.stem}x" / f"{i}.png"
            target.parent.mkdir(exist_ok=True)
            with Image.open(source) as picture:
                picture.rotate(30 * i + 10).save(target)
    values = [
        "backbone=efficientnet-lite0@32px",
        "mode=head",
        "steps=2",
        "every=1",
        "batch_size=8",
        "nmi=false",
    ]
    run = tmp_path / "run"
    train(load_recipe(images, [*values, "report=false", "images_per_class=2", "embedding_dim=8"]), run)
    report = build_index(run, images, tmp_path / "i.index")
    # Every image was a training, validation or test image.
    assert (report.count, report.reused, report.embedded) == (24, 24, 0)
    Image.new("RGB", (80, 80), "red").save(images / "class0" / "new.png")
    changed = images / "class1" / "4.png"
    Image.new("RGB", (80, 80), "blue").save(changed)
    report = build_index(run, images, tmp_path / "again.index")
    assert (report.reused, report.embedded) == (23, 2)
    again = Index.open(tmp_path / "again.index")
    ((rows, own),) = again.engine.scan()
    fresh = Retriever.load(run, device="cpu", engine="torch").embed([images / row.path for row in rows])
    np.testing.assert_allclose(own, fresh, atol=1e-5)


def test_old_networks_give_way(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(inference, "KEPT_NETWORKS", 2)
    model = create_model("glyphnet", embedding_dim=4).eval()
    for key in ("a", "b", "c"):
        open_network(model, (1, 32, 32), key, engine="openvino")
        os.utime(tmp_path / "cache" / "networks" / key, (ord(key), ord(key)))
    assert {place.name for place in (tmp_path / "cache" / "networks").iterdir()} == {"b", "c"}


def test_a_network_that_was_checked_elsewhere_is_checked_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = create_model("glyphnet", embedding_dim=4).eval()
    open_network(model, (1, 32, 32), "k", engine="openvino")
    assert cached_network("k") is not None
    monkeypatch.setattr(openvino, "__version__", "another")
    assert cached_network("k") is None
    capsys.readouterr()
    open_network(model, (1, 32, 32), "k", engine="openvino")
    assert "inference by openvino fp32, differs from torch by" in capsys.readouterr().err
    assert cached_network("k") is not None


def test_a_cached_network_in_bf16_is_not_used_where_bf16_ends_the_process(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if "BF16" not in openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
        pytest.skip("openvino computes no bf16 on this processor, so there is no such network")
    model = create_model("glyphnet", embedding_dim=4).eval()
    open_network(model, (1, 32, 32), "k", engine="openvino", precision="bf16")
    assert cached_network("k", "bf16") is not None
    monkeypatch.setattr(machine, "bf16_fault", lambda: "it ends the process")
    with pytest.raises(InputError, match="it ends the process: set ONEDNN_MAX_CPU_ISA"):
        open_network(model, (1, 32, 32), "k", engine="openvino", precision="bf16")
    with pytest.raises(InputError, match="it ends the process: set ONEDNN_MAX_CPU_ISA"):
        cached_network("k", "bf16")
