"""Train the runs of a plan that are not there yet, several at once where they are small."""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
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
from forerank.paper.run_results import write_result
from forerank.paper.study import Run
from forerank.training.recipe import recipe_text

INTERRUPTED = "interrupted"  # the answer of a run that was asked to stop and has saved itself


def train_missing(
    runs: Sequence[Run], *, jobs: int = 1, threads: int | None = None, processes: int = 1
) -> list[str]:
    """Train every run that has not ended; what went wrong, one line for each run that failed.

    Args:
        runs: the plan; runs that have ended are skipped, those that were begun are continued.
        jobs: how many to train at the same time (small runs on a CPU).
        threads: of each of these jobs; None: an equal share of the cores.
        processes: processes of each run, started with torchrun (one per GPU).
    """
    left = [run for run in runs if run.result() is None]
    if not left:
        return []
    say(f"{len(runs) - len(left)} of {len(runs)} training runs are there, {len(left)} to do")
    began = time.perf_counter()
    failed: list[str] = []
    with progress_bar("training runs", len(left)) as advance:
        for number, (run, problem) in enumerate(_results(left, jobs, threads, processes), start=1):
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


def _results(
    left: Sequence[Run], jobs: int, threads: int | None, processes: int
) -> Iterator[tuple[Run, str]]:
    """Each run as it ends, with "" or what went wrong."""
    if processes > 1:
        for run in left:
            yield run, train_with_torchrun(run, processes)
        return
    if jobs <= 1:
        for run in left:
            yield run, _train(run, threads)
        return
    from forerank.training.prepare import open_parts

    open_parts(left[0].recipe)  # a fault of the data is reported once; data that is drawn is drawn once
    share = threads or max(1, (os.cpu_count() or 1) // jobs)
    waiting = iter(left)
    training: dict[Future[str], tuple[Run, ProcessPoolExecutor]] = {}
    try:
        for run in islice(waiting, jobs):
            worker = _start_worker(share)
            training[worker.submit(_train_in_worker, run)] = run, worker
        while training:  # nothing is submitted beyond what is training, so Ctrl-C has no queue to wait for
            for done in wait(training, return_when=FIRST_COMPLETED).done:
                run, worker = training[done]
                try:
                    problem = done.result()
                except BrokenProcessPool:
                    problem = f"its process was killed, perhaps because memory ran out; see {_log(run)}"
                yield run, problem
                del training[done]
                if isinstance(done.exception(), BrokenProcessPool):
                    worker.shutdown()
                    worker = _start_worker(share)
                following = next(waiting, None)
                if following is None:
                    worker.shutdown()
                else:
                    training[worker.submit(_train_in_worker, following)] = following, worker
    finally:
        for _, worker in training.values():
            worker.shutdown(wait=True, cancel_futures=True)


def _start_worker(threads: int) -> ProcessPoolExecutor:
    """A pool of one process: if it dies, it is known with which run, and the others go on."""
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(1, mp_context=context, initializer=_use_threads, initargs=(threads,))


def train_with_torchrun(run: Run, processes: int) -> str:
    """One run over several processes of this machine; "" or what went wrong."""
    run.folder.parent.mkdir(parents=True, exist_ok=True)
    recipe = run.folder.parent / f"{run.key}.yaml"
    write_atomically(recipe, recipe_text(run.recipe))
    command = torchrun_command(run, processes, recipe)
    began = time.perf_counter()
    # In its own session, so that Ctrl-C reaches it once, from here; it passes it on to its processes.
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
    write_result(run, time.perf_counter() - began)
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


def _train(run: Run, threads: int | None = None) -> str:
    """Train one run here; "" or what went wrong."""
    from forerank.models import keep_freed_memory
    from forerank.training.interruption import InterruptedRun
    from forerank.training.loop import train

    keep_freed_memory()
    if threads is not None:
        import torch

        torch.set_num_threads(threads)
    began = time.perf_counter()
    try:
        train(run.recipe, run.folder)
        write_result(run, time.perf_counter() - began)
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
    """The file for the messages of a run in a worker; its folder is created."""
    path = run.folder.parent / "logs" / f"{run.key}.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def _train_in_worker(run: Run) -> str:
    """In a worker: the messages of the run go to a file, because those of two runs would mix."""
    with _log(run).open("a", encoding="utf-8") as file:
        sys.stdout.flush(), sys.stderr.flush()
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        return _train(run)


def _end_with_parent() -> None:
    """Wait for the parent's end, however it was killed, and ask this process to save its run and stop."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)
    while signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:  # a run is saving itself
        time.sleep(0.2)
    os._exit(128 + signal.SIGTERM)  # otherwise it would wait for work that nobody sends


def _use_threads(count: int) -> None:
    """Prepare a worker. Between runs the parent answers Ctrl-C; inside a run the loop does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    import torch

    torch.set_num_threads(count)
