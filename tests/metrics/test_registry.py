"""One registry: new metrics against their definitions, figures per category, and who reads the entries."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from forerank.cli import run
from forerank.errors import InputError
from forerank.metrics import METRICS, Metric, evaluate, neighbours
from forerank.metrics.registry import find_metric
from forerank.report import write_report

ROOT = Path(__file__).parents[2]
QUICK = {"nmi": False, "distances": False, "bootstrap": 0}


def clusters(seed, size=60, classes=7, tied=False):
    generator = np.random.default_rng(seed)
    labels = np.concatenate([np.arange(classes).repeat(2), generator.integers(classes, size=size)])
    vectors = generator.normal(size=(classes, 5))[labels] + generator.normal(size=(len(labels), 5))
    return np.sign(vectors) if tied else vectors, labels


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("k", [1, 2, 5, 30])
def test_precision_and_map_at_k_by_brute_force(k, tied):
    vectors, labels = clusters(k, tied=tied)
    precisions, averages = [], []
    for right in neighbours(vectors, labels, k=len(labels)).is_positive:
        best = min(k, int(right.sum()))
        hits = np.cumsum(right)
        precisions.append(hits[k - 1] / best)
        averages.append(sum(hits[i] / (i + 1) for i in range(k) if right[i]) / best)
    metrics = evaluate(vectors, labels, metrics=["precision@k", "map@k"], ks=(k,), **QUICK)
    assert list(metrics) == [f"precision@{k}", f"map@{k}"]
    assert metrics[f"precision@{k}"] == pytest.approx(np.mean(precisions), abs=1e-12)
    assert metrics[f"map@{k}"] == pytest.approx(np.mean(averages), abs=1e-12)


def test_metrics_at_k_meet_those_they_generalise():
    vectors, labels = clusters(0)
    labels = np.arange(len(labels)) // 2  # R is 1 everywhere, so k = R = 1
    metrics = evaluate(vectors, labels, metrics=["map@1", "map@r", "precision@1", "recall@1"], **QUICK)
    assert len(set(metrics.values())) == 1


def test_figures_per_category_are_those_of_its_queries_alone_and_the_worst_leads():
    vectors, labels = clusters(3, size=120)
    kinds = np.array(["bird", "fish", "tree"])[labels % 3]
    metrics = evaluate(vectors, labels, categories=kinds, **QUICK)
    assert sum(c.queries for c in metrics.categories) == metrics.counts["queries"]
    for one in metrics.categories:
        alone = evaluate(vectors, labels, queries=kinds == one.category, **QUICK)
        assert one.figures == pytest.approx(dict(alone), abs=1e-12)
        assert one.queries == alone.counts["queries"]
    recalls = [c.figures["recall@1"] for c in metrics.categories]
    assert recalls == sorted(recalls)
    assert recalls[0] < recalls[-1]
    again = type(metrics).from_dict(json.loads(json.dumps(metrics.to_dict())))
    assert again.categories == metrics.categories
    assert str(again) == str(metrics)


def test_categories_in_console_json_and_report(tmp_path, capsys):
    vectors, labels = clusters(3, size=120)
    kinds = [f"<kind {label % 3}>" for label in labels]
    np.save(tmp_path / "e.npy", vectors)
    lines = [f"{label},{kind}" for label, kind in zip(labels, kinds, strict=True)]
    (tmp_path / "l.csv").write_text("label,category\n" + "\n".join(lines))
    command = ["evaluate", "--embeddings", str(tmp_path / "e.npy"), "--labels", str(tmp_path / "l.csv")]
    wanted = ["--metrics", "precision@k", "--metrics", "map@2", "--ks", "2", "--by-category"]
    assert run([*command, *wanted, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["categories"]
    expected = evaluate(vectors, labels, metrics=["precision@2", "map@2"], categories=kinds, bootstrap=200)
    assert [c["category"] for c in told] == [c.category for c in expected.categories]
    assert [c["metrics"] for c in told] == [c.figures for c in expected.categories]
    assert run([*command, *wanted]) == 0
    rows = re.findall(r"^(<kind \d>) +(\d+) +([\d.]+)%", capsys.readouterr().out, re.MULTILINE)
    assert [(name, int(queries), float(value)) for name, queries, value in rows] == [
        (c.category, c.queries, round(100 * c.figures["precision@2"], 2)) for c in expected.categories
    ]
    page = write_report(tmp_path / "r.html", title="kinds", evaluations={"trained": expected}).read_text()
    section = page[page.index('id="categories"') :]
    shown = re.findall(r"<td>&lt;(kind \d)&gt;</td><td>(\d+)</td>", section)
    assert shown == [(c.category.strip("<>"), str(c.queries)) for c in expected.categories]
    (tmp_path / "l.csv").write_text("label\n" + "\n".join(map(str, labels)))
    assert run([*command, "--by-category"]) == 2
    assert "needs a column 'category'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("recal@1", "did you mean 'recall@1'"),
        ("precison@5", "did you mean 'precision@5'"),
        ("recall@0", "unknown metric 'recall@0'"),
        ("map@k", "needs a number in the place of k, such as map@1"),
    ],
)
def test_unknown_metrics_are_refused_with_the_nearest(name, sentence):
    with pytest.raises(InputError, match=sentence):
        find_metric(name)


def test_unknown_metrics_are_refused_everywhere(tmp_path, capsys):
    vectors, labels = clusters(0)
    with pytest.raises(InputError, match="did you mean 'nmi'"):
        evaluate(vectors, labels, metrics=["nmii"])
    with pytest.raises(InputError, match="precision@5000 cannot be measured here"):
        evaluate(vectors, labels, metrics=["precision@5000"])
    with pytest.raises(InputError, match="did you mean"):
        write_report(tmp_path / "r.html", title="x", evaluations={"a": {"recal@1": 0.5}})
    from forerank.training import load_recipe
    from forerank.training.prepare import open_parts

    with pytest.raises(InputError, match="did you mean 'recall@1'"):
        open_parts(load_recipe("glyphs", ["choose_by=recal@1"]))
    assert run(["recipe", "show", "sop", "choose_by=recal@1"]) == 2
    assert "did you mean 'recall@1'" in capsys.readouterr().err
    with pytest.raises(InputError, match="must be a ranking metric"):
        open_parts(load_recipe("glyphs", ["choose_by=nmi"]))


def test_a_registered_metric_is_in_console_json_report_and_intervals(tmp_path, monkeypatch, capsys):
    entry = Metric("mean rank", "mean rank of the first positive", lambda r: r.first, "rank", "lower")
    monkeypatch.setitem(METRICS, "mean_first_rank", entry)
    vectors, labels = clusters(1)
    before = evaluate(vectors, labels, nmi=False, per_query=True)
    after = evaluate(vectors + 3 * np.eye(7, 5)[labels], labels, nmi=False)
    assert before["mean_first_rank"] == before.per_query.first_rank.mean() > after["mean_first_rank"]
    low, high = before.intervals["mean_first_rank"]
    assert low < before["mean_first_rank"] < high
    assert re.search(rf"mean_first_rank +{before['mean_first_rank']:.4f}", str(before))
    assert "<td>mean_first_rank</td>" in before._repr_html_()
    page = write_report(tmp_path / "r.html", title="x", evaluations={"a": before, "b": after}).read_text()
    row = page[page.index("mean rank</th>") :]
    assert '<td class="difference up">−' in row[: row.index("</tr>")]  # lower is better


def test_the_guide_has_every_metric_with_its_definition():
    guide = (ROOT / "docs" / "evaluation.md").read_text()
    rows = re.findall(r"^\| `([^`]+)` \| (.+?) \| (yes|if asked for) \|$", guide, re.MULTILINE)
    expected = [(key, m.meaning, "yes" if m.usual else "if asked for") for key, m in METRICS.items()]
    assert rows == expected


def test_the_contributing_recipe_appears_on_the_command_line(tmp_path):
    text = (ROOT / "CONTRIBUTING.md").read_text()
    section = text[text.index("## Add a metric") :]
    block = re.search(r"^```python\n(.*?)^```", section, re.MULTILINE | re.DOTALL).group(1)
    (tmp_path / "recipe.py").write_text(block)
    done = subprocess.run([sys.executable, "recipe.py"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^mean_first_rank +\d", done.stdout, re.MULTILINE)
    assert re.search(r"step 2: validation .*mean_first_rank \d", done.stderr)
    assert "did not improve mean_first_rank" in done.stderr + done.stdout
