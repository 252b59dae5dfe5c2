"""Verdicts follow the numbers: turn the numbers round and the verdict turns."""

from collections.abc import Callable
from pathlib import Path

import pytest

from forerank.paper import claims
from forerank.paper.statistics import paired_difference
from forerank.paper.study import RESULT, Condition, Study


def verdict(study: Study, said: str) -> claims.Verdict:
    (found,) = [v for v in claims.verdicts(study) if v.said == said]
    return found


@pytest.mark.parametrize(
    ("dq", "o", "word"),
    [
        ([0.80, 0.81, 0.80], [0.70, 0.70, 0.71], claims.HOLDS),
        ([0.70, 0.70, 0.71], [0.80, 0.81, 0.80], claims.FAILS),
        ([0.60, 0.80, 0.70], [0.71, 0.69, 0.70], claims.OPEN),
        ([0.80], [0.70], claims.OPEN),  # one seed decides nothing
    ],
)
def test_verdict(
    tmp_path: Path, dq: list[float], o: list[float], word: str, write_results: Callable[..., None]
) -> None:
    study = Study("glyphs", len(dq), tmp_path, tmp_path / "training")
    write_results(study, Condition("Dq"), "recall@1", dq)
    write_results(study, Condition("O"), "recall@1", o)
    found = verdict(study, "PNP-Dq retrieves better than PNP-O")
    assert found.word == word
    assert f"{100 * (sum(dq) - sum(o)) / len(dq):+.2f}" in found.evidence[0]


def test_what_was_not_trained_is_not_judged(invented: Study) -> None:
    words = {v.word for v in claims.verdicts(invented)}
    assert words == {claims.PENDING, claims.ABSENT}
    text = claims.to_markdown(claims.verdicts(invented), invented)
    assert "cannot be tested here" in text
    assert "--data sop=" in text


UP, DOWN = [0.80, 0.81, 0.80], [0.70, 0.70, 0.71]


def test_a_missing_comparison_or_seed_leaves_a_claim_open(
    invented: Study, write_results: Callable[..., None]
) -> None:
    said = "PNP-I is worse than PNP-O"
    write_results(invented, Condition("O"), "recall@1", UP)
    write_results(invented, Condition("Iu"), "recall@1", DOWN)
    found = verdict(invented, said)
    assert found.word == claims.PENDING
    assert "Ib (recall@1 of 0 of 3 seeds)" in found.evidence[0]
    write_results(invented, Condition("Ib"), "recall@1", DOWN)
    assert verdict(invented, said).word == claims.HOLDS
    # Seed 1 lost on one side, seed 2 on the other: as many values, but not of the same seeds.
    (invented.run(Condition("O"), 1).folder / RESULT).unlink()
    (invented.run(Condition("Iu"), 2).folder / RESULT).unlink()
    assert verdict(invented, said).word == claims.PENDING


def test_a_claim_about_a_family_is_tested_on_all_of_it(
    invented: Study, write_results: Callable[..., None]
) -> None:
    for method in ("O", "Iu", "Ib", "Ds"):
        write_results(invented, Condition(method), "nmi", DOWN)
    write_results(invented, Condition("Dq"), "nmi", UP)
    assert verdict(invented, "PNP-D clusters better (NMI) than PNP-O and PNP-I").word == claims.OPEN


def test_the_papers_own_data_is_tested_there(tmp_path: Path, write_results: Callable[..., None]) -> None:
    study = Study("sop", 3, tmp_path, tmp_path / "training")
    write_results(study, Condition("O"), "recall@1", UP)
    write_results(study, Condition("Iu"), "recall@1", DOWN)
    write_results(study, Condition("Ib", options=(("b", 4.0),)), "recall@1", DOWN)  # as its table trains it
    assert verdict(study, "PNP-I is worse than PNP-O").word == claims.HOLDS
    said = "PNP-Dq reaches the state of the art on SOP"
    assert verdict(study, said).word == claims.PENDING
    write_results(study, Condition("Dq", batch=384), "recall@1", [0.90, 0.91, 0.90])
    assert verdict(study, said).word == claims.HOLDS
    assert verdict(study, said.replace("SOP", "VehicleID")).word == claims.ABSENT


def test_losing_less_is_about_the_change(invented: Study, write_results: Callable[..., None]) -> None:
    for method, plain, merged in (
        ("Dq", 0.70, 0.69), ("Smooth-AP", 0.90, 0.70), ("Iu", 0.90, 0.60), ("Ib", 0.90, 0.65),
    ):  # fmt: skip
        for condition, level in ((Condition(method), plain), (Condition(method, merged=3), merged)):
            write_results(invented, condition, "recall@1", [level, level + 0.001, level - 0.001])
    assert verdict(invented, "PNP-Dq loses less by the merging than Smooth-AP and PNP-I").word == claims.HOLDS
    said = "With classes merged by three, PNP-Dq is better than Smooth-AP and PNP-I"
    assert verdict(invented, said).word == claims.FAILS


def test_a_crash_must_be_seen_to_be_believed(invented: Study, write_results: Callable[..., None]) -> None:
    for alpha in (1, 2, 8, 16, 32):
        write_results(invented, Condition("Dq", options=(("alpha", float(alpha)),)), "recall@1", [0.7] * 3)
    write_results(invented, Condition("Dq"), "recall@1", [0.7] * 3)
    said = "A large alpha makes training crash by exploding gradients"
    assert verdict(invented, said).word == claims.FAILS
    for seed in range(3):
        (invented.run(Condition("Dq", options=(("alpha", 32.0),)), seed).folder / "paper.json").unlink()
    write_results(invented, Condition("Dq", options=(("alpha", 32.0),)), "recall@1", [0.1] * 3, broke=True)
    assert verdict(invented, said).word == claims.HOLDS


def test_interval_is_students() -> None:
    # Differences 2.0, 2.5, 0.5, 3.0: mean 2, standard error 0.5401; t with 3 degrees of freedom is 3.182.
    found = paired_difference([3.0, 4.5, 5.0, 6.0], [1.0, 2.0, 4.5, 3.0])
    assert found.mean == pytest.approx(2.0)
    assert found.low == pytest.approx(2 - 3.182 * 0.5401, abs=0.01)
    assert found.high == pytest.approx(2 + 3.182 * 0.5401, abs=0.01)
    assert found.sign == 1
