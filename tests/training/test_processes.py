"""Several processes under torchrun: the same curve as one, one writer, a death that is explained."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import torch
from safetensors.torch import load_file

from forerank.errors import InputError
from forerank.training import load_recipe, read_history, train
from forerank.training.prepare import complete_recipe, open_parts
from forerank.training.record import with_begun_batch
from waiting import LIMIT, finish, wait_until

from .conftest import CALM, QUICK, Start
from .test_resume import steps_done


def losses(run: Path) -> list[float]:
    return [row["loss"] for row in read_history(run) if "loss" in row]


# The long ones: four processes, below, compute the same and more.
@pytest.mark.parametrize("values", [
    pytest.param([], marks=pytest.mark.long),
    pytest.param(["micro_batch=3", "memory=40"], marks=pytest.mark.long),
    ["loss=pml:ProxyNCALoss", "loss.options={}"],
], ids=lambda v: ",".join(v) or "plain")  # fmt: skip
def test_two_processes_equal_one_with_the_joint_batch(
    images: Path, tmp_path: Path, start: Start, values: list[str]
) -> None:
    runs = {count: tmp_path / str(count) for count in (1, 2)}
    for count, run in runs.items():
        process = start(["train", images, *CALM, *values, f"run={run}", "--json"], processes=count)
        out, talk = process.communicate(timeout=LIMIT)
        assert process.returncode == 0, talk
        assert out.count('"training_seconds"') == 1  # only the first process speaks
        assert talk.count(": validation recall@1") == 3
    one, two = losses(runs[1]), losses(runs[2])
    assert len(one) == len(two) == 20
    assert one == pytest.approx(two, abs=1e-5)
    assert one[0] != one[-1]
    tests = [read_history(run)[-1]["test"]["recall@1"] for run in runs.values()]
    assert tests[0] == pytest.approx(tests[1], abs=0.03)


@pytest.mark.parametrize("count", [4, pytest.param(8, marks=pytest.mark.long)])
def test_many_processes_equal_one_with_the_joint_batch(
    images: Path, tmp_path: Path, start: Start, count: int
) -> None:
    """Micro batches, a memory bank and a running mean at once, and validation and test shared out."""
    values = [*CALM, "batch_size=32", "steps=4", "every=2", "report=false", "memory=40", "ema=0.9",
              "micro_batch=2"]  # fmt: skip
    runs = {n: tmp_path / str(n) for n in (1, count)}
    for n, run in runs.items():
        process = start(["train", images, *values, f"run={run}"], processes=n)
        _, talk = process.communicate(timeout=LIMIT)
        assert process.returncode == 0, talk
    one, many = (read_history(run) for run in runs.values())
    losses_of = [[row["loss"] for row in history if "loss" in row] for history in (one, many)]
    assert losses_of[0] == pytest.approx(losses_of[1], abs=1e-5)
    assert len(set(losses_of[0])) == 4
    here, there = (load_file(run / "last" / "model.safetensors") for run in runs.values())
    for name in here:
        torch.testing.assert_close(there[name], here[name], rtol=1e-3, atol=2e-6)
    assert [row["validation"] for row in one if "validation" in row] == [
        row["validation"] for row in many if "validation" in row
    ]


# A real process that dies at a moment that the test chooses: when it is about to count its share.
DIES = """
import os, signal, sys
from forerank.cli import main
from forerank.ranking.hard_count import Counter
whole, evaluations = Counter.run, 0
def die(self, tiles):
    global evaluations
    evaluations += 1
    if os.environ["RANK"] == "1" and evaluations == int(os.environ["DIES_IN"]):
        os.kill(os.getpid(), signal.SIGKILL)
    whole(self, tiles)
Counter.run = die
main()
"""


def run_and_lose_rank_1(folder: Path, arguments: list[object], evaluation: int) -> str:
    """What is said when rank 1 of two dies in the middle of an evaluation, counted from 1."""
    (folder / "dies.py").write_text(DIES)
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(folder / "dies.py")]
    done = subprocess.run(
        [sys.executable, *launcher, *map(str, arguments)],
        env=os.environ | {"DIES_IN": str(evaluation)},
        capture_output=True, text=True, timeout=LIMIT, check=False,
    )  # fmt: skip
    assert done.returncode != 0
    assert "Signal 9 (SIGKILL)" in done.stderr  # torchrun's own words
    ours = [line for line in done.stderr.splitlines() if line.startswith("forerank: ")]
    assert len(ours) == 1, done.stderr
    return ours[0]


def test_a_process_that_dies_in_the_middle_of_evaluation(images: Path, tmp_path: Path, start: Start) -> None:
    """In training: resumed from the checkpoint. Of a run: said in a sentence, and the next attempt works."""
    run = tmp_path / "run"
    values = [*QUICK, "report=false", "steps=6", "every=2"]
    said = run_and_lose_rank_1(tmp_path, ["train", images, *values, f"run={run}"], evaluation=3)
    assert "another process of this run ended or stopped answering" in said
    assert "the same command resumes" in said
    assert steps_done(run) == 4  # the evaluation after step 4 was the third, the untrained model's the first
    process = start(["train", images, *values, f"run={run}"], processes=2)
    _, talk = process.communicate(timeout=LIMIT)
    assert process.returncode == 0, talk
    assert "from step 2" in talk
    assert steps_done(run) == 6

    said = run_and_lose_rank_1(tmp_path, ["evaluate", run, "--json"], evaluation=1)
    assert "another process of this run ended or stopped answering" in said
    assert said.endswith("start the same command again")
    answers = []
    for count in (8, 1):
        process = start(["evaluate", run, "--json"], processes=count)
        out, talk = process.communicate(timeout=LIMIT)
        assert process.returncode == 0, talk
        answers.append(json.loads(out))
    eight, one = (answer["metrics"] for answer in answers)
    assert eight == pytest.approx(one, abs=1e-9)
    assert eight["recall@1"] == one["recall@1"]


def test_a_process_that_dies_ends_the_run_readably_and_it_can_be_resumed(
    images: Path, tmp_path: Path, start: Start
) -> None:
    run = tmp_path / "run"
    values = [*QUICK, "report=false", "steps=100000", "every=100000", "save_every=5"]
    process = start(["train", images, *values, f"run={run}"], processes=2)
    wait_until(lambda: steps_done(run) >= 12, "twelve steps are done", process)
    victim = _worker(process.pid, rank=1)
    os.kill(victim, signal.SIGKILL)
    _, talk = process.communicate(timeout=LIMIT)
    assert process.returncode != 0
    assert "another process of this run ended" in talk
    assert (run / "last" / "state.json").exists()
    saved = steps_done(run)
    # One process takes up what two began: the global batch is the same.
    process = start(["train", run])
    wait_until(lambda: steps_done(run) >= saved + 3, "the run goes on", process)
    process.send_signal(signal.SIGINT)
    _, talk = process.communicate(timeout=LIMIT)
    assert process.returncode == 130, talk


def test_several_machines_by_the_documented_command(
    images: Path, tmp_path: Path, start: Start, torchrun_address: str
) -> None:
    """Two times torchrun, each with a process, meet at an address: as on two machines with a shared disk."""
    meeting = ["--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint={torchrun_address}"]
    run, alone = tmp_path / "two", tmp_path / "one"
    values = [*CALM, "steps=6", "every=3", "report=false"]
    both = [start(["train", images, *values, f"run={run}", "--json"], torchrun=meeting) for _ in range(2)]
    alone_process = start(["train", images, *values, f"run={alone}"])
    said = finish(*both, alone_process)
    assert [process.returncode for process in [*both, alone_process]] == [0, 0, 0], said
    assert sorted(out.count('"training_seconds"') for out, _ in said[:2]) == [0, 1]
    assert len(losses(run)) == 6
    assert losses(run) == pytest.approx(losses(alone), abs=1e-5)


def test_an_error_is_said_once(images: Path, tmp_path: Path, start: Start) -> None:
    """Both processes refuse the batch; the first one alone meets the broken image, the other its end."""
    broken = tmp_path / "broken"
    shutil.copytree(images, broken)
    (broken / "class_00" / "0.png").write_bytes(b"not a picture")
    sentences = {
        "a batch of 3 classes cannot be shared evenly by 2 processes": [images, *QUICK, "batch_size=12"],
        "1 of 160 images cannot be used, first class_00/0.png": [broken, *QUICK],
    }
    for sentence, arguments in sentences.items():
        process = start(["train", *arguments, f"run={tmp_path / 'run'}"], processes=2)
        _, talk = process.communicate(timeout=LIMIT)
        assert process.returncode != 0
        assert talk.count(f"forerank: {sentence}") == 1
        assert talk.count("forerank: ") == 1
        assert not (tmp_path / "run").exists()


def test_a_run_keeps_its_batch_when_other_processes_take_it_up(images: Path, tmp_path: Path) -> None:
    """Two processes fit a batch that nobody chose to 10 of 11 classes; one, which would take 11, keeps it."""
    run = tmp_path / "run"
    values = [v for v in QUICK if not v.startswith("batch_size")] + ["report=false", "steps=2"]
    parts = open_parts(load_recipe(images, values))
    fitted = [complete_recipe(load_recipe(images, values), parts["train"], n, "cpu") for n in (1, 2)]
    sizes = [recipe.batch.batch_size for recipe in fitted]
    assert sizes == [44, 40]
    train(load_recipe(images, [*values, "batch_size=40"]), run)  # what two processes would have begun
    (run / "results.json").unlink()
    assert train(load_recipe(images, values), run).results["steps"] == 2
    assert load_recipe(run / "recipe.yaml").batch.batch_size == 40
    with pytest.raises(InputError, match="batches of 10 classes, which 3 processes cannot share evenly"):
        with_begun_batch(load_recipe(images, values), run, processes=3)


def _worker(agent: int, rank: int) -> int:
    """The process id of a rank: torchrun's children know their rank from the environment."""
    (worker,) = [
        child for child in psutil.Process(agent).children() if child.environ().get("RANK") == str(rank)
    ]
    return worker.pid
