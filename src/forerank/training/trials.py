"""Many short trainings compared on the validation classes: what is varied, and one training of many.

Optuna proposes the values (TPE) and stops the trainings that fall behind (successive halving). Every trial is
written to a journal in the run folder, so an interrupted search goes on with what it knows.
"""

import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forerank.errors import ForerankError, require
from forerank.training.assemble import Assembly
from forerank.training.batches import BatchStream
from forerank.training.loop import take_step
from forerank.training.measure import embed, measure
from forerank.training.optimise import rate_factor, set_rates
from forerank.training.recipe import Recipe
from forerank.training.whitening import USUAL_SHRINKAGE, HeadStart

if TYPE_CHECKING:
    import optuna

LOSSES = ("PNP-Dq", "PNP-Ds", "Smooth-AP")
PEER_LOSSES = ("pml:MultiSimilarityLoss", "pml:ProxyAnchorLoss")
# Of three trials one goes on at each rung; rungs are validations.
KEEP_ONE_OF = 3
MOST_TRIALS = 300


@dataclass(frozen=True)
class Trial:
    """One training of the search.

    Attributes:
        values: dotted recipe key -> value.
        figure: the best figure of the validation classes, None if it failed.
        steps: how many were taken.
        ended: "complete", "stopped early" or "failed".
    """

    number: int
    values: Mapping[str, Any]
    figure: float | None
    steps: int
    seconds: float
    ended: str


def search_space(recipe: Recipe, fixed: frozenset[str]) -> dict[str, Any]:
    """Dotted key -> the choices (a tuple) or the limits of a number (a list of two, on a log scale).

    What the user gave (`fixed`) is not varied.
    """
    losses = (*LOSSES, *(PEER_LOSSES if find_spec("pytorch_metric_learning") else ()))
    rate = [5e-5, 2e-3] if recipe.mode == "head" else [3e-5, 3e-3]
    space: dict[str, Any] = {"loss.name": losses, "optimiser.lr": rate}
    if recipe.mode == "head":
        # A head as wide as the features of several networks takes ten times as long as a narrow one.
        widths = (512, 1024) if "+" in recipe.model.backbone else (0, 512)
        space |= {"model.head_start": ("whitening", "features"), "model.embedding_dim": widths}
        space |= {"model.shrinkage": [3e-3, 10.0], "optimiser.weight_decay": [1e-6, 1e-2]}
    else:
        space |= {"data.colour": (0.0, 0.3), "data.erase": (0.0, 0.5), "data.crop": ("paper", "official")}
    if recipe.method.name is not None:
        space = {key: choices for key, choices in space.items() if not key.startswith("loss.")}
    return {
        key: choices
        for key, choices in space.items()
        if key not in fixed and (isinstance(choices, list) or len(choices) > 1)
    }


def open_search(journal: Path, seed: int, rung: int) -> "optuna.Study":
    """The search in its journal, begun or continued; trainings that were cut short are marked as failed."""
    require("optuna")
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    journal.parent.mkdir(parents=True, exist_ok=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        storage = JournalStorage(JournalFileBackend(str(journal)))
        study = optuna.create_study(
            study_name="heads",
            storage=storage,
            direction="maximize",
            load_if_exists=True,
            sampler=optuna.samplers.TPESampler(seed=seed, n_startup_trials=8),
            pruner=optuna.pruners.SuccessiveHalvingPruner(min_resource=rung, reduction_factor=KEEP_ONE_OF),
        )
    for trial in study.get_trials(states=(optuna.trial.TrialState.RUNNING,)):
        study.tell(trial.number, state=optuna.trial.TrialState.FAIL)
    if study.trials:  # the same seed again would propose the same values again
        study.sampler = optuna.samplers.TPESampler(seed=seed + len(study.trials), n_startup_trials=8)
    return study


def first_trials(
    recipe: Recipe, space: Mapping[str, Any], start: HeadStart | None = None
) -> list[dict[str, Any]]:
    """Each loss with usual values, the recipe's own first: what the search starts from.

    Args:
        start: the better start of a head on the validation classes, which comes first.
    """
    usual: dict[str, Any] = {
        "optimiser.lr": 2e-4 if recipe.mode == "head" else recipe.optimiser.lr or 1e-4,
        "optimiser.weight_decay": 4e-4,
        "model.head_start": "features",
        "model.embedding_dim": space.get("model.embedding_dim", (0,))[0],
        "model.shrinkage": USUAL_SHRINKAGE if start is None else start.shrinkage,
        "data.colour": 0.0,
        "data.erase": 0.0,
        "data.crop": "paper",
    }
    losses = space.get("loss.name", (recipe.loss.name,))
    starts = ("whitening", "features") if start is not None and start.taken else ("features", "whitening")
    rows = [{"loss.name": loss, "model.head_start": head_start}
            for head_start in starts for loss in losses]  # fmt: skip
    kept = [{key: {**usual, **row}[key] for key in space if key in {**usual, **row}} for row in rows]
    unique: list[dict[str, Any]] = []
    for row in kept:
        if row not in unique:
            unique.append(row)
    # The better start first, and there the recipe's own loss.
    better = starts[0]
    return sorted(
        unique,
        key=lambda row: (
            row.get("model.head_start", better) != better, row.get("loss.name") != recipe.loss.name
        ),
    )  # fmt: skip


def propose(trial: "optuna.Trial", space: Mapping[str, Any]) -> dict[str, Any]:
    """Values for one training."""
    values: dict[str, Any] = {}
    for key, choices in space.items():
        if isinstance(choices, list):
            values[key] = trial.suggest_float(key, choices[0], choices[1], log=True)
        else:
            values[key] = trial.suggest_categorical(key, choices)
    return values


def run_trial(
    a: Assembly, steps: int, every: int, report: Callable[[int, float], bool], deadline: float
) -> tuple[float, int, int, bool]:
    """Train an assembly for some steps and measure it on the validation classes at every rung.

    Args:
        report: (step, best figure so far) -> whether to stop because others are better.
        deadline: moment of `time.monotonic` at which to give up.

    Returns:
        The best figure, the step where it was reached (0: the start), the steps taken, whether it ended.
    """
    assert a.chooser is not None
    chooser, recipe = a.chooser, a.recipe

    def figure() -> float:
        with a.final_weights():
            embedded = embed(a.encode, chooser, recipe, a.processes, title=None)
        return float(measure(embedded, recipe, a.processes, full=False)[recipe.evaluation.choose_by])

    best, best_step = figure(), 0
    stream = BatchStream(lambda step: a.open_batches(step, steps), 0)
    for step in range(steps):
        if time.monotonic() > deadline:
            return best, best_step, step, False
        set_rates(a.optimiser, rate_factor(recipe, step, steps, a.plan.steps_per_epoch))
        loss = take_step(a, next(stream), step)
        if loss != loss or loss in (float("inf"), float("-inf")):
            raise ForerankError("the loss was no longer a number")
        if (step + 1) % every == 0 or step + 1 == steps:
            now = figure()
            if now > best:
                best, best_step = now, step + 1
            if report(step + 1, best) and step + 1 < steps:
                return best, best_step, step + 1, False
    return best, best_step, steps, True


def trials_of(study: "optuna.Study") -> list[Trial]:
    """What the search has done so far, in order."""
    rows = []
    for trial in study.trials:
        state = {"COMPLETE": "complete", "PRUNED": "stopped early"}.get(trial.state.name, "failed")
        if trial.state.name == "WAITING":
            continue
        figure = (
            trial.value if trial.value is not None else max(trial.intermediate_values.values(), default=None)
        )
        seconds = trial.duration.total_seconds() if trial.duration else 0.0
        steps = int(trial.user_attrs.get("steps", 0))
        rows.append(Trial(trial.number, dict(trial.params), figure, steps, seconds, state))
    return rows
