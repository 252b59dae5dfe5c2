"""Training on an accelerator: every mode ends as on the CPU, and a device mix-up fails with its place."""

from pathlib import Path
from typing import Any

import pytest
import torch
from pretend_device import DEVICE
from safetensors.torch import load_file

from forerank.training import load_recipe, read_history, train
from forerank.training.methods import METHODS

from .conftest import CALM, draw_images

SHORT = [*CALM, "steps=3", "every=3", "report=false", "precision=fp32"]
PRETRAINED = ["backbone=efficientnet-lite0", "pretrained=true", "image_size=32", "pooling=auto"]
MODES = {
    "full": ["report=true", "nmi=true", "clip=1.0", "clip_value=0.1", "head_warmup=1", "schedule.kind=cosine"],
    "micro-batch": ["micro_batch=3"],
    "micro-batch, read twice": ["micro_batch=3", "hold_mb=0"],
    "memory": ["memory=40"],
    "memory, micro-batch and running mean": ["memory=40", "ema=0.9", "micro_batch=3"],
    "blend": [*PRETRAINED, "blend=0.5", "head_warmup=1"],
    "head": [*PRETRAINED, "mode=head"],
    "sgd": ["algorithm=sgd"],
    "peer": ["loss=pml:ProxyNCALoss", "loss.options={}"],
    "peer with memory": ["loss=pml:ContrastiveLoss", "loss.options={}", "memory=20"],
    "loss that draws": ["loss=Recall@k", "loss.mixup=true", "micro_batch=3"],
    **{f"method {name}": [f"method={name}"] for name in METHODS},
    "method mic": ["method=mic", "method.clusters=4"],
    "method divide-and-conquer": ["method=divide-and-conquer", "method.clusters=2"],
}


@pytest.fixture(scope="module")
def few_images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw_images(tmp_path_factory.mktemp("few") / "stripes", classes=12, each=5)


def end_of(run: Path) -> dict[str, torch.Tensor]:
    """All weights and all state that a run leaves."""
    files = ("last/model", "last/state", "best/model")
    return {f"{f}/{k}": v for f in files for k, v in load_file(run / f"{f}.safetensors").items()}


def figures(run: Path) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if k not in ("seconds", "waited")} for row in read_history(run)]


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_ends_as_on_the_cpu(few_images: Path, tmp_path: Path, mode: str) -> None:
    values = [v for v in SHORT if not (mode.startswith("method") and v.startswith("temperature"))]
    runs = {device: tmp_path / device for device in ("cpu", DEVICE)}
    for device, run in runs.items():
        train(load_recipe(few_images, [*values, *MODES[mode], f"device={device}"]), run)
    here, there = (end_of(run) for run in runs.values())
    assert here.keys() == there.keys()
    # Normalisation of a channels-last picture adds up in another order on an accelerator.
    for name in here:
        torch.testing.assert_close(there[name], here[name], rtol=1e-4, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}")
    losses = [[row["loss"] for row in figures(run) if "loss" in row] for run in runs.values()]
    assert losses[1] == pytest.approx(losses[0], rel=1e-5, abs=1e-6)
    assert len(set(losses[0])) == 3
    tests = [[row["test"]["recall@1"] for row in figures(run) if "test" in row] for run in runs.values()]
    assert tests[0] == tests[1]


def test_a_head_on_cached_features_is_the_same_to_the_last_bit(few_images: Path, tmp_path: Path) -> None:
    runs = {device: tmp_path / device for device in ("cpu", DEVICE)}
    for device, run in runs.items():
        values = [*SHORT, *PRETRAINED, "mode=head", "memory=40", "ema=0.9", "micro_batch=4", f"device={device}"]
        train(load_recipe(few_images, values), run)
    here, there = (end_of(run) for run in runs.values())
    assert [name for name in here if not torch.equal(here[name], there[name])] == []
    assert figures(runs["cpu"]) == figures(runs[DEVICE])


@pytest.mark.parametrize("values", [
    ["memory=40", "ema=0.9", "micro_batch=3"], ["method=mic", "method.clusters=4"], ["method=rankmi"],
], ids=lambda v: v[0])  # fmt: skip
def test_a_resumed_run_ends_the_same(few_images: Path, tmp_path: Path, values: list[str]) -> None:
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    values = [v for v in SHORT if "method" not in values[0] or not v.startswith("temperature")] + values
    recipe = load_recipe(few_images, [*values, f"device={DEVICE}", "steps=4", "every=2", "patience=null"])
    train(recipe, whole)
    stop_after(recipe, resumed, steps=2)
    train(recipe, resumed)
    expected, found = end_of(whole), end_of(resumed)
    assert [name for name in expected if not torch.equal(expected[name], found[name])] == []
    assert figures(whole) == figures(resumed)


def stop_after(recipe: Any, run: Path, steps: int) -> None:
    """Take the first steps of a run, as if it had been interrupted then."""
    import signal

    from forerank.training import loop
    from forerank.training.interruption import InterruptedRun

    taken = 0
    real = loop.take_step

    def counted(*arguments: Any) -> Any:
        nonlocal taken
        taken += 1
        if taken == steps:
            signal.raise_signal(signal.SIGINT)  # asks to stop after this step
        return real(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "take_step", counted)
        with pytest.raises(InterruptedRun):
            train(recipe, run)
