"""Whole experiments, really trained, on a data set of a few images."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from forerank.cli import run
from forerank.errors import ForerankError
from forerank.paper import runs
from forerank.paper.dry_run import describe_plan
from forerank.paper.pipeline import open_study, run_experiments, runs_needed
from forerank.paper.render import render
from forerank.paper.study import RESULT, Condition, Run, Study


def test_train_make_skip(
    tmp_path: Path, few_glyphs: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    study = open_study(["variants-sop"], seeds=1, out=tmp_path, values=few_glyphs)
    (product,) = run_experiments(["variants-sop"], study, jobs=1)
    plan = runs_needed(["variants-sop"], study)
    assert len(plan) == 5
    assert all(r.result()["steps"] == 3 for r in plan)
    recall = plan[0].result()["metrics"]["recall@1"]
    assert 0 < recall <= 1
    rows = product.tables[0].rows
    place = next(i for i, row in enumerate(rows) if row[0] == "O")
    assert rows[place + 1][1:3] == ["measured", f"{100 * recall:.1f}"]
    for name in (
        "tables/variants-sop.md",
        "tables/variants-sop.csv",
        "tables/variants-sop.html",
        "claims.md",
    ):
        assert (tmp_path / name).stat().st_size > 200, name
    page = (tmp_path / "index.html").read_text()
    assert "Table 1" in page
    assert "<script" not in page
    # Once more: nothing is trained, the numbers stay; the ranking of a query of one of the runs.
    stamps = [(r.folder / "results.json").stat().st_mtime_ns for r in plan]
    capsys.readouterr()
    chosen = [word for value in few_glyphs for word in ("--set", value)]
    words = ["paper", "run", "variants-sop", "--seeds", "1", "--out", str(tmp_path), "--json"]
    assert run([*words, *chosen]) == 0
    printed = capsys.readouterr()
    assert "to do" not in printed.err
    (told,) = json.loads(printed.out)
    assert told["name"] == "variants-sop"
    assert told["tables"][0]["rows"] == [list(row) for row in product.tables[0].rows]
    assert stamps == [(r.folder / "results.json").stat().st_mtime_ns for r in plan]
    out = tmp_path / "ranking"
    words = ["paper", "ranking", str(plan[0].folder), "--query", "1", "--out", str(out)]
    assert run(words) == 0
    printed = capsys.readouterr().out
    assert "penalty" in printed
    assert run([*words, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert len(told["ranking"]) == 12
    assert all(f"{place['similarity']:.3f}" in printed for place in told["ranking"])
    assert told["files"] == [f"{out}.png", f"{out}.svg"]
    assert out.with_suffix(".png").exists()
    assert out.with_suffix(".svg").exists()
    assert run(["paper", "ranking", str(plan[0].folder), "--query", "99999"]) == 2
    assert run(["paper", "ranking", str(plan[0].folder), "--shown", "0"]) == 2
    assert "at least 1 image" in capsys.readouterr().err


# The command itself, which is killed when its second run is trained and about to be written down.
KILLED = """
import os, signal
from forerank.cli import main
from forerank.paper import runs
write_result, written = runs.write_result, []
def write_one(*arguments):
    if written:
        os.kill(os.getpid(), signal.SIGKILL)
    written.append(write_result(*arguments))
runs.write_result = write_one
main()
"""


def test_killed_and_taken_up(tmp_path: Path, few_glyphs: tuple[str, ...]) -> None:
    """Killed after its first run; started again, the command does the rest and leaves the first alone."""
    words = ["paper", "run", "variants-sop", "--seeds", "1", "--out", str(tmp_path), "--jobs", "1"]
    words += [part for value in few_glyphs for part in ("--set", value)]
    killed = subprocess.run([sys.executable, "-c", KILLED, *words], capture_output=True, text=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    ended = {path: path.stat().st_mtime_ns for path in tmp_path.glob("training/*/paper.json")}
    assert len(ended) == 1
    command = [sys.executable, "-m", "forerank", *words]
    again = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "1 of 5 training runs are there" in again.stderr
    assert len(list(tmp_path.glob("training/*/paper.json"))) == 5
    assert all(path.stat().st_mtime_ns == stamp for path, stamp in ended.items())
    assert "difference" in again.stdout


def test_side_by_side_gives_the_same_numbers(tmp_path: Path, few_glyphs: tuple[str, ...]) -> None:
    metrics = []
    for folder, at_once in (("one", 1), ("two", 2)):
        study = open_study(["retrieval-examples"], seeds=2, out=tmp_path / folder, values=few_glyphs)
        run_experiments(["retrieval-examples"], study, jobs=at_once)
        metrics.append([r.result()["metrics"] for r in runs_needed(["retrieval-examples"], study)])
        assert (tmp_path / folder / "figures" / "retrieval-examples.png").exists()
    for one, two in zip(*metrics, strict=True):
        assert one["recall@1"] == pytest.approx(two["recall@1"], abs=0.02)


def test_list_and_dry_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(["paper", "list"]) == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in ("variants-sop", "comparison-inaturalist", "toy", "sweep-p"))
    monkeypatch.setenv("FORERANK_DATA", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    small = [
        "--set",
        "model.backbone=glyphnet",
        "--set",
        "model.pretrained=false",
    ]  # ResNet-50 takes a while to time
    assert (
        run(["paper", "run", "comparison-sop", "--on", "sop", "--dry-run", "--processes", "4", *small]) == 2
    )
    printed = capsys.readouterr()
    assert "sop is not ready" in printed.out
    assert "batch_size: 384" in printed.out
    assert "torchrun --nproc-per-node=4 -m forerank train" in printed.out
    assert "cannot start" in printed.err
    assert not list(tmp_path.iterdir()), "a dry run writes nothing"
    assert run(["paper", "run", "toyy"]) == 2
    assert "did you mean 'toy'" in capsys.readouterr().err


def test_dry_run_on_birds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in (*range(1, 13), *range(101, 105)):
        for i in range(5):
            name = "001.Black_footed_Albatross" if number == 1 else f"{number:03d}.Bird"
            file = tmp_path / "birds" / "train" / name / f"{i}.jpg"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (40, 40), (number, 40 * i, 100)).save(file)
    words = ["paper", "run", "variants-sop", "all-weights", "--on", "cub", "--dry-run", "--out", "out"]
    small = ["--set", "batch.batch_size=8", "--set", "model.image_size=32", "--set", "data.train_size=32"]
    assert run([*words, "--data", f"cub={tmp_path / 'birds'}", *small]) == 0
    printed = capsys.readouterr().out
    assert "data      cub: train 40 images of 8 classes, validation 20 images of 4 classes" in printed
    assert "weights   of efficientnet-lite0: there" in printed
    assert "Dq, all weights, seed 2" in printed
    assert not Path("out").exists()


def test_dry_run_looks_for_every_image(tmp_path: Path, few_glyphs: tuple[str, ...]) -> None:
    study = open_study(["toy"], seeds=1, out=tmp_path / "out", values=few_glyphs)
    text, ready = describe_plan(study, runs_needed(["variants-sop"], study))
    assert ready
    assert "0.0 GiB" not in text
    assert "(0 MiB" not in text
    source = Path(few_glyphs[0].partition("=")[2])
    elsewhere = (f"data.source={source}", f"data.root={tmp_path}", *few_glyphs[2:])  # lists without images
    study = open_study(["toy"], seeds=1, out=tmp_path / "out", values=elsewhere)
    text, ready = describe_plan(study, runs_needed(["variants-sop"], study))
    assert not ready
    assert "image files are missing, the first" in text


def test_dry_run_says_what_training_would_refuse(tmp_path: Path, few_glyphs: tuple[str, ...]) -> None:
    study = open_study(["toy"], seeds=1, out=tmp_path / "out", values=(*few_glyphs, "batch.batch_size=64"))
    merged = runs_needed(["robustness-sop"], study)
    text, ready = describe_plan(study, merged)
    assert not ready
    assert text.count("a batch of 16 classes needs as many training classes") == 1
    assert describe_plan(study, [run for run in merged if not run.recipe.data.merge_classes])[1]


def test_dry_run_looks_for_the_weights(tmp_path: Path, few_glyphs: tuple[str, ...]) -> None:
    lost = (*few_glyphs, f"model.backbone=efficientnet-lite0@{tmp_path / 'no.pth'}", "model.pretrained=true")
    study = open_study(["toy"], seeds=1, out=tmp_path / "out", values=lost)
    text, ready = describe_plan(study, runs_needed(["variants-sop"], study))
    assert not ready
    assert "weights   are not there: no weights file" in text


def test_what_fails_is_said_after_all_the_rest_is_shown(
    tmp_path: Path, few_glyphs: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One run fails: the others are trained, every table is made and shown, the formulas before training."""
    study = open_study(["toy"], seeds=1, out=tmp_path, values=few_glyphs)
    shown: list[str] = []

    def train(run: Run, threads: int | None = None) -> str:
        assert shown == ["ap-gradients"], "nothing to look at before training"
        assert "ap-gradients" in (tmp_path / "index.html").read_text()
        if run.title.startswith("Dq"):
            return "no luck"
        run.folder.mkdir(parents=True)
        (run.folder / RESULT).write_text(
            json.dumps({"metrics": {"recall@1": 0.5}, "seconds": 1, "broke": False})
        )
        return ""

    monkeypatch.setattr(runs, "_train", train)
    names = ["retrieval-examples", "ap-gradients", "variants-sop"]
    with pytest.raises(ForerankError, match=r"2 parts failed.*Dq, seed 0: no luck"):
        run_experiments(names, study, jobs=1, show=lambda product, study: shown.append(product.name))
    assert shown == ["ap-gradients", "variants-sop"]
    assert "50.0" in (tmp_path / "tables" / "variants-sop.md").read_text()
    assert "variants-sop" in (tmp_path / "index.html").read_text()


def test_rendered_again_every_file_is_new(invented: Study, write_results: Callable[..., None]) -> None:
    for recall, told in ((0.5, "50.0"), (0.75, "75.0")):
        write_results(invented, Condition("Ib"), "recall@1", [recall] * 3)
        render("sweep-b", invented)
        for ending in ("md", "csv", "html"):
            assert told in (invented.folder / "tables" / f"sweep-b.{ending}").read_text(), ending


@pytest.mark.browser
def test_page_in_a_browser(tmp_path: Path, browser) -> None:
    study = open_study(["ap-gradients"], out=tmp_path)
    run_experiments(["ap-gradients", "penalties"], study)
    page = browser.new_page(viewport={"width": 390, "height": 800})
    problems: list[str] = []
    page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    page.goto((tmp_path / "index.html").as_uri())
    assert page.evaluate("[...document.images].every(i => i.naturalWidth > 0)")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "the phone scrolls sideways"
    assert page.locator("section").count() == 3
    assert not problems
    page.close()
