"""The counting core against the count written out, and its class bookkeeping against brute force."""

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from forerank.ranking import soft
from forerank.ranking.classes import ClassColumns
from forerank.ranking.soft import CountSettings, LinearTail, ranked_loss, soft_count

RAGGED = [[0, 0, 0], [1] * 7, [2], [3, 3], [4], [0] * 2]


def ragged_labels() -> Tensor:
    labels = torch.tensor([label for group in RAGGED for label in group])
    return labels[torch.randperm(len(labels), generator=torch.Generator().manual_seed(1))]


def square(negatives: Tensor, positives: Tensor, number: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """A penalty that feels every argument: R_N^2 + 3 R_P + R_N R_P."""
    return negatives**2 + 3 * positives + negatives * positives, 2 * negatives + positives, 3 + negatives


def written_out(x: Tensor, labels: Tensor, temperature: float) -> Tensor:
    """The same mean by loops and autograd."""
    scores = normalize(x) @ normalize(x).t()
    means = []
    for q in range(len(x)):
        same = labels == labels[q]
        negatives = scores[q][~same]
        mine = [i for i in range(len(x)) if same[i] and i != q]
        costs = []
        for i in mine:
            others = scores[q][[j for j in mine if j != i]]
            counts = [soft_count(scores[q][i].view(1), s, temperature)[0] for s in (negatives, others)]
            costs.append(square(counts[0], counts[1], torch.tensor(1))[0])
        if costs:
            means.append(torch.stack(costs).mean())
    return torch.stack(means).mean()


@pytest.mark.parametrize("chunk_size", [None, 1, 4])
def test_equals_the_count_written_out(chunk_size: int | None) -> None:
    labels = ragged_labels()
    x = torch.randn(len(labels), 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    codes = torch.unique(labels, return_inverse=True)[1]
    classes = ClassColumns.build(codes, codes, own_columns=torch.arange(len(codes)))
    ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    settings = CountSettings(temperature=0.1, positives="soft", chunk_size=chunk_size)
    loss = ranked_loss(ours, classes, square, settings)
    expected = written_out(theirs, labels, 0.1)
    loss.backward()
    expected.backward()
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=0)
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("count_self", [False, True])
def test_columns_of_a_class(count_self: bool) -> None:
    codes = ragged_labels()
    classes = ClassColumns.build(codes, codes, own_columns=torch.arange(len(codes)), count_self=count_self)
    assert classes.numbers == sorted(classes.numbers, reverse=True)
    chunk = classes.of_queries(0, len(classes.numbers))
    for place, query in enumerate(chunk.rows.tolist()):
        same = {i for i in range(len(codes)) if codes[i] == codes[query]}
        assert set(chunk.own_class[place].tolist()) == same
        positives = chunk.positives[place][chunk.valid[place]].tolist()
        assert sorted(positives) == sorted(same if count_self else same - {query})
        assert chunk.numbers[place].item() == len(positives)
    alone = [i for i in range(len(codes)) if (codes == codes[i]).sum() == 1]
    left_out = set(range(len(codes))) - set(chunk.rows.tolist())
    assert left_out == set(alone)


def test_shares_of_processes_add_up() -> None:
    codes = ragged_labels()
    x = torch.randn(len(codes), 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    own = torch.arange(len(codes))
    settings = CountSettings(temperature=0.1, positives="soft")
    whole = ranked_loss(x, ClassColumns.build(codes, codes, own_columns=own), square, settings)
    parts = [
        ranked_loss(x, ClassColumns.build(codes, codes, own_columns=own, keep=keep), square, settings)
        for keep in (slice(0, 3), slice(3, 4), slice(4, len(codes)), slice(0, 0))
    ]
    torch.testing.assert_close(sum(parts), whole)


def test_linear_tail_by_hand() -> None:
    # One query, one positive at similarity 0, one negative at similarity 1: a gap of 1, far beyond the start.
    x = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]], dtype=torch.float64)
    classes = ClassColumns.build(torch.tensor([0]), torch.tensor([0, 1]))

    def count(negatives: Tensor, positives: Tensor, number: Tensor) -> tuple[Tensor, Tensor, None]:
        return negatives, torch.ones_like(negatives), None

    settings = CountSettings(temperature=0.1, tail=LinearTail(start=0.3, slope=5.0, jump=0.25))
    query = x[:1].clone().requires_grad_()
    loss = ranked_loss(query, classes, count, settings, references=x[1:], rank_batch=False)
    curve = torch.sigmoid(torch.tensor(3.0, dtype=torch.float64))
    assert loss.item() == pytest.approx(curve.item() + 5.0 * (1 - 0.3) + 0.25)
    loss.backward()
    # The similarity to the positive changes by +1 along the second axis, and the line's slope is 5.
    torch.testing.assert_close(query.grad, torch.tensor([[0.0, -5.0]], dtype=torch.float64))


def test_refuses_to_be_differentiated_twice() -> None:
    x = torch.randn(4, 3, requires_grad=True)
    codes = torch.tensor([0, 0, 1, 1])
    loss = ranked_loss(
        x, ClassColumns.build(codes, codes, own_columns=torch.arange(4)), square, CountSettings()
    )
    (grad,) = torch.autograd.grad(loss, x, create_graph=True)
    with pytest.raises(RuntimeError, match="once, not twice"):
        grad.sum().backward()


def clustered() -> tuple[Tensor, Tensor]:
    """Ten tight classes of four. Two share a centre and are in each other's way; the others are far apart."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(40) // 4
    centres = torch.eye(10, 16, dtype=torch.float64)
    centres[1] = centres[0]
    return centres[labels] + 0.05 * torch.randn(40, 16, dtype=torch.float64, generator=generator), labels


@pytest.mark.parametrize("bank", [False, True])
def test_columns_out_of_reach_change_nothing(bank: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    x, codes = clustered()
    order = torch.randperm(40, generator=torch.Generator().manual_seed(2))
    references, ranked_codes = (x[order] + 0.01, torch.cat([codes, codes[order]])) if bank else (None, codes)
    classes = ClassColumns.build(codes, ranked_codes, own_columns=torch.arange(40))
    settings = CountSettings(positives="soft", chunk_size=4)
    kept_columns: list[Tensor | None] = []
    original = soft._columns_in_reach
    monkeypatch.setattr(
        soft, "_columns_in_reach", lambda *a: kept_columns.append(original(*a)) or kept_columns[-1]
    )
    results = []
    for share in (0.7, -1.0):  # leave columns out; never do
        monkeypatch.setattr(soft, "WORTHWHILE", share)
        live = x.clone().requires_grad_()
        loss = ranked_loss(live, classes, square, settings, references=references)
        loss.backward()
        results.append((loss.detach(), live.grad))
    assert any(kept is not None for kept in kept_columns[:10])
    assert all(kept is None for kept in kept_columns[10:])
    assert results[0][0] > 1  # the two classes in each other's way
    torch.testing.assert_close(results[0], results[1], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("alpha", [4.0, 1e6])
def test_a_steep_penalty_loses_nothing_it_could_see(alpha: float) -> None:
    # Classes 0.245 apart in similarity: each negative adds e^-24.5 to R.
    labels = torch.arange(400) // 4
    x = torch.full((400, 101), 0.0)
    x[torch.arange(400), labels] = 0.245**0.5
    x[:, 100] = 0.755**0.5
    classes = ClassColumns.build(labels, labels, own_columns=torch.arange(400))

    def steep(negatives: Tensor, positives: Tensor, number: Tensor) -> tuple[Tensor, Tensor, None]:
        slope = alpha * torch.exp(-(alpha + 1) * torch.log1p(negatives))
        return -torch.expm1(-alpha * torch.log1p(negatives)), slope, None

    count = 396 * torch.sigmoid(torch.tensor(-24.5, dtype=torch.float64))
    wanted = -torch.expm1(-alpha * torch.log1p(count))
    assert ranked_loss(x, classes, steep, CountSettings()).item() == pytest.approx(wanted.item(), rel=1e-3)


def test_products_are_whole_and_the_setting_is_given_back() -> None:
    x, codes = torch.randn(8, 3), torch.arange(8) // 2
    classes = ClassColumns.build(codes, codes, own_columns=torch.arange(8))
    seen = []

    def looks(negatives: Tensor, positives: Tensor, number: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        products = getattr(torch.backends.mkldnn, "matmul", None)  # torch from 2.9 on
        seen.append(products.fp32_precision if products else torch.get_float32_matmul_precision())
        return square(negatives, positives, number)

    try:
        torch.set_float32_matmul_precision("medium")
        ranked_loss(x, classes, looks, CountSettings())
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision("highest")
    assert seen in (["ieee"], ["highest"])


def test_nan_is_never_out_of_reach() -> None:
    x, codes = clustered()
    x[39, 0] = torch.nan
    classes = ClassColumns.build(codes, codes, own_columns=torch.arange(40))
    assert ranked_loss(x, classes, square, CountSettings(chunk_size=4)).isnan()


def test_memory_is_reused_safely() -> None:
    x, codes = clustered()
    classes = ClassColumns.build(codes, codes, own_columns=torch.arange(40))
    small = ClassColumns.build(codes[:8], codes[:8], own_columns=torch.arange(8))

    def inside(negatives: Tensor, positives: Tensor, number: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        ranked_loss(x[:8], small, square, CountSettings())  # a loss within a loss
        return square(negatives, positives, number)

    with torch.inference_mode():
        first = ranked_loss(x, classes, square, CountSettings())
    live = x.clone().requires_grad_()
    again = ranked_loss(live, classes, inside, CountSettings())
    again.backward()
    assert again == ranked_loss(x, classes, square, CountSettings()) == first.clone()
    assert torch.isfinite(live.grad).all()
