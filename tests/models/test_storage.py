"""Models on disk: what is saved is loaded again; foreign and damaged files are refused; old files survive."""

import errno
import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from forerank.errors import ForerankError, InputError
from forerank.models import create_model, load_model, save_model, storage


def same(a: torch.nn.Module, b: torch.nn.Module) -> bool:
    left, right = a.state_dict(), b.state_dict()
    return left.keys() == right.keys() and all(torch.equal(left[k], right[k]) for k in left)


def test_saved_and_loaded_is_the_same_model(tmp_path: Path) -> None:
    model = create_model(
        "glyphnet", embedding_dim=24, pooling="gem", layer_norm=True, freeze_batch_norm=False
    )
    save_model(model, tmp_path / "run" / "best")
    for place in (tmp_path / "run" / "best", tmp_path / "run"):
        loaded = load_model(place)
        assert same(model, loaded)
        assert loaded.spec == model.spec
        assert loaded.preprocessing == model.preprocessing
        assert not loaded.training
        images = torch.rand(2, 1, 32, 32)
        assert torch.equal(loaded(images), model.eval()(images))
    about = json.loads((tmp_path / "run" / "best" / "model.json").read_text())
    assert about["version"] == 1
    assert about["backbone"] == "glyphnet"


def test_create_model_continues_from_a_saved_one(tmp_path: Path) -> None:
    model = create_model("glyphnet", embedding_dim=24, seed=3)
    save_model(model, tmp_path)
    assert same(create_model(str(tmp_path), embedding_dim=24), model)
    wider = create_model(str(tmp_path), embedding_dim=32)
    assert same(wider.backbone, model.backbone)
    assert wider.output_dim == 32
    fresh = create_model(str(tmp_path), embedding_dim=24, pretrained=False)
    assert not same(fresh.backbone, model.backbone)
    assert load_model(tmp_path).spec == model.spec


def test_the_weights_file_alone_says_what_model_it_is(tmp_path: Path) -> None:
    """A crash between the two renames leaves an older model.json; the weights' own header decides."""
    save_model(create_model("glyphnet", embedding_dim=8), tmp_path)
    (tmp_path / "model.json").write_text("{}")
    assert load_model(tmp_path).output_dim == 8


def test_missing_foreign_and_damaged_files_are_refused_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no saved model in"):
        load_model(tmp_path)
    file = tmp_path / "model.safetensors"
    (tmp_path / "model.json").write_text("{}")
    save_file({"x": torch.zeros(2)}, file)
    with pytest.raises(InputError, match="not a model of ours"):
        load_model(tmp_path)
    file.write_bytes(b"\x00" * 5)
    with pytest.raises(InputError, match="damaged"):
        load_model(tmp_path)
    file.write_bytes(b"not weights at all, but long enough to hold a length")
    with pytest.raises(InputError, match=r"damaged|not a model"):
        load_model(tmp_path)
    save_model(create_model("glyphnet", embedding_dim=8), tmp_path)
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match="is damaged"):
        load_model(tmp_path)


def test_a_newer_format_asks_for_an_upgrade(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(storage, "VERSION", 2)
        save_model(create_model("glyphnet", embedding_dim=8), tmp_path)
    with pytest.raises(InputError, match=r"model format 2.*upgrade"):
        load_model(tmp_path)


def test_weights_that_do_not_fit_are_refused_by_name(tmp_path: Path) -> None:
    fitting = create_model("glyphnet", embedding_dim=None).backbone.state_dict()
    first = next(iter(fitting))
    faults = {
        "it lacks": {key: value for key, value in fitting.items() if key != first},
        "it has an unexpected": {**fitting, "classifier.weight": torch.zeros(2)},
        "it has another shape for": {**fitting, first: torch.zeros(9)},
    }
    for sentence, weights in faults.items():
        save_file(weights, tmp_path / "w.safetensors")
        with pytest.raises(InputError, match=f"does not fit this model: {sentence} (layers|classifier)"):
            create_model(f"glyphnet@{tmp_path / 'w.safetensors'}")


def test_weights_from_a_file(tmp_path: Path) -> None:
    backbone = create_model("glyphnet", embedding_dim=None, seed=9).backbone
    save_file(dict(backbone.state_dict()), tmp_path / "w.safetensors")
    torch.save(backbone.state_dict(), tmp_path / "w.pth")
    for name in ("w.safetensors", "w.pth"):
        assert same(create_model(f"glyphnet@{tmp_path / name}").backbone, backbone)
    torch.save(backbone, tmp_path / "pickled.pth")  # a whole module: would have to be unpickled
    with pytest.raises(InputError, match="cannot be read as weights"):
        create_model(f"glyphnet@{tmp_path / 'pickled.pth'}")


def test_a_full_disk_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = create_model("glyphnet", embedding_dim=8)
    save_model(model, tmp_path)

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ForerankError, match="No space left on device; the file that was there is untouched"):
        save_model(create_model("glyphnet", embedding_dim=16), tmp_path)
    monkeypatch.undo()
    assert same(load_model(tmp_path), model)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["model.json", "model.safetensors"]
