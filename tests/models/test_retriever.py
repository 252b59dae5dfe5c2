"""The Retriever: any kind of picture, any batch split, bad files; ONNX through onnxruntime; the commands."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from forerank.cli import run
from forerank.data import BadImageError, Preprocessing, evaluation_view
from forerank.errors import ForerankError, InputError
from forerank.files import checksum_metadata
from forerank.models import Retriever, create_model, export_onnx, save_model
from forerank.models import retriever as retriever_module
from forerank.models.feature_cache import features_folder, image_states


@pytest.fixture(scope="module")
def retriever() -> Retriever:
    return Retriever(create_model("glyphnet", embedding_dim=16), device="cpu", batch_size=4)


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    rng = np.random.default_rng(0)
    paths = []
    for i in range(9):
        path = tmp_path / "pictures" / f"class{i % 3}" / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (40, 30), dtype=np.uint8)).save(path)
        paths.append(path)
    return paths


def test_every_kind_of_picture_gives_the_same_vector(retriever: Retriever, files: list[Path]) -> None:
    with Image.open(files[0]) as picture:
        array = np.asarray(picture)
        kinds = [files[0], str(files[0]), files[0].read_bytes(), picture.copy(), array, array[:, :, None]]
    vectors = retriever.embed(kinds)
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(vectors, np.repeat(vectors[:1], len(kinds), 0), atol=1e-5)
    assert retriever.embed(str(files[0])).shape == (1, 16)


def test_vectors_are_those_of_the_model_whatever_the_batches(files: list[Path]) -> None:
    model = create_model("glyphnet", embedding_dim=16).eval()
    views = [evaluation_view(Image.open(file), model.preprocessing) for file in files]
    with torch.no_grad():
        expected = model(torch.stack(views)).numpy()
    for batch_size in (1, 2, 4, 9, 100):
        embedded = Retriever(model, device="cpu", batch_size=batch_size).embed(files)
        np.testing.assert_allclose(embedded, expected, atol=2e-6)


def test_no_pictures_no_vectors(retriever: Retriever) -> None:
    assert retriever.embed([]).shape == (0, 16)


def test_a_bad_picture_is_refused_by_name_or_leaves_nan(retriever: Retriever, files: list[Path]) -> None:
    files[5].write_bytes(files[5].read_bytes()[:60])
    with pytest.raises(BadImageError, match=r"5\.png"):
        retriever.embed(files)
    vectors = retriever.embed(files, on_bad="skip")
    assert np.isnan(vectors[5]).all()
    assert np.isfinite(np.delete(vectors, 5, 0)).all()
    with pytest.raises(InputError, match="unknown policy"):
        retriever.embed(files, on_bad="ignore")


@pytest.mark.parametrize("name", ["glyphnet", "glyphnet+glyphnet@48px"])
def test_vectors_of_kept_features_come_in_blocks(
    name: str, files: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many there are, a block at a time is held."""
    monkeypatch.setenv("FORERANK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(retriever_module, "KNOWN_AT_ONCE", 3)
    model = create_model(name, embedding_dim=16)
    retriever = Retriever(model, device="cpu", engine="torch")
    for single in model.single_models():
        views = [evaluation_view(Image.open(file), single.preprocessing) for file in files[1:]]
        with torch.no_grad():
            features = single.eval().features(torch.stack(views))
        kept = {"states": torch.from_numpy(image_states(files[1:])), "features": features}
        place = features_folder(single, "torch", "fp32")
        place.mkdir(parents=True)
        save_file(kept, place / "some.safetensors", checksum_metadata(kept))
    blocks = list(retriever.known_vectors(files))
    assert [len(positions) for positions, _ in blocks] == [3, 3, 2]
    assert sorted(position for positions, _ in blocks for position in positions) == list(range(1, 9))
    expected = retriever.embed(files)
    for positions, vectors in blocks:
        np.testing.assert_allclose(vectors, expected[positions], atol=1e-5)


def test_load_from_run_folder_model_folder_and_name(tmp_path: Path, files: list[Path]) -> None:
    model = create_model("glyphnet", embedding_dim=16, seed=4)
    save_model(model, tmp_path / "run" / "best")
    a = Retriever.load(tmp_path / "run").embed(files)
    b = Retriever.load(tmp_path / "run" / "best").embed(files)
    np.testing.assert_array_equal(a, b)
    assert Retriever.load("glyphnet").dim == 3072
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="no saved model in"):
        Retriever.load(tmp_path / "empty")
    with pytest.raises(InputError, match="unknown device 'quantum'"):
        Retriever.load("glyphnet", device="quantum")


def test_onnx_gives_the_same_vectors_on_real_pictures(tmp_path: Path, files: list[Path]) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    model = create_model("glyphnet", embedding_dim=16)
    assert export_onnx(model, tmp_path / "m.onnx") < 1e-4
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx", providers=["CPUExecutionProvider"])
    about = json.loads(session.get_modelmeta().custom_metadata_map["forerank"])
    p = Preprocessing.from_dict(about["preprocessing"])
    views = torch.stack([evaluation_view(Image.open(file), p) for file in files]).numpy()
    exported = session.run(["vectors"], {"images": views})[0]
    np.testing.assert_allclose(exported, Retriever(model).embed(files), atol=1e-4)


def test_an_onnx_file_that_differs_is_not_written(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    with pytest.raises(ForerankError, match="differs from torch by"):
        export_onnx(create_model("glyphnet", embedding_dim=4), tmp_path / "m.onnx", tolerance=-1.0)
    assert list(tmp_path.iterdir()) == []


def test_embed_and_export_commands(
    tmp_path: Path, files: list[Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    save_model(create_model("glyphnet", embedding_dim=16), "run/best")
    files[2].write_bytes(b"no picture")
    assert run(["embed", "run", "pictures", "-o", "vectors.npy"]) == 2
    assert not Path("vectors.npy").exists()
    assert run(["embed", "run", "pictures", "-o", "vectors.npy", "--on-bad", "skip"]) == 0
    vectors, paths = np.load("vectors.npy"), Path("vectors.txt").read_text().splitlines()
    assert vectors.shape == (8, 16)
    assert len(paths) == 8
    row = paths.index("pictures/class1/4.png")
    np.testing.assert_allclose(vectors[row], Retriever.load("run").embed([files[4]])[0], atol=1e-5)
    assert "2.png" in capsys.readouterr().err
    assert run(["embed", "run", "nowhere", "-o", "v.npy"]) == 2
    assert run(["embed", "run", "pictures", "-o", "v.txt"]) == 2
    assert run(["embed", "run", "pictures", "-o", "no/folder/v.npy"]) == 2
    errors = capsys.readouterr().err
    assert "no file or folder nowhere" in errors
    assert "should end in .npy" in errors
    assert "no folder" in errors
    pytest.importorskip("onnxruntime")
    assert run(["export", "run", "--onnx", "m.txt"]) == 2
    assert "should end in .onnx, not 'm.txt'" in capsys.readouterr().err
    assert run(["export", "run", "--onnx", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["file"] == "run/model.onnx"
    assert (told["images"], told["dim"]) == ([[1, 32, 32]], 16)
    assert told["difference"] < 1e-4
    assert Path("run/model.onnx").is_file()
    assert run(["embed", "run", "pictures", "-o", "again.npy", "--on-bad", "skip", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["file"], told["paths"], told["images"], told["dim"]) == ("again.npy", "again.txt", 8, 16)
    assert told["left_out"] == ["pictures/class2/2.png"]


def test_models_list_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["models", "list", "efficientnet-lite*", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in rows] == [f"efficientnet-lite{i}" for i in range(3)]
    assert run(["models", "list", "no-such-thing"]) == 2
