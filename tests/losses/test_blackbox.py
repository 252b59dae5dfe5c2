"""Blackbox: hard ranks forward, their interpolation backward, both against loops."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import Tensor

from forerank.errors import InputError
from forerank.losses import BlackboxLoss, CrossBatchMemory
from forerank.ranking.hard import hard_ranks
from forerank.ranking.hard_rows import unit_rows

COSTS = {
    "AP": lambda rank, among: 1 - among / rank,
    "log": lambda rank, among: torch.log(1 + rank - among),
    "loglog": lambda rank, among: torch.log(1 + torch.log(1 + rank - among)),
}


def batch(size: int = 24, classes: int = 5) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(size, 4, dtype=torch.float64, generator=generator)
    return x, torch.randint(0, classes, (size,), generator=generator)


def rank(scores: Tensor) -> Tensor:
    """From 1, most similar first, of one list without ties."""
    return (scores[None] > scores[:, None]).sum(1).double() + 1


def by_hand(
    x: Tensor, labels: Tensor, objective: str, strength: float, margin: float
) -> tuple[Tensor, Tensor]:
    """Query by query, with the ranks of whole lists: the loss, its gradient in the similarities (N, N)."""
    units = torch.nn.functional.normalize(x)
    scores, size = units @ units.t(), len(x)
    gradient, losses = torch.zeros_like(scores), []
    queries = [q for q in range(size) if int((labels == labels[q]).sum()) > 1]
    for q in queries:
        others = torch.tensor([i for i in range(size) if i != q])
        truth = labels[others] == labels[q]
        moved = scores[q, others] - margin * (truth.double() - 0.5)
        ranks = (rank(moved) / size).requires_grad_()  # as a share of the batch
        among = rank(moved[truth])
        cost = COSTS[objective](ranks[truth] * size, among).mean() / len(queries)
        (pull,) = torch.autograd.grad(cost, ranks)
        after = rank(moved + strength * pull) / size
        gradient[q, others] = (after - ranks.detach()) / strength
        losses.append(cost.detach())
    return torch.stack(losses).sum(), gradient


@pytest.mark.parametrize("objective", COSTS)
@pytest.mark.parametrize(("strength", "margin"), [(4.0, 0.02), (0.5, 0.0), (20.0, 0.3)])
@pytest.mark.parametrize("chunk_size", [None, 5])
def test_value_and_gradient_by_hand(
    objective: str, strength: float, margin: float, chunk_size: int | None
) -> None:
    x, labels = batch()
    loss = BlackboxLoss(objective, interpolation=strength, margin=margin, chunk_size=chunk_size)
    live = x.clone().requires_grad_()
    value = loss(live, labels)
    value.backward()
    wanted, gradient = by_hand(x, labels, objective, strength, margin)
    torch.testing.assert_close(value.detach(), wanted)
    assert gradient.abs().max() > 0
    again = x.clone().requires_grad_()
    units = torch.nn.functional.normalize(again)
    (units @ units.t()).backward(gradient)
    torch.testing.assert_close(live.grad, again.grad)


def test_without_a_margin_it_is_the_evaluations_own_average_precision() -> None:
    x, labels = batch(60, 9)
    x[7] = x[8]  # ties: an equal negative stands before the positive, as in evaluation
    precisions = []
    for part in hard_ranks(unit_rows(x.numpy()), labels.numpy()):
        for begin, end in zip(part.offsets[:-1], part.offsets[1:], strict=True):
            if end > begin:
                precisions.append((np.arange(1, end - begin + 1) / part.ranks()[begin:end]).mean())
    value = BlackboxLoss(margin=0)(x, labels)
    assert float(value) == pytest.approx(1 - np.mean(precisions), rel=1e-12)


def test_scaling_the_loss_scales_the_gradient() -> None:
    x, labels = batch()
    one, many = x.clone().requires_grad_(), x.clone().requires_grad_()
    BlackboxLoss()(one, labels).backward()
    (1024 * BlackboxLoss()(many, labels)).backward()
    torch.testing.assert_close(many.grad, 1024 * one.grad)


def test_faults_and_memory_bank() -> None:
    x, labels = batch()
    bank = CrossBatchMemory(BlackboxLoss(), size=100)
    bank(x, labels, ids=torch.arange(24))
    assert bank(x.flip(0), labels, ids=torch.arange(24, 48)).isfinite()
    x[3, 1] = torch.nan
    assert BlackboxLoss()(x, labels).isnan()
    with pytest.raises(InputError, match="did you mean 'loglog'"):
        BlackboxLoss("logloog")
    with pytest.raises(InputError, match="interpolation must be a number greater than 0"):
        BlackboxLoss(interpolation=0)


def test_it_learns() -> None:
    x, labels = batch(40, 4)
    x.requires_grad_()
    optimiser = torch.optim.Adam([x], lr=0.05)
    before = BlackboxLoss()(x, labels).item()
    for _ in range(60):
        optimiser.zero_grad()
        BlackboxLoss()(x, labels).backward()
        optimiser.step()
    assert BlackboxLoss()(x, labels).item() < 0.3 * before


def test_never_holds_a_cube_or_the_similarity_matrix() -> None:
    # At B = 4,096 the matrix alone is 64 MiB, a cube 256 GiB. A process of its own: a peak cannot be reset.
    program = """
import torch
from forerank.losses import BlackboxLoss
def peak():
    return next(int(l.split()[1]) for l in open("/proc/self/status") if l.startswith("VmHWM"))
x = torch.randn(4096, 16, requires_grad=True)
y = torch.arange(4096) // 4
BlackboxLoss(chunk_size=64)(x[:64], y[:64]).backward()
open("/proc/self/clear_refs", "w").write("5")  # the peak starts again from here
before = peak()
BlackboxLoss(chunk_size=64)(x, y).backward()
print((peak() - before) // 1024)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 48  # MiB
