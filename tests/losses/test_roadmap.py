"""ROADMAP: Sup-AP and the calibration, by hand and against the peer's contrastive loss."""

import pytest
import torch
from torch import Tensor

from forerank.errors import InputError
from forerank.losses import CrossBatchMemory, RoadmapLoss, SupAPLoss


def batch(size: int = 20) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(size, 3, dtype=torch.float64, generator=generator)
    return x, torch.randint(0, 5, (size,), generator=generator)


def by_hand(x: Tensor, labels: Tensor) -> Tensor:
    units = torch.nn.functional.normalize(x)
    parts = []
    for q in range(len(x)):
        same = (labels == labels[q]) & (torch.arange(len(x)) != q)
        if same.any():
            scores = units @ units[q]
            low = (0.9 - scores[same]).clamp_min(0).mean()
            parts.append(low + (scores[labels != labels[q]] - 0.6).clamp_min(0).mean())
    return torch.stack(parts).mean()


@pytest.mark.parametrize("chunk_size", [None, 3])
def test_the_two_parts_and_their_weights(chunk_size: int | None) -> None:
    x, labels = batch()
    one, two = x.clone().requires_grad_(), x.clone().requires_grad_()
    value = RoadmapLoss(temperature=0.1, calibration=0.3, chunk_size=chunk_size)(one, labels)
    wanted = 0.7 * SupAPLoss(temperature=0.1)(two, labels) + 0.3 * by_hand(two, labels)
    value.backward()
    wanted.backward()
    torch.testing.assert_close(value, wanted)
    torch.testing.assert_close(one.grad, two.grad)


def test_gradcheck() -> None:
    x, labels = batch(9)
    loss = RoadmapLoss(calibration=1.0)
    assert torch.autograd.gradcheck(lambda e: loss(e, labels), (x.requires_grad_(),))


def test_active_only_is_the_peers_contrastive_loss() -> None:
    losses = pytest.importorskip("pytorch_metric_learning.losses")
    distances = pytest.importorskip("pytorch_metric_learning.distances")
    x = batch()[0]
    labels = torch.arange(20) // 4
    peer = losses.ContrastiveLoss(pos_margin=0.9, neg_margin=0.6, distance=distances.CosineSimilarity())
    ours = RoadmapLoss(calibration=1, active_only=True)
    torch.testing.assert_close(ours(x, labels), peer(x, labels))


def test_references_and_memory_bank() -> None:
    x, labels = batch()
    y, other = batch(12)[0].flip(0), labels[:12].flip(0)
    loss = RoadmapLoss(calibration=1)
    units, references = torch.nn.functional.normalize(x), torch.nn.functional.normalize(y)
    scores, same = units @ references.t(), labels[:, None] == other
    asked = same.any(1)
    low = ((0.9 - scores).clamp_min(0) * same).sum(1) / same.sum(1)
    high = ((scores - 0.6).clamp_min(0) * ~same).sum(1) / (~same).sum(1)
    torch.testing.assert_close(loss(x, labels, None, y, other), (low + high)[asked].mean())
    bank = CrossBatchMemory(RoadmapLoss(), 50)
    assert bank(x, labels).isfinite()
    assert bank(x.flip(0), labels).isfinite()


def test_a_zero_vector_and_a_batch_without_positives() -> None:
    x, labels = batch()
    x[0] = 0
    x.requires_grad_()
    RoadmapLoss()(x, labels).backward()
    assert (x.grad[0] == 0).all()
    assert x.grad.isfinite().all()
    alone = torch.randn(4, 3, requires_grad=True)
    RoadmapLoss()(alone, torch.arange(4)).backward()
    assert (alone.grad == 0).all()


def test_bad_weights_are_refused() -> None:
    with pytest.raises(InputError, match="calibration must be a number of at least 0 and at most 1, not 2"):
        RoadmapLoss(calibration=2)
