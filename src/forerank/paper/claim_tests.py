"""The claims of the paper, each with the comparisons that test it."""

from collections.abc import Callable, Sequence

import numpy as np

from forerank.paper import sweeps, toy
from forerank.paper.claims import (
    ABOVE,
    Claim,
    Comparison,
    Evidence,
    NotRunError,
    all_results,
    compare_conditions,
)
from forerank.paper.exact_claims import almost_equal, inaturalist_ranks, steeper_than_ap
from forerank.paper.methods import VARIANTS
from forerank.paper.published import published_table
from forerank.paper.statistics import MARGINS, Difference, more_often, paired_difference
from forerank.paper.study import REDUNDANT, Condition, Study
from forerank.paper.tables import NATIVE, NOISE_RATES, metric_of, rows

Test = Callable[[Study], Evidence | str | None]
PNP_D, PNP_I = ("Ds", "Dq"), ("Iu", "Ib")


def minus(first: Condition, second: Condition) -> list[tuple[float, Condition]]:
    """The terms of a difference."""
    return [(1.0, first), (-1.0, second)]


def better(higher: Sequence[str], lower: Sequence[str], *metrics: str, remarks: tuple[str, ...] = ()) -> Test:
    """Each of `higher` above each of `lower` in every metric, by default R@1."""
    return lambda study: Evidence(
        [
            compare_conditions(study, minus(Condition(first), Condition(second)), metric)
            for metric in metrics or ("recall@1",)
            for first in higher
            for second in lower
        ],
        remarks=remarks,
    )


def _published(table: str, first: str, second: str, column: str = "R@1") -> str:
    """What a table of the paper prints for two rows, for every column that ends like `column`."""
    cells = published_table(table)
    pairs = [
        f"{name} {cells.rows[first][name]:g} and {cells.rows[second][name]:g}"
        for name in cells.columns
        if name.endswith(column)
    ]
    return f"{cells.number} of the paper prints for {first} and {second}: {'; '.join(pairs)}."


_IB_REMARKS = (
    _published("variants-sop", "Ib", "O"),
    _published("variants-vehicle-id", "Ib", "O") + " So its own table has Ib above O, against its text.",
)


def same_batch(study: Study) -> Evidence:
    """Dq above Smooth-AP, both at the small and both at the large batch."""
    return Evidence(
        [
            compare_conditions(
                study, minus(Condition("Dq", batch=batch), Condition("Smooth-AP", batch=batch))
            )
            for batch in (None, study.setting.compared)
        ]
    )


def against(other: str) -> Test:
    """Dq above another method at the batch of the comparison tables."""

    def test(study: Study) -> Evidence:
        batch = study.setting.compared
        return Evidence(
            [compare_conditions(study, minus(Condition("Dq", batch=batch), Condition(other, batch=batch)))]
        )

    return test


def larger_batch(study: Study) -> Evidence:
    """Dq at the larger batch above Dq at the smaller one."""
    return Evidence(
        [compare_conditions(study, minus(Condition("Dq", batch=study.setting.compared), Condition("Dq")))]
    )


def redundant(study: Study) -> Evidence:
    """Dq with alpha = 1 is Smooth-AP without the positives before: leaving them out should change nothing."""
    terms = minus(REDUNDANT, Condition("Smooth-AP"))
    return Evidence(
        [
            compare_conditions(study, terms, metric, (-MARGINS[metric], MARGINS[metric]))
            for metric in ("recall@1", "map@r")
        ],
        remarks=(
            "The term of Dq at alpha = 1 is R/(1+R), that of AP is R/(1+R_P+R): they differ in R_P alone.",
            "The learning rate of Dq was chosen at alpha = 4, that of Smooth-AP for itself.",
        ),
    )


def alpha_helps(study: Study) -> Evidence:
    """From the smallest alpha to the usual one, and from there to the largest."""
    sweep = sweeps.SWEEPS["sweep-alpha"]
    steps = ((sweep.values[0], 4), (4, sweep.values[-1]))
    return Evidence(
        [compare_conditions(study, minus(sweep.condition(high), sweep.condition(low))) for low, high in steps]
    )


def alpha_breaks(study: Study) -> Evidence:
    """Runs that ended with a loss that was no number: the power as printed against the one computed here."""
    comparisons = []
    for alpha in sweeps.NAIVE_ALPHAS:
        counts = {}
        for naive in (True, False):
            condition = sweeps.naive_condition(alpha, naive=naive)
            counts[naive] = study.broken(condition), len(all_results(study, condition))
        (broke, total), (other, other_total) = counts[True], counts[False]
        text = (
            f"alpha = {alpha:g}: {broke} of {total} runs broke with the power as printed, {other} of "
            f"{other_total} "
            "with the same function computed as -expm1(-alpha log1p R)"
        )
        # Not a matter of chance: the overflow is a property of the formula. So counts decide, and no test.
        always = broke == total and other == 0
        comparisons.append(Comparison(text, 0.0 if always else 1.0, 0.0 if broke == 0 or other else 1.0))
    reach = sweeps.naive_reach(24)
    return Evidence(
        comparisons,
        remarks=(
            f"The printed power has no derivative in float32 beyond R = {reach:.0f} at alpha = 24, and a "
            "loss that is not a number ends the run. The verdict is about counts and has no p-value: it "
            "holds if every run breaks with the printed power and none with the other, and does not hold "
            "if none breaks with the printed power or one does with the other.",
        ),
    )


def best_b(study: Study) -> Evidence | str:
    """The b that the validation classes chose, against every other b of the sweep, on the test classes."""
    sweep = sweeps.SWEEPS["sweep-b"]
    b = float(study.recipe(Condition("Ib"), 0).loss.options["b"])
    others = [value for value in sweep.values if value != b]
    beyond = " It lies outside the values of the sweep." if not min(others) < b < max(others) else ""
    return Evidence(
        [compare_conditions(study, minus(Condition("Ib"), sweep.condition(value))) for value in others],
        remarks=(f"b = {b:g} was chosen before, on the validation classes.{beyond}",),
    )


def images_per_class(study: Study) -> Evidence:
    """|P| = 4 above every other number."""
    sweep = sweeps.SWEEPS["sweep-p"]
    others = [value for value in sweep.values if value != 4]
    return Evidence(
        [compare_conditions(study, minus(Condition("Dq"), sweep.condition(value))) for value in others]
    )


def merged_better(study: Study) -> Evidence:
    """Dq above the others when classes are merged."""
    dq = Condition("Dq", merged=3)
    return Evidence(
        [
            compare_conditions(study, minus(dq, Condition(other, merged=3)))
            for other in ("Smooth-AP", "Iu", "Ib")
        ]
    )


def loses_less(kept: str, others: Sequence[str]) -> Test:
    """What merging costs: one method less than the others."""

    def test(study: Study) -> Evidence:
        return Evidence(
            [
                compare_conditions(
                    study,
                    [(1, Condition(kept, merged=3)), (-1, Condition(kept)),
                     (-1, Condition(other, merged=3)), (1, Condition(other))],
                    text=f"change by merging, {kept} minus {other}",
                )
                for other in others
            ]
        )  # fmt: skip

    return test


def merged_magnitude(others: Sequence[str], low: float, high: float) -> Test:
    """Dq above the others by the printed number of points when classes are merged."""

    def test(study: Study) -> Evidence:
        dq = Condition("Dq", merged=3)
        return Evidence(
            [
                compare_conditions(study, minus(dq, Condition(o, merged=3)), within=(low, high))
                for o in others
            ],
            remarks=(_published("robustness-vehicle-id", "Dq", "Iu" if "Iu" in others else others[0]),),
        )

    return test


def ap_magnitude(study: Study) -> Evidence:
    """Dq above the methods that approximate AP by half a point to four points at the large batch."""
    batch = study.setting.compared
    dq = Condition("Dq", batch=batch)
    table = published_table("comparison-sop").rows
    ours = table["Dq, batch 384"]["R@1"] or 0.0
    printed = [ours - (table[row]["R@1"] or 0.0) for row in ("Smooth-AP", "Blackbox AP", "FastAP")]
    listed = ", ".join(f"{difference:+.1f}" for difference in printed)
    return Evidence(
        [
            compare_conditions(study, minus(dq, Condition(other, batch=batch)), within=(0.5, 4.0))
            for other in ("Smooth-AP", "FastAP")
        ],
        remarks=(
            f"The paper's own table gives {listed} (Smooth-AP, Blackbox AP, FastAP). Blackbox AP has fewer "
            "seeds here; it stands in the comparison table and is not judged.",
        ),
    )  # fmt: skip


def keeps_centres(study: Study) -> Evidence:
    """After training on merged classes, neighbours within a merged class are of the same original class."""
    return Evidence(
        [
            compare_conditions(study, minus(Condition(d, merged=3), Condition(i, merged=3)), "centres_kept")
            for d in PNP_D
            for i in PNP_I
        ],
        remarks=(
            "Measured: the share of training images whose nearest neighbour in their merged class comes from "
            "their own original class, in percent.",
        ),
    )


def pushed_harder(study: Study) -> Evidence:
    """Rank correlation of the positives that a negative stands before with the gradient that it receives."""
    return Evidence(
        [
            compare_conditions(study, [(1.0, Condition(m))], "correlation", ABOVE, f"{m}, against zero")
            for m in VARIANTS
        ],
        remarks=(
            "Among negatives before at least one positive, in batches of test images, gradient of the loss "
            "on "
            "their similarity. At temperature 0.01 the sigmoid is flat for a negative far before a positive, "
            "so "
            "a badly misplaced negative may receive less, not more.",
        ),
    )


def noise(study: Study) -> Evidence:
    """What wrong labels cost, as the mean over their shares: both variants of PNP-D less than the others."""
    rates = NOISE_RATES[1:]
    listed = ", ".join(f"{rate:.0%}" for rate in rates)

    def change(method: str, weight: float) -> list[tuple[float, Condition]]:
        noisy = [(weight / len(rates), Condition(method, noise=rate)) for rate in rates]
        return [*noisy, (-weight, Condition(method))]

    return Evidence(
        [
            compare_conditions(
                study,
                [*change(d, 1), *change(o, -1)],
                text=f"change by wrong labels (mean of {listed}), {d} minus {o}",
            )
            for d in PNP_D
            for o in ("O", *PNP_I)
        ]
    )


def toy_claim(study: Study) -> Evidence:
    """Dq above Ib on the unseen classes of the toy, and separating them with more of the seeds."""
    result = toy.read_result(study.folder)
    if result is None:
        raise NotRunError("the toy")
    difference = toy.effect(result)
    text = f"toy, R@1 on unseen classes, Dq minus Ib: {difference} over {difference.count} seeds"
    count, dq, ib = difference.count, toy.separated(result, "Dq"), toy.separated(result, "Ib")
    often = Comparison(
        f"toy, seeds that separate the unseen classes (R@1 above {toy.SEPARATED:g}): Dq {dq} of {count}, "
        f"Ib {ib} of {count} (Fisher's exact test)",
        supports=more_often(dq, count, ib, count),
        contradicts=more_often(ib, count, dq, count),
        seeds=count,
    )
    return Evidence([_directed(text, difference), often], remarks=(toy.CAVEAT,))


def all_weights(study: Study) -> Evidence | None:
    """The central comparison where all weights are trained, not only a head."""
    if not study.setting.all_weights:
        return None
    dq = Condition("Dq", all_weights=True)
    return Evidence(
        [
            compare_conditions(study, minus(dq, Condition(m, all_weights=True)))
            for m in ("O", "Ib", "Ds", "Smooth-AP")
        ],
        remarks=("One learning rate for all of these losses, and the b that was chosen for a head.",),
    )


def state_of_the_art(table: str) -> Test:
    """Dq at the largest batch of a comparison table against the best R@1 published for anyone else."""
    native = NATIVE[table]

    def test(study: Study) -> Evidence | str:
        if study.on != native:
            return f"needs {native} and a GPU: forerank paper run {table} --data {native}=FOLDER"
        published = published_table(table)
        others = {row: cells for row, cells in published.rows.items() if not row.startswith("Dq")}
        candidates = [c for row, c in rows(table, study).items() if row.startswith("Dq")]
        largest = max(candidates, key=lambda condition: condition.batch or study.setting.batch)
        comparisons = []
        for column in [column for column in published.columns if column.endswith("R@1")]:
            measured = study.measured(largest, metric_of(column, study, table) or "recall@1")
            if not measured:
                raise NotRunError(str(largest))
            best = max(value for cells in others.values() if (value := cells[column]) is not None)
            difference = paired_difference(measured, np.full(len(measured), best))
            text = f"{column}, Dq measured minus {best:g}, the best published of the others: {difference}"
            comparisons.append(_directed(text, difference))
        return Evidence(comparisons)

    return test


def _directed(text: str, difference: Difference) -> Comparison:
    return Comparison(
        text,
        difference.p_above(),
        difference.p_below(),
        difference.p_within(MARGINS["recall@1"]),
        difference.count,
    )


CLAIMS: tuple[Claim, ...] = (
    Claim("Positives before a positive are redundant: AP without them retrieves as well",
          "title, Introduction",
          redundant),
    Claim("PNP-Dq retrieves better than PNP-O", "Table 1, 2", better(["Dq"], ["O"])),
    Claim("PNP-Ds retrieves better than PNP-O", "Table 1, 2", better(["Ds"], ["O"])),
    Claim("PNP-Dq retrieves better than PNP-Ds", "Table 1, 2", better(["Dq"], ["Ds"])),
    Claim("PNP-Iu is worse than PNP-O", "Performance of variants", better(["O"], ["Iu"])),
    Claim("PNP-Ib at its best b is worse than PNP-O", "Performance of variants",
          better(["O"], ["Ib"], remarks=_IB_REMARKS)),
    Claim("PNP-D clusters better (NMI) than PNP-O and PNP-I", "Table 1, 2",
          better(PNP_D, ["O", *PNP_I], "nmi")),
    Claim("PNP-D enlarges both distances against PNP-O", "Table 1, 2",
          better(PNP_D, ["O"], "dists@intra", "dists@inter")),
    Claim("PNP-I shrinks both distances against PNP-O", "Table 1, 2",
          better(["O"], PNP_I, "dists@intra", "dists@inter")),
    Claim("PNP-Dq retrieves better than Smooth-AP at the same batch", "Table 3, 4, 5", same_batch),
    Claim("With all weights trained, PNP-Dq is better than PNP-O, Ib, Ds and Smooth-AP", "Table 1, 3",
          all_weights),
    Claim("PNP-Dq is 0.5 to 4 points of R@1 above methods that approximate AP", "Comparison, SOP",
          ap_magnitude),
    Claim("PNP-Dq retrieves better than FastAP", "Table 3, 4, 5", against("FastAP")),
    Claim("PNP-Dq retrieves better than the contrastive loss with a memory bank", "Table 3, 4",
          against("Contrastive with memory")),
    Claim("A larger batch lifts PNP-Dq", "Table 3, 4", larger_batch),
    Claim("A larger alpha gives a larger R@1", "Impact of hyper-parameters", alpha_helps),
    Claim("A large alpha makes training crash (the formula as printed; as computed here it does not)",
          "Impact of hyper-parameters", alpha_breaks),
    Claim("One b is better than all others for PNP-Ib (the paper: 4 on SOP, 1 on VehicleID)",
          "Impact of hyper-parameters", best_b),
    Claim("|P| = 4 is the best number of images per class", "Impact of hyper-parameters", images_per_class),
    Claim("With classes merged by three, PNP-Dq is better than Smooth-AP and PNP-I", "Table 6, 7",
          merged_better),
    Claim("PNP-Dq loses less by merging than Smooth-AP and PNP-I", "Evaluation of robustness",
          loses_less("Dq", ("Smooth-AP", *PNP_I))),
    Claim("Smooth-AP loses less by merging than PNP-I", "Evaluation of robustness",
          loses_less("Smooth-AP", PNP_I)),
    Claim("With merged classes PNP-Dq is 2 to 3 points above Smooth-AP", "Evaluation of robustness",
          merged_magnitude(("Smooth-AP",), 2, 3)),
    Claim("With merged classes PNP-Dq is 6 to 8 points above PNP-I", "Evaluation of robustness",
          merged_magnitude(PNP_I, 6, 8)),
    Claim("PNP-D keeps several centres in one class, PNP-I gathers them", "Discussion, Figure 4",
          keeps_centres),
    Claim("Negatives before more positives are pushed harder", "Figure 2", pushed_harder),
    Claim("PNP-D tolerates wrong labels better than PNP-O and PNP-I", "Evaluation of robustness", noise),
    Claim("On the toy, PNP-Ib fails to separate unseen classes and PNP-Dq separates them", "Figure 6",
          toy_claim),
    Claim("The gradient of PNP-Dq (alpha = 2) is steeper than that of AP", "Figure 5", steeper_than_ap),
    Claim("With three positives before, AP's gradient is almost equal for every number of negatives",
          "Relation between PNP and AP", almost_equal),
    Claim("PNP-Dq reaches the state of the art on SOP", "Table 3", state_of_the_art("comparison-sop")),
    Claim("PNP-Dq reaches the state of the art on VehicleID", "Table 4",
          state_of_the_art("comparison-vehicle-id")),
    Claim("PNP-Dq reaches the state of the art on iNaturalist", "Table 5",
          state_of_the_art("comparison-inaturalist")),
    Claim("On iNaturalist PNP-Dq is above Smooth-AP at every k", "Table 5", inaturalist_ranks),
)  # fmt: skip
