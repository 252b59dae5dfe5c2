"""Dropped into pytorch-metric-learning: same numbers, its trainer, its wrapper."""

import copy
import faulthandler
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parents[1]))  # this file is also run as a program
from torch import Tensor

from forerank.losses import PNPLoss, RankingLoss, SmoothAPLoss
from waiting import LIMIT, finish

pytest.importorskip("pytorch_metric_learning", reason="needs the extra 'baselines'")


class Adapter(PNPLoss):
    """The peer's order of arguments, defaults and dtype, as docs/losses.md gives it."""

    VARIANTS = ("Ds", "Dq", "Iu", "Ib", "O")  # what the peer's own tests go through

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


@pytest.mark.parametrize("variant", Adapter.VARIANTS)
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float16, 1e-2), (torch.float32, 1e-5), (torch.float64, 1e-5)]
)
def test_what_the_peer_asks_of_its_pnp(variant: str, dtype: torch.dtype, tolerance: float) -> None:
    # 30 classes of 6, counted as the peer does: all differences clamped, the query among its positives.
    torch.manual_seed(0)
    embeddings, labels = torch.randn(180, 32, dtype=dtype, requires_grad=True), torch.arange(180) // 6
    loss = Adapter(2, 4, 0.01, variant)(embeddings, labels)
    loss.backward()
    assert loss.dtype == dtype
    assert torch.isfinite(embeddings.grad).all()

    units = torch.nn.functional.normalize(embeddings.detach().double())
    scores = units @ units.t()
    gaps = ((scores[:, None] - scores[:, :, None]) / 0.01).clamp(-50, 50)  # query, positive, negative
    same = labels[:, None] == labels
    before = (gaps.sigmoid() * ~same).sum(-1)[same].view(180, 6)  # the positive's negatives are the query's
    costs = {
        "Ds": torch.log(1 + before),
        "Dq": 1 - 1 / (1 + before) ** 4,
        "Iu": (1 + before) * torch.log(1 + before),
        "Ib": (2 * before - torch.log(1 + 2 * before)) / 4,
        "O": before,
    }
    torch.testing.assert_close(loss.double(), costs[variant].mean(), rtol=tolerance, atol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_what_else_the_peer_asks_of_its_pnp(dtype: torch.dtype) -> None:
    assert Adapter()(torch.randn(3, 32, dtype=dtype), torch.tensor([1, 1, 2])).isfinite()
    with pytest.raises(ValueError, match="PNP"):
        Adapter(2, 4, 0.01, "PNP")


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


def test_it_passes_for_the_peers_and_is_still_itself() -> None:
    from pytorch_metric_learning.losses import BaseMetricLossFunction
    from pytorch_metric_learning.utils import distributed  # noqa: F401  (the wrapper's module: it asks)

    x, labels = torch.randn(8, 4), torch.arange(8) // 2
    loss = PNPLoss()
    assert isinstance(loss, BaseMetricLossFunction)
    assert isinstance(loss, RankingLoss)
    assert type(loss) is PNPLoss
    assert repr(loss).startswith("PNPLoss(")
    for twin in (copy.deepcopy(loss), pickle.loads(pickle.dumps(loss))):
        assert type(twin) is PNPLoss
        assert twin(x, labels) == loss(x, labels)


def joint_batch() -> tuple[Tensor, Tensor]:
    x = torch.randn(16, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return x, torch.arange(16) % 4


def work(rank: int, folder: str) -> None:
    """One of two processes: this file, run as a program."""
    from pytorch_metric_learning.utils.distributed import DistributedLossWrapper

    faulthandler.dump_traceback_later(LIMIT - 60, exit=True)  # a deadlock shows where it stands
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=2)
    x, labels = (part.chunk(2)[rank] for part in joint_batch())
    x = x.clone().requires_grad_()
    value = DistributedLossWrapper(PNPLoss("Ds", temperature=0.1))(x, labels)
    value.backward()
    torch.save((value.detach(), x.grad), f"{folder}/{rank}.pt")
    dist.barrier()  # nobody leaves while others still talk
    dist.destroy_process_group()


def test_inside_the_peers_distributed_wrapper(tmp_path: Path) -> None:
    command = [sys.executable, __file__, str(tmp_path)]
    processes = [
        subprocess.Popen([*command, str(rank)], stderr=subprocess.PIPE, text=True) for rank in (0, 1)
    ]
    for process, (_, errors) in zip(processes, finish(*processes), strict=True):
        assert process.returncode == 0, errors
    x, labels = joint_batch()
    x.requires_grad_()
    loss = PNPLoss("Ds", temperature=0.1)(x, labels)
    loss.backward()
    # The wrapper multiplies by the number of processes, which averaging of gradients divides by again.
    for rank, grad in enumerate(x.grad.chunk(2)):
        value, found_grad = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        torch.testing.assert_close(value, 2 * loss.detach())
        torch.testing.assert_close(found_grad, 2 * grad)


if __name__ == "__main__":
    work(int(sys.argv[2]), sys.argv[1])
