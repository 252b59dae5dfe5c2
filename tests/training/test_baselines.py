"""Peers' losses in our loop: their parameters learn, are saved and restored."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from forerank.errors import InputError
from forerank.losses import CrossBatchMemory, PNPLoss, SmoothAPLoss
from forerank.training import load_recipe, read_history, train
from forerank.training.baselines import build_loss, joint_loss
from forerank.training.recipe import Recipe, override

from .conftest import QUICK

LEARNED = "objective.recipe_loss."  # before the names of what the loss saves


@pytest.mark.parametrize("name", [
    "HistogramLoss", "MarginLoss", "FastAPLoss", "SoftTripleLoss", "ProxyNCALoss", "ProxyAnchorLoss",
    "TripletMarginLoss", "ContrastiveLoss", "MultiSimilarityLoss", "NTXentLoss",
])  # fmt: skip
def test_a_peers_loss_gives_a_gradient(name: str) -> None:
    loss = build_loss(override(Recipe(), [f"loss=pml:{name}"]), classes=4, embedding_dim=8)
    embeddings = torch.randn(16, 8, generator=torch.Generator().manual_seed(0)).requires_grad_()
    value = loss(embeddings, torch.arange(4).repeat_interleave(4))
    value.backward()
    assert torch.isfinite(value)
    assert embeddings.grad.abs().max() > 0


@pytest.mark.parametrize("name", ["ProxyNCALoss", "SoftTripleLoss", "MarginLoss"])
def test_their_own_parameters_learn_and_are_saved(images: Path, tmp_path: Path, name: str) -> None:
    values = [*QUICK, f"loss=pml:{name}", "report=false", "steps=4", "every=2"]
    recipe = load_recipe(images, values)
    train(recipe, tmp_path / "run")
    saved = load_file(tmp_path / "run" / "last" / "state.safetensors")
    learned = {key.removeprefix(LEARNED): value for key, value in saved.items() if key.startswith(LEARNED)}
    assert learned
    # 20 classes, of which 30% are for the test and 20% of the rest for validation.
    fresh = dict(build_loss(recipe, classes=11, embedding_dim=16).named_parameters())
    assert fresh.keys() <= learned.keys()
    assert all(not torch.equal(learned[key], value) for key, value in fresh.items())
    again = train(recipe, tmp_path / "again")
    assert again.results["test"] == train(recipe, tmp_path / "run").results["test"]


def test_margin_learns_its_boundary_unless_told_otherwise() -> None:
    for values, learned in (([], ["beta"]), (["loss.learn_beta=false"], [])):
        loss = build_loss(override(Recipe(), ["loss=pml:MarginLoss", *values]), classes=4, embedding_dim=8)
        assert [name for name, _ in loss.named_parameters()] == learned


def test_the_two_that_are_wrong_are_replaced_by_ours(capsys: pytest.CaptureFixture[str]) -> None:
    for name, ours in (("SmoothAPLoss", SmoothAPLoss), ("PNPLoss", PNPLoss)):
        assert isinstance(build_loss(override(Recipe(), [f"loss=pml:{name}"]), 4, 8), ours)
        assert "Forerank's own" in capsys.readouterr().err


def test_contrastive_with_memory(images: Path, tmp_path: Path) -> None:
    values = [*QUICK, "loss=pml:ContrastiveLoss", "memory=32", "report=false", "steps=6"]
    train(load_recipe(images, values), tmp_path / "run")
    saved = load_file(tmp_path / "run" / "last" / "state.safetensors")
    assert saved[f"{LEARNED}embeddings"].shape == (32, 16)
    assert all(
        torch.isfinite(torch.tensor(row["loss"])) for row in read_history(tmp_path / "run") if "loss" in row
    )


def test_the_bank_of_a_peer_by_hand() -> None:
    """Loss within the batch plus loss against the bank, the batch's own stale copies left out."""

    class Mean(torch.nn.Module):
        def forward(self, embeddings, labels, ref_emb=None, ref_labels=None):  # type: ignore[no-untyped-def]
            return embeddings.sum() if ref_emb is None else ref_emb.sum()

    bank = CrossBatchMemory(Mean(), 3)
    ones, labels = torch.ones(2, 1), torch.tensor([0, 1])
    assert bank(ones, labels, ids=torch.tensor([5, 6])) == 2
    assert bank(2 * ones, labels, ids=torch.tensor([6, 7])) == 4 + 1  # image 6 is in the batch
    assert bank.ids.tolist() == [5, 6, 7]
    assert bank(3 * ones, labels, ids=torch.tensor([8, 9])) == 6 + 1 + 4
    assert bank.ids.tolist() == [7, 8, 9]


def test_a_miner_chooses_the_pairs_by_hand() -> None:
    """Semi-hard triplets only: farther than the positive, but by less than the margin."""
    values = ["loss=pml:TripletMarginLoss", "loss.margin=0.2", "loss.miner={name: pml:TripletMarginMiner, "]
    values = [*values[:2], values[2] + "margin: 0.2, type_of_triplets: semihard}"]
    loss = build_loss(override(Recipe(), values), classes=2, embedding_dim=2)
    angles = torch.tensor([0.0, 0.3, 0.4, 1.5])
    x = torch.stack([angles.cos(), angles.sin()], 1)
    apart = torch.cdist(x, x)
    labels = torch.tensor([0, 0, 1, 1])
    gaps = [
        float(apart[a, n] - apart[a, p])
        for a in range(4) for p in range(4) for n in range(4)
        if a != p and labels[a] == labels[p] != labels[n]
    ]  # fmt: skip
    costs = [0.2 - gap for gap in gaps if 0 < gap <= 0.2]
    assert 0 < len(costs) < len(gaps)
    assert float(loss(x, labels)) == pytest.approx(sum(costs) / len(costs), rel=1e-4)


def test_margin_with_distance_weighted_negatives(images: Path, tmp_path: Path) -> None:
    values = ["loss=pml:MarginLoss", "loss.miner=pml:DistanceWeightedMiner", "memory=32"]
    train(load_recipe(images, [*QUICK, *values, "report=false", "steps=4", "every=2"]), tmp_path / "run")
    history = read_history(tmp_path / "run")
    assert all(torch.isfinite(torch.tensor(row["loss"])) for row in history if "loss" in row)


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        (["loss=pml:MarginLoss", "loss.miner=pml:DistanceWeightMiner"], "mean 'DistanceWeightedMiner'"),
        (["loss=pml:MarginLoss", "loss.miner={name: pml:HDCMiner, filter_percentge: 1}"], "_percentage'"),
        (["loss=pml:MarginLoss", "loss.miner=DistanceWeightedMiner"], "written pml:NAME"),
        (["loss=PNP-Dq", "loss.miner=pml:DistanceWeightedMiner"], "PNP-Dq takes no miner"),
        (["loss=pml:PNPLoss", "loss.miner=pml:PairMarginMiner"], "takes no miner"),
        (["loss=pml:RankedListLoss", "loss.options={margin: 1, Tn: 1, miner: pml:HDCMiner}"], "no miner"),
    ],
)  # fmt: skip
def test_a_miner_that_cannot_work_is_refused(values: list[str], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence) as caught:
        build_loss(override(Recipe(), values), classes=4, embedding_dim=8)
    assert "\n" not in str(caught.value)


def test_the_histogram_has_room_for_equal_images() -> None:
    """Two equal vectors may have a cosine of 1 or a rounding above, which is past the peer's last bin."""
    loss = build_loss(override(Recipe(), ["loss=pml:HistogramLoss"]), classes=2, embedding_dim=3)
    vectors = torch.nn.functional.normalize(torch.tensor([[0.3, 0.5, 0.7]] * 2 + [[1.0, 0, 0], [0, 1, 0]]))
    assert torch.isfinite(loss(vectors, torch.tensor([0, 0, 1, 1])))


def test_a_peers_fault_is_one_sentence() -> None:
    loss = build_loss(override(Recipe(), ["loss=pml:ProxyNCALoss"]), classes=2, embedding_dim=3)
    with pytest.raises(InputError, match="pml:ProxyNCALoss failed on a batch of 4"):
        joint_loss(loss, torch.rand(4, 5), torch.tensor([0, 0, 1, 1]), torch.arange(4))
