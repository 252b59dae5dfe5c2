"""The model to ship, trained on all classes and taken by the index; the words about the numbers."""

import json
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest

from forerank.cli import run as forerank
from forerank.metrics import evaluate
from forerank.models import Retriever, load_model
from forerank.models.storage import shipped_model
from forerank.report.plain_words import plain_warnings
from forerank.search import Index
from forerank.training import budget, embed_run, load_recipe, read_history, refit, train
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
    assert "no validation classes" not in said.err
    results = json.loads((measured / "results.json").read_text())
    again = json.loads((measured / "refit" / "results.json").read_text())
    assert again["test"] == {}
    assert again["steps"] == results["best_step"]
    # What is announced is what is done, not the length of the measured run.
    assert f"on 160 images of 20 classes: {again['steps']} steps of 16" in said.err
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


def test_a_model_that_training_did_not_improve_is_not_trained_again(
    images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    assert forerank(["train", str(images), *QUICK, "steps=2", "--run", str(run), "--refit"]) == 0
    said = capsys.readouterr()
    assert "kept: untrained" in said.out
    assert f"training did not help; the model to ship is the untrained one: {run / 'best'}" in said.err
    assert "all classes, to ship it" not in said.err
    assert not (run / "refit").exists()
    assert "there is no other one to ship" in (run / "report.html").read_text(encoding="utf-8")
    outcome = refit(run)
    assert (outcome.run, outcome.learned_nothing) == (run, True)


def test_whitening_that_was_kept_is_computed_again_from_all_classes(
    images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Whitening helps the network of this seed, and a step at this rate changes nothing.
    values = [*QUICK, "seed=2", "mode=head", "embedding_dim=0", "head_start=whitening", "lr=1e-12", "steps=1"]
    run = tmp_path / "run"
    results = train(load_recipe(images, [*values, "report=false"]), run).results
    assert (results["kept"], results["best_step"]) == ("whitened", 0)
    capsys.readouterr()
    again = refit(run).results
    assert again["words"]["sentence"].startswith("Whitened on all 20 classes;")
    assert "steps of" not in capsys.readouterr().err
    heads = [load_model(place).head for place in (run, run / "refit")]
    assert not np.allclose(*(head.weight.detach().numpy() for head in heads))


def test_what_was_left_out_is_said_once_and_stands_in_the_report(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "mixed"
    shutil.copytree(images, folder)
    (folder / "class_03" / "scan.pdf").write_bytes(b"x")
    (folder / "class_04" / "0.png").write_bytes(b"not a picture")
    notes = (
        "1 PDF file was left out (class_03/scan.pdf): save its pages as images",
        "1 of 160 images cannot be read and are left out (the first is class_04/0.png)",
    )
    monkeypatch.setattr(budget, "MOST_TRIALS", 1)
    learns = ["seed=1", "lr=3e-3", "steps=60", "every=30", "schedule.kind=cosine"]
    values = [*QUICK, *learns, "on_bad=skip"]
    for flags in (["--refit"], ["--minutes", "60"]):
        run = tmp_path / flags[0]
        assert forerank(["train", str(folder), *values, *flags, "--run", str(run)]) == 0
        assert (run / "refit" / "results.json").exists()
        said = capsys.readouterr().err
        for note in notes:
            assert said.count(note) == 1
            assert said.index(note) < said.index("untrained: test")
            assert note in (run / "report.html").read_text(encoding="utf-8")


def test_the_next_command_keeps_the_labels_of_a_table_whose_paths_start_elsewhere(
    images: Path, tmp_path: Path
) -> None:
    rows = [f"{file.relative_to(images)},bird {file.parent.name}" for file in sorted(images.rglob("*.png"))]
    table = tmp_path / "my table.csv"
    table.write_text("\n".join(["path,label", *rows]))
    values = [*QUICK, "steps=2", "report=false", f"root={images}"]
    run = tmp_path / "my run"
    command = train(load_recipe(table, values), run).results["next"].partition(" && ")[0]
    assert forerank(shlex.split(command)[1:]) == 0
    hits = Index.open(run / "index").search(images / "class_07" / "0.png", k=160)
    assert (hits[0].label, len(hits)) == ("bird class_07", 160)
    assert {hit.label for hit in hits} == {f"bird class_{number:02d}" for number in range(20)}


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
