"""The best model that a given time allows: features once, many trials, then all weights, then all classes.

Every choice is made on the validation classes. The test classes choose nothing; they say in the end what is
found of the gain on classes that had no part in the choice.
"""

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from forerank.console import say
from forerank.data import Table
from forerank.errors import ForerankError, InputError, require
from forerank.machine import choose_device
from forerank.metrics import Evaluation
from forerank.metrics.registry import find_metric, shown
from forerank.models.backbones import has_weights
from forerank.models.storage import REFIT
from forerank.report.trials import trials_section
from forerank.training.assemble import assemble, build_model, open_inputs
from forerank.training.candidates import BackboneCandidates, further_backbones, seconds_in_torch
from forerank.training.clock import Clock
from forerank.training.image_check import check_images
from forerank.training.interruption import InterruptedRun, Interruption
from forerank.training.loop import train
from forerank.training.measure import Part
from forerank.training.outcome import Outcome, before_name, finished_outcome
from forerank.training.prelude import Prelude
from forerank.training.prepare import complete_recipe, open_parts
from forerank.training.processes import Processes
from forerank.training.recipe import Recipe, assigned_keys, load_recipe, override, recipe_text
from forerank.training.record import RESULTS, write_json
from forerank.training.refitting import TUNED_MODEL, TUNED_RUN, refit
from forerank.training.search_folder import SEARCH, claim_search, search_file
from forerank.training.trials import (
    MOST_TRIALS,
    Trial,
    first_trials,
    open_search,
    propose,
    run_trial,
    search_space,
    trials_of,
)
from forerank.training.tuning import TuningCost, put_beside, tuning_cost, tuning_recipe
from forerank.training.whitening import HeadStart

CHOSEN, PLANNED, DECIDED = "chosen.json", "tuning.yaml", "tuning.json"
# Further backbones join while their features end before this share of the time.
FEATURES_SHARE = 0.7
# Where all weights are trained, trials have this share of what the features left.
TRIALS_SHARE = 0.25
# All weights are trained only if this many steps fit.
FEWEST_STEPS = 60
# Kinds of training views are compared only if this many steps fit.
STEPS_FOR_VIEWS = 600
VIEWS = {
    "as they are": [],
    "colours and erasing": ["data.colour=0.3", "data.erase=0.25"],
    "stronger crop": ["data.crop=official"],
}
# The end (measuring, catalogue, report) takes about this many measurements of the test part, and seconds.
MEASUREMENTS_AT_THE_END, SECONDS_AT_THE_END = 5, 15.0
# The winner is trained again as a run and on all classes: together this many times a trial's seconds.
TRAININGS_AT_THE_END = 2.5
# So many of the best trials are repeated on a tuned backbone.
REPEATED_TRIALS = 3


def train_within(
    recipe: Recipe,
    run: Path,
    minutes: float | None = None,
    *,
    fixed: frozenset[str] | None = None,
    refitted: bool | None = None,
) -> Outcome:
    """Use a number of minutes as well as possible; the same call continues an interrupted search.

    Args:
        recipe: what to start from.
        minutes: the whole time, earlier starts included; None: as the run was begun.
        fixed: dotted keys that the user chose and the search leaves alone; None: as the run was begun, or
            none.
        refitted: whether the chosen settings are trained once more on all classes; None: as the run was
            begun, or yes.
    """
    require("optuna")  # before the features, which can take an hour
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise InputError("--minutes works in one process: start it without torchrun")
    if find_metric(figure := recipe.evaluation.choose_by)[0].better != "higher":
        raise InputError(
            f"--minutes needs a metric for which higher is better, unlike {figure}: give choose_by"
        )
    run = Path(run)
    clock = Clock.open(run, minutes)
    recipe, fixed, refitted = claim_search(run, recipe, fixed, refitted)
    if (run / RESULTS).exists():
        if minutes is not None:
            say(f"the search of {run} is finished and not done again; for another one give another --run")
        if refitted and not (run / REFIT / RESULTS).exists():
            refit(run)
        return finished_outcome(run)
    clock.save()
    with Interruption() as interruption, interruption.at_once():
        try:
            return _search_and_train(recipe, run, clock, fixed, refitted)
        except InterruptedRun as stopped:  # of a training inside this one: this one is to be resumed
            raise InterruptedRun(run, None, stopped.exit_code - 128) from None
        except KeyboardInterrupt:
            if not interruption.signal:
                raise
            raise InterruptedRun(run, None, interruption.signal) from None
        finally:
            clock.save()


def _search_and_train(
    recipe: Recipe, run: Path, clock: Clock, fixed: frozenset[str], refitted: bool
) -> Outcome:
    search = _Search.open(recipe, run, clock, fixed)
    recipe, prelude = search.tune(search.compare_trials())
    clock.save()
    end = clock.ending(search.at_the_end + search.refit_seconds)
    outcome = train(recipe, run, deadline=end, prelude=prelude, names_data=False)
    clock.save()
    if not refitted or outcome.learned_nothing:
        return outcome
    if clock.left() > 0:
        refit(run, clock.ending(0.0), search.seconds_after_tuning)
    else:
        say("the time is over before the training on all classes; the same command does it")
    return outcome


@dataclass
class _Search:
    """A search: its data, backbones and clock.

    Attributes:
        base: complete, in the mode of the trials, with the backbone that they take.
        candidates: backbones with their features; None where trials train all weights.
        zero_shot: of the test part and the choosing figure of validation, before any training.
        start: how a head starts best, before any training.
        at_the_end: seconds that measuring the chosen model and the report take.
        trial_seconds: the longest trial.
        tuning: what training all weights costs; None where it is not done.
    """

    base: Recipe
    run: Path
    clock: Clock
    fixed: frozenset[str]
    tables: dict[str, Table]
    processes: Processes
    candidates: BackboneCandidates | None
    at_the_end: float
    zero_shot: tuple[Evaluation, float] | None = None
    start: HeadStart | None = None
    trial_seconds: float = 0.0
    tuning: TuningCost | None = None
    trials: list[Trial] = field(default_factory=list)

    @classmethod
    def open(cls, recipe: Recipe, run: Path, clock: Clock, fixed: frozenset[str]) -> "_Search":
        """Open the data, compute the features of the backbones that the time allows, and choose one."""
        device = choose_device(recipe.device)
        processes = Processes(0, 1, torch.device(device))
        frozen = recipe.mode != "full" and recipe.model.pretrained and has_weights(recipe.model.backbone)
        if recipe.mode == "auto":
            fixed -= {"mode"}  # whoever gives it chooses nothing
        recipe = replace(recipe, mode="head" if frozen else "full")
        tables = open_parts(recipe)
        if not len(tables["validation"]) or recipe.evaluation.choose_on == "test":
            raise InputError(
                "--minutes compares trainings on validation classes: give data.validation above 0"
            )
        images = check_images(run / SEARCH, tables, recipe, processes)
        images.write(run / SEARCH)
        for note in dict.fromkeys([*tables["train"].notes, *images.notes]):  # once, before the long work
            say(note)
        tables = images.parts
        base = complete_recipe(recipe, tables["train"], 1, device)
        if "evaluation.patience" not in fixed:  # the winner shall reach what it reached as a trial
            base = replace(base, evaluation=replace(base.evaluation, patience=None))
        if not frozen:
            # Test images are embedded twice at the end, all images once for the catalogue.
            embedded = 2 * len(tables["test"]) + sum(len(table) for table in tables.values())
            model = build_model(base).to(device).eval()
            at_the_end = SECONDS_AT_THE_END + embedded * seconds_in_torch(model, processes.device)
            return cls(base, run, clock, fixed, tables, processes, None, at_the_end)
        candidates = BackboneCandidates(base, tables, processes)
        together = base.model.backbone
        candidates.add(together)
        for name in further_backbones(base, fixed):
            allowed = clock.left(FEATURES_SHARE)
            needed = candidates.seconds_for(name, allowed)
            if needed > allowed:
                say(f"{name} is left out: its features would take about {needed:.0f} s")
                continue
            together = f"{together}+{name}"
            candidates.add(together)
            clock.save()
        base = candidates.with_backbone(candidates.best())
        start = candidates.head_start(base.model.backbone, clock.left())
        test, validation, seconds = candidates.zero_shot(base.model.backbone)
        at_the_end = MEASUREMENTS_AT_THE_END * seconds + SECONDS_AT_THE_END
        return cls(
            base, run, clock, fixed, tables, processes, candidates, at_the_end, (test, validation), start
        )

    @property
    def seconds_after_tuning(self) -> float:
        """What follows when all weights are trained: features of all images, and a head."""
        return self.trial_seconds + (0.0 if self.tuning is None else self.tuning.features)

    @property
    def refit_seconds(self) -> float:
        """About how long training once more on all classes takes."""
        steps = 0.0 if self.tuning is None else self.tuning.steps * self.tuning.step
        return steps + self.seconds_after_tuning

    def compare_trials(self) -> Trial | None:
        """Compare trainings until their share of the time is used; the best one."""
        import optuna

        every = self.base.evaluation.every or max(1, self._steps // 8)
        study = open_search(self.run / SEARCH / "trials.journal", self.base.seed, every)
        space = search_space(self.base, self.fixed)
        if not study.trials:
            for values in first_trials(self.base, space, self.start):
                study.enqueue_trial(values)
        self.trial_seconds = max((trial.seconds for trial in trials_of(study)), default=0.0)
        chosen = self.run / SEARCH / CHOSEN
        end = time.monotonic() if chosen.exists() else self._end_of_trials()
        figure = self.base.evaluation.choose_by
        while _tried(study) < MOST_TRIALS and space and not chosen.exists():
            reserve = self.at_the_end + TRAININGS_AT_THE_END * self.trial_seconds
            if time.monotonic() + self.trial_seconds > min(end, self.clock.ending(reserve)):
                break
            trial, began = study.ask(), time.monotonic()
            values = propose(trial, space)

            def falls_behind(step: int, best: float, trial: Any = trial) -> bool:
                trial.report(best, step)
                return bool(trial.should_prune())

            try:
                best, step, taken, ended = self._run(self._with_values(values), falls_behind)
            except ForerankError as error:
                say(f"trial {trial.number + 1}: {error}")
                study.tell(trial, state=optuna.trial.TrialState.FAIL)
                continue
            self.trial_seconds = max(self.trial_seconds, time.monotonic() - began)
            trial.set_user_attr("steps", taken)
            study.tell(
                trial, best if ended else None, state=None if ended else optuna.trial.TrialState.PRUNED
            )
            told = ", ".join(f"{key.rpartition('.')[2]}={_told(value)}" for key, value in values.items())
            say(f"trial {trial.number + 1}: {figure} {shown(figure, best)} at step {step}; {told}")
            self.clock.save()
        self.trials = trials_of(study)
        # What is chosen stays chosen when the run is continued after an interruption.
        write_json(chosen, {"trials": len(self.trials)})
        return next(iter(self._best_first()), None)

    def _best_first(self) -> list[Trial]:
        complete = [trial for trial in self.trials if trial.ended == "complete" and trial.figure is not None]
        return sorted(complete, key=lambda trial: -(trial.figure or 0.0))

    @property
    def _steps(self) -> int:
        return self.base.schedule.steps or 300

    def _run(
        self,
        recipe: Recipe,
        report: Callable[[int, float], bool] = lambda step, best: False,
        inputs: Mapping[str, Part] | None = None,
    ) -> tuple[float, int, int, bool]:
        """Train as a trial does and measure on the validation classes: see `run_trial`."""
        if inputs is None and self.candidates is not None and recipe.mode == "head":
            inputs = self.candidates.inputs[self.base.model.backbone]
        a = assemble(recipe, self.tables, self.processes, build_model(recipe), inputs)
        steps = recipe.schedule.steps or 300
        every = recipe.evaluation.every or max(1, steps // 8)
        left = self.clock.ending(self.at_the_end) - time.monotonic()
        # A trial that would leave no time to train its values again is given up.
        return run_trial(a, steps, every, report, time.monotonic() + left / (1 + TRAININGS_AT_THE_END))

    def _with_values(self, values: Mapping[str, Any]) -> Recipe:
        recipe = override(self.base, [f"{key}={value}" for key, value in values.items()])
        return complete_recipe(recipe, self.tables["train"], 1, self.base.device)

    def _end_of_trials(self) -> float:
        """The moment at which trials end: early if training all weights is to follow."""
        end = self.clock.ending(self.at_the_end)
        left = end - time.monotonic()
        # A mode that the user gave stays; under a minute is not even worth the time to measure a step.
        if self.candidates is None or "mode" in self.fixed or left < 60:
            return end
        cost = tuning_cost(tuning_recipe(self.base, self.fixed), self.candidates)
        steps = cost.fitting((1 - TRIALS_SHARE) * left)
        if steps < FEWEST_STEPS:
            say(f"all weights are not trained: {max(0, steps)} steps of {cost.step:.1f} s would fit")
            return end
        self.tuning = cost
        return time.monotonic() + TRIALS_SHARE * left

    def tune(self, winner: Trial | None) -> tuple[Recipe, Prelude]:
        """The recipe to train: the winner's, on a backbone whose weights were trained if that is better."""
        usual = first_trials(self.base, search_space(self.base, self.fixed), self.start)
        recipe = self._with_values(usual[0] if winner is None else winner.values)
        recipe = replace(recipe, name=self.base.name)
        figure = recipe.evaluation.choose_by
        prelude = Prelude(sections=(trials_section(self.trials, figure),), trials=len(self.trials))
        if winner is None or self.zero_shot is None:
            return recipe, prelude
        tuned = self._tuned(recipe, winner)
        if tuned is None:
            self.tuning = None
            return recipe, prelude
        row, plain = self.zero_shot
        return tuned, replace(prelude, rows={before_name(self.base): row}, plain=plain)

    def _tuned(self, recipe: Recipe, winner: Trial) -> Recipe | None:
        """The recipe of a head on the tuned backbone; None if that is not better, or there is no time."""
        planned, decided = self.run / SEARCH / PLANNED, self.run / SEARCH / DECIDED
        if self.tuning is None and not planned.exists():
            return None
        assert self.candidates is not None
        if self.tuning is None:  # planned before an interruption
            full = load_recipe(planned)
            self.tuning = tuning_cost(full, self.candidates)
            self.tuning.steps = full.schedule.steps or 0
        if not decided.exists():
            figures = self._train_all_weights(recipe, planned)
            if figures is None:
                return None
            write_json(decided, figures)
        best, values = (
            search_file(self.run, DECIDED, "figure", "values")[key] for key in ("figure", "values")
        )
        by, before = recipe.evaluation.choose_by, winner.figure or 0.0
        better = best > before
        told = f"{shown(by, best)} on the tuned backbone" if best >= 0 else "not raised by tuning"
        say(f"validation {by} {told}, {shown(by, before)} without: {'taken' if better else 'left out'}")
        return self._on_tuned(values) if better else None

    def _on_tuned(self, values: Mapping[str, Any]) -> Recipe:
        recipe = replace(self._with_values(values), name=self.base.name)
        folder = str((self.run / TUNED_MODEL).resolve())
        return replace(recipe, model=replace(recipe.model, backbone=folder))

    def _train_all_weights(self, recipe: Recipe, planned: Path) -> dict[str, Any] | None:
        """Train all weights of a network; the best figure and values of heads on what it has become."""
        assert self.tuning is not None
        cost = self.tuning
        if planned.exists():  # before an interruption
            full = load_recipe(planned)
        else:
            full = tuning_recipe(recipe, self.fixed)
            heads = (REPEATED_TRIALS + TRAININGS_AT_THE_END) * self.trial_seconds

            def fitting() -> int:
                return cost.fitting(self.clock.ending(self.at_the_end + heads) - time.monotonic())

            views = views_to_compare(self.fixed)
            if len(views) > 1 and fitting() >= STEPS_FOR_VIEWS:
                full = self._with_better_views(full, views, STEPS_FOR_VIEWS // 9)
            cost.steps = fitting()
            if cost.steps < FEWEST_STEPS:
                return None
            full = override(full, [f"schedule.steps={cost.steps}", f"evaluation.every={cost.steps}"])
            planned.write_text(recipe_text(full), encoding="utf-8")
        say(f"all weights of {full.model.backbone}: {cost.steps} steps of about {cost.step:.1f} s")
        end = time.monotonic() + 1.15 * cost.steps * cost.step
        outcome = train(full, self.run / TUNED_RUN, deadline=end, tested=False, names_data=False)
        self.clock.save()
        best: dict[str, Any] = {"figure": -1.0, "values": {}}
        if outcome.results["best_step"] == 0:  # the pretrained weights are better: there is nothing new
            return best
        put_beside(recipe, self.run / TUNED_RUN, self.run / TUNED_MODEL)
        inputs = None
        for trial in self._best_first()[:REPEATED_TRIALS]:
            one = self._on_tuned(trial.values)
            inputs = inputs or open_inputs(one, self.tables, build_model(one), self.processes)
            figure, *_ = self._run(one, inputs=inputs)
            if figure > best["figure"]:
                best = {"figure": figure, "values": dict(trial.values)}
        return best

    def _with_better_views(self, recipe: Recipe, views: Mapping[str, list[str]], steps: int) -> Recipe:
        """The recipe with the training views that are better on validation after some steps."""
        figures: dict[str, float] = {}
        for name, values in views.items():
            short = [f"schedule.steps={steps}", f"evaluation.every={steps}"]
            figures[name], *_ = self._run(override(recipe, [*values, *short]))
            say(f"training views, {name}: {shown(recipe.evaluation.choose_by, figures[name])}")
        return override(recipe, views[max(figures, key=lambda name: figures[name])])


def views_to_compare(fixed: frozenset[str]) -> dict[str, list[str]]:
    """The kinds of training views that change nothing of what the user gave."""
    return {name: values for name, values in VIEWS.items() if not assigned_keys(values) & fixed}


def _tried(study: Any) -> int:
    """How many trials were begun; further ones may be waiting in the study."""
    return sum(trial.state.name != "WAITING" for trial in study.trials)


def _told(value: Any) -> str:
    return f"{value:.2g}" if isinstance(value, float) else str(value)
