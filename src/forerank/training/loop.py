"""The training loop: a table, a model and a method become a run folder.

One process and many run the same lines: start it with ``forerank train ...`` or with
``torchrun --nproc-per-node N -m forerank train ...``. All randomness follows from the recipe's seed and the
step, so the state of a run is its weights, the optimiser's moments and a few numbers, and a
run that was killed and resumed ends with the same weights.
"""

import math
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

from forerank.console import say
from forerank.machine import choose_device
from forerank.metrics.registry import figures_line, is_better
from forerank.training.assemble import Assembly, assemble, build_model
from forerank.training.batches import Batch, BatchStream
from forerank.training.checkpoint import (
    BEST,
    LAST,
    cannot_write,
    clean_checkpoints,
    load_state,
    unreadable,
    write_checkpoint,
)
from forerank.training.image_check import check_images
from forerank.training.interruption import InterruptedRun, Interruption
from forerank.training.large_batch import backward_in_chunks
from forerank.training.measure import embed, measure
from forerank.training.methods import check_method
from forerank.training.optimise import peak_rate, rate_factor, set_rates
from forerank.training.outcome import Outcome, finished_outcome, measure_after, measure_before
from forerank.training.prelude import Prelude
from forerank.training.prepare import complete_recipe, open_parts
from forerank.training.processes import average_gradients, bar, joined, largest, wait_for_all
from forerank.training.recipe import Recipe
from forerank.training.record import RESULTS, Record, claim_run, is_run, refuse_other_run, with_begun_batch


@dataclass
class State:
    """Where a run stands; with the tensors of the assembly this is all that resuming needs."""

    step: int = 0  # steps done
    validated: int = -1  # the step of the last validation
    best: float = -1.0  # best figure of the validation so far: `evaluation.choose_by`
    best_step: int = 0  # where it was reached; 0 is the pretrained model
    stale: int = 0  # validations since then
    broken: bool = False  # the loss was no longer a number


def train(
    recipe: Recipe,
    run: Path,
    *,
    deadline: float | None = None,
    prelude: Prelude | None = None,
    tested: bool = True,
    names_data: bool = True,
) -> Outcome:
    """Train by a recipe into a run folder; a run that was started there is resumed where it stopped.

    Args:
        deadline: moment of `time.monotonic` at which training ends with the best model so far; None: never.
        prelude: what came before this run and is told with its results.
        tested: False leaves the test part alone, for one step of a search.
        names_data: False if what was left out of the data has been said already.

    Raises:
        InputError: the recipe, the data or the folder cannot work, said before any work starts.
        InterruptedRun: a signal asked to stop; the run is saved.
    """
    device = choose_device(recipe.device)
    resume = "the last checkpoint is intact and the same command resumes from it"
    with joined(device, resume) as processes, Interruption() as interruption, ExitStack() as opened:
        try:
            with interruption.at_once():
                prelude = prelude or Prelude()
                recipe = with_begun_batch(recipe, run, processes.count)
                parts = open_parts(recipe)
                complete = complete_recipe(recipe, parts["train"], processes.count, device)
                check_method(complete)  # a wrong name or argument is refused here
                if processes.first:
                    refuse_other_run(run, complete)
                    _say_all(parts["train"].notes if names_data else ())
                if (run / RESULTS).exists():
                    return finished_outcome(run)
                model = build_model(complete)  # weights that cannot be had are refused before any work
                images = check_images(run, parts, complete, processes)
                recipe = complete_recipe(recipe, images.parts["train"], processes.count, device)
                if processes.first:
                    claim_run(run, recipe)
                    images.write(run)
                    _say_all(images.notes if names_data else ())
                wait_for_all(processes)
                a = assemble(recipe, images.parts, processes, model)
                if processes.first:
                    clean_checkpoints(run)
                before = measure_before(run, a, prelude)
                state = _resumed_state(run, a, before["choice"])
        except KeyboardInterrupt:
            if not is_run(run):  # nothing is kept yet
                raise
            raise InterruptedRun(run, None, interruption.signal) from None
        steps = recipe.schedule.steps or recipe.schedule.epochs * a.plan.steps_per_epoch
        end = steps if recipe.schedule.stop is None else min(steps, recipe.schedule.stop)
        validate_every = recipe.evaluation.every or a.plan.steps_per_epoch
        save_every = recipe.save_every or validate_every
        record = opened.enter_context(closing(Record(run, recipe, processes, state.step, state.validated)))
        begun, stream = state.step, BatchStream(lambda step: a.open_batches(step, steps), state.step)
        if processes.first and end:
            say(a.describe(end, state.step))

        with bar("training", end, processes) as advance:
            advance(state.step)
            while True:
                late = deadline is not None and largest(int(time.monotonic() > deadline), processes) > 0
                at_the_end = state.step >= end or late
                if state.validated < state.step and (at_the_end or state.step % validate_every == 0):
                    _validate(a, state, record, run, interruption)
                    _save(run, a, state, LAST)
                elif state.step > begun and state.step % save_every == 0:
                    _save(run, a, state, LAST)
                if at_the_end or state.broken or _out_of_patience(state, recipe):
                    break

                began, waited = time.perf_counter(), stream.waited
                factor = rate_factor(recipe, state.step, steps, a.plan.steps_per_epoch)
                set_rates(a.optimiser, factor)
                loss = take_step(a, next(stream), state.step)
                if not math.isfinite(loss):  # what was learned so far is kept, more steps would not help
                    state.broken = True
                    break
                state.step += 1
                record.add(
                    state.step,
                    epoch=(state.step - 1) // a.plan.steps_per_epoch,
                    loss=loss,
                    lr=factor * peak_rate(recipe),
                    seconds=round(time.perf_counter() - began, 4),
                    waited=round(stream.waited - waited, 4),
                )
                advance(1, note=f"loss {loss:.4f}")

                stop = largest(interruption.signal, processes)
                if stop:
                    _save(run, a, state, LAST)
                    raise InterruptedRun(run, state.step, stop)
        del stream  # ends the loading processes
        try:
            with interruption.at_once(processes.count == 1):
                ended = {**asdict(state), "planned": steps}
                return measure_after(run, a, before, record, ended, images.notes, prelude, tested=tested)
        except KeyboardInterrupt:
            raise InterruptedRun(run, state.step, interruption.signal) from None
        except OSError as error:
            raise cannot_write(f"the results in {run}", run, error) from error


def _say_all(notes: Iterable[str]) -> None:
    for note in notes:
        say(note)


def take_step(a: Assembly, batch: Batch, step: int) -> float:
    """One step of all processes together; the loss."""
    processes, recipe = a.processes, a.recipe
    torch.manual_seed(hash_of(recipe.seed, step, processes.rank))
    only_head = step < recipe.optimiser.head_warmup
    a.set_training(only_head)

    labels: list[torch.Tensor] = []
    rows: list[torch.Tensor] = []

    def first_reading() -> Iterator[torch.Tensor]:
        for inputs, of_chunk, rows_of_chunk in batch.chunks:
            labels.append(of_chunk)
            rows.append(rows_of_chunk)
            yield inputs

    def loss_of(vectors: torch.Tensor) -> torch.Tensor:
        with torch.random.fork_rng(devices=[]):  # a loss that draws pairs draws the same in every process
            torch.manual_seed(hash_of(recipe.seed, step))
            loss: torch.Tensor = a.objective(vectors, torch.cat(labels), torch.cat(rows))
            return loss

    a.optimiser.zero_grad(set_to_none=True)
    scale = a.scaler.scale(torch.ones((), device=processes.device))  # stays there: reading it would wait
    if batch.chunked:
        again = (inputs for inputs, _, _ in batch.again)
        loss = backward_in_chunks(a.encode_for_loss, first_reading(), again, loss_of, processes.device, scale)
    else:
        loss = loss_of(a.encode_for_loss(torch.cat(list(first_reading()))))
        (loss * scale).backward()  # type: ignore[no-untyped-call]
    value = float(loss.detach())  # the one moment of a step at which the host waits for the device
    if not math.isfinite(value):  # the same in all processes: it is the loss of the joint batch
        return value
    average_gradients(a.parameters, processes)
    a.scaler.unscale_(a.optimiser)
    if recipe.optimiser.clip is not None:
        torch.nn.utils.clip_grad_norm_(a.parameters, recipe.optimiser.clip)
    if recipe.optimiser.clip_value is not None:
        torch.nn.utils.clip_grad_value_(a.parameters, recipe.optimiser.clip_value)
    a.scaler.step(a.optimiser)
    a.scaler.update()
    if a.mean is not None:
        a.mean.update(a.model)
    return value


def hash_of(*numbers: int) -> int:
    """A seed made of several numbers, so that neighbouring ones give unrelated streams.

    >>> hash_of(0, 1, 0) != hash_of(0, 0, 1)
    True
    """
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> 1)


def _out_of_patience(state: State, recipe: Recipe) -> bool:
    patience = recipe.evaluation.patience
    return patience is not None and state.stale >= patience


def _validate(a: Assembly, state: State, record: Record, run: Path, interruption: Interruption) -> None:
    """Measure on the part that chooses, and keep the model if it is the best so far."""
    if a.chooser is None:
        state.validated = state.best_step = state.step
        _save(run, a, state, BEST)
        return
    try:
        with interruption.at_once(a.processes.count == 1), a.final_weights():
            evaluation = measure(
                embed(a.encode, a.chooser, a.recipe, a.processes, title=None),
                a.recipe,
                a.processes,
                full=False,
            )
    except KeyboardInterrupt:
        _save(run, a, state, LAST)
        raise InterruptedRun(run, state.step, interruption.signal) from None
    state.validated = state.step
    figure = a.recipe.evaluation.choose_by
    improved = is_better(figure, evaluation[figure], state.best)
    state.stale = 0 if improved else state.stale + 1
    if improved:
        state.best, state.best_step = float(evaluation[figure]), state.step
        _save(run, a, state, BEST)
    figures = dict(evaluation)
    record.add(state.step, validation=figures)
    if a.processes.first:
        remark = ", the best so far" if improved else ""
        say(f"step {state.step:,}: validation {figures_line(figures)}{remark}")


def _save(run: Path, a: Assembly, state: State, link: str) -> None:
    """Write the checkpoint `last` (everything) or `best` (the model), by the first process."""
    if a.processes.first:
        write_checkpoint(
            run, f"{link}-{state.step:07d}", (link,), lambda folder: a.write(folder, asdict(state), link)
        )
    wait_for_all(a.processes)


def _resumed_state(run: Path, a: Assembly, choice: float | None) -> State:
    """The state of the last checkpoint, with its tensors restored; a new state if there is none."""
    if not (run / LAST).exists():
        return State(validated=0, best=-1.0 if choice is None else choice)
    plain, tensors = load_state(run / LAST, asdict(State()).keys())
    try:
        a.restore(run / LAST, tensors)
    except (KeyError, RuntimeError, ValueError) as error:
        raise unreadable(run / LAST, error) from error
    return State(**plain)
