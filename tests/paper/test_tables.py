"""Measured beside published: means, spreads, differences, and what is left empty."""

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from forerank.errors import InputError
from forerank.paper import sweeps, tables
from forerank.paper.pipeline import open_study
from forerank.paper.render import render
from forerank.paper.study import RESULT, Condition, Study


def test_difference_is_measured_minus_published(invented: Study, write_results: Callable[..., None]) -> None:
    write_results(invented, Condition("Dq"), "recall@1", [0.70, 0.72, 0.74])
    (line,) = [x for x in tables.lines("variants-sop", invented) if (x.method, x.column) == ("Dq", "R@1")]
    assert line.difference == pytest.approx(72.0 - 80.1)
    shown = tables.build_table("variants-sop", invented).to_markdown()
    assert "72.0 ± 2.0" in shown
    assert "−8.1" in shown
    read = list(csv.DictReader(io.StringIO(tables.build_csv("variants-sop", invented))))
    (row,) = [r for r in read if (r["method"], r["column"]) == ("Dq", "R@1")]
    assert float(row["difference"]) == pytest.approx(-8.1)
    assert float(row["spread"]) == pytest.approx(np.std([70, 72, 74], ddof=1))


def test_a_stand_in_answers_only_the_large_test_of_vehicle_id(invented: Study) -> None:
    assert tables.metric_of("large R@5", invented, "variants-vehicle-id") == "recall@5"
    assert tables.metric_of("small R@5", invented, "variants-vehicle-id") is None
    native = Study("vehicle_id")
    assert tables.metric_of("small R@5", native, "variants-vehicle-id") == "small/recall@5"


def test_vehicle_id_has_its_own_protocol_as_further_lines(
    tmp_path: Path, write_results: Callable[..., None]
) -> None:
    study = Study("vehicle_id", 2, 2, tmp_path, tmp_path / "training")
    for metric, value in (("small/recall@1", 0.9), ("small, ten galleries/recall@1", 0.7), ("nmi", 0.8)):
        write_results(study, Condition("Dq"), metric, [value, value])
    table = tables.build_table("variants-vehicle-id", study)
    line = table.rows[[row[1] for row in table.rows].index("ten galleries")]
    assert line[2] == "70.0 ± 0.0"
    assert any("those of the large test list" in note for note in table.notes)
    read = list(csv.DictReader(io.StringIO(tables.build_csv("variants-vehicle-id", study))))
    (row,) = [r for r in read if (r["method"], r["column"]) == ("Dq", "small R@1")]
    assert float(row["ten galleries"]) == pytest.approx(70.0)


def test_every_row_is_trained_and_says_where_it_deviates(invented: Study) -> None:
    table = tables.build_table("comparison-sop", invented)
    conditions = tables.rows("comparison-sop", invented)
    assert list(conditions) == [row[0] for row in table.rows if row[0]]
    notes = " ".join(table.notes)
    assert "no implementation" not in notes
    assert "RankMI: a reconstruction" in notes
    assert invented.recipe(conditions["MIC"], 0).method.name == "mic"


def test_paper_batches_and_best_b() -> None:
    sop = tables.rows("comparison-sop", Study("sop"))
    assert sop["Dq, batch 112"] == Condition("Dq")  # 112 is the plain batch: shared with the variants
    assert sop["Dq, batch 384"].batch == sop["FastAP"].batch == 384
    assert tables.rows("comparison-inaturalist", Study("inaturalist"))["Triplet"].batch == 224
    for name, table, b in (("sop", "variants-sop", 4), ("vehicle_id", "variants-vehicle-id", 1)):
        study = Study(name)
        assert study.recipe(tables.rows(table, study)["Ib"], 0).loss.options["b"] == b
        noisy = [c for c in tables.conditions("label-noise", study) if c.method == "Ib"]
        assert [study.recipe(c, 0).loss.options["b"] for c in noisy] == [b] * len(tables.NOISE_RATES)


def test_noise_table_and_merging(invented: Study, write_results: Callable[..., None]) -> None:
    for method, clean, worst in (("Dq", 0.8, 0.7), ("O", 0.8, 0.5)):
        write_results(invented, Condition(method), "recall@1", [clean] * 3)
        write_results(invented, Condition(method, noise=0.4), "recall@1", [worst] * 3)
        write_results(invented, Condition(method, merged=3), "recall@1", [worst] * 3)
    rows = {row[0]: row for row in tables.build_noise_table(invented).rows}
    assert rows["Dq"][-1] == "−10.0"
    assert rows["O"][-1] == "−30.0"
    notes = " ".join(tables.build_table("robustness-sop", invented).notes)
    assert "O -30.0" in notes
    assert "Dq -10.0" in notes


def test_sweep_counts_broken_runs(invented: Study, write_results: Callable[..., None]) -> None:
    write_results(
        invented, Condition("Dq", options=(("alpha", 16.0),)), "recall@1", [0.1, 0.2, 0.3], broke=True
    )
    write_results(invented, Condition("Dq"), "recall@1", [0.7, 0.7, 0.7])
    rows = {row[0]: row for row in sweeps.build_table("sweep-alpha", invented).rows}
    assert rows["16"][-3:-1] == [3, 3]
    assert rows["4"][-3:-1] == [3, 0]
    assert "best at alpha = 4" in sweeps.finding("sweep-alpha", invented)[0]


def test_the_printed_power_is_counted_apart(invented: Study, write_results: Callable[..., None]) -> None:
    naive = sweeps.naive_condition(32.0)
    assert invented.recipe(naive, 0).loss.options == {"alpha": 32, "naive": True}
    write_results(invented, naive, "recall@1", [0.1, 0.1, 0.1], broke=True)
    rows = {row[0]: row for row in sweeps.build_crash_table(invented).rows}
    assert rows["32, as printed"][-3:-1] == [3, 3]
    assert rows["32, as computed here"][-3:-1] == [0, 0]
    assert "3 of 3 at alpha 32" in sweeps.crash_finding(invented)[0]


def test_runs_that_learned_nothing_are_named(invented: Study, write_results: Callable[..., None]) -> None:
    write_results(invented, Condition("Dq"), "recall@1", [0.4, 0.4, 0.4])
    for seed in range(2):
        path = invented.run(Condition("Dq"), seed).folder / RESULT
        path.write_text(json.dumps({**json.loads(path.read_text()), "learned": False}))
    assert invented.unlearned(Condition("Dq")) == 2
    assert any("Dq (2)" in note for note in tables.build_table("variants-sop", invented).notes)


def test_a_sweep_shows_another_data_set_beside(tmp_path: Path, write_results: Callable[..., None]) -> None:
    sweep = sweeps.SWEEPS["sweep-b"]
    for on, level in (("glyphs", 0.7), ("cub", 0.6)):
        one = open_study([], on=on, seeds=3, out=tmp_path / on)
        for value in sweep.values:
            write_results(one, sweep.condition(value), "recall@1", [level, level + 0.01, level + 0.02])
    alone = render("sweep-b", open_study([], on="glyphs", seeds=3, out=tmp_path / "glyphs"))
    with Image.open(alone.figure) as figure:
        width = figure.width
    both = open_study([], on="glyphs", seeds=3, out=tmp_path / "glyphs", beside=["cub"])
    product = render("sweep-b", both)
    assert ["71." in table.to_markdown() for table in product.tables] == [True, False]
    assert ["61." in table.to_markdown() for table in product.tables] == [False, True]
    with Image.open(product.figure) as figure:
        assert figure.width > 1.5 * width
    with pytest.raises(InputError, match="there is no study in"):
        open_study([], on="glyphs", out=tmp_path / "glyphs", beside=["cars"])
