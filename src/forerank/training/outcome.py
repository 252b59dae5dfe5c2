"""Before and after: the model is measured before training, the chosen one after it; results and report."""

import shlex
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from forerank.console import format_table, say
from forerank.data import open_table
from forerank.errors import ForerankError
from forerank.metrics import Evaluation
from forerank.metrics.registry import figures_line, is_better, shown, title
from forerank.models import EmbeddingModel, load_model, save_model
from forerank.models.backbones import has_weights
from forerank.models.storage import REFIT
from forerank.report import CheckpointChoice, write_report
from forerank.report.plain_words import plain_sentence, plain_warnings
from forerank.training.assemble import Assembly, build_model, encode
from forerank.training.batches import SMALL_IMAGES
from forerank.training.catalogue import catalogue_sentence, measure_catalogue
from forerank.training.checkpoint import BEST, save_state, write_checkpoint
from forerank.training.measure import embed, image_part, measure
from forerank.training.prelude import Prelude, gains_sentence
from forerank.training.prepare import starts_from_saved
from forerank.training.processes import wait_for_all
from forerank.training.recipe import Recipe, nested
from forerank.training.record import (
    RESULTS,
    Record,
    computed_with,
    explain_write_errors,
    read_json,
    write_json,
)
from forerank.training.whitening import WHITENED

BEFORE, IMAGES = "before.json", "images.csv"
# The row of the backbone whose weights a search has trained, before its new head.
TUNED = "tuned backbone"


@dataclass(frozen=True)
class Outcome:
    """The end of a run: metrics of the test part before and after, and where everything lies."""

    run: Path
    results: Mapping[str, Any]

    @property
    def learned_nothing(self) -> bool:
        """Whether the model from before is kept just as it is, so that more classes would teach nothing."""
        return _is_as_before(self.results.get("kept"))

    @property
    def model_to_ship(self) -> str:
        """For a run that learned nothing: which model to use."""
        kind = {"zero-shot": "pretrained"}.get(self.results["kept"], self.results["kept"])
        why = "training did not help" if self.results["steps"] else "no step of training was taken"
        return f"{why}; the model to ship is the {kind} one: {self.run / BEST}"

    def __str__(self) -> str:
        kept = self.results.get("kept")
        test, words = self.results["test"], self.results["words"]
        if not test:
            return str(words["sentence"])
        table = results_table(
            {(after_name(kept) if name == "trained" else name): test[name] for name in test}
        )
        about = [words["sentence"], *[f"Note: {text}." for text in [*words["warnings"], *words["which"]]]]
        return "\n".join([*about, "", table])


def results_table(test: Mapping[str, Mapping[str, float]]) -> str:
    """Rows of metrics in percent.

    >>> print(results_table({"untrained": {"recall@1": 0.5}, "trained": {"recall@1": 0.75}}))
    test       Recall@1
    ---------  --------
    untrained     50.00
    trained       75.00
    """
    keys = next(iter(test.values()))
    recalls = sorted((k for k in keys if k.startswith("recall@")), key=lambda k: int(k.partition("@")[2]))
    columns = [*recalls, *[k for k in ("map@r", "nmi") if k in keys]]
    rows = [[name, *[shown(c, metrics[c], mark=False) for c in columns]] for name, metrics in test.items()]
    return format_table(["test", *[title(c) for c in columns]], rows)


def before_name(recipe: Recipe) -> str:
    """What the model is called before training."""
    if starts_from_saved(recipe):
        return "given"
    return "zero-shot" if recipe.model.pretrained and has_weights(recipe.model.backbone) else "untrained"


def after_name(kept: str | None) -> str:
    """What the chosen model is called: trained, or the one from before if training did not help.

    >>> after_name(None), after_name("zero-shot")
    ('trained', 'kept: zero-shot')
    """
    return "trained" if kept is None else f"kept: {kept}"


def _is_as_before(kept: str | None) -> bool:
    """Whether a kept row is the model from before: a whitened head and a tuned backbone have learned."""
    return kept not in (None, WHITENED, TUNED)


def _whose_numbers(run: Path, kept: str | None) -> str:
    """Which model the numbers belong to, and which other one there may be."""
    other = (
        f"the one that a refit puts into {run / REFIT} learns from all classes and has no number of its own"
    )
    if _is_as_before(kept):
        other = "nothing that was trained is better, so there is no other one to ship"
    return f"all these numbers belong to the model in {run / BEST}; {other}"


def measure_before(run: Path, a: Assembly, prelude: Prelude) -> dict[str, Any]:
    """Measure the model before training, keep it as the first `best`, and remember the numbers.

    Args:
        prelude: brings rows of the test part that stand before those measured here.

    Returns:
        "choice": the choosing figure of the part that chooses (None without one); "kept": the row of the best
        model so far; "test": name -> Evaluation; "start": what is known about the whitening, or None.
    """
    recipe, processes = a.recipe, a.processes
    stored = run / BEFORE
    if stored.exists() and (run / BEST).exists():
        advice = f"remove {run} to start again"
        known = read_json(stored, ("choice", "plain", "kept", "test", "start"), advice)
        try:
            tests = {name: Evaluation.from_dict(value) for name, value in known["test"].items()}
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ForerankError(f"{stored} is damaged ({error}): {advice}") from error
        return {**known, "test": tests}
    wait_for_all(processes)
    plain = build_model(recipe, plain=True).to(processes.device).eval()

    def encode_plain(inputs: torch.Tensor) -> torch.Tensor:
        return encode(plain, inputs, recipe, processes.device)

    # The first row is the "before" of the headline.
    evaluations = dict(prelude.rows)
    name = TUNED if prelude.rows else before_name(recipe)  # what a search gave to this run
    report = recipe.evaluation.report and len(a.test.table) > 0
    if report or a.chooser is a.test:
        evaluations[name] = measure(
            embed(encode_plain, a.test, recipe, processes), recipe, processes, full=True
        )
    if report and plain.preprocessing.resize <= SMALL_IMAGES:
        pixels = image_part(a.test.table, plain.preprocessing, recipe, "test", cache=True)
        evaluations["pixels"] = measure(
            embed(_pixels, pixels, recipe, processes), recipe, processes, full=True
        )
    chooser = evaluations.get(name) if a.chooser is a.test else None
    if a.chooser is not None and chooser is None:
        chooser = measure(embed(encode_plain, a.chooser, recipe, processes), recipe, processes, full=False)
    choice = None if chooser is None else float(chooser[recipe.evaluation.choose_by])
    best, kept, of_first_row = plain, name, choice if prelude.plain is None else prelude.plain
    if a.head_start is not None:
        whitened = _with_head(a.model, a.head_start.whitening)
        figure = _measure_whitened(whitened, a, evaluations)
        better = figure is None or choice is None or is_better(recipe.evaluation.choose_by, figure, choice)
        if a.head_start.taken and better:
            best, kept, choice = whitened, WHITENED, figure
    known = {
        "choice": choice,
        "plain": of_first_row,
        "kept": kept,
        "start": None
        if a.head_start is None
        else {
            "whitening": a.head_start.taken,
            "shrinkage": a.head_start.shrinkage,
            "sentence": a.head_start.sentence,
        },
    }
    if processes.first:
        write_checkpoint(run, "pretrained", (BEST,), lambda folder: _write_plain(folder, best, choice))
        write_json(stored, {**known, "test": {k: e.to_dict() for k, e in evaluations.items()}})
        measured = {"test": evaluations.get(name), "validation": chooser}
        for part, evaluation in measured.items():
            if evaluation is not None:
                keys = dict.fromkeys(("recall@1", "map@r", recipe.evaluation.choose_by))
                figures = {key: evaluation[key] for key in keys if key in evaluation}
                say(f"{name}: {part} {figures_line(figures)}")
        if a.head_start is not None:
            say(a.head_start.sentence)
    wait_for_all(processes)
    return {**known, "test": evaluations}


def _with_head(model: EmbeddingModel, weight: torch.Tensor) -> EmbeddingModel:
    """A copy of a model whose head has these weights (D, C) and no bias."""
    copy = deepcopy(model).eval()
    assert copy.head is not None
    with torch.no_grad():
        copy.head.weight.copy_(weight)
        copy.head.bias.zero_()
    return copy


def _measure_whitened(model: EmbeddingModel, a: Assembly, evaluations: dict[str, Evaluation]) -> float | None:
    """Add the row of the whitened model to the test rows; its figure on the part that chooses."""
    recipe, processes = a.recipe, a.processes

    def encode_whitened(inputs: torch.Tensor) -> torch.Tensor:
        return encode(model, inputs, recipe, processes.device)

    if evaluations:
        embedded = embed(encode_whitened, a.test, recipe, processes)
        evaluations[WHITENED] = measure(embedded, recipe, processes, full=True)
    if a.chooser is None:
        return None
    embedded = embed(encode_whitened, a.chooser, recipe, processes)
    return float(measure(embedded, recipe, processes, full=False)[recipe.evaluation.choose_by])


def _pixels(images: torch.Tensor) -> torch.Tensor:
    """Images as vectors whose cosine is their correlation."""
    flat = images.flatten(1)
    return F.normalize(flat - flat.mean(1, keepdim=True))


def _write_plain(folder: Path, model: EmbeddingModel, choice: float | None) -> None:
    save_model(model, folder)
    save_state(folder, {"step": 0, "best": choice, "pretrained": True}, {})


def measure_after(
    run: Path,
    a: Assembly,
    before: Mapping[str, Any],
    record: Record,
    state: Mapping[str, Any],
    about_data: list[str],
    prelude: Prelude,
    *,
    tested: bool,
) -> Outcome:
    """Measure the chosen model on the test part unless it is to be left alone, write results and report."""
    recipe, processes = a.recipe, a.processes
    kept = before["kept"] if state["best_step"] == 0 else None
    about_data = [*a.train.table.notes, *about_data]
    notes = notes_of(recipe, state, before, about_data)
    results = {
        "test": {},
        "kept": kept,
        "start": before["start"],
        "best_step": state["best_step"],
        "steps": state["step"],
        "planned_steps": state["planned"],
        "validation": {
            "figure": recipe.evaluation.choose_by,
            "plain": before["plain"],
            "before": before["choice"],
            "best": state["best"] if before["choice"] is not None else None,
        },
        "training_seconds": round(sum(row.get("seconds", 0.0) for row in record.history), 1),
        "waited_seconds": round(sum(row.get("waited", 0.0) for row in record.history), 1),
        "catalogue": None,
        "notes": notes,
        "broken": state["broken"],
        "report": None,
        "versions": computed_with(),
    }
    if recipe.data.all_classes:
        classes = len(a.train.table.classes)
        did = "Whitened" if kept == WHITENED else "Trained"
        sentence = f"{did} on all {classes:,} classes; no class is left to measure this model on."
        results["words"] = {"sentence": sentence, "warnings": [], "which": []}
    elif not tested:
        sentence = "One step of a search; the test classes were left alone."
        results["words"] = {"sentence": sentence, "warnings": [], "which": []}
    else:
        results |= _measure_chosen(run, a, before, record, state, prelude, notes)
    if processes.first:
        for note in notes[len(about_data) :]:  # what is about the data was said at the start
            say(note)
        write_json(run / RESULTS, results)
    wait_for_all(processes)
    return Outcome(run, results)


def _measure_chosen(
    run: Path,
    a: Assembly,
    before: Mapping[str, Any],
    record: Record,
    state: Mapping[str, Any],
    prelude: Prelude,
    notes: list[str],
) -> dict[str, Any]:
    """The results of the test part: figures, the whole catalogue, words; the report."""
    recipe, processes = a.recipe, a.processes
    kept = before["kept"] if state["best_step"] == 0 else None
    chosen = load_model(run / BEST).to(processes.device).eval()
    embedded = embed(lambda x: encode(chosen, x, recipe, processes.device), a.test, recipe, processes)
    after = measure(embedded, recipe, processes, full=True)
    evaluations = {**before["test"], "trained": after}
    first_name, first = next(iter(before["test"].items()), (None, None))
    labels = embedded.table.label
    which, catalogue = [], None
    if recipe.evaluation.report:
        catalogue = measure_catalogue(chosen, a, embedded)
        if catalogue is not None:
            which.append(catalogue_sentence(catalogue, len(embedded.table.classes), after["recall@1"]))
        if prelude.trials and first is not None:
            figure = recipe.evaluation.choose_by
            gains = state["best"] - before["plain"], after[figure] - first[figure]
            which.append(gains_sentence(prelude.trials, figure, *gains))
        which.append(_whose_numbers(run, kept))
    words: dict[str, Any] = {
        "sentence": plain_sentence(first, after, changed=kept is None or kept != first_name),
        "warnings": plain_warnings(first, after, labels),
        "which": which,
    }
    record.add(state["step"], test=_numbers(after))
    if processes.first:
        write_source_to_index(run, recipe)
    if processes.first and recipe.evaluation.report:
        write_report(
            run / "report.html",
            title=f"{recipe.name}: {recipe.loss.name} on {a.test.table.name}",
            sentence=words["sentence"],
            catalogue=None if catalogue is None else catalogue["recall@1"],
            evaluations={**before["test"], after_name(kept): after},
            table=embedded.table,
            embeddings=embedded.vectors,
            labels=labels,
            history=record.history,
            further=prelude.sections,
            choice=_choice(recipe, state, before["choice"]),
            recipe=nested(recipe),
            versions=computed_with(),
            notes=[*words["warnings"], *which, *notes, f"Next: {next_command(run, recipe)}"],
        )
    return {
        "test": {name: _numbers(e) for name, e in evaluations.items()},
        "catalogue": catalogue,
        "words": words,
        "next": next_command(run, recipe),
        "report": str(run / "report.html") if recipe.evaluation.report else None,
    }


def next_command(run: Path, recipe: Recipe, *options: str) -> str:
    """What to do with a trained model, with the paths of this run in it.

    Args:
        options: of `forerank index`.

    >>> next_command(Path("runs/birds"), Recipe())
    'forerank index runs/birds glyphs -o runs/birds/index && forerank serve runs/birds/index'
    """
    model, images, index, *more = map(
        shlex.quote, [str(run), source_to_index(run, recipe), str(run / "index"), *options]
    )
    return f"{' '.join(['forerank index', model, images, '-o', index, *more])} && forerank serve {index}"


def source_to_index(run: Path, recipe: Recipe) -> str:
    """Where `forerank index` finds the images of a run with their labels."""
    d = recipe.data
    if Path(d.source).suffix.lower() != ".csv":
        return d.root or d.source
    return d.source if d.root is None else str(run / IMAGES)


def write_source_to_index(run: Path, recipe: Recipe) -> None:
    """Write the run's own copy of a CSV table whose paths start elsewhere: an index takes no root."""
    if source_to_index(run, recipe) == str(run / IMAGES) and not (run / IMAGES).exists():
        table = open_table(recipe.data.source, root=recipe.data.root)
        paths = [str((Path(table.root) / path).absolute()) for path in table.path.tolist()]
        with explain_write_errors(run / IMAGES):
            table.with_columns(path=np.array(paths)).write_csv(run / IMAGES)


def _choice(recipe: Recipe, state: Mapping[str, Any], before: float | None) -> CheckpointChoice | None:
    """How the checkpoint was chosen; None where no part chose."""
    return (
        None if before is None else CheckpointChoice(recipe.evaluation.choose_by, state["best_step"], before)
    )


def notes_of(
    recipe: Recipe, state: Mapping[str, Any], before: Mapping[str, Any], about_data: list[str]
) -> list[str]:
    """What a reader must not miss."""
    notes, choice = list(about_data), before["choice"]
    if choice is not None and state["best_step"] == 0:
        by = recipe.evaluation.choose_by
        why = f"training did not improve {by}" if state["step"] else "no step of training was taken"
        notes.append(
            f"{why}: the {before['kept']} model, which has {shown(by, choice)} on the validation classes, "
            "is kept"
        )
    if choice is None and not recipe.data.all_classes:
        notes.append("no validation classes were held out: the last checkpoint is the model")
    if recipe.evaluation.choose_on == "test":
        notes.append(
            "the checkpoint was chosen by recall on the test part, as the authors did: "
            "these numbers are optimistic"
        )
    if state["broken"]:
        notes.append(
            f"training stopped at step {state['step']:,}: the loss was no longer a number; try a lower lr"
        )
    return notes


def _numbers(evaluation: Mapping[str, Any]) -> dict[str, float]:
    return {key: float(value) for key, value in evaluation.items() if isinstance(value, int | float)}


def finished_outcome(run: Path) -> Outcome:
    """The outcome of a run that has ended."""
    advice = f"remove {run / RESULTS} to measure the end of the run again"
    return Outcome(run, read_json(run / RESULTS, ("test", "report", "words", "planned_steps"), advice))
