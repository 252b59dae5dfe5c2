"""Gradient caching: the gradient of the whole batch, with its randomness, bank and precision."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from forerank.losses import CrossBatchMemory, PNPLoss
from forerank.training import backward_in_chunks, load_recipe, read_history, train

from .conftest import CALM

CPU = torch.device("cpu")
LABELS = torch.arange(16).repeat_interleave(4)  # 64 images


def network(dropout: float) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(10, 32), nn.Dropout(dropout), nn.Tanh(), nn.Linear(32, 8))


def gradients(module: nn.Module) -> Tensor:
    return torch.cat([p.grad.reshape(-1) for p in module.parameters() if p.grad is not None])


@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_equal_to_the_direct_gradient(chunk: int) -> None:
    inputs = torch.randn(64, 10, generator=torch.Generator().manual_seed(1))
    loss = PNPLoss(temperature=0.1)
    direct, cached = network(0.0), network(0.0)
    value = loss(direct(inputs), LABELS)
    value.backward()
    chunks = inputs.split(chunk)
    loss_value = backward_in_chunks(cached, chunks, chunks, lambda e: loss(e, LABELS), CPU)
    assert torch.allclose(loss_value, value, atol=1e-6)
    assert (gradients(direct) - gradients(cached)).abs().max() < 1e-6
    assert gradients(direct).abs().max() > 1e-4


def test_randomness_is_repeated_in_the_second_pass() -> None:
    """With dropout, equal to one pass over the same chunks with a graph; a fresh mask would not be."""
    inputs = torch.randn(64, 10, generator=torch.Generator().manual_seed(1))
    loss = PNPLoss(temperature=0.1)
    direct, cached = network(0.5), network(0.5)
    torch.manual_seed(7)
    loss(torch.cat([direct(part) for part in inputs.split(16)]), LABELS).backward()
    after = torch.rand(1)
    torch.manual_seed(7)
    backward_in_chunks(cached, inputs.split(16), inputs.split(16), lambda e: loss(e, LABELS), CPU)
    assert (gradients(direct) - gradients(cached)).abs().max() < 1e-6
    assert torch.equal(torch.rand(1), after)  # the second pass leaves no trace in the generator
    torch.manual_seed(8)
    other = network(0.5)
    torch.manual_seed(8)
    backward_in_chunks(other, inputs.split(16), inputs.split(16), lambda e: loss(e, LABELS), CPU)
    assert (gradients(direct) - gradients(other)).abs().max() > 1e-4  # the comparison can fail


def test_with_a_memory_bank_and_a_scaled_loss() -> None:
    generator = torch.Generator().manual_seed(1)
    banks = [CrossBatchMemory(PNPLoss(temperature=0.1), size=100) for _ in range(2)]
    direct, cached = network(0.0), network(0.0)
    for step in range(3):
        inputs = torch.randn(64, 10, generator=generator)
        ids = torch.arange(64) + 32 * step
        for module in (direct, cached):
            module.zero_grad()
        (1024 * banks[0](direct(inputs), LABELS, ids=ids)).backward()
        chunks = inputs.split(10)
        backward_in_chunks(
            cached, chunks, chunks, lambda e, ids=ids: banks[1](e, LABELS, ids=ids), CPU, scale=1024
        )
        assert (gradients(direct) - gradients(cached)).abs().max() < 1024 * 1e-6
        assert torch.allclose(banks[0].embeddings, banks[1].embeddings, atol=1e-6)
    assert len(banks[1]) == 100


def test_parameters_of_the_loss_get_their_gradient() -> None:
    scale = nn.Parameter(torch.ones(()))
    inputs = torch.randn(64, 10)
    backward_in_chunks(
        network(0.0), inputs.split(8), inputs.split(8), lambda e: (scale * e).square().mean(), CPU
    )
    assert scale.grad is not None
    assert scale.grad > 0


@pytest.mark.parametrize("values", [[], ["hold_mb=0"], ["precision=bf16"], ["memory=64"], ["mode=head"]],
                         ids=lambda v: ",".join(v) or "plain")  # fmt: skip
def test_a_run_in_micro_batches_is_the_run_of_the_whole_batch(
    images: Path, tmp_path: Path, values: list[str]
) -> None:
    """Held in memory, or read twice from disk (hold_mb=0): the loss curve is that of the whole batch."""
    curves = []
    for name, micro in (("whole", []), ("micro", ["micro_batch=5"])):
        train(load_recipe(images, [*CALM, "report=false", "steps=10", *values, *micro]), tmp_path / name)
        curves.append([row["loss"] for row in read_history(tmp_path / name) if "loss" in row])
    tolerance = 3e-2 if "precision=bf16" in values else 1e-5
    assert len(curves[0]) == 10
    assert curves[0] == pytest.approx(curves[1], abs=tolerance)
    assert curves[0][0] != curves[0][-1]


MEMORY = """
import sys
import subprocess
import sys
from pathlib import Path
import torch
from forerank import PNPLoss, create_model
from forerank.training import backward_in_chunks

def status(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name))

chunk, cpu = int(sys.argv[1]), torch.device("cpu")
torch.set_num_threads(1)
model, loss = create_model("glyphnet", embedding_dim=16), PNPLoss()
images, labels = torch.randn(512, 1, 32, 32), torch.arange(128).repeat_interleave(4)
backward_in_chunks(model, images[:16].split(16), images[:16].split(16), lambda e: loss(e, labels[:16]), cpu)
Path("/proc/self/clear_refs").write_text("5")
before = status("VmRSS")
chunks = images.split(chunk)
backward_in_chunks(model, chunks, chunks, lambda e: loss(e, labels), cpu)
print(status("VmHWM") - before)
"""


@pytest.mark.long  # how memory grows; that the micro batches compute the same is tested above
@pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="peak memory is read from Linux's /proc"
)
def test_peak_memory_is_that_of_the_micro_batch() -> None:
    whole, micro = (
        int(
            subprocess.run([sys.executable, "-c", MEMORY, str(chunk)], capture_output=True, check=True).stdout
        )
        for chunk in (512, 16)
    )
    assert whole > 100_000  # kB: the activations of 512 images
    assert micro < whole / 8
