"""What is measured of an ended run beyond its metrics."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from forerank.data import open_table
from forerank.paper.run_results import query_correlation, vehicle_tests
from forerank.paper.runs import train_missing
from forerank.paper.study import Condition, Run, Study
from forerank.report.penalties import derivative
from forerank.training import embed_run


def numerical_gradient(similarity: np.ndarray, positive: np.ndarray, temperature: float) -> np.ndarray:
    """d loss / d similarity of each negative under PNP-Ds, by central differences."""

    def loss(s: np.ndarray) -> float:
        gaps = (s[~positive][:, None] - s[positive][None, :]) / temperature
        return float(np.log1p((1 / (1 + np.exp(-gaps))).sum(0)).sum())

    slopes = []
    for j in np.flatnonzero(~positive):
        step = np.zeros_like(similarity)
        step[j] = 1e-6
        slopes.append((loss(similarity + step) - loss(similarity - step)) / 2e-6)
    return np.array(slopes)


@pytest.mark.parametrize("temperature", [0.05, 0.5])
def test_correlation_is_that_of_the_true_gradient(temperature: float) -> None:
    from scipy.stats import spearmanr

    generator = np.random.default_rng(0)
    similarity, positive = generator.uniform(0, 1, 12), np.arange(12) < 4
    gradient = numerical_gradient(similarity, positive, temperature)
    before = (similarity[~positive][:, None] > similarity[positive][None, :]).sum(1)
    expected = spearmanr(before[before > 0], gradient[before > 0]).statistic
    assert query_correlation(similarity, positive, derivative("Ds"), temperature) == pytest.approx(expected)


def test_nothing_to_order_is_no_correlation() -> None:
    positive = np.array([True, True, False, False, False])
    perfect = np.array([0.9, 0.8, 0.3, 0.2, 0.1])
    assert query_correlation(perfect, positive, derivative("O"), 0.01) is None


def kept_by_hand(run: Run) -> float:
    """The share of training images whose nearest one in their merged class has the same character."""
    embedded, _ = embed_run(run.folder, "train")
    characters = [Path(path).parent.name for path in embedded.table.path]
    similarity = embedded.vectors @ embedded.vectors.T
    right = []
    for i, label in enumerate(embedded.table.label_ids):
        others = [j for j in range(len(similarity)) if j != i and embedded.table.label_ids[j] == label]
        nearest = max(others, key=lambda j: similarity[i, j])
        right.append(characters[nearest] == characters[i])
    assert len(set(characters)) > len(set(embedded.table.label_ids.tolist()))
    return float(np.mean(right))


def test_what_is_kept_of_a_run_agrees_with_its_metrics(tmp_path: Path, few_glyphs: tuple[str, ...]) -> None:
    study = Study("glyphs", 1, 1, tmp_path, tmp_path / "training", values=few_glyphs)
    run = study.run(Condition("Ib", merged=3), 0)
    assert train_missing([run]) == []
    result = run.result()
    right, queries = result["classes"]["right"], result["classes"]["queries"]
    assert sum(right) / sum(queries) == pytest.approx(result["metrics"]["recall@1"])
    assert len(right) == 10  # test classes are not merged
    assert result["metrics"]["centres_kept"] == pytest.approx(kept_by_hand(run))
    assert -1 <= result["metrics"]["correlation"] <= 1

    # The same model under VehicleID's lists, written in that data set's layout.
    table = open_table(few_glyphs[0].partition("=")[2], root=few_glyphs[1].partition("=")[2]).select("test")
    root = tmp_path / "vehicles"
    (root / "image").mkdir(parents=True)
    (root / "train_test_split").mkdir()
    lines = []
    for number, (file, label) in enumerate(zip(table.files, table.label_ids, strict=True)):
        Image.open(file).convert("L").save(root / "image" / f"{number:07d}.jpg")
        lines.append(f"{number:07d} {label}\n")
    lists = root / "train_test_split"
    (lists / "train_list.txt").write_text("0000000 seen\n0000001 seen\n")
    for size in (800, 1600, 2400):
        (lists / f"test_list_{size}.txt").write_text("".join(lines))
    vehicle = replace(run.recipe, data=replace(run.recipe.data, source="vehicle_id", root=str(root)))
    metrics = vehicle_tests(replace(run, recipe=vehicle))
    for size in ("small", "medium", "large"):
        assert 0 < metrics[f"{size}, ten galleries/recall@1"] < metrics[f"{size}/recall@1"] <= 1
