"""Training on an accelerator: every mode ends as on the CPU, and a device mix-up fails with its place."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from forerank.training import load_recipe, read_history, train
from forerank.training.methods import METHODS
from pretend_device import DEVICE, Wait, host_waits

from .conftest import CALM, draw_images

SHORT = [*CALM, "steps=3", "every=3", "report=false", "precision=fp32"]
PRETRAINED = ["backbone=efficientnet-lite0", "pretrained=true", "image_size=32", "pooling=auto"]
MODES = {
    "full": [
        "report=true",
        "nmi=true",
        "clip=1.0",
        "clip_value=0.1",
        "head_warmup=1",
        "schedule.kind=cosine",
    ],
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
        torch.testing.assert_close(
            there[name], here[name], rtol=1e-4, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}"
        )
    losses = [[row["loss"] for row in figures(run) if "loss" in row] for run in runs.values()]
    assert losses[1] == pytest.approx(losses[0], rel=1e-5, abs=1e-6)
    assert len(set(losses[0])) == 3
    tests = [[row["test"]["recall@1"] for row in figures(run) if "test" in row] for run in runs.values()]
    assert tests[0] == tests[1]


def test_a_head_on_cached_features_with_memory_and_running_mean(few_images: Path, tmp_path: Path) -> None:
    runs = {device: tmp_path / device for device in ("cpu", DEVICE)}
    for device, run in runs.items():
        values = [
            *SHORT,
            *PRETRAINED,
            "mode=head",
            "memory=40",
            "ema=0.9",
            "micro_batch=4",
            f"device={device}",
        ]
        train(load_recipe(few_images, values), run)
    here, there = (end_of(run) for run in runs.values())
    assert here.keys() == there.keys()
    # On a processor openvino computes the features, on an accelerator torch: equal up to rounding.
    for name in here:
        torch.testing.assert_close(there[name], here[name], rtol=1e-4, atol=1e-5)
    losses = [[row["loss"] for row in figures(run) if "loss" in row] for run in runs.values()]
    assert losses[1] == pytest.approx(losses[0], rel=1e-5, abs=1e-6)


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
    expected, actual = end_of(whole), end_of(resumed)
    assert [name for name in expected if not torch.equal(expected[name], actual[name])] == []
    assert figures(whole) == figures(resumed)


# Every line of a step at which the host waits for the accelerator, by recipe. Each one is there for a reason:
READS_LOSS = "value = float(loss.detach())"  # decides whether the step is taken, and is recorded
READS_BANK = "on_host = torch.cat(facts).cpu()"  # which rows of the bank stay
SKIPS_OVERFLOW = "a.scaler.step(a.optimiser)"  # torch's gradient scaler asks whether there was an overflow
STEPS = {
    "plain": ([], [READS_LOSS]),
    "micro-batch": (["micro_batch=4"], [READS_LOSS]),
    "clipped, running mean, head first": (
        ["clip=1.0", "clip_value=0.5", "ema=0.9", "head_warmup=9"],
        [READS_LOSS],
    ),
    "memory": (["memory=40"], [READS_BANK, READS_LOSS]),
    "memory and micro-batch": (["memory=40", "micro_batch=4"], [READS_BANK, READS_LOSS]),
    "half precision": (["precision=fp16"], [READS_LOSS, SKIPS_OVERFLOW]),
    "loss that draws": (["loss=Recall@k", "loss.mixup=true"], [READS_LOSS]),
}


@pytest.mark.parametrize("case", STEPS)
def test_the_host_waits_no_more_often_than_named(
    few_images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    from forerank.training import loop

    values, expected = STEPS[case]
    seen: list[list[Wait]] = []
    real = loop.take_step

    def watched(a: Any, batch: Any, step: int) -> float:
        with host_waits() as waits:
            value = real(a, batch, step)
        seen.append(waits)
        return value

    monkeypatch.setattr(loop, "take_step", watched)
    train(load_recipe(few_images, [*SHORT, *values, f"device={DEVICE}"]), tmp_path / "run")
    assert len(seen) == 3
    for waits in seen[1:]:  # the first step also makes what is kept, such as the scale of the gradient
        assert [wait.line for wait in waits] == expected, waits


@pytest.mark.parametrize("precision", ["fp16", pytest.param("bf16", marks=pytest.mark.long)])
def test_half_precision_follows_single_precision_and_resumes(
    few_images: Path, tmp_path: Path, precision: str
) -> None:
    values = [*SHORT, f"device={DEVICE}", "steps=4", "every=2", "patience=null", "micro_batch=3"]
    recipe = load_recipe(few_images, [*values, f"precision={precision}"])
    whole, resumed, single = (tmp_path / name for name in ("whole", "resumed", "single"))
    train(recipe, whole)
    stop_after(recipe, resumed, steps=2)
    saved = load_file(resumed / "last" / "state.safetensors")
    assert [saved[k].item() for k in ("scaler.scale", "scaler._growth_tracker") if k in saved] == (
        [65536.0, 2.0] if precision == "fp16" else []
    )
    train(recipe, resumed)
    expected, actual = end_of(whole), end_of(resumed)
    assert [name for name in expected if not torch.equal(expected[name], actual[name])] == []
    train(load_recipe(few_images, values), single)
    losses = [[row["loss"] for row in figures(run) if "loss" in row] for run in (whole, single)]
    assert losses[0] == pytest.approx(losses[1], rel=0.02)
    assert losses[0] != losses[1]


@pytest.mark.parametrize(
    "values", [[], ["micro_batch=3", "memory=20", "ema=0.5"]], ids=["whole", "micro-batch"]
)
def test_a_step_that_overflows_is_left_out_and_the_scale_falls(
    few_images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, values: list[str]
) -> None:
    """The first scale is so large that gradients overflow for real; halved again and again, it fits."""
    from forerank.training import loop

    seen: list[tuple[float, bool]] = []
    real = loop.take_step

    def watched(a: Any, batch: Any, step: int) -> float:
        if step == 0:
            a.scaler.load_state_dict({**a.scaler.state_dict(), "scale": 2.0**127, "backoff_factor": 2.0**-60})
        before = [p.detach().cpu().clone() for p in a.parameters]
        value = real(a, batch, step)
        moved = any(not torch.equal(p.detach().cpu(), q) for p, q in zip(a.parameters, before, strict=True))
        seen.append((a.scaler.get_scale(), moved))
        return value

    monkeypatch.setattr(loop, "take_step", watched)
    recipe = load_recipe(few_images, [*SHORT, *values, "precision=fp16", f"device={DEVICE}"])
    outcome = train(recipe, tmp_path / "run")
    assert seen == [(2.0**67, False), (2.0**7, False), (2.0**7, True)]
    assert not outcome.results["broken"]
    assert load_file(tmp_path / "run" / "last" / "state.safetensors")["scaler.scale"].item() == 2.0**7
    weights = load_file(tmp_path / "run" / "last" / "model.safetensors").values()
    assert all(bool(weight.isfinite().all()) for weight in weights)


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
