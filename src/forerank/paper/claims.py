"""Each claim of the paper, tested on what was trained here: holds, does not hold, or cannot be decided here.

A claim becomes one or more comparisons. Each comparison is a difference between two conditions, paired by
seed (the same seed draws the same data, batches and first weights), with a 95% interval. One rule for all:

- holds: every comparison has the claimed sign and its interval leaves zero out;
- does not hold: some comparison's interval lies wholly on the other side;
- undecided here: neither; more seeds or a larger data set would be needed;
- cannot be tested here: what it needs is not on this machine.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from forerank.paper import sweeps, toy
from forerank.paper.published import source
from forerank.paper.statistics import Difference, paired_difference
from forerank.paper.study import Condition, Study
from forerank.paper.tables import NOISE_RATES, replace_merged
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
        test: the comparisons, empty if nothing was trained; or a sentence why it cannot be tested.
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
    if not comparisons:
        return PENDING
    signs = [comparison.difference.sign * comparison.wanted for comparison in comparisons]
    if any(sign < 0 for sign in signs):
        return FAILS
    return HOLDS if all(sign > 0 for sign in signs) else OPEN


def compare(
    study: Study, first: Condition, second: Condition, metric: str, wanted: int = 1
) -> list[Comparison]:
    """First minus second in a metric, paired by seed; empty unless both have all their runs."""
    one, other = study.measured(first, metric), study.measured(second, metric)
    if not one or len(one) != len(other):
        return []
    name = {"recall@1": "R@1", "nmi": "NMI"}.get(metric, metric)
    text = f"{name}, {first} minus {second}: {{}}"
    return [Comparison(text, paired_difference(one, other), wanted)]


def _better(
    pairs: Sequence[tuple[str, str]], metric: str = "recall@1"
) -> Callable[[Study], list[Comparison]]:
    """First of each pair above the second."""
    return lambda study: [
        c for first, second in pairs for c in compare(study, Condition(first), Condition(second), metric)
    ]


def _distances(higher: Sequence[str], lower: Sequence[str]) -> Callable[[Study], list[Comparison]]:
    pairs = [(a, b) for a in higher for b in lower]
    return lambda study: [
        c
        for metric in ("dists@intra", "dists@inter")
        for a, b in pairs
        for c in compare(study, Condition(a), Condition(b), metric)
    ]


def _merged(study: Study) -> list[Comparison]:
    """Dq above the others when classes are merged."""
    dq = replace_merged(Condition("Dq"), 3)
    return [
        c
        for m in ("Smooth-AP", "Iu", "Ib")
        for c in compare(study, dq, replace_merged(Condition(m), 3), "recall@1")
    ]


def _loses_least(study: Study) -> list[Comparison]:
    """What merging costs: Dq less than the others."""
    cost: dict[str, list[float]] = {}
    for method in ("Dq", "Smooth-AP", "Iu", "Ib"):
        plain = study.measured(Condition(method), "recall@1")
        merged = study.measured(replace_merged(Condition(method), 3), "recall@1")
        if not plain or len(plain) != len(merged):
            return []
        cost[method] = [m - p for m, p in zip(merged, plain, strict=True)]
    return [
        Comparison(
            f"change of R@1 by merging, Dq minus {method}: {{}}",
            paired_difference(cost["Dq"], cost[method]),
        )
        for method in ("Smooth-AP", "Iu", "Ib")
    ]


def _noise(study: Study) -> list[Comparison]:
    """R@1 averaged over the rates of wrong labels, Dq against the others."""
    average: dict[str, list[float]] = {}
    for method in ("Dq", "O", "Iu", "Ib"):
        by_rate = [study.measured(Condition(method, noise=rate), "recall@1") for rate in NOISE_RATES[1:]]
        if not all(len(found) == study.seeds for found in by_rate):
            return []
        average[method] = [sum(seed) / len(seed) for seed in zip(*by_rate, strict=True)]
    rates = ", ".join(f"{rate:.0%}" for rate in NOISE_RATES[1:])
    return [
        Comparison(
            f"mean R@1 at {rates} wrong labels, Dq minus {method}: {{}}",
            paired_difference(average["Dq"], average[method]),
        )
        for method in ("O", "Iu", "Ib")
    ]


def _batch(study: Study) -> list[Comparison]:
    return compare(study, Condition("Dq", batch=study.setting.compared), Condition("Dq"), "recall@1")


def _alpha(study: Study) -> list[Comparison]:
    """From the smallest to the usual, and from there to the largest."""
    sweep = sweeps.SWEEPS["sweep-alpha"]
    steps = ((sweep.values[0], sweep.default), (sweep.default, sweep.values[-1]))
    found = []
    for low, high in steps:
        pair = compare(study, sweep.condition(high), sweep.condition(low), "recall@1")
        found += [replace(c, text=f"R@1, alpha {high:g} minus alpha {low:g}: {{}}") for c in pair]
    return found


def _alpha_breaks(study: Study) -> Sequence[Comparison] | str:
    sweep = sweeps.SWEEPS["sweep-alpha"]
    if not study.measured(sweep.condition(sweep.values[-1]), "recall@1"):
        return []
    broke = sum(study.broken(sweep.condition(value)) for value in sweep.values)
    total = len(sweep.values) * study.seeds
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
        c
        for value in sweep.values
        if value != 4
        for c in compare(study, sweep.condition(4), sweep.condition(value), "recall@1")
    ]


def _toy(study: Study) -> list[Comparison]:
    result = toy.kept(study.folder)
    if result is None:
        return []
    return [Comparison("toy, R@1 on unseen classes, Dq minus Ib: {}", toy.effect(result))]


def _native(study: Study) -> str:
    return (
        "needs Stanford Online Products, VehicleID and iNaturalist, and a GPU: "
        "forerank paper run comparison-sop --data sop=FOLDER"
    )


CLAIMS: tuple[Claim, ...] = (
    Claim("PNP-Dq retrieves better than PNP-O", "Table 1, 2", _better([("Dq", "O")])),
    Claim("PNP-Ds retrieves better than PNP-O", "Table 1, 2", _better([("Ds", "O")])),
    Claim("PNP-Dq retrieves better than PNP-Ds", "Table 1, 2", _better([("Dq", "Ds")])),
    Claim("PNP-I is worse than PNP-O", "Performance of variants", _better([("O", "Iu"), ("O", "Ib")])),
    Claim("PNP-D clusters better (NMI) than PNP-O and PNP-I", "Table 1, 2",
          _better([("Dq", "O"), ("Dq", "Iu"), ("Dq", "Ib")], "nmi")),
    Claim("PNP-D enlarges both distances against PNP-O", "Table 1, 2", _distances(("Ds", "Dq"), ("O",))),
    Claim("PNP-I shrinks both distances against PNP-O", "Table 1, 2", _distances(("O",), ("Iu", "Ib"))),
    Claim("PNP-Dq retrieves better than Smooth-AP at the same batch", "Table 3, 4, 5",
          lambda study: compare(study, Condition("Dq", batch=study.setting.compared),
                                Condition("Smooth-AP", batch=study.setting.compared), "recall@1")),
    Claim("A larger batch lifts PNP-Dq", "Table 3, 4", _batch),
    Claim("A larger alpha gives a larger R@1", "Impact of hyper-parameters", _alpha),
    Claim("A large alpha makes training crash by exploding gradients", "Impact of hyper-parameters",
          _alpha_breaks),
    Claim("|P| = 4 is the best number of images a class", "Impact of hyper-parameters", _p),
    Claim("With classes merged by three, PNP-Dq is the best", "Table 6, 7", _merged),
    Claim("PNP-Dq loses least by the merging", "Evaluation of robustness", _loses_least),
    Claim("PNP-D stands wrong labels better than PNP-O and PNP-I", "Evaluation of robustness", _noise),
    Claim("On the toy, PNP-Ib fails to separate unseen classes and PNP-Dq separates them", "Figure 6", _toy),
    Claim("PNP-Dq reaches the state of the art on SOP, VehicleID and iNaturalist", "Table 3, 4, 5", _native),
)  # fmt: skip


def verdicts(study: Study) -> list[Verdict]:
    """Every claim judged on what is there."""
    found = []
    for claim in CLAIMS:
        comparisons = claim.test(study)
        word = judge(comparisons)
        if isinstance(comparisons, str):
            evidence: tuple[str, ...] = (comparisons,)
        elif not comparisons:
            evidence = (f"the runs on {study.on} that it needs are not there",)
        else:
            evidence = tuple(c.text.format(c.difference) for c in comparisons)
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
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return found
