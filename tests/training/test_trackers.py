"""MLflow and W&B get the numbers that metrics.jsonl has, through their real libraries."""

import json
import struct

import pytest

from forerank.cli import run as command
from forerank.errors import InputError
from forerank.training import load_recipe, train
from forerank.training.trackers import TRACKERS, tracker_names
from waiting import wait_until

SHORT = [
    "backbone=glyphnet", "pooling=gem", "pretrained=false", "mode=full", "embedding_dim=16", "batch_size=16",
    "images_per_class=4", "steps=6", "every=3", "report=false", "nmi=false", "ks=[1]",
]  # fmt: skip


@pytest.fixture
def tracked(images, tmp_path, monkeypatch):
    """A short run with both trackers, and no address of a server in the environment."""
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME", "WANDB_MODE", "WANDB_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    run = tmp_path / "runs" / "short"
    train(load_recipe(images, [*SHORT, "tracking=mlflow,wandb"]), run)
    return run


def losses(run):
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return {row["step"]: row["loss"] for row in rows if "loss" in row}


def records_of(data):
    """The records of a .wandb file: after 7 bytes a log as LevelDB writes it, in blocks of 32 KiB."""
    place, record = 7, b""
    while place + 7 <= len(data):
        if 32768 - place % 32768 < 7:  # no header fits in the rest of a block
            place += 32768 - place % 32768
            continue
        length, kind = struct.unpack_from("<HB", data, place + 4)
        if place + 7 + length > len(data):  # it is just being written
            return
        record += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield record
            record = b""


def test_both_get_the_numbers_and_the_recipe_and_send_nothing(tracked):
    from mlflow.tracking import MlflowClient
    from wandb.proto.wandb_internal_pb2 import Record

    expected = losses(tracked)
    assert len(expected) >= 2
    client = MlflowClient((tracked.parent / "mlruns").as_uri())
    number = (tracked / "mlflow-run-id.txt").read_text().strip()
    stored = client.get_run(number)
    assert stored.info.status == "FINISHED"
    assert stored.data.params["batch.batch_size"] == "16"
    assert {m.step: m.value for m in client.get_metric_history(number, "loss")} == pytest.approx(expected)
    assert "validation/recall_at_1" in stored.data.metrics

    (file,) = tracked.rglob("*.wandb")
    assert file.parent.name.startswith("offline-run-")

    def sent():
        found = {}
        for record in map(Record.FromString, records_of(file.read_bytes())):
            if record.WhichOneof("record_type") == "history":
                items = {
                    i.key or "/".join(i.nested_key): json.loads(i.value_json) for i in record.history.item
                }
                found |= {items["_step"]: items["loss"]} if "loss" in items else {}
        return found

    wait_until(lambda: len(sent()) >= len(expected), "wandb's own process has written every row")
    assert sent() == pytest.approx(expected)
    assert not (tracked / "tensorboard").exists()  # it was not named


def test_a_resumed_run_goes_on_in_the_same_mlflow_run(tracked, monkeypatch):
    from mlflow.tracking import MlflowClient

    from forerank.training.trackers import Begin, Trackers

    number = (tracked / "mlflow-run-id.txt").read_text()
    trackers = Trackers("mlflow", Begin(tracked, "glyphs", {}, step=6))
    trackers.add([("loss", 0.5)], 7)
    trackers.close()
    assert (tracked / "mlflow-run-id.txt").read_text() == number
    client = MlflowClient((tracked.parent / "mlruns").as_uri())
    assert client.get_metric_history(number.strip(), "loss")[-1].step == 7
    assert client.get_run(number.strip()).info.status == "FINISHED"


def test_a_server_that_is_not_there_does_not_end_the_run(images, tmp_path, monkeypatch, capsys, closed_port):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{closed_port}")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    train(load_recipe(images, [*SHORT, "tracking=mlflow"]), tmp_path / "run")
    assert capsys.readouterr().err.count("no more numbers for MLflow") == 1
    assert len(losses(tmp_path / "run")) >= 2


def test_an_unknown_tracker_is_refused_before_anything_is_written(tmp_path, capsys):
    assert command(["train", "glyphs", "tracking=mlfow", "--run", str(tmp_path / "run")]) == 2
    assert "unknown tracker 'mlfow': did you mean 'mlflow'?" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
    with pytest.raises(InputError, match="unknown tracker"):
        tracker_names("none,mlflow")
    assert tracker_names(",".join(TRACKERS)) == list(TRACKERS)
