"""The claims of the paper, each with the comparisons that test it."""

import math
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
from forerank.paper.methods import VARIANTS, WITHOUT_POSITIVES
from forerank.paper.published import published_table
from forerank.paper.statistics import MARGINS, Difference, more_often, paired_difference
from forerank.paper.study import Condition, Study
from forerank.paper.tables import CENTRAL, NATIVE, NOISE_RATES, metric_of, rows

Test = Callable[[Study], Evidence | str | None]
PNP_D, PNP_I = ("Ds", "Dq"), ("Iu", "Ib")
# Of three merged classes a third of the nearest neighbours is of the own one by chance. A loss that gathers
# them should come nearer to that than to all.
CHANCE, GATHERED = 100 / 3, 200 / 3


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
    """AP without the positives before against Smooth-AP: leaving them out should change nothing."""
    terms = minus(Condition(WITHOUT_POSITIVES), Condition("Smooth-AP"))
    return Evidence(
        [
            compare_conditions(study, terms, metric, (-MARGINS[metric], MARGINS[metric]))
            for metric in ("recall@1", "map@r")
        ],
        remarks=(
            "The term of AP is R/(1+R_P+R), and without R_P it is R/(1+R), which is Dq at alpha = 1. Each "
            "has a learning rate of its own, chosen in the same way.",
        ),
    )


def alpha_helps(study: Study) -> Evidence:
    """From the smallest alpha to the usual one, and from there to the largest that does not crash."""
    sweep = sweeps.SWEEPS["sweep-alpha"]
    borne = [value for value in sweep.values if value < min(sweeps.NAIVE_ALPHAS)]
    steps = ((borne[0], 4), (4, borne[-1]))
    return Evidence(
        [
            compare_conditions(study, minus(sweep.condition(high), sweep.condition(low)))
            for low, high in steps
        ],
        remarks=(
            f"The paper says so of alpha up to the one at which training crashes: here {borne[-1]:g}, "
            f"because the printed power breaks at {min(sweeps.NAIVE_ALPHAS):g}. All of them have the rate "
            "that was chosen at alpha = 4.",
        ),
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
    beyond = ""
    if b > max(others):
        beyond = (
            f" It lies beyond the values of the sweep. There the derivative, R/(1+{b:g}R), is almost the "
            "same for every R, as that of PNP-O is."
        )
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
    """After training on merged classes, the nearest neighbour within one is of the same original class."""
    merged = {method: Condition(method, merged=3) for method in (*PNP_D, *PNP_I)}
    more = [
        compare_conditions(study, minus(merged[d], merged[i]), "centres_kept") for d in PNP_D for i in PNP_I
    ]
    gathered = [
        compare_conditions(
            study, [(1.0, merged[i])], "centres_kept", (-math.inf, round(GATHERED, 1)), f"{i} gathers"
        )
        for i in PNP_I
    ]
    levels = ", ".join(
        f"{method} {np.mean(study.measured(condition, 'centres_kept')):.2f}"
        for method, condition in merged.items()
    )
    return Evidence(
        [*more, *gathered],
        remarks=(
            "Measured: the share of training images whose nearest neighbour in their merged class comes from "
            f"their own original class, in percent: {levels}; by chance {CHANCE:.0f}. A loss that gathers "
            f"the centres should be nearer to chance than to 100, so below {GATHERED:.1f}.",
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
            "on their similarity; queries with three such negatives or more. At temperature 0.01 the sigmoid "
            "is flat for a negative far before a positive, so a badly misplaced negative may receive less, "
            "not more.",
        ),
    )


def noise(study: Study) -> Evidence:
    """What the largest share of wrong labels costs: both variants of PNP-D less than the others."""
    rate = max(NOISE_RATES)

    def change(method: str, weight: float) -> list[tuple[float, Condition]]:
        return [(weight, Condition(method, noise=rate)), (-weight, Condition(method))]

    return Evidence(
        [
            compare_conditions(
                study,
                [*change(d, 1), *change(o, -1)],
                text=f"change by {rate:.0%} wrong labels, {d} minus {o}",
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
    return Evidence([_directed(text, difference), often], remarks=(toy.control_sentence(result), toy.CAVEAT))


def all_weights(study: Study) -> Evidence | None:
    """The central comparison where all weights are trained, not only a head."""
    if not study.setting.all_weights:
        return None
    dq = Condition("Dq", all_weights=True)
    recipe = study.recipe(dq, 0)
    return Evidence(
        [compare_conditions(study, minus(dq, Condition(m, all_weights=True))) for m in CENTRAL if m != "Dq"],
        remarks=(
            f"Every layer learns: {recipe.schedule.steps} steps of {recipe.batch.batch_size} views of "
            f"{recipe.data.train_size} pixels, a short training, and the recipe's own learning rate "
            f"{recipe.optimiser.lr:g} for every loss.",
        ),
    )


def state_of_the_art(table: str) -> Test:
    """Dq at the largest batch of a comparison table against the best R@1 published for anyone else."""
    native = NATIVE[table]

    def test(study: Study) -> Evidence | str:
        if study.on != native:
            return f"needs {native} and a GPU: forerank paper run {table} --data {native}=FOLDER"
        if study.recipe(Condition(), 0).evaluation.choose_on == "test":
            return "the checkpoint was chosen on the test classes, so nothing can be said about new ones"
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
    Claim("With all weights trained, PNP-Dq is better than PNP-O and Smooth-AP", "Table 1, 3",
          all_weights),
    Claim("PNP-Dq is 0.5 to 4 points of R@1 above methods that approximate AP", "Comparison, SOP",
          ap_magnitude),
    Claim("PNP-Dq retrieves better than FastAP", "Table 3, 4, 5", against("FastAP")),
    Claim("PNP-Dq retrieves better than the contrastive loss with a memory bank", "Table 3, 4",
          against("Contrastive with memory")),
    Claim("A larger batch lifts PNP-Dq", "Table 3, 4", larger_batch),
    Claim("A larger alpha gives a larger R@1 until training crashes", "Impact of hyper-parameters",
          alpha_helps),
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
    Claim("The paper's table for iNaturalist has PNP-Dq above Smooth-AP at every k (its text: at R@1)",
          "Table 5", inaturalist_ranks),
)  # fmt: skip
