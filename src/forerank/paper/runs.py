"""Carry out a plan: train what is not there yet, small runs side by side, and keep what they measured."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from pathlib import Path

from forerank.console import progress_bar, say
from forerank.errors import ForerankError
from forerank.files import write_atomically
from forerank.paper.study import RESULT, Run
from forerank.training.recipe import recipe_text

INTERRUPTED = "interrupted"  # what a run answers that was asked to stop and has saved itself


def carry_out(runs: Sequence[Run], *, side_by_side: int = 1, processes: int = 1) -> list[str]:
    """Train every run that has not ended; what went wrong, one line for each run that failed.

    Args:
        runs: the plan; runs that have ended are skipped, those begun are taken up.
        side_by_side: how many to train at once, each on its share of the cores (small runs on a CPU).
        processes: processes of each run, started with torchrun (one a GPU).
    """
    left = [run for run in runs if run.result() is None]
    if not left:
        return []
    say(f"{len(runs) - len(left)} of {len(runs)} training runs are there, {len(left)} to do")
    began = time.perf_counter()
    failed: list[str] = []
    with progress_bar("training runs", len(left)) as advance:
        for number, (run, problem) in enumerate(_results(left, side_by_side, processes), start=1):
            advance(1, note=run.title)
            if problem == INTERRUPTED:
                raise KeyboardInterrupt  # the run is saved; the others are not begun
            if problem:
                failed.append(f"{run.title}: {problem}")
                say(f"failed: {failed[-1]}")
            elif number % 10 == 0:
                rest = (time.perf_counter() - began) / number * (len(left) - number)
                say(f"{number} of {len(left)} trained, about {rest / 60:.0f} minutes to go")
    return failed


def _results(left: Sequence[Run], side_by_side: int, processes: int) -> Iterator[tuple[Run, str]]:
    """Each run as it ends, with "" or what went wrong."""
    if processes > 1:
        for run in left:
            yield run, train_with_torchrun(run, processes)
        return
    if side_by_side <= 1:
        for run in left:
            yield run, _train(run)
        return
    from forerank.training.prepare import open_parts

    open_parts(left[0].recipe)  # what is wrong with the data is said once; data that is drawn, is drawn once
    threads = max(1, (os.cpu_count() or 1) // side_by_side)
    ahead = iter(left)
    going: dict[Future[str], tuple[Run, ProcessPoolExecutor]] = {}
    try:
        for run in islice(ahead, side_by_side):
            worker = _start_worker(threads)
            going[worker.submit(_train_quietly, run)] = run, worker
        while going:  # no more in hand than are training, so that Ctrl-C has no queue to wait for
            for done in wait(going, return_when=FIRST_COMPLETED).done:
                run, worker = going[done]
                try:
                    problem = done.result()
                except BrokenProcessPool:
                    problem = f"its process was killed, perhaps for want of memory; see {_log(run)}"
                yield run, problem
                del going[done]
                if isinstance(done.exception(), BrokenProcessPool):
                    worker.shutdown()
                    worker = _start_worker(threads)
                following = next(ahead, None)
                if following is None:
                    worker.shutdown()
                else:
                    going[worker.submit(_train_quietly, following)] = following, worker
    finally:
        for _, worker in going.values():
            worker.shutdown(wait=True, cancel_futures=True)


def _start_worker(threads: int) -> ProcessPoolExecutor:
    """A pool of one process: if it dies, it is known with which run, and the others train on."""
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(1, mp_context=context, initializer=_use_threads, initargs=(threads,))


def train_with_torchrun(run: Run, processes: int) -> str:
    """One run over several processes of this machine; "" or what went wrong."""
    run.folder.parent.mkdir(parents=True, exist_ok=True)
    recipe = run.folder.parent / f"{run.key}.yaml"
    write_atomically(recipe, recipe_text(run.recipe))
    command = torchrun_command(run, processes, recipe)
    began = time.perf_counter()
    # In a session of its own, so that Ctrl-C reaches it once, from here; it hands it on to its processes.
    child = subprocess.Popen(
        [sys.executable, "-m", "torch.distributed.run", *command[1:]], start_new_session=True
    )
    try:
        code = child.wait()
    except KeyboardInterrupt:
        child.send_signal(signal.SIGINT)
        child.wait()  # until its processes have saved and ended
        return INTERRUPTED
    if code != 0:
        return f"torchrun ended with code {code}"
    conclude(run, time.perf_counter() - began)
    return ""


def torchrun_command(run: Run, processes: int, recipe: Path) -> list[str]:
    """The command line that trains a run over several processes."""
    return [
        "torchrun",
        f"--nproc-per-node={processes}",
        "-m",
        "forerank",
        "train",
        str(recipe),
        f"run={run.folder}",  # torchrun would take --run for its own
    ]


def _train(run: Run) -> str:
    """Train one run here; "" or what went wrong."""
    from forerank.training.interruption import InterruptedRun
    from forerank.training.loop import train

    began = time.perf_counter()
    try:
        train(run.recipe, run.folder)
        conclude(run, time.perf_counter() - began)
    except InterruptedRun:
        return INTERRUPTED
    except ForerankError as error:
        return str(error)
    except Exception as error:  # a fault of one run must not end the others
        with _log(run).open("a", encoding="utf-8") as file:
            traceback.print_exc(file=file)
        return f"{type(error).__name__}: {error} (see {_log(run)})"
    return ""


def _log(run: Run) -> Path:
    """The file for what a run says when nobody can listen; its folder is made."""
    path = run.folder.parent / "logs" / f"{run.key}.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def conclude(run: Run, seconds: float) -> None:
    """Keep what the tables need of an ended run, in one small file that says it has ended."""
    results = json.loads((run.folder / "results.json").read_text(encoding="utf-8"))
    metrics = dict(results["test"]["trained"])
    if run.recipe.data.source == "vehicle_id":
        metrics |= vehicle_tests(run)
    values = {
        "metrics": metrics,
        "seconds": round(seconds, 1),
        "steps": results["steps"],
        "broke": bool(results["broken"]),
        "learned": results["best_step"] > 0,  # otherwise the model as it came is what was measured
    }
    write_atomically(run.folder / RESULT, json.dumps(values, indent=1))


def vehicle_tests(run: Run) -> dict[str, float]:
    """VehicleID's three test lists by the run's best model: "small/recall@1" and so on."""
    from forerank.data import open_table
    from forerank.data.vehicle_id import TEST_LISTS
    from forerank.metrics import evaluate
    from forerank.models import Retriever

    retriever = Retriever.load(run.folder)
    found: dict[str, float] = {}
    for size in TEST_LISTS:
        table = open_table("vehicle_id", run.recipe.data.root, test=size).select("test")
        measured = evaluate(
            retriever.embed(table.files), table.label_ids, ks=run.recipe.evaluation.ks, nmi=False
        )
        found |= {f"{size}/{name}": float(value) for name, value in measured.items()}
    return found


def _train_quietly(run: Run) -> str:
    """In a worker: what the run says goes to a file beside its folder, since two would talk at once."""
    with _log(run).open("a", encoding="utf-8") as file:
        sys.stdout.flush(), sys.stderr.flush()
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        return _train(run)


def _use_threads(count: int) -> None:
    """Prepare a worker. Between runs Ctrl-C is the parent's to answer; inside one the loop listens."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    import torch

    from forerank.models import keep_freed_memory

    torch.set_num_threads(count)
    keep_freed_memory()
