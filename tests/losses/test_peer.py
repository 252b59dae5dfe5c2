"""Dropped into pytorch-metric-learning: same numbers, its trainer, its wrapper."""

import copy
import pickle
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from forerank.losses import PNPLoss, RankingLoss, SmoothAPLoss

pytest.importorskip("pytorch_metric_learning", reason="needs the extra 'baselines'")


class Adapter(PNPLoss):
    """The peer's order of arguments, defaults and dtype."""

    VARIANTS = ("Ds", "Dq", "Iu", "Ib", "O")

    def __init__(self, b: float = 2, alpha: float = 1, anneal: float = 0.01, variant: str = "O") -> None:
        super().__init__(variant, b=b, alpha=alpha, temperature=anneal, count_self=True)

    def forward(self, embeddings: Tensor, *rest: Any) -> Tensor:
        return super().forward(embeddings, *rest).to(embeddings.dtype)


@pytest.mark.parametrize("variant", Adapter.VARIANTS)
@pytest.mark.parametrize("ragged", [False, True])
def test_same_loss_and_gradient_as_the_peers_pnp(variant: str, ragged: bool) -> None:
    from pytorch_metric_learning.losses import PNPLoss as PeerPNPLoss

    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(40) // 5
    if ragged:
        labels = torch.randint(0, 15, (40,), generator=generator)
    for dtype in (torch.float64, torch.float32):
        x = torch.randn(40, 16, dtype=dtype, generator=generator)
        ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
        a = Adapter(2, 4, 0.05, variant)(ours, labels)
        b = PeerPNPLoss(2, 4, 0.05, variant)(theirs, labels)
        a.backward()
        b.backward()
        tolerance = 1e-8 if dtype == torch.float64 else 1e-4
        torch.testing.assert_close(a, b, rtol=tolerance, atol=0)
        assert (ours.grad - theirs.grad).abs().max() <= tolerance * theirs.grad.abs().max()


def test_same_loss_as_the_peers_smooth_ap() -> None:
    from pytorch_metric_learning.losses import SmoothAPLoss as PeerSmoothAPLoss

    # As many classes as images of each: elsewhere the peer mistakes one number for the other.
    x = torch.randn(16, 12, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(16) // 4
    ours = SmoothAPLoss(temperature=0.05, count_self=True)(x, labels)
    assert ours.item() == pytest.approx(PeerSmoothAPLoss(temperature=0.05)(x, labels).item(), rel=1e-5)


def test_inside_the_peers_trainer(tmp_path: Path) -> None:
    from pytorch_metric_learning.trainers import MetricLossOnly

    torch.manual_seed(0)
    labels = torch.arange(32) % 4
    points = torch.nn.functional.one_hot(labels, 4).float().repeat(1, 2) + 0.5 * torch.randn(32, 8)
    model = torch.nn.Linear(8, 4)
    loss = PNPLoss("Ds", temperature=0.1)
    before = loss(model(points), labels).item()
    trainer = MetricLossOnly(
        models={"trunk": model, "embedder": torch.nn.Identity()},
        optimizers={"trunk_optimizer": torch.optim.Adam(model.parameters(), lr=0.05)},
        batch_size=16,
        loss_funcs={"metric_loss": loss},
        dataset=torch.utils.data.TensorDataset(points, labels),
        mining_funcs={},
        data_device=torch.device("cpu"),
        dataloader_num_workers=0,
    )
    trainer.train(num_epochs=5)
    assert loss(model(points), labels).item() < 0.5 * before


def test_inside_the_peers_distributed_wrapper(tmp_path: Path) -> None:
    from pytorch_metric_learning.losses import BaseMetricLossFunction
    from pytorch_metric_learning.utils.distributed import DistributedLossWrapper

    x, labels = torch.randn(8, 4), torch.arange(8) // 2
    loss = PNPLoss()
    dist.init_process_group("gloo", f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        assert DistributedLossWrapper(loss)(x, labels) == loss(x, labels)
    finally:
        dist.destroy_process_group()
    # It passes for the peer's, and is still itself.
    assert isinstance(loss, BaseMetricLossFunction)
    assert isinstance(loss, RankingLoss)
    assert type(loss) is PNPLoss
    assert repr(loss).startswith("PNPLoss(")
    for twin in (copy.deepcopy(loss), pickle.loads(pickle.dumps(loss))):
        assert type(twin) is PNPLoss
        assert twin(x, labels) == loss(x, labels)
    assert "pytorch_metric_learning" in sys.modules
