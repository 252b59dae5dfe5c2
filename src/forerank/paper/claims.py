"""Each claim of the paper, tested on what was trained here: holds, does not hold, or cannot be decided here.

A claim becomes one or more comparisons. Each comparison is a difference between two conditions, paired by
seed (the same seed draws the same data, batches and first weights), with a 95% interval. One rule for all:

- holds: every comparison has the claimed sign and its interval leaves zero out;
- does not hold: some comparison's interval lies wholly on the other side;
- undecided here: neither; more seeds or a larger data set would be needed;
- not run yet: a run that some comparison needs is missing, whatever the others say;
- cannot be tested here: what it needs is not on this machine.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from forerank.files import write_atomically
from forerank.metrics.registry import symbol
from forerank.paper import sweeps, toy
from forerank.paper.methods import VARIANTS
from forerank.paper.published import published_table, source
from forerank.paper.statistics import Difference, paired_difference
from forerank.paper.study import Condition, Study
from forerank.paper.tables import NATIVE, NOISE_RATES, metric_of, replace_merged, rows, variant
from forerank.report.tables import ResultTable

HOLDS, FAILS, OPEN = "holds", "does not hold", "undecided here"
ABSENT, PENDING = "cannot be tested here", "not run yet"


@dataclass(frozen=True)
class Comparison:
    """One measured difference and the sign the claim gives it."""

    text: str
    difference: Difference
    wanted: int = 1


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper and how it is tested.

    Attributes:
        said: the claim, in the paper's sense.
        where: section or table of the paper.
        test: every comparison, or a sentence why it cannot be tested; NotRunError if a run is missing.
    """

    said: str
    where: str
    test: Callable[[Study], Sequence[Comparison] | str]


@dataclass(frozen=True)
class Verdict:
    """A claim, the word, and the numbers behind it."""

    said: str
    where: str
    word: str
    evidence: tuple[str, ...]


def judge(comparisons: Sequence[Comparison] | str) -> str:
    """The rule at the top of this file.

    >>> up, unclear = Difference(1.0, 0.5, 1.5, 3), Difference(1.0, -0.5, 2.5, 3)
    >>> judge([Comparison("a", up)]), judge([Comparison("a", up), Comparison("b", unclear)])
    ('holds', 'undecided here')
    >>> judge([Comparison("a", up, wanted=-1)])
    'does not hold'
    """
    if isinstance(comparisons, str):
        return ABSENT
    signs = [comparison.difference.sign * comparison.wanted for comparison in comparisons]
    if any(sign < 0 for sign in signs):
        return FAILS
    return HOLDS if all(sign > 0 for sign in signs) else OPEN


class NotRunError(Exception):
    """A run that a claim needs has not ended; the text names its condition."""


def compare(study: Study, first: Condition, second: Condition, metric: str) -> Comparison:
    """First minus second in a metric, paired by seed."""
    difference = paired_difference(_every_seed(study, first, metric), _every_seed(study, second, metric))
    return Comparison(f"{symbol(metric)}, {first} minus {second}: {{}}", difference)


def _every_seed(study: Study, condition: Condition, metric: str = "recall@1") -> list[float]:
    """The metric of every seed; pairs would be wrong, and a claim half tested, if one were missing."""
    found = study.measured(condition, metric)
    if len(found) != study.seeds:
        raise NotRunError(f"{condition} ({metric} of {len(found)} of {study.seeds} seeds)")
    return found


def _better(
    higher: Sequence[str], lower: Sequence[str], *metrics: str
) -> Callable[[Study], list[Comparison]]:
    """Each of `higher` above each of `lower` in every metric, by default R@1."""
    return lambda study: [
        compare(study, variant(first, study), variant(second, study), metric)
        for metric in metrics or ("recall@1",)
        for first in higher
        for second in lower
    ]


def _merged(study: Study) -> list[Comparison]:
    """Dq above the others when classes are merged."""
    dq = replace_merged(variant("Dq", study), 3)
    return [
        compare(study, dq, replace_merged(variant(method, study), 3), "recall@1")
        for method in ("Smooth-AP", "Iu", "Ib")
    ]


def _loses_less(study: Study) -> list[Comparison]:
    """What merging costs: Dq less than the others."""
    cost: dict[str, list[float]] = {}
    for method in ("Dq", "Smooth-AP", "Iu", "Ib"):
        plain = _every_seed(study, variant(method, study))
        merged = _every_seed(study, replace_merged(variant(method, study), 3))
        cost[method] = [m - p for m, p in zip(merged, plain, strict=True)]
    return [
        Comparison(
            f"change of R@1 by merging, Dq minus {method}: {{}}",
            paired_difference(cost["Dq"], cost[method]),
        )
        for method in ("Smooth-AP", "Iu", "Ib")
    ]


def _noise(study: Study) -> list[Comparison]:
    """R@1 averaged over the rates of wrong labels, both variants of PNP-D against the others."""
    average: dict[str, list[float]] = {}
    for method in VARIANTS:
        by_rate = [_every_seed(study, Condition(method, noise=rate)) for rate in NOISE_RATES[1:]]
        average[method] = [sum(seed) / len(seed) for seed in zip(*by_rate, strict=True)]
    rates = ", ".join(f"{rate:.0%}" for rate in NOISE_RATES[1:])
    return [
        Comparison(
            f"mean R@1 at {rates} wrong labels, {ours} minus {other}: {{}}",
            paired_difference(average[ours], average[other]),
        )
        for ours in ("Ds", "Dq")
        for other in ("O", "Iu", "Ib")
    ]


def _at_the_same_batch(study: Study) -> list[Comparison]:
    batch = study.setting.compared
    return [compare(study, Condition("Dq", batch=batch), Condition("Smooth-AP", batch=batch), "recall@1")]


def _batch(study: Study) -> list[Comparison]:
    return [compare(study, Condition("Dq", batch=study.setting.compared), Condition("Dq"), "recall@1")]


def _alpha(study: Study) -> list[Comparison]:
    """From the smallest to the usual, and from there to the largest."""
    sweep = sweeps.SWEEPS["sweep-alpha"]
    return [
        replace(
            compare(study, sweep.condition(high), sweep.condition(low), "recall@1"),
            text=f"R@1, alpha {high:g} minus alpha {low:g}: {{}}",
        )
        for low, high in ((sweep.values[0], sweep.default), (sweep.default, sweep.values[-1]))
    ]


def _alpha_breaks(study: Study) -> list[Comparison]:
    sweep = sweeps.SWEEPS["sweep-alpha"]
    total = sum(len(_every_seed(study, sweep.condition(value))) for value in sweep.values)
    broke = sum(study.broken(sweep.condition(value)) for value in sweep.values)
    share = Difference(100 * broke / total, 100 * broke / total, 100 * broke / total, study.seeds)
    reach = sweeps.naive_reach(sweep.values[-1])
    text = (
        f"runs up to alpha = {sweep.values[-1]:g} whose numbers stopped being finite: {broke} of {total}. "
        f"The power as the paper writes it does break, beyond R = {reach:.0f} in float32; it is not computed "
        "that way here"
    )
    return [Comparison(text, share if broke else Difference(0.0, -1.0, -1.0, study.seeds))]


def _p(study: Study) -> list[Comparison]:
    sweep = sweeps.SWEEPS["sweep-p"]
    return [
        compare(study, sweep.condition(4), sweep.condition(value), "recall@1")
        for value in sweep.values
        if value != 4
    ]


def _toy(study: Study) -> list[Comparison]:
    result = toy.kept(study.folder)
    if result is None:
        raise NotRunError("the toy")
    return [Comparison("toy, R@1 on unseen classes, Dq minus Ib: {}", toy.effect(result))]


def _state_of_the_art(table: str) -> Callable[[Study], list[Comparison] | str]:
    """Dq at the largest batch of a comparison table against the best R@1 published for anyone else."""
    native = NATIVE[table]

    def test(study: Study) -> list[Comparison] | str:
        if study.on != native:
            return f"needs {native} and a GPU: forerank paper run {table} --data {native}=FOLDER"
        published = published_table(table)
        others = {row: cells for row, cells in published.rows.items() if not row.startswith("Dq")}
        found = []
        for column in [column for column in published.columns if column.endswith("R@1")]:
            metric = metric_of(column, study, table)
            ours = _every_seed(study, _largest_batch(table, study), metric or "recall@1")
            best = max(value for cells in others.values() if (value := cells[column]) is not None)
            text = f"{column}, Dq measured minus {best:g}, the best published of the others: {{}}"
            found.append(Comparison(text, paired_difference(ours, [best] * len(ours))))
        return found

    return test


def _largest_batch(table: str, study: Study) -> Condition:
    conditions = [c for row, c in rows(table, study).items() if row.startswith("Dq") and c is not None]
    return max(conditions, key=lambda condition: condition.batch or study.setting.batch)


PNP_D, PNP_I = ("Ds", "Dq"), ("Iu", "Ib")
CLAIMS: tuple[Claim, ...] = (
    Claim("PNP-Dq retrieves better than PNP-O", "Table 1, 2", _better(["Dq"], ["O"])),
    Claim("PNP-Ds retrieves better than PNP-O", "Table 1, 2", _better(["Ds"], ["O"])),
    Claim("PNP-Dq retrieves better than PNP-Ds", "Table 1, 2", _better(["Dq"], ["Ds"])),
    Claim("PNP-I is worse than PNP-O", "Performance of variants", _better(["O"], PNP_I)),
    Claim("PNP-D clusters better (NMI) than PNP-O and PNP-I", "Table 1, 2",
          _better(PNP_D, ["O", *PNP_I], "nmi")),
    Claim("PNP-D enlarges both distances against PNP-O", "Table 1, 2",
          _better(PNP_D, ["O"], "dists@intra", "dists@inter")),
    Claim("PNP-I shrinks both distances against PNP-O", "Table 1, 2",
          _better(["O"], PNP_I, "dists@intra", "dists@inter")),
    Claim("PNP-Dq retrieves better than Smooth-AP at the same batch", "Table 3, 4, 5", _at_the_same_batch),
    Claim("A larger batch lifts PNP-Dq", "Table 3, 4", _batch),
    Claim("A larger alpha gives a larger R@1", "Impact of hyper-parameters", _alpha),
    Claim("A large alpha makes training crash by exploding gradients", "Impact of hyper-parameters",
          _alpha_breaks),
    Claim("|P| = 4 is the best number of images a class", "Impact of hyper-parameters", _p),
    Claim("With classes merged by three, PNP-Dq is better than Smooth-AP and PNP-I", "Table 6, 7", _merged),
    Claim("PNP-Dq loses less by the merging than Smooth-AP and PNP-I", "Evaluation of robustness",
          _loses_less),
    Claim("PNP-D stands wrong labels better than PNP-O and PNP-I", "Evaluation of robustness", _noise),
    Claim("On the toy, PNP-Ib fails to separate unseen classes and PNP-Dq separates them", "Figure 6", _toy),
    Claim("PNP-Dq reaches the state of the art on SOP", "Table 3", _state_of_the_art("comparison-sop")),
    Claim("PNP-Dq reaches the state of the art on VehicleID", "Table 4",
          _state_of_the_art("comparison-vehicle-id")),
    Claim("PNP-Dq reaches the state of the art on iNaturalist", "Table 5",
          _state_of_the_art("comparison-inaturalist")),
)  # fmt: skip


def verdicts(study: Study) -> list[Verdict]:
    """Every claim judged on what is there; one that lacks a run is not judged at all."""
    found = []
    for claim in CLAIMS:
        evidence: tuple[str, ...]
        try:
            tested = claim.test(study)
        except NotRunError as missing:
            word, evidence = PENDING, (f"this has not been run on {study.on}: {missing}",)
        else:
            word = judge(tested)
            evidence = (
                (tested,) if isinstance(tested, str) else tuple(c.text.format(c.difference) for c in tested)
            )
        found.append(Verdict(claim.said, claim.where, word, evidence))
    return found


def to_table(found: Sequence[Verdict]) -> ResultTable:
    """Claim, where the paper says it, verdict."""
    return ResultTable(
        ["claim", "in the paper", "verdict"],
        [[v.said, v.where, v.word] for v in found],
        title="Claims of the paper",
    )


def to_markdown(found: Sequence[Verdict], study: Study) -> str:
    """The claims page."""
    recipe = study.recipe(Condition(), 0)
    lines = [
        "# The paper's claims, tested",
        "",
        f"Generated by `forerank paper claims --on {study.on}` from the runs of `forerank paper all --on "
        f"{study.on}`; "
        "do not edit.",
        "",
        f"Data set: {study.on}; {study.seeds} seeds; {recipe.model.backbone}, "
        f"{recipe.schedule.steps or '?'} steps of "
        f"{recipe.batch.batch_size}. A claim *holds* if every comparison has the claimed sign and its 95% "
        "interval "
        "(Student's t over paired seeds) leaves zero out; it *does not hold* if an interval lies wholly on "
        "the other "
        "side; otherwise it is *undecided here*. A verdict on a stand-in says nothing about the paper's own "
        "data.",
        "",
        to_table(found).to_markdown(),
        "",
        "## The numbers",
        "",
    ]
    for verdict in found:
        lines += [f"### {verdict.said}: {verdict.word}", "", *[f"- {text}" for text in verdict.evidence], ""]
    return "\n".join([*lines, f"Claims from: {source()}", ""])


def write(study: Study, extra: Path | None = None) -> list[Verdict]:
    """Judge and write `claims.md` into the study's folder, and to `extra` if given."""
    found = verdicts(study)
    text = to_markdown(found, study)
    for path in filter(None, (study.folder / "claims.md", extra)):
        write_atomically(path, text)
    return found
