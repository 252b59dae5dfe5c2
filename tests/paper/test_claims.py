"""Verdicts follow the numbers: turn the numbers round and the verdict turns."""

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from forerank.paper import claims, toy
from forerank.paper.claim_tests import CLAIMS
from forerank.paper.exact_claims import almost_equal, steeper_than_ap
from forerank.paper.methods import WITHOUT_POSITIVES
from forerank.paper.study import RESULT, Condition, Study

Write = Callable[..., None]
UP, DOWN = [0.80, 0.81, 0.80], [0.70, 0.70, 0.71]
DQ_ABOVE_O = "PNP-Dq retrieves better than PNP-O"


def verdict(study: Study, said: str) -> claims.Verdict:
    (one,) = [v for v in claims.verdicts(study, CLAIMS) if v.said.startswith(said)]
    return one


@pytest.mark.parametrize(
    ("dq", "o", "word"),
    [
        ([0.80, 0.81, 0.80], [0.70, 0.70, 0.71], claims.HOLDS),
        ([0.70, 0.70, 0.71], [0.80, 0.81, 0.80], claims.FAILS),
        ([0.60, 0.80, 0.70], [0.71, 0.69, 0.70], claims.OPEN),
        ([0.7001, 0.7002, 0.7001], [0.7001, 0.7001, 0.7002], claims.SAME),
        ([0.80], [0.70], claims.OPEN),  # one seed decides nothing
    ],
)
def test_verdict(tmp_path: Path, dq: list[float], o: list[float], word: str, write_results: Write) -> None:
    study = Study("glyphs", len(dq), 3, tmp_path, tmp_path / "training")
    write_results(study, Condition("Dq"), "recall@1", dq)
    write_results(study, Condition("O"), "recall@1", o)
    judged = verdict(study, DQ_ABOVE_O)
    assert judged.word == word
    assert judged.seeds == len(dq)
    assert f"{100 * (sum(dq) - sum(o)) / len(dq):+.3f}" in judged.evidence[0]


def test_many_comparisons_are_corrected(invented: Study, write_results: Write) -> None:
    """A difference that one comparison would call real is not, when it is one of many on the page."""
    write_results(invented, Condition("Dq"), "recall@1", [0.80, 0.82, 0.78])
    write_results(invented, Condition("O"), "recall@1", [0.77, 0.78, 0.76])
    assert verdict(invented, DQ_ABOVE_O).word == claims.HOLDS
    generator = np.random.default_rng(0)
    for method in ("O", "Iu", "Ib", "Ds", "Dq"):  # six comparisons of NMI that say nothing
        write_results(invented, Condition(method), "nmi", generator.uniform(0.4, 0.6, 3).tolist())
    judged = verdict(invented, DQ_ABOVE_O)
    assert judged.word == claims.OPEN
    assert "corrected" in judged.evidence[0]


def test_all_and_any_use_the_same_corrected_values() -> None:
    yes, no = claims.Comparison("a", 0.01, 1.0, seeds=3), claims.Comparison("b", 1.0, 0.01, seeds=3)
    unclear = claims.Comparison("c", 0.4, 0.7, seeds=3)
    corrected = claims.corrected([yes, no, unclear])
    assert [c.answer() for c in corrected] == ["yes", "no", "unclear"]
    assert claims.judge(corrected, "any") == claims.HOLDS
    assert claims.judge(corrected, "all") == claims.FAILS
    assert claims.judge(corrected[1:], "any") == claims.OPEN
    assert claims.judge(corrected[1:2], "any") == claims.FAILS
    crowd = claims.corrected([claims.Comparison("a", 0.02, 1.0, seeds=3)] * 10)
    assert claims.judge(crowd, "any") == claims.judge(crowd, "all") == claims.OPEN


def test_test_classes_can_overrule_the_seeds(invented: Study, write_results: Write) -> None:
    """Every seed agrees, but the difference comes from one class of many: it is not trusted."""
    write_results(invented, Condition("Dq"), "recall@1", UP)
    write_results(invented, Condition("O"), "recall@1", DOWN)
    assert verdict(invented, DQ_ABOVE_O).word == claims.HOLDS
    for method, right in (("Dq", [100, *[5] * 20]), ("O", [10, *[5] * 20])):
        for seed in range(3):
            path = invented.run(Condition(method), seed).folder / RESULT
            kept = json.loads(path.read_text())
            path.write_text(json.dumps({**kept, "classes": {"right": right, "queries": [100, *[10] * 20]}}))
    judged = verdict(invented, DQ_ABOVE_O)
    assert judged.word == claims.OPEN
    assert "over 21 test classes" in judged.evidence[0]


def test_what_was_not_trained_is_not_judged(invented: Study) -> None:
    judged = claims.verdicts(invented, CLAIMS)
    exact = [v for v in judged if v.word not in (claims.PENDING, claims.ABSENT)]
    assert {v.seeds for v in exact} == {0}  # formulas and printed tables need no run
    assert len(exact) == 3
    text = claims.to_markdown(judged, invented)
    assert "cannot be tested here" in text
    assert "--data sop=" in text


def test_a_missing_comparison_or_seed_leaves_a_claim_open(invented: Study, write_results: Write) -> None:
    said = "PNP-D clusters better (NMI)"
    for method in ("Ds", "Dq"):
        write_results(invented, Condition(method), "nmi", UP)
    for method in ("O", "Iu"):
        write_results(invented, Condition(method), "nmi", DOWN)
    judged = verdict(invented, said)
    assert judged.word == claims.PENDING
    assert "Ib (0 of 3 seeds)" in judged.evidence[0]
    write_results(invented, Condition("Ib"), "nmi", DOWN)
    assert verdict(invented, said).word == claims.HOLDS
    (invented.run(Condition("O"), 1).folder / RESULT).unlink()
    assert verdict(invented, said).word == claims.PENDING


def test_seeds_are_paired_by_number(tmp_path: Path, write_results: Write) -> None:
    """Ten seeds of one condition and three of the other give three pairs, of the same seeds."""
    study = Study("glyphs", 10, 3, tmp_path, tmp_path / "training")
    write_results(study, Condition("Dq"), "recall@1", [0.5 + i / 20 for i in range(10)])
    for images in (2, 8, 16):
        few = Condition("Dq", images_per_class=images)
        write_results(study, few, "recall@1", [0.4 + i / 20 for i in range(3)])
    judged = verdict(study, "|P| = 4 is the best")
    assert judged.seeds == 3
    assert "+10.000 [+10.000, +10.000] over 3 seeds" in judged.evidence[0]


def test_the_first_seeds_alone_decide_nothing(tmp_path: Path, write_results: Write) -> None:
    study = Study("glyphs", 10, 3, tmp_path, tmp_path / "training")
    for count, word in ((9, claims.PENDING), (10, claims.HOLDS)):
        write_results(study, Condition("Dq"), "recall@1", [0.9, 0.91] * 5)
        write_results(study, Condition("O"), "recall@1", ([0.5, 0.52, 0.51] * 4)[:count])
        assert verdict(study, DQ_ABOVE_O).word == word


def test_a_claim_about_a_family_is_tested_on_all_of_it(invented: Study, write_results: Write) -> None:
    for method in ("O", "Iu", "Ib", "Ds"):
        write_results(invented, Condition(method), "nmi", DOWN)
    write_results(invented, Condition("Dq"), "nmi", UP)
    assert verdict(invented, "PNP-D clusters better (NMI)").word == claims.PART  # Ds does not differ at all


def test_the_papers_own_data_is_tested_there(tmp_path: Path, write_results: Write) -> None:
    study = Study("sop", 3, 3, tmp_path, tmp_path / "training")
    said = "PNP-Dq reaches the state of the art on SOP"
    assert verdict(study, said).word == claims.PENDING
    write_results(study, Condition("Dq", batch=384), "recall@1", [0.90, 0.91, 0.90])
    assert verdict(study, said).word == claims.HOLDS
    assert verdict(study, said.replace("SOP", "VehicleID")).word == claims.ABSENT
    authors = replace(study, values=("variant=authors",))  # their checkpoint is the best on the test classes
    write_results(authors, Condition("Dq", batch=384), "recall@1", [0.90, 0.91, 0.90])
    assert verdict(authors, said).word == claims.ABSENT


def test_losing_less_is_about_the_change(invented: Study, write_results: Write) -> None:
    for method, plain, merged in (
        ("Dq", 0.70, 0.69), ("Smooth-AP", 0.90, 0.70), ("Iu", 0.90, 0.60), ("Ib", 0.90, 0.65),
    ):  # fmt: skip
        for condition, level in ((Condition(method), plain), (Condition(method, merged=3), merged)):
            write_results(invented, condition, "recall@1", [level, level + 0.001, level - 0.001])
    assert verdict(invented, "PNP-Dq loses less by merging").word == claims.HOLDS
    assert verdict(invented, "Smooth-AP loses less by merging").word == claims.HOLDS
    assert verdict(invented, "With classes merged by three").word == claims.FAILS
    assert verdict(invented, "With merged classes PNP-Dq is 2 to 3 points").word == claims.FAILS


def test_a_magnitude_must_lie_in_its_range(invented: Study, write_results: Write) -> None:
    said = "With merged classes PNP-Dq is 2 to 3 points"
    write_results(invented, Condition("Smooth-AP", merged=3), "recall@1", [0.700, 0.701, 0.699])
    for gain, word in ((0.025, claims.HOLDS), (0.06, claims.FAILS), (0.0, claims.FAILS)):
        write_results(
            invented, Condition("Dq", merged=3), "recall@1", [0.7 + gain, 0.7011 + gain, 0.699 + gain]
        )
        assert verdict(invented, said).word == word, gain


def test_redundancy_is_a_claim_of_no_difference(invented: Study, write_results: Write) -> None:
    said = "Positives before a positive are redundant"
    for metric in ("recall@1", "map@r"):
        write_results(invented, Condition("Smooth-AP"), metric, [0.700, 0.711, 0.695])
        write_results(invented, Condition(WITHOUT_POSITIVES), metric, [0.7005, 0.7108, 0.6952])
    assert verdict(invented, said).word == claims.HOLDS
    write_results(invented, Condition(WITHOUT_POSITIVES), "map@r", [0.720, 0.731, 0.716])
    assert verdict(invented, said).word == claims.FAILS


def test_the_crash_belongs_to_the_printed_formula(invented: Study, write_results: Write) -> None:
    said = "A large alpha makes training crash"
    for alpha in (24.0, 32.0):
        write_results(invented, Condition("Dq", options=(("alpha", alpha),)), "recall@1", DOWN)
    assert verdict(invented, said).word == claims.PENDING
    for alpha in (24.0, 32.0):
        naive = Condition("Dq", options=(("alpha", alpha), ("naive", True)))
        write_results(invented, naive, "recall@1", DOWN, broke=True)
    judged = verdict(invented, said)
    assert judged.word == claims.HOLDS
    assert "3 of 3 runs broke with the power as printed, 0 of 3" in judged.evidence[0]
    write_results(invented, Condition("Dq", options=(("alpha", 24.0),)), "recall@1", DOWN, broke=True)
    assert verdict(invented, said).word == claims.FAILS  # the other form breaks too


def test_tolerating_wrong_labels_is_about_the_change(invented: Study, write_results: Write) -> None:
    """A loss that is better with clean labels already does not tolerate wrong ones better for that."""
    said = "PNP-D tolerates wrong labels better"
    for method in ("O", "Iu", "Ib", "Ds", "Dq"):
        clean = [0.700, 0.701, 0.702] if method.startswith("D") else [0.502, 0.501, 0.500]
        for noise in (0.0, 0.2, 0.4):
            noisy = [value - noise / 2 + 1e-4 * seed for seed, value in enumerate(clean)]
            write_results(invented, Condition(method, noise=noise), "recall@1", noisy if noise else clean)
    assert verdict(invented, said).word == claims.SAME
    for method in ("Ds", "Dq"):
        for noise in (0.2, 0.4):
            write_results(invented, Condition(method, noise=noise), "recall@1", [0.695, 0.697, 0.696])
    assert verdict(invented, said).word == claims.HOLDS


def test_centres_and_pushes_are_judged_on_what_runs_measured(invented: Study, write_results: Write) -> None:
    for gathers, word in ((0.3, claims.HOLDS), (0.7, claims.FAILS)):  # the line is drawn at two thirds
        for method in ("Ds", "Dq", "Iu", "Ib"):
            level = 0.8 if method[0] == "D" else gathers
            kept = [level, level + 0.001, level - 0.001]
            write_results(invented, Condition(method, merged=3), "centres_kept", kept)
        judged = verdict(invented, "PNP-D keeps several centres")
        assert judged.word == word
        assert f"Dq 80.00, Iu {100 * gathers:.2f}" in judged.evidence[-1]
    for method in ("O", "Iu", "Ib", "Ds", "Dq"):
        write_results(invented, Condition(method), "correlation", [-0.30, -0.31, -0.30])
    assert verdict(invented, "Negatives before more positives").word == claims.FAILS


def test_the_toy_is_judged_by_its_recall_and_by_the_seeds_that_separate(invented: Study) -> None:
    said = "On the toy"
    assert verdict(invented, said).word == claims.PENDING
    settings = toy.ToySettings(seeds=6, steps=1)
    for dq, word in (([0.99] * 6, claims.HOLDS), ([0.90] * 6, claims.OPEN)):  # better, but not separated
        recalls = {"Dq": dq, "Ib": [0.50, 0.52, 0.54, 0.50, 0.52, 0.54]}
        seeds = {
            f"{geometry}, {loss}, {seed}": {"recall": recalls.get(loss, dq)[seed], "angles": []}
            for geometry in toy.GEOMETRIES
            for loss in toy.LOSSES
            for seed in range(6)
        }
        kept = {"settings": asdict(settings), "seeds": seeds}
        (invented.folder / toy.FILE).write_text(json.dumps(kept))
        judged = verdict(invented, said)
        assert judged.word == word
        assert f"Dq {6 * (dq[0] > 0.95)} of 6, Ib 0 of 6" in judged.evidence[1]


def test_the_page_has_every_value_of_a_run_and_no_folder(invented: Study) -> None:
    study = replace(invented, on="cub", roots={"cub": "/somewhere/birds"})
    text = claims.to_markdown(claims.verdicts(study, CLAIMS), study)
    assert "images_per_class: 4" in text
    assert "somewhere" not in text


def test_formulas_and_printed_tables_are_judged_without_runs(invented: Study) -> None:
    # By hand: at R = 1 and alpha = 2, 1/8 is left of Dq; of AP with three positives before, (4/5)^2.
    assert "Dq 0.1250" in steeper_than_ap(invented).comparisons[0].text
    assert "0.6400" in steeper_than_ap(invented).comparisons[0].text
    assert "0.0816 at R = 10" in almost_equal(invented).comparisons[0].text  # (4/14)^2
    assert verdict(invented, "The gradient of PNP-Dq").word == claims.HOLDS
    assert verdict(invented, "With three positives before").word == claims.FAILS
    judged = verdict(invented, "The paper's table for iNaturalist has PNP-Dq above Smooth-AP at every k")
    assert judged.word == claims.FAILS
    assert any("R@16" in line and "-0.1" in line for line in judged.evidence)


def test_a_certain_difference_within_the_margin_is_none(invented: Study, write_results: Write) -> None:
    write_results(invented, Condition("Dq"), "recall@1", [0.7020, 0.7021, 0.7020])
    write_results(invented, Condition("O"), "recall@1", [0.7000, 0.7001, 0.7001])
    assert verdict(invented, DQ_ABOVE_O).word == claims.SAME  # 0.2 points, without any doubt


def test_a_loss_that_learned_nothing_is_never_called_better(invented: Study, write_results: Write) -> None:
    said = "PNP-Iu is worse than PNP-O"
    for o, iu, learned, word in (
        (DOWN, UP, True, claims.FAILS),
        (DOWN, UP, False, claims.OPEN),
        (UP, DOWN, False, claims.HOLDS),
    ):
        write_results(invented, Condition("O"), "recall@1", o)
        write_results(invented, Condition("Iu"), "recall@1", iu)
        for seed in range(3):
            path = invented.run(Condition("Iu"), seed).folder / RESULT
            path.write_text(json.dumps({**json.loads(path.read_text()), "learned": learned}))
        assert verdict(invented, said).word == word


def test_the_page_shows_levels_and_who_ends_below_the_start(invented: Study, write_results: Write) -> None:
    write_results(invented, Condition("Dq"), "recall@1", UP)
    write_results(invented, Condition("O"), "recall@1", DOWN)
    for method in ("Dq", "O"):
        for seed in range(3):
            path = invented.run(Condition(method), seed).folder / RESULT
            path.write_text(json.dumps({**json.loads(path.read_text()), "start": {"recall@1": 0.75}}))
    judged = claims.verdicts(invented, CLAIMS)
    (one,) = [v for v in judged if v.said == DQ_ABOVE_O]
    assert "(worse than before training: O)" in one.evidence[0]
    page = claims.to_markdown(judged, invented)
    assert "| O | 3 | 70.3 ± 0.6 (below its start) |" in page
    assert "| Dq | 3 | 80.3 ± 0.6 |" in page


def test_a_larger_alpha_is_judged_up_to_where_the_printed_power_breaks(
    invented: Study, write_results: Write
) -> None:
    said = "A larger alpha gives a larger R@1"
    for alpha, values in ((1.0, [0.60, 0.61, 0.60]), (16.0, UP)):
        write_results(invented, Condition("Dq", options=(("alpha", alpha),)), "recall@1", values)
    write_results(invented, Condition("Dq"), "recall@1", DOWN)
    assert verdict(invented, said).word == claims.HOLDS
    write_results(invented, Condition("Dq", options=(("alpha", 32.0),)), "recall@1", [0.1, 0.11, 0.1])
    assert verdict(invented, said).word == claims.HOLDS


def test_untrained_networks_are_not_called_equal(invented: Study, write_results: Write) -> None:
    said = "PNP-Iu is worse than PNP-O"
    for method in ("O", "Iu"):
        write_results(invented, Condition(method), "recall@1", [0.70, 0.70, 0.70])
    assert verdict(invented, said).word == claims.SAME
    for seed in range(3):
        path = invented.run(Condition("Iu"), seed).folder / RESULT
        path.write_text(json.dumps({**json.loads(path.read_text()), "learned": False}))
    judged = verdict(invented, said)
    assert judged.word == claims.OPEN
    assert "3 of these runs learned nothing" in judged.evidence[0]
    # Nor is it said how many points another loss is above such a network.
    write_results(invented, Condition("Dq", merged=3), "recall@1", [0.70, 0.71, 0.70])
    for method in ("Iu", "Ib"):
        write_results(invented, Condition(method, merged=3), "recall@1", [0.70, 0.70, 0.71])
    assert verdict(invented, "With merged classes PNP-Dq is 6 to 8").word == claims.FAILS
    for seed in range(3):
        for method in ("Iu", "Ib"):
            path = invented.run(Condition(method, merged=3), seed).folder / RESULT
            path.write_text(json.dumps({**json.loads(path.read_text()), "learned": False}))
    assert verdict(invented, "With merged classes PNP-Dq is 6 to 8").word == claims.OPEN
