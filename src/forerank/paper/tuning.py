"""Choose the learning rate, and one further value, of every method on validation classes.

The procedure is one for all methods, ours and others: from the same list of learning rates the one with the
best validation figure; if the best is the first or the last of the list, the list is continued in that
direction. Then, at that rate, the same for the method's second value where it has one (b of PNP-Ib, the rate
of proxies). The test classes are never looked at. The runs that choose have a seed of their own, and where
the setting says so they are shorter than those that measure; like all runs they are kept, so that choosing
can be interrupted.
"""

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from forerank.console import say
from forerank.files import write_atomically
from forerank.paper import runs
from forerank.paper.methods import METHODS, PROXY_RATE
from forerank.paper.study import Condition, Run, Study, fingerprint
from forerank.report.tables import Cell, ResultTable

SEED = 1000  # of the runs that choose; no run that measures has it
CONTINUED = 4  # how many values a list is continued by, at most
FILE = "tuning.json"


def can_tune(study: Study) -> bool:
    """Whether values are chosen in this study: the setting has rates, and there are classes to choose on."""
    return bool(study.setting.rates) and study.recipe(Condition(), 0).data.validation > 0


def missing_values(scores: Mapping[float, float | None], least: int) -> list[float]:
    """Values that must be tried before one of a growing list can be chosen.

    Args:
        scores: value -> its score, None if it was not tried yet.
        least: length of the list as it began.

    >>> missing_values({1.0: None, 3.0: 0.5, 9.0: None}, 3)
    [1.0, 9.0]
    >>> missing_values({1.0: 0.4, 3.0: 0.5, 9.0: 0.3}, 3)  # the best lies inside
    []
    >>> missing_values({1.0: 0.4, 3.0: 0.5, 9.0: 0.6}, 3)  # the best is the last: go on
    [27.0]
    """
    untried = [value for value, score in scores.items() if score is None]
    if untried or len(scores) >= least + CONTINUED:
        return untried
    values = sorted(scores)
    chosen = best(scores)
    beyond = (
        values[-1] * values[-1] / values[-2] if chosen == values[-1] else values[0] * values[0] / values[1]
    )
    return [float(f"{beyond:.3g}")] if chosen in (values[0], values[-1]) else []


def best(scores: Mapping[float, float | None]) -> float:
    """The value with the highest score; of equal ones the smallest.

    >>> best({3.0: 0.5, 1.0: 0.5, 9.0: 0.4})
    1.0
    """
    return min(scores, key=lambda value: (-(scores[value] or 0.0), value))


@dataclass(frozen=True)
class TunedValues:
    """What was chosen for a method, and everything that was tried, with the validation figure in percent."""

    values: tuple[str, ...]
    tried: tuple[tuple[str, float], ...]


def choose_values(
    method: str, study: Study, failed: Collection[str] = ()
) -> tuple[TunedValues | None, list[Run]]:
    """The choice for a method, or the runs that have to end before it can be made.

    Args:
        failed: keys of runs that ended with an error; they count as the worst.
    """
    plain = replace(study, chosen={})
    shorter = (*study.setting.tuning, "evaluation.nmi=false")
    tried: list[tuple[str, float]] = []

    def pick(
        candidates: Sequence[float], values_of: Callable[[float], tuple[str, ...]]
    ) -> tuple[float | None, list[Run]]:
        candidate_list = list(candidates)
        while True:
            by_value = {
                value: plain.run(Condition(method), SEED, (*shorter, *values_of(value)), chooses=True)
                for value in candidate_list
            }
            scores = {value: _score(run, failed) for value, run in by_value.items()}
            untried = missing_values(scores, len(candidates))
            missing = [by_value[value] for value in untried if value in by_value]
            if missing:
                return None, missing
            if not untried:
                tried.extend((_shown(values_of(v)), 100 * (scores[v] or 0.0)) for v in sorted(scores))
                return best(scores), []
            candidate_list += untried

    own = plain.recipe(Condition(method), SEED).optimiser
    usual = plain.recipe(Condition(), SEED).optimiser.lr
    scale = 1.0 if own.lr is None or usual is None else own.lr / usual  # a method may bring its own rate
    rates = [float(f"{scale * rate:.3g}") for rate in study.setting.rates]
    rate, missing = pick(rates, lambda rate: (f"optimiser.lr={rate:g}",))
    if rate is None:
        return None, missing
    values: tuple[str, ...] = (f"optimiser.lr={rate:g}",)
    about = METHODS[method]
    if about.tuned is not None:
        tuned, scale = about.tuned, 1.0
        if (
            tuned == PROXY_RATE
        ):  # by itself a hundred times the learning rate, unless the method says otherwise
            scale = rate * (own.loss_lr / own.lr if own.loss_lr and own.lr else 100.0)
        second, missing = pick(about.candidates, lambda v: (*values, f"{tuned}={scale * v:g}"))
        if second is None:
            return None, missing
        values = (*values, f"{tuned}={scale * second:g}")
    return TunedValues(values, tuple(tried)), []


def tune(
    study: Study, methods: Iterable[str], *, jobs: int = 1, threads: int | None = None
) -> tuple[Study, list[str]]:
    """The study with values chosen for the methods, and what went wrong; runs that are there are used."""
    wanted = list(dict.fromkeys(methods))
    failed: dict[str, str] = {}
    while True:
        outcome = {method: choose_values(method, study, failed) for method in wanted}
        missing = [run for _, runs_left in outcome.values() for run in runs_left]
        if not missing:
            break
        say(f"choosing learning rates on validation classes: {len(missing)} runs in this round")
        runs.train_missing(missing, jobs=jobs, threads=threads)
        failed |= {run.key: run.title for run in missing if run.result() is None}  # counts as the worst
    choices = {method: choice for method, (choice, _) in outcome.items() if choice is not None}
    if choices:
        kept = {**read_choices(study), **choices}
        values = {"of": _key(study), "methods": {m: asdict(choice) for m, choice in kept.items()}}
        write_atomically(study.folder / FILE, json.dumps(values, indent=1))
    return with_choices(study), [f"choosing values, {title}" for title in failed.values()]


def read_choices(study: Study) -> dict[str, TunedValues]:
    """What was chosen in the study's folder with the same settings; nothing if nothing was."""
    try:
        values = json.loads((study.folder / FILE).read_text(encoding="utf-8"))
        if values["of"] != _key(study):
            return {}
        return {
            method: TunedValues(tuple(c["values"]), tuple((str(t), float(s)) for t, s in c["tried"]))
            for method, c in values["methods"].items()
        }
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def with_choices(study: Study) -> Study:
    """The study with what was chosen in its folder, if it chooses at all."""
    choices = read_choices(study) if can_tune(study) else {}
    return replace(study, chosen={method: choice.values for method, choice in choices.items()})


def choices_table(study: Study) -> ResultTable | None:
    """Method, chosen values, and every value that was tried with its validation figure; None if none was."""
    choices = read_choices(study)
    if not choices:
        return None
    measured = study.recipe(Condition(), 0)
    figure, steps = measured.evaluation.choose_by, measured.schedule.steps
    tried = study.recipe(Condition(), SEED, study.setting.tuning).schedule.steps
    length = "as long as the measured runs"
    if tried != steps:
        length = f"shorter than the measured runs ({tried} steps instead of {steps})"
    rows: list[list[Cell]] = [
        [
            method,
            _shown(c.values) + (" (the end of what was tried)" if _at_the_end(c) else ""),
            "; ".join(f"{values}: {score:.2f}" for values, score in c.tried),
        ]
        for method, c in choices.items()
    ]
    return ResultTable(
        ["method", "chosen", f"tried, with {figure} on the validation classes (%)"],
        rows,
        title=f"Values chosen on the validation classes of {study.on}",
        notes=[
            "One procedure for every method: learning rates "
            f"{', '.join(f'{r:g}' for r in study.setting.rates)}, "
            "in proportion where a method brings its own rate, continued where the best is at an end of the "
            "list; then b or the proxies' rate at that rate. "
            f"One run each with seed {SEED}, which no measured run has; {length}. They have the usual batch, "
            "whole classes and right labels; what they chose is used in every other condition of the method "
            "too."
        ],
    )  # fmt: skip


def _at_the_end(choice: TunedValues) -> bool:
    """Whether the chosen value is the first or the last that was tried, so that a further one may be better.

    >>> tried = (("lr=1", 0.4), ("lr=3", 0.5), ("lr=9", 0.3), ("lr=3, b=1", 0.5), ("lr=3, b=2", 0.6))
    >>> _at_the_end(TunedValues(("optimiser.lr=3", "loss.options.b=2"), tried))
    True
    >>> _at_the_end(TunedValues(("optimiser.lr=3",), tried[:3]))
    False
    """
    chosen = _shown(choice.values)
    alike = [values for values, _ in choice.tried if values.count(",") == chosen.count(",")]
    return len(alike) > 1 and chosen in (alike[0], alike[-1])


def _score(run: Run, failed: Collection[str]) -> float | None:
    """The validation figure of a run; -1 if it failed, None if it has not ended."""
    result = run.result()
    if result is None:
        return -1.0 if run.key in failed else None
    return float(result["validation"] or 0.0)


def _shown(values: Iterable[str]) -> str:
    """
    >>> _shown(["optimiser.lr=0.001", "loss.options.b=4"])
    'lr=0.001, b=4'
    """
    return ", ".join(
        value.rpartition("=")[0].rpartition(".")[2] + "=" + value.rpartition("=")[2] for value in values
    )


def _key(study: Study) -> str:
    """Changes with anything that the choice depends on."""
    return fingerprint(replace(study, chosen={}).recipe(Condition(), SEED, study.setting.tuning))
