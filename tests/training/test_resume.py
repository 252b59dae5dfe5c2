"""Killed for real, at several moments, then resumed: the same weights bit for bit."""

import json
import os
import resource
import signal
import struct
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from forerank.training import load_recipe, read_history, train
from waiting import LIMIT, wait_until

from .conftest import QUICK, Start

LONG = [
    *QUICK,
    "report=false",
    "steps=90",
    "every=30",
    "save_every=3",
    "patience=null",
    "memory=40",
    "ema=0.9",
]


def tensors(run: Path) -> dict[str, torch.Tensor]:
    """Everything the last and the best checkpoint hold: weights, moments, bank, running mean."""
    files = [
        run / "last" / "model.safetensors",
        run / "last" / "state.safetensors",
        run / "best" / "model.safetensors",
    ]
    return {f"{file.parent.name}/{file.stem}/{k}": v for file in files for k, v in load_file(file).items()}


def steps_done(run: Path) -> int:
    return max((row["step"] for row in read_history(run)), default=0)


def test_killed_at_several_moments_and_resumed(images: Path, tmp_path: Path, start: Start) -> None:
    whole, run = tmp_path / "whole", tmp_path / "killed"
    train(load_recipe(images, LONG), whole)

    moments = {  # -> how much of a checkpoint is left half written
        ("killed when claimed", 0): [],  # before the first step
        ("killed after step", 8): [],  # between two checkpoints, in the middle of an epoch
        ("killed in a file", 16): ["model.safetensors", "state.safetensors"],
        ("killed after step", 32): [],  # after a validation
        ("killed before the rename", 50): ["model.safetensors", "state.json", "state.safetensors"],
    }
    for moment, left in moments.items():
        process = start(["train", images, *LONG, "--run", run], moment=moment)
        _, talk = process.communicate(timeout=LIMIT)
        assert process.returncode == -signal.SIGKILL, talk
        assert steps_done(run) >= moment[1]
        written = {file.name for file in run.glob("checkpoints/.writing-last-*/*")}
        assert written >= set(left), moment
        assert bool(written) is bool(left), moment
    process = start(["train", run])
    _, talk = process.communicate(timeout=LIMIT)
    assert process.returncode == 0, talk
    assert not any((run / "checkpoints").glob(".*"))

    expected, actual = tensors(whole), tensors(run)
    assert expected.keys() == actual.keys()
    assert [key for key in expected if not torch.equal(expected[key], actual[key])] == []
    rows = [[{k: row[k] for k in ("step", "loss", "validation") if k in row} for row in read_history(r)]
            for r in (whole, run)]  # fmt: skip
    assert rows[0] == rows[1]


@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.long), signal.SIGTERM])
def test_a_signal_finishes_the_step_saves_and_says_how_to_resume(
    images: Path, tmp_path: Path, start: Start, number: signal.Signals
) -> None:
    run = tmp_path / "run"
    values = [v for v in LONG if not v.startswith("save_every")] + ["steps=100000", "every=100000"]
    process = start(["train", images, *values, "--run", run])
    wait_until(lambda: steps_done(run) >= 5, "five steps are done", process)
    process.send_signal(number)
    _, talk = process.communicate(timeout=LIMIT)
    assert process.returncode == 128 + number
    last = talk.strip().splitlines()[-1]
    assert last.startswith("forerank: stopped after step ")
    assert last.endswith(f"resume with: forerank train {run}")
    assert "Traceback" not in talk
    assert (run / "last" / "model.safetensors").exists()
    saved = int(last.split("step ")[1].split(",")[0])
    assert saved == steps_done(run)


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long)])
def test_a_signal_before_the_first_step_says_how_to_resume(
    images: Path, tmp_path: Path, start: Start, number: signal.Signals
) -> None:
    run = tmp_path / "run"
    process = start(["train", images, *LONG, "--run", run], moment=("waits while preparing", 0))
    wait_until((tmp_path / "run.prepares").exists, "the model is measured before training", process)
    process.send_signal(number)
    _, talk = process.communicate(timeout=LIMIT)
    assert process.returncode == 128 + number
    last = talk.strip().splitlines()[-1]
    assert last == f"forerank: stopped while preparing; resume with: forerank train {run}"
    assert "Traceback" not in talk


def test_a_full_disk_leaves_the_old_checkpoint(images: Path, tmp_path: Path, start: Start) -> None:
    """The system refuses files above 2 MB: the weights (1.4 MB) fit, the moments (2.7 MB) do not."""
    run, values = tmp_path / "run", [*QUICK, "report=false", "steps=12", "every=4"]

    def refuse_large_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2_000_000, 2_000_000))

    process = start(["train", images, *values, "steps=100000", "--run", run])
    wait_until((run / "last").exists, "the first checkpoint is written", process)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    before = tensors(run)

    process = start(["train", run], preexec_fn=refuse_large_files)
    _, talk = process.communicate(timeout=LIMIT)
    assert process.returncode == 1
    last = talk.strip().splitlines()[-1]
    assert last.startswith(f"forerank: cannot write a checkpoint in {run} (")
    assert "intact" in last
    assert "Traceback" not in talk
    after = tensors(run)
    assert all(torch.equal(before[key], after[key]) for key in before if key.startswith("last"))
    assert not any((run / "checkpoints").glob(".writing-*"))


@pytest.mark.long  # the test above fills the disk while a checkpoint is written
def test_a_disk_that_fills_up_between_checkpoints_ends_the_run_and_hangs_nowhere(
    images: Path, tmp_path: Path, start: Start
) -> None:
    """From some step on no file may grow: events are given up, then what comes next ends the run."""
    run = tmp_path / "run"
    values = [*QUICK, "report=false", "steps=100000", "every=100000", "save_every=20"]
    process = start(["train", images, *values, "--run", run], moment=("full after step", 22))
    _, talk = process.communicate(timeout=LIMIT)
    assert process.returncode == 1, talk
    *_, told, last = talk.strip().splitlines()
    assert told == "no more numbers for TensorBoard (File too large): the run goes on"
    assert last.startswith("forerank: cannot write ")
    assert last.endswith(f"intact; make room, then resume with: forerank train {run}")
    assert "Traceback" not in talk
    saved = json.loads((run / "last" / "state.json").read_text())["step"]
    process = start(["train", run])
    wait_until(lambda: steps_done(run) >= saved + 30, "the run goes on", process)
    process.send_signal(signal.SIGINT)
    _, talk = process.communicate(timeout=LIMIT)
    assert process.returncode == 130, talk


def test_the_board_can_be_read_and_steps_done_again_replace_the_old_ones(tmp_path: Path) -> None:
    from tensorboardX.proto.event_pb2 import Event

    from forerank.training.trackers.tensorboard import Board

    for purge in (None, 2):
        board = Board(tmp_path, purge)
        board.add([("loss", 0.5), ("validation/recall@1", 0.25)], step=2)
        board.close()
    events = []
    for file in sorted(tmp_path.iterdir()):
        content = file.read_bytes()
        while content:
            (length,) = struct.unpack("<Q", content[:8])
            events.append(Event.FromString(content[12 : 12 + length]))
            content = content[16 + length :]
    assert [event.WhichOneof("what") for event in events] == [
        "file_version", "summary", "file_version", "session_log", "summary",
    ]  # fmt: skip
    assert events[3].step == 2
    assert {value.tag: value.simple_value for value in events[4].summary.value} == {
        "loss": 0.5, "validation/recall@1": 0.25,
    }  # fmt: skip


def test_a_board_without_room_is_given_up_in_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from forerank.training.trackers import Begin, Trackers

    trackers = Trackers("tensorboard", Begin(tmp_path, "glyphs", {}, step=0))
    trackers._live["TensorBoard"]._file = Path("/dev/full").open("wb", buffering=0)  # noqa: SIM115
    trackers.add([("loss", 0.5)], step=1)
    trackers.add([("loss", 0.5)], step=2)
    trackers.close()
    said = capsys.readouterr().err
    assert said == "no more numbers for TensorBoard (No space left on device): the run goes on\n"
