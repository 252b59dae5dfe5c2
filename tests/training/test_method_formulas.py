"""Each method by the formula, the gradient or the clusters that define it."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from forerank.data import Table
from forerank.models import create_model
from forerank.training import load_recipe
from forerank.training.assemble import build_model
from forerank.training.batches import BatchPlan
from forerank.training.methods import METHODS, Ingredients, complete_options
from forerank.training.methods.cross_batch_contrastive import CrossBatchContrastive, PairLoss
from forerank.training.methods.dcml_mdw import self_reinforced
from forerank.training.methods.divide_and_conquer import DivideAndConquer, match_clusters, nearest_negatives
from forerank.training.methods.margin import (
    distance_weighted_margin,
    distances,
    draw_negatives,
    negative_weights,
    positive_pairs,
)
from forerank.training.methods.method import Objective, TrainingSet
from forerank.training.methods.mic import dependence, reverse_gradient
from forerank.training.methods.proxy_nca import ProxyNCA
from forerank.training.methods.rank_mi import divergence, statistics_network
from forerank.training.methods.soft_triple import centre_spread
from forerank.training.methods.triplet import SemiHardTriplet
from forerank.training.optimise import build_optimiser
from forerank.training.prepare import complete_recipe
from forerank.training.processes import Processes
from forerank.training.recipe import Recipe, override


def units(n: int, dim: int, seed: int = 0) -> torch.Tensor:
    return F.normalize(torch.randn(n, dim, generator=torch.Generator().manual_seed(seed)))


def four_each(classes: int) -> torch.Tensor:
    return torch.arange(classes).repeat_interleave(4)


def build(key: str, dim: int, classes: int) -> Objective:
    """A method's objective on a small table."""
    names = [f"{c}/{i}" for c in range(classes) for i in range(4)]
    table = Table(names, [n[0] for n in names], ["train"] * len(names), root=Path())
    method = METHODS[key]
    recipe = override(Recipe(), [f"method={key}", f"method.options={complete_options(key, method, {})}"])
    torch.manual_seed(0)
    return method.build(Ingredients(recipe, table, feature_dim=dim, output_dim=dim))


# --- distance-weighted sampling


def test_distance_weighted_sampling_draws_the_density_it_promises() -> None:
    """Points at chosen distances from an anchor are drawn as often as min(λ, 1/q(d)) says, q written out."""
    dim, wanted = 8, [0.3, 0.5, 0.9, 1.2, 1.414, 1.7]
    angle = [2 * math.asin(d / 2) for d in wanted]
    vectors = torch.zeros(len(wanted) + 2, dim, dtype=torch.float64)
    vectors[:2, 0] = 1  # the anchor and its positive
    vectors[2:, 0] = torch.tensor([math.cos(a) for a in angle])
    vectors[2:, 1] = torch.tensor([math.sin(a) for a in angle])
    labels = torch.tensor([0, 0, *range(1, len(wanted) + 1)])

    def inverse_density(d: float) -> float:
        return 1 / (d ** (dim - 2) * (1 - d * d / 4) ** ((dim - 3) / 2))

    expected = np.array([min(inverse_density(0.5), inverse_density(max(d, 0.5))) for d in wanted])
    expected /= expected.sum()
    weights = negative_weights(distances(vectors), labels, dim)
    assert weights[0, :2].tolist() == [0, 0]
    assert weights[0, 2:].numpy() == pytest.approx(expected, rel=1e-6)
    torch.manual_seed(0)
    draws = draw_negatives(distances(vectors), labels, torch.zeros(20_000, dtype=torch.int64), dim)
    share = np.bincount(draws.numpy(), minlength=len(labels))[2:] / 20_000
    assert np.abs(share - expected).max() < 0.015
    assert abs(share[0] - share[1]) < 0.015  # below the cutoff nothing is drawn more often


def test_the_margin_loss_by_hand() -> None:
    vectors, labels = units(16, 8), four_each(4)
    beta = torch.tensor([1.1, 1.2, 1.3, 1.4], requires_grad=True)
    torch.manual_seed(0)
    loss = distance_weighted_margin(vectors, labels, beta, 0.2)
    distance, (anchor, positive) = distances(vectors), positive_pairs(labels)
    torch.manual_seed(0)
    negative = draw_negatives(distance, labels, anchor, 8)
    assert (labels[negative] != labels[anchor]).all()
    terms = []
    for a, p, n in zip(anchor.tolist(), positive.tolist(), negative.tolist(), strict=True):
        boundary = float(beta[labels[a]].detach())
        terms += [float(distance[a, p]) - boundary + 0.2, boundary - float(distance[a, n]) + 0.2]
    terms = [term for term in terms if term > 0]
    assert float(loss.detach()) == pytest.approx(sum(terms) / len(terms), rel=1e-4)
    loss.backward()
    assert beta.grad is not None
    assert beta.grad.abs().max() > 0  # the boundary learns
    assert distance_weighted_margin(vectors, torch.zeros(16, dtype=torch.int64), beta, 0.2) == 0


# --- Divide & Conquer


def test_clusters_keep_their_learner_across_clusterings() -> None:
    """Whatever numbers k-means gives to the same clusters, a learner sees nearly the images it saw before."""
    rng = np.random.default_rng(0)
    old = rng.integers(5, size=400)
    shuffled = rng.permutation(5)[old]
    changed = rng.random(400) < 0.2  # some images move
    new = np.where(changed, rng.integers(5, size=400), shuffled)
    matched = match_clusters(new, old, 5)
    assert (matched == old)[~changed].all()
    assert len({(a, b) for a, b in zip(new, matched, strict=True)}) == 5  # a renaming and nothing else


def clustered(n_each: int = 12) -> tuple[TrainingSet, torch.Tensor]:
    """Features around three directions; classes of four images."""
    centres = torch.eye(3, 16).repeat_interleave(n_each, 0)
    features = F.normalize(centres + 0.05 * units(3 * n_each, 16))
    labels = four_each(3 * n_each // 4)
    return TrainingSet(features, labels, step=0, steps=100, seed=0), torch.arange(3).repeat_interleave(n_each)


def test_a_slice_does_not_see_the_loss_of_another() -> None:
    training, truth = clustered()
    objective = DivideAndConquer(training.labels, clusters=3, epochs=1, whole_from=0.9, margin=0.2)
    objective.renew(training)
    for part in range(3):  # k-means found the three directions
        assert len(objective.cluster[truth == part].unique()) == 1
    vectors = units(36, 12).requires_grad_()
    rows = torch.nonzero(objective.cluster == 1).flatten()
    (gradient,) = torch.autograd.grad(objective.loss(vectors[rows], training.labels[rows], rows), vectors)
    of_slices = gradient.reshape(36, 3, 4).abs().sum((0, 2))
    assert of_slices[1] > 0
    assert of_slices[[0, 2]].tolist() == [0, 0]


def test_the_end_of_the_run_trains_the_whole_vector_and_single_images_are_left_out() -> None:
    training, _ = clustered()
    objective = DivideAndConquer(training.labels, 3, 1, whole_from=0.9, margin=0.2)
    objective.renew(training)
    objective.cluster[0] = (objective.cluster[0] + 1) % 3  # alone of its class in that cluster
    groups = objective.groups()
    assert groups is not None
    assert groups[0] == -1
    assert (groups[1:] == objective.cluster[1:].numpy()).all()
    late = TrainingSet(training.features, training.labels, step=90, steps=100, seed=0)
    objective.renew(late)
    assert objective.groups() is None
    vectors = units(36, 12).requires_grad_()
    loss = objective.loss(vectors, training.labels, torch.arange(36))
    (gradient,) = torch.autograd.grad(loss, vectors)
    assert (gradient.reshape(36, 3, 4).abs().sum((0, 2)) > 0).all()


def test_nearest_negatives_by_hand() -> None:
    distance = torch.tensor(
        [[0.0, 0.2, 0.4, 0.9], [0.2, 0, 0.6, 0.7], [0.4, 0.6, 0, 0.1], [0.9, 0.7, 0.1, 0]]
    )
    labels, anchors = torch.tensor([0, 0, 1, 2]), torch.arange(4)
    assert nearest_negatives(distance, labels, anchors).tolist() == pytest.approx([0.9, 0.6, 0.6, 0.7])
    # All negatives nearer than 0.5: the farthest.
    assert nearest_negatives(distance / 3, labels, anchors).tolist() == pytest.approx(
        [0.3, 0.7 / 3, 0.2, 0.3]
    )


def test_slices_of_the_test_vector_count_the_same() -> None:
    model = create_model("glyphnet", embedding_dim=12, slices=3)
    with torch.no_grad():
        assert model.head is not None
        model.head.weight[:4] *= 100
        lengths = model(torch.rand(5, 1, 32, 32)).reshape(5, 3, 4).norm(dim=2)
    torch.testing.assert_close(lengths, torch.full((5, 3), 3**-0.5))


# --- MIC


def test_the_separation_lowers_the_dependence_of_the_two_heads() -> None:
    """Two heads that start alike, trained against the predictor: a new one finds less of one in the other."""

    def after(lr: float) -> float:
        torch.manual_seed(0)
        inputs = units(128, 8)
        heads = [nn.Linear(8, 6), nn.Linear(8, 6)]
        heads[1].load_state_dict(heads[0].state_dict())
        predictor, judge = (nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 6)) for _ in range(2))
        slow = [p for head in heads for p in head.parameters()]  # so that the predictor keeps up with them
        optimiser = torch.optim.Adam(
            [{"params": slow, "lr": lr}, {"params": predictor.parameters(), "lr": 1e-2}]
        )
        for _ in range(200):
            one, other = (F.normalize(head(inputs)) for head in heads)
            optimiser.zero_grad()
            term = dependence(reverse_gradient(one), reverse_gradient(other), predictor)
            (-term).backward()
            optimiser.step()
        one, other = (F.normalize(head(inputs)).detach() for head in heads)
        optimiser = torch.optim.Adam(judge.parameters(), lr=1e-2)
        for _ in range(150):
            optimiser.zero_grad()
            (-dependence(one, other, judge)).backward()
            optimiser.step()
        return float(dependence(one, other, judge).detach())

    assert after(1e-3) < 0.8 * after(0.0)


# --- DCML-MDW


def test_compositors_weigh_to_one_and_the_self_reinforced_term_lowers_their_entropy() -> None:
    objective = build("dcml-mdw", dim=16, classes=4)
    vectors, labels = torch.randn(16, 16), four_each(4)
    weights = objective.weights(vectors)  # type: ignore[operator]
    assert weights.shape == (16, 4, 4)
    torch.testing.assert_close(weights.sum(-1), torch.ones(16, 4))

    def entropy() -> float:
        w = objective.weights(vectors)  # type: ignore[operator]
        return float(-(w * w.log()).sum(-1).mean().detach())

    before, optimiser = entropy(), torch.optim.SGD(objective.head_parameters(), lr=0.1)
    for _ in range(20):
        optimiser.zero_grad()
        self_reinforced(objective.weights(vectors)).backward()  # type: ignore[operator]
        optimiser.step()
    assert entropy() < before
    # The compositors look at the sub-embeddings without changing them: their term has no gradient there.
    leaf = vectors.clone().requires_grad_()
    assert self_reinforced(objective.weights(leaf)).grad_fn is not None  # type: ignore[operator]
    (gradient,) = torch.autograd.grad(objective.loss(leaf, labels, torch.arange(16)), leaf)
    assert gradient.abs().max() > 0
    with pytest.raises(RuntimeError):
        torch.autograd.grad(self_reinforced(objective.weights(leaf)), leaf)  # type: ignore[operator]


# --- RankMI


def test_the_estimator_orders_known_divergences() -> None:
    """The farther two normal distributions lie apart, the larger the estimate; at none it is 2 log ½."""
    estimates = []
    for apart in (0.0, 0.5, 1.0, 3.0):
        torch.manual_seed(0)
        network = statistics_network()
        optimiser = torch.optim.Adam(network.parameters(), lr=5e-3)
        matching, other = torch.randn(2000), torch.randn(2000) + apart
        for _ in range(150):
            optimiser.zero_grad()
            (-divergence(network, matching, other)).backward()
            optimiser.step()
        estimates.append(float(divergence(network, matching, other).detach()))
    assert estimates == sorted(estimates)
    assert estimates[0] == pytest.approx(-2 * math.log(2), abs=0.02)
    assert estimates[-1] > -0.5


def test_the_inner_network_has_its_own_optimiser_and_is_saved_with_its_moments() -> None:
    one, other = build("rankmi", dim=8, classes=4), build("rankmi", dim=8, classes=4)
    assert one.loss_parameters() == []
    vectors, labels, rows = units(16, 8), four_each(4), torch.arange(16)

    def step(objective: Objective, seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        return objective.loss(vectors, labels, rows)

    step(one, 0)
    other.restore_tensors({name: value.clone() for name, value in one.state_tensors().items()})
    assert step(one, 1) == step(other, 1)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


# --- proxies, centres, pairs


def test_proxies_by_hand() -> None:
    vectors, labels = units(6, 4), torch.tensor([0, 1, 2, 0, 1, 2])
    for count_positive, scale in ((True, 9.0), (False, 1.0)):
        objective = ProxyNCA(3, 4, scale, count_positive)
        proxies = F.normalize(objective.proxies.detach())
        expected = 0.0
        for x, y in zip(vectors, labels.tolist(), strict=True):
            d = [scale * float((x - p).square().sum()) for p in proxies]
            others = [math.exp(-d[z]) for z in range(3) if count_positive or z != y]
            expected -= math.log(math.exp(-d[y]) / sum(others)) / 6
        assert float(objective.loss(vectors, labels, labels)) == pytest.approx(expected, rel=1e-4)


def test_the_spread_of_centres_by_hand() -> None:
    centres = F.normalize(torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0)), dim=-1)
    expected = sum(
        float((centres[c, s] - centres[c, t]).norm()) for c in range(2) for s in range(3) for t in range(s)
    )
    assert float(centre_spread(centres)) == pytest.approx(expected / (2 * 3 * 2), rel=1e-5)


def test_semi_hard_triplets_by_hand() -> None:
    vectors, labels = units(8, 3), torch.tensor([0, 0, 1, 1, 2, 2, 3, 3])
    terms = []
    for a, p in zip(*(x.tolist() for x in positive_pairs(labels)), strict=True):
        d = [float((vectors[a] - v).square().sum()) for v in vectors]
        farther = [d[n] for n in range(8) if labels[n] != labels[a] and d[n] > d[p]]
        if farther and d[p] - min(farther) + 0.2 > 0:
            terms.append(d[p] - min(farther) + 0.2)
    loss = SemiHardTriplet(0.2).loss(vectors, labels, labels)
    assert float(loss) == pytest.approx(sum(terms) / len(terms), rel=1e-3)


def test_contrastive_pairs_by_hand() -> None:
    vectors, labels = units(6, 3), torch.tensor([0, 0, 1, 1, 2, 2])
    expected = 0.0
    for i in range(6):
        for j in range(6):
            s = float(vectors[i] @ vectors[j])
            if i != j and labels[i] == labels[j]:
                expected += 1 - s
            elif labels[i] != labels[j] and s > 0.5:
                expected += s
    assert float(PairLoss(0.5)(vectors, labels)) == pytest.approx(expected / 6, rel=1e-4)


def test_the_bank_is_used_from_its_start_on() -> None:
    objective = CrossBatchContrastive(size=8, start=2, negative_margin=0.5)
    vectors, labels = units(8, 3), torch.tensor([0, 0, 1, 1, 2, 2, 3, 3])
    alone = [float(objective.loss(vectors, labels, torch.arange(8) + 8 * step)) for step in range(3)]
    assert alone[0] == alone[1] == alone[2]  # the third step fills the bank
    assert len(objective.memory) == 8
    both = float(objective.loss(vectors, labels, torch.arange(8) + 24))
    assert both == pytest.approx(alone[0] + float(PairLoss(0.5)(vectors, labels, vectors, labels)), rel=1e-5)


def test_the_settings_of_proxynca_plus_plus_reach_model_and_optimiser() -> None:
    recipe = load_recipe("glyphs", ["method=proxynca++", "steps=64", "batch_size=32"])
    labels = [f"class {i // 4}" for i in range(64)]
    table = Table([str(i) for i in range(64)], labels, ["train"] * 64, root=Path())
    complete = complete_recipe(recipe, table, 1, "cpu")
    assert complete.optimiser.head_warmup == 4  # a sixteenth of 64 steps; five epochs would be ten
    longer = complete_recipe(override(recipe, ["steps=null", "epochs=100"]), table, 1, "cpu")
    assert longer.optimiser.head_warmup == 10
    model = build_model(complete)
    assert model.layer_norm is not None
    assert [*model.layer_norm.parameters()] == []
    images = torch.rand(2, 1, 32, 32)
    with torch.no_grad():
        model.eval()
        torch.testing.assert_close(model.features(images), model.backbone(images).amax((2, 3)))
    optimiser = build_optimiser(complete, model.backbone.parameters(), [], [nn.Parameter(torch.ones(1))])
    assert [(g["eps"], g["weight_decay"], g["peak_lr"]) for g in optimiser.param_groups] == [
        (1.0, 0.0, 0.024), (1.0, 0.0, 240.0),
    ]  # fmt: skip


def test_batches_of_groups_come_in_turn_and_several_processes_share_them() -> None:
    """Five classes in group 0, three in group 1; one in group 2, which is passed over; a row is left out."""
    sizes = [20, 12, 4]
    groups = np.repeat([0, 1, 2], sizes)
    groups[0] = -1
    labels = [f"class {i // 4}" for i in range(36)]
    table = Table([str(i) for i in range(36)], labels, ["train"] * 36, root=Path())
    recipe = override(Recipe(), ["batch_size=16"])

    def plan(rank: int, count: int) -> BatchPlan:
        return BatchPlan(recipe, table, Processes(rank, count, torch.device("cpu")), groups)

    whole, shared = plan(0, 1), [plan(rank, 2) for rank in range(2)]
    seen: set[tuple[int, int]] = set()
    for step in range(20):
        keys = whole.keys(step)
        assert {int(groups[row]) for row, _ in keys} == {step % 2}
        assert len(keys) == (16 if step % 2 == 0 else 12)
        assert keys == [key for part in shared for key in part.keys(step)]
        assert not seen.intersection(keys)  # no random view comes twice
        seen.update(keys)
    assert 0 not in {row for row, _ in seen}
