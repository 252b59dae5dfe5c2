"""The model to ship, trained on all classes and taken by the index; the words about the numbers."""

import json
from pathlib import Path

import numpy as np
import pytest

from forerank.cli import run as forerank
from forerank.metrics import evaluate
from forerank.models import Retriever
from forerank.models.storage import shipped_model
from forerank.report.plain_words import plain_warnings
from forerank.search import Index
from forerank.training import embed_run, load_recipe, read_history, refit, train
from forerank.training.recipe import load_recipe as read_recipe

from .conftest import QUICK


@pytest.fixture(scope="module")
def measured(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("runs") / "a"
    train(load_recipe(images, [*QUICK, "steps=30", "schedule.kind=cosine"]), run)
    return run


def test_the_whole_catalogue_is_every_image_searched_among_all_others(measured: Path) -> None:
    results = json.loads((measured / "results.json").read_text())
    parts = [embed_run(measured, split)[0] for split in ("train", "validation", "test")]
    vectors = np.concatenate([part.vectors for part in parts])
    labels = np.concatenate([part.table.label for part in parts])
    right = evaluate(vectors, labels, ks=[1], nmi=False, per_query=True).per_query.first_rank == 1
    catalogue, tests = results["catalogue"], len(parts[-1].vectors)
    assert catalogue["recall@1"] == pytest.approx(right.mean())
    assert catalogue["new_classes"] == pytest.approx(right[-tests:].mean())
    assert (catalogue["images"], catalogue["classes"]) == (160, 20)
    page = (measured / "report.html").read_text(encoding="utf-8")
    assert results["words"]["sentence"] in page
    assert "mong all 160 images of all 20 classes" in page
    assert "Next: forerank index" in page


def test_images_that_are_neither_query_nor_gallery_of_their_part_are_in_the_catalogue(
    images: Path, tmp_path: Path
) -> None:
    files = sorted(images.rglob("*.png"))
    rows = ["path,label,split,is_query,is_gallery"]
    for file in files:
        part = "train" if file.parent.name < "class_10" else "test"
        rows.append(f"{file},{file.parent.name},{part},{int(part == 'test')},{int(part == 'test')}")
    (tmp_path / "table.csv").write_text("\n".join(rows))
    values = [*QUICK, "steps=2", "data.validation=0"]
    catalogue = train(load_recipe(tmp_path / "table.csv", values), tmp_path / "run").results["catalogue"]
    vectors = Retriever.load(tmp_path / "run", device="cpu").embed(files, progress=False)
    labels = [file.parent.name for file in files]
    assert catalogue["recall@1"] == pytest.approx(evaluate(vectors, labels, ks=[1], nmi=False)["recall@1"])
    assert catalogue["known_classes"] is not None


def test_refit_trains_all_classes_to_the_step_that_was_chosen(
    measured: Path, images: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert shipped_model(str(measured)) == str(measured)
    assert forerank(["train", str(measured), "--refit"]) == 0
    said = capsys.readouterr()
    assert said.out.startswith("Of 100 searches")
    assert "model to ship" in said.err
    results = json.loads((measured / "results.json").read_text())
    again = json.loads((measured / "refit" / "results.json").read_text())
    assert again["test"] == {}
    assert again["steps"] == results["best_step"]
    recipe = read_recipe(measured / "refit" / "recipe.yaml")
    assert recipe.data.all_classes
    assert "all 20 classes" in again["words"]["sentence"]
    # The rate follows the whole length of the measured run, not the shorter one.
    rates = [{row["step"]: row["lr"] for row in read_history(run) if "lr" in row}
             for run in (measured, measured / "refit")]  # fmt: skip
    assert rates[1].items() <= rates[0].items()
    assert refit(measured).results["steps"] == results["best_step"]  # finished: nothing is done again
    assert shipped_model(str(measured)) == str(measured / "refit")
    for flags, name in (([], "refit"), (["--measured"], "a")):
        index = measured.parent / f"index-{name}"
        vectors, network = measured.parent / f"{name}.npy", measured.parent / f"{name}.onnx"
        for command in (
            ["index", str(measured), str(images), "-o", str(index)],
            ["embed", str(measured), str(images), "-o", str(vectors)],
            ["export", str(measured), "--onnx", str(network)],
        ):
            assert forerank([*command, *flags]) == 0
            assert ("trained on all classes" in capsys.readouterr().err) is (flags == [])
        # Each command took the same model, and a search with the run's folder takes it too.
        opened = Index.open(index, model=str(measured))
        assert opened.embed([images / "class_00" / "0.png"]) == pytest.approx(np.load(vectors)[:1], abs=1e-5)


def test_warnings_name_chance_contradiction_and_few_classes() -> None:
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(12), 10)
    vectors = rng.normal(size=(120, 8)) + rng.normal(size=(12, 8))[labels]
    other = vectors + 0.2 * rng.normal(size=vectors.shape)
    both = [evaluate(v, labels, ks=[1], nmi=False, per_query=True) for v in (vectors, other)]
    if both[0]["recall@1"] == both[1]["recall@1"]:
        pytest.fail("the two models must differ for this test")
    assert any("may be chance" in text for text in plain_warnings(*both, labels))
    up, down = {"recall@1": 0.5, "map@r": 0.4}, {"recall@1": 0.6, "map@r": 0.3}
    assert plain_warnings(up, down, labels) == [
        "Recall@1 rose by 10.0 points but mAP@R fell by 10.0: look at both before you decide"
    ]
    assert "only 3 classes" in plain_warnings(None, up, labels[:30])[0]
