"""How a claim of the paper is judged: one rule for all of them.

A claim becomes one or more comparisons. Each measures a difference between conditions, paired by seed (the
same seed draws the same data, batches and first weights), and says in which range the claim puts it: above
zero, between 2 and 3 points, within the margin of "no difference". Its p-values are the larger of those over
seeds and, for recall, over test classes. All p-values on a page are corrected together by Holm's rule.

- holds: every comparison that the claim needs lies in its range (corrected p below 0.05);
- does not hold: one lies outside of it;
- no difference: every comparison should differ from zero and lies within the margin, be it on the right side;
- holds in part: some lie in their range, and all others within the margin;
- undecided here: none of these; more seeds or another data set would be needed;
- not run yet: a run that some comparison needs is missing, whatever the others say;
- cannot be tested here: what it needs is not on this machine.

A loss that learned nothing in most of its runs may be called worse than another, and nothing else: its
numbers are those of the untrained network.

A claim that needs only one of its comparisons is judged by the same corrected p-values.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from forerank.files import write_atomically
from forerank.metrics.registry import symbol
from forerank.paper.levels import below_start, levels_table
from forerank.paper.published import source
from forerank.paper.statistics import (
    LEVEL,
    MARGINS,
    Difference,
    class_difference,
    holm,
    paired_difference,
    show_p,
)
from forerank.paper.study import Condition, Study
from forerank.report.tables import ResultTable
from forerank.training.recipe import recipe_text

HOLDS, FAILS, SAME, OPEN = "holds", "does not hold", "no difference", "undecided here"
PART = "holds in part"
ABSENT, PENDING = "cannot be tested here", "not run yet"
# What this room measures itself; all other metrics are named by their registry.
OWN_METRICS = {"centres_kept": "centres kept", "correlation": "rank correlation"}
ABOVE, BELOW = (0.0, math.inf), (-math.inf, 0.0)


@dataclass(frozen=True)
class Comparison:
    """One measured difference, and p-values for the three answers it can give.

    Attributes:
        text: what was compared, with the numbers.
        supports: p-value that the difference lies in the range of the claim.
        contradicts: p-value that it lies outside.
        same: p-value that it lies within the margin of "no difference"; None where nobody asks for it,
            because the claim itself gives a range.
        seeds: how many seeds it rests on; 0 if it is exact (a formula, a printed table) and needs no test.
    """

    text: str
    supports: float
    contradicts: float
    same: float | None = None
    seeds: int = 0

    def answer(self) -> Literal["yes", "no", "same", "unclear"]:
        """What the (corrected) p-values say; a difference within the margin is none, however certain."""
        if self.same is not None and self.same < LEVEL:
            return "same"
        if self.supports < LEVEL:
            return "yes"
        return "no" if self.contradicts < LEVEL else "unclear"


@dataclass(frozen=True)
class Evidence:
    """The comparisons of a claim, which of them it needs, and remarks that stand beside them."""

    comparisons: Sequence[Comparison]
    needs: Literal["all", "any"] = "all"
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper and how it is tested.

    Attributes:
        said: the claim, in the paper's sense.
        where: section or table of the paper.
        test: the evidence, a sentence why it cannot be tested, or None if it does not apply to this study;
            NotRunError if a run is missing.
    """

    said: str
    where: str
    test: Callable[[Study], Evidence | str | None]


@dataclass(frozen=True)
class Verdict:
    """A claim, the verdict, on how many seeds and comparisons it rests, and the numbers behind it."""

    said: str
    where: str
    word: str
    evidence: tuple[str, ...]
    seeds: int = 0
    comparisons: int = 0


class NotRunError(Exception):
    """A run that a claim needs has not ended; the text names its condition."""


def judge(comparisons: Sequence[Comparison], needs: Literal["all", "any"] = "all") -> str:
    """The rule at the top of this file, on corrected p-values.

    >>> up, unclear, equal = Comparison("", 0.01, 1), Comparison("", 0.4, 0.6), Comparison("", 0.4, 0.6, 0.01)
    >>> judge([up, up]), judge([up, unclear]), judge([up, equal]), judge([up, unclear], "any")
    ('holds', 'undecided here', 'holds in part', 'holds')
    >>> judge([up, Comparison("", 1, 0.01)]), judge([equal, equal]), judge([equal, unclear])
    ('does not hold', 'no difference', 'undecided here')
    """
    answers = [comparison.answer() for comparison in comparisons]
    if needs == "any":
        if "yes" in answers:
            return HOLDS
        if "unclear" in answers:
            return OPEN
        return SAME if "same" in answers else FAILS
    if "no" in answers:
        return FAILS
    if "unclear" in answers:
        return OPEN
    if "same" in answers:
        return PART if "yes" in answers else SAME
    return HOLDS


def all_results(study: Study, condition: Condition) -> dict[int, dict[str, Any]]:
    """Seed -> what its run measured; `NotRunError` as long as a seed is missing."""
    results, planned = study.results(condition), len(study.seeds_of(condition))
    if len(results) < planned:
        raise NotRunError(f"{condition} ({len(results)} of {planned} seeds)")
    return results


def contrast(
    study: Study, terms: Sequence[tuple[float, Condition]], metric: str
) -> tuple[Difference, Difference | None]:
    """A weighted sum of conditions in a metric: its error over paired seeds, and over test classes for R@1.

    Raises:
        NotRunError: a condition lacks one of its seeds: a verdict on the first few would be a peek.
    """
    for _, condition in terms:
        all_results(study, condition)
    values = {condition: study.by_seed(condition, metric) for _, condition in terms}
    for condition, by_seed in values.items():
        if not by_seed:
            raise NotRunError(f"{condition} ({metric} of its runs)")
    seeds = sorted(set.intersection(*(set(by_seed) for by_seed in values.values())))
    if not seeds:
        raise NotRunError(f"{terms[0][1]} and {terms[-1][1]} with the same seed")
    sums = [sum(weight * values[condition][seed] for weight, condition in terms) for seed in seeds]
    return paired_difference(sums, np.zeros(len(seeds))), _over_classes(study, terms, metric, seeds)


def _over_classes(
    study: Study, terms: Sequence[tuple[float, Condition]], metric: str, seeds: Sequence[int]
) -> Difference | None:
    if metric != "recall@1":
        return None
    right, queries = None, None
    for weight, condition in terms:
        results = study.results(condition)
        for seed in seeds:
            classes = results[seed].get("classes")
            if classes is None or (queries is not None and classes["queries"] != queries):
                return None
            queries = classes["queries"]
            part = weight / len(seeds) * 100 * np.asarray(classes["right"], dtype=np.float64)
            right = part if right is None else right + part
    return None if right is None or queries is None else class_difference(right, 0 * right, queries)


def compare_conditions(
    study: Study,
    terms: Sequence[tuple[float, Condition]],
    metric: str = "recall@1",
    within: tuple[float, float] = ABOVE,
    text: str = "",
) -> Comparison:
    """The comparison that a weighted sum of conditions lies within a range."""
    over_seeds, over_classes = contrast(study, terms, metric)
    margin, (low, high) = MARGINS[metric], within
    sources = [difference for difference in (over_seeds, over_classes) if difference is not None]
    above = max(difference.p_above(high) for difference in sources)
    below = max(difference.p_below(low) for difference in sources)
    directed = within in (ABOVE, BELOW)
    if not text:
        text = " minus ".join(str(condition) for _, condition in terms)
    asked = f"{low:+g} to {high:+g}" if low > -math.inf else f"below {high:g}"
    wanted = "" if directed else f" (claimed: {asked})"
    by_class = f"; over {over_classes.count} test classes {over_classes}" if over_classes else ""
    effect = f", effect size {over_seeds.effect:.2f}" if over_seeds.count > 1 else ""
    idle = sum(study.unlearned(condition) for _, condition in terms)
    warning = f" ({idle} of these runs learned nothing)" if idle else ""
    worse = [str(c) for _, c in terms if below_start(study, c)] if metric == "recall@1" else []
    warning += f" (worse than before training: {'; '.join(worse)})" if worse else ""
    # A loss that returns the untrained network may be shown to be worse than another, and nothing else:
    # anything else would be said of the untrained network.
    untrained = [w for w, c in terms if 2 * study.unlearned(c) > len(study.results(c))]
    only_worse = directed and all(weight < 0 for weight in untrained)
    numbers = f"{over_seeds} over {over_seeds.count} seeds{effect}{by_class}{warning}"
    supports = max(max(d.p_above(low), d.p_below(high)) for d in sources)
    same = max(difference.p_within(margin) for difference in sources)
    return Comparison(
        f"{_title(metric)}, {text}{wanted}: {numbers}",
        supports=1.0 if untrained and not only_worse else supports,
        contradicts=1.0 if untrained else min(above, below),
        same=(1.0 if untrained else same) if directed else None,
        seeds=over_seeds.count,
    )


def _title(metric: str) -> str:
    return OWN_METRICS.get(metric) or symbol(metric)


def corrected(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """The comparisons with p-values corrected by Holm's rule, question by question, over all that ask it.

    Exact ones have nothing to correct and do not count.
    """
    uncertain = [comparison for comparison in comparisons if comparison.seeds]
    supports = holm([comparison.supports for comparison in uncertain])
    contradicts = holm([comparison.contradicts for comparison in uncertain])
    same = iter(holm([comparison.same for comparison in uncertain if comparison.same is not None]))
    answers = zip(uncertain, supports, contradicts, strict=True)
    ready = iter(
        [
            replace(c, supports=s, contradicts=n, same=None if c.same is None else next(same))
            for c, s, n in answers
        ]
    )
    return [next(ready) if comparison.seeds else comparison for comparison in comparisons]


def verdicts(study: Study, claims: Sequence[Claim]) -> list[Verdict]:
    """Every claim judged on what is there; one that lacks a run is not judged at all."""
    tested: list[tuple[Claim, Evidence | Verdict]] = []
    for claim in claims:
        try:
            evidence = claim.test(study)
        except NotRunError as missing:
            text = f"this has not been run on {study.on}: {missing}"
            tested.append((claim, Verdict(claim.said, claim.where, PENDING, (text,))))
            continue
        if isinstance(evidence, str):
            tested.append((claim, Verdict(claim.said, claim.where, ABSENT, (evidence,))))
        elif evidence is not None:
            tested.append((claim, evidence))
    raw = [c for _, ready in tested if isinstance(ready, Evidence) for c in ready.comparisons]
    pairs = iter(zip(raw, corrected(raw), strict=True))
    judged = []
    for claim, ready in tested:
        if isinstance(ready, Verdict):
            judged.append(ready)
            continue
        mine = [next(pairs) for _ in ready.comparisons]
        word = judge([after for _, after in mine], ready.needs)
        lines = (*[_line(before, after) for before, after in mine], *ready.remarks)
        seeds = [c.seeds for c in ready.comparisons if c.seeds]
        judged.append(Verdict(claim.said, claim.where, word, lines, min(seeds, default=0), len(seeds)))
    return judged


def _line(raw: Comparison, after: Comparison) -> str:
    """A comparison with the p-value of its answer, and the same corrected."""
    name = {"yes": "supports", "no": "contradicts", "same": "same"}.get(after.answer())
    if name is None:  # the answer that came nearest
        asked = [name for name in ("supports", "contradicts", "same") if getattr(raw, name) is not None]
        name = min(asked, key=lambda question: float(getattr(raw, question)))
    said = {"supports": "as claimed", "contradicts": "against the claim", "same": "no difference"}[name]
    if not raw.seeds:
        return f"{raw.text}; {said}"
    return f"{raw.text}; {said}: p {show_p(getattr(raw, name))}, corrected {show_p(getattr(after, name))}"


def to_table(judged: Sequence[Verdict]) -> ResultTable:
    """Claim, where the paper says it, verdict, and on how many seeds it rests."""
    return ResultTable(
        ["claim", "in the paper", "verdict", "seeds"],
        [[v.said, v.where, v.word, v.seeds or None] for v in judged],
        title="Claims of the paper",
    )


def rule(study: Study, judged: Sequence[Verdict]) -> str:
    """The rule in words, with the numbers of this page."""
    count = sum(v.comparisons for v in judged)
    margins = ", ".join(f"{_title(metric)} {margin:g}" for metric, margin in MARGINS.items())
    return (
        "A claim *holds* if every comparison lies in the claimed range, and *does not hold* if one lies "
        "outside of it. A comparison that should differ and lies within a margin counts as *no difference*, "
        f"also on the right side of zero ({margins}; points for percentages); a claim with such ones beside "
        f"others as claimed *holds in part*. Each answer needs p < {LEVEL:g} (one-sided tests, doubled; "
        "two of them for *no difference*) over paired seeds (Student's t) and, for R@1, over test classes, "
        f"after Holm's correction over all {count} comparisons on this page, for each of the three answers "
        "by itself, so that one wrong answer or more on the page has a probability of at most 7.5%. "
        "Otherwise it is *undecided here*. A loss that learned nothing in most of its runs may be called "
        "worse, and nothing else: its numbers are those of the untrained network. The tests "
        "over seeds and over classes are two tests, and none of new seeds and new classes together. "
        "Comparisons of three seeds are almost never decided after the correction. Intervals are 95%, "
        "uncorrected. Effect sizes are Cohen's d of paired seeds. A verdict on a stand-in says nothing about "
        "the paper's own data."
    )


def to_markdown(judged: Sequence[Verdict], study: Study) -> str:
    """The claims page."""
    from forerank.paper.tuning import choices_table

    recipe = study.recipe(Condition(), 0)
    choices, levels = choices_table(study), levels_table(study)
    chosen = "chosen per method (table at the end)" if choices else f"{recipe.optimiser.lr:g}"
    length = f"{recipe.schedule.steps} steps" if recipe.schedule.steps else f"{recipe.schedule.epochs} epochs"
    lines = [
        f"# The paper's claims, tested on {study.on}",
        "",
        f"Generated by `forerank paper claims --on {study.on}` from the runs of `forerank paper all --on "
        f"{study.on}`; do not edit.",
        "",
        f"Data set: {study.on}; {recipe.model.backbone}, {recipe.mode} training, {length} of "
        f"{recipe.batch.batch_size} images, learning rate {chosen}. {rule(study, judged)}",
        "",
        to_table(judged).to_markdown(),
        "",
        "## The numbers",
        "",
    ]
    if levels:
        lines += ["### Levels", "", levels.to_markdown(), ""]
    for verdict in judged:
        lines += [f"### {verdict.said}: {verdict.word}", "", *[f"- {text}" for text in verdict.evidence], ""]
    if choices:
        lines += ["## Values chosen on validation classes", "", choices.to_markdown(), ""]
    told = replace(recipe, data=replace(recipe.data, root=None))  # where it lies differs by machine
    lines += ["## Every value of one run: PNP-Dq, seed 0", "", f"```yaml\n{recipe_text(told)}```", ""]
    return "\n".join([*lines, f"Claims from: {source()}", ""])


def write_claims(study: Study, extra: Path | None = None) -> list[Verdict]:
    """Judge and write `claims.md` into the study's folder, and to `extra` if given."""
    from forerank.paper.claim_tests import CLAIMS

    judged = verdicts(study, CLAIMS)
    text = to_markdown(judged, study)
    for path in filter(None, (study.folder / "claims.md", extra)):
        write_atomically(path, text)
    return judged
