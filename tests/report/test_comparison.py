"""Runs beside each other: paired by hand, refused where the test sets differ, readable on a phone."""

import json

import numpy as np
import pytest

from forerank.cli import run as command
from forerank.data import Table, open_table
from forerank.errors import InputError
from forerank.metrics import evaluate
from forerank.metrics.intervals import class_intervals
from forerank.report.comparison import ComparedRun, comparison_dict, pair_runs, write_comparison


def make_runs(noises, seed=0, classes=40, per_class=5):
    """Models that see the same classes through different noise."""
    rng = np.random.default_rng(seed)
    codes = np.repeat(np.arange(classes), per_class)
    centres = rng.normal(size=(classes, 16))
    labels = [f"c{c:02d} <b>" for c in codes]
    table = Table([f"{i}.png" for i in range(len(codes))], labels, ["test"] * len(codes), name="things")
    runs = []
    for name, noise in noises.items():
        vectors = centres[codes] + noise * rng.normal(size=(len(codes), 16))
        evaluation = evaluate(vectors, table.label, ks=(1, 2, 4), nmi=False, per_query=True)
        history = [{"step": s, "loss": 1 / s, "validation": {"recall@1": 0.5}} for s in (1, 2, 3)]
        runs.append(ComparedRun(name, table, evaluation, history, {"loss": {"name": name}, "seed": 0}))
    return runs


def test_differences_are_those_of_the_figures_with_the_interval_of_drawn_classes():
    runs = make_runs({"a": 2.5, "b": 1.0})
    (pair,) = pair_runs(runs)
    before, after = (run.evaluation.per_query for run in runs)
    for d in pair.differences:
        assert d.difference == pytest.approx(runs[1].evaluation[d.metric] - runs[0].evaluation[d.metric])
        assert d.low <= d.difference <= d.high
    assert {"recall@1", "recall@2", "recall@4", "map"} <= {d.metric for d in pair.differences}
    gain = (after.first_rank == 1).astype(float) - (before.first_rank == 1)
    ends = class_intervals(gain[:, None], runs[0].table.label[before.query], draws=2000)[:, 0]
    recall = next(d for d in pair.differences if d.metric == "recall@1")
    np.testing.assert_allclose((recall.low, recall.high), ends)
    assert recall.clear


def test_a_run_against_itself_is_no_difference_and_the_order_of_images_does_not_matter():
    (run,) = make_runs({"a": 1.5})
    order = np.random.default_rng(1).permutation(len(run.table))
    rng = np.random.default_rng(0)
    codes = np.repeat(np.arange(40), 5)
    vectors = rng.normal(size=(40, 16))[codes] + 1.5 * rng.normal(size=(200, 16))
    shuffled = run.table.where(order)
    evaluation = evaluate(vectors[order], shuffled.label, ks=(1, 2, 4), nmi=False, per_query=True)
    (pair,) = pair_runs([run, ComparedRun("again", shuffled, evaluation)])
    assert pair.reason == ""
    assert [(d.difference, d.low, d.high) for d in pair.differences] == [(0, 0, 0)] * len(pair.differences)
    assert not any(d.clear for d in pair.differences)


def test_test_sets_that_differ_are_said_and_not_paired(tmp_path):
    first, second = make_runs({"a": 1.0, "b": 1.0})
    rows = np.arange(len(first.table) - 5)
    small = ComparedRun("small", first.table.where(rows), second.evaluation)
    label = first.table.label.copy()
    label[:3] = "other"
    renamed = ComparedRun("renamed", first.table.with_columns(label=label), second.evaluation)
    moved = ComparedRun("moved", first.table.with_columns(root="elsewhere"), second.evaluation)
    said = [one.reason for one in pair_runs([first, small, renamed, moved])]
    assert said == [
        "their test sets differ: 200 and 195 images",
        "their test sets differ: labels of 3 images",
        "their test sets differ: they hold different images",
    ]
    paired = pair_runs([first, small])
    write_comparison(tmp_path / "c.html", [first, small], paired)
    page = (tmp_path / "c.html").read_text()
    assert "small and a are not paired: their test sets differ: 200 and 195 images" in page.replace(
        "Small", "small"
    )
    assert comparison_dict([first, small], paired)["paired"][0]["differences"] == []
    with pytest.raises(InputError, match="two runs or more"):
        pair_runs([first])


@pytest.mark.browser
@pytest.mark.parametrize("width", [390, 1180])
def test_the_page_in_a_browser(browser, tmp_path, width, photograph):
    second = "b <i>" if width < 400 else "corrected"
    runs = make_runs({"a": 2.0, second: 1.5, "c": 2.0})
    write_comparison(tmp_path / "c.html", runs, pair_runs(runs))
    context = browser.new_context(viewport={"width": width, "height": 800})
    page = context.new_page()
    complaints = []
    page.on("console", lambda m: complaints.append(m.text) if m.type == "error" else None)
    page.goto((tmp_path / "c.html").as_uri())
    assert page.locator("h2").all_inner_texts() == [
        "All figures",
        "Differences to a",
        "Training",
        "Where the recipes differ",
    ]
    assert second in page.inner_text("#paired")
    assert page.locator("#settings td").all_inner_texts() == ["a", second, "c"]
    assert page.locator("#curves svg").count() >= 2
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert complaints == []
    if width > 400:
        photograph(page, "comparison")
    context.close()


def test_the_command_on_two_runs(tmp_path, capsys):
    """Two networks without training, on the same few glyphs: figures equal those of evaluating each."""
    import torch

    from forerank.models import create_model, save_model
    from forerank.training import evaluate_run
    from forerank.training.recipe import load_recipe, recipe_text

    table = open_table("glyphs")
    few = {"train": 4, "validation": 4, "test": 12}
    keep = np.isin(table.label, np.concatenate([table.select(s).classes[:n] for s, n in few.items()]))
    table = table.where(keep).with_columns(path=[str(file) for file in table.where(keep).files])
    table.write_csv(tmp_path / "glyphs.csv")
    for seed, name in enumerate(("one", "two")):
        torch.manual_seed(seed)
        recipe = load_recipe("glyphs", [f"data.source={tmp_path / 'glyphs.csv'}", f"seed={seed}"])
        (tmp_path / name).mkdir()
        (tmp_path / name / "recipe.yaml").write_text(recipe_text(recipe))
        save_model(create_model("glyphnet", embedding_dim=8), tmp_path / name / "best")
    runs, page = [str(tmp_path / "one"), str(tmp_path / "two")], tmp_path / "c.html"
    assert command(["compare", *runs, "-o", str(page), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    figures = [one["metrics"]["recall@1"] for one in told["runs"]]
    assert figures == [evaluate_run(tmp_path / name)["recall@1"] for name in ("one", "two")]
    (recall,) = [d for d in told["paired"][0]["differences"] if d["metric"] == "recall@1"]
    assert recall["difference"] == pytest.approx(figures[1] - figures[0])
    assert page.stat().st_size > 5000
    assert command(["compare", *runs, "-o", str(page)]) == 0
    assert "two - one: Recall@1" in capsys.readouterr().out
    assert command(["compare", runs[0]]) == 2
    assert command(["compare", runs[0], runs[0]]) == 2
    assert command(["compare", runs[0], str(tmp_path)]) == 2
    assert capsys.readouterr().err.count("\n") == 3
