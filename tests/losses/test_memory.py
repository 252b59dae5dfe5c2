"""The bank: who is ranked, who gets a gradient, what is kept."""

import io

import pytest
import torch

from forerank.losses import CrossBatchMemory, PNPLoss, RecallAtKLoss, SmoothAPLoss, SupAPLoss

LOSSES = [*(PNPLoss(v, temperature=0.1) for v in ("O", "Iu", "Iu_exact", "Ib", "Ds", "Dq"))]
LOSSES += [kind(temperature=0.1) for kind in (SmoothAPLoss, SupAPLoss, RecallAtKLoss)]


def batches(count: int, size: int = 6) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(size, 4, dtype=torch.float64, generator=generator) for _ in range(count)]


@pytest.mark.parametrize("loss", LOSSES, ids=str)
def test_ranks_the_batch_among_what_is_stored(loss: torch.nn.Module) -> None:
    first, second = batches(2)
    labels = torch.tensor([0, 0, 1, 1, 2, 2])
    memory = CrossBatchMemory(loss, size=100)
    torch.testing.assert_close(memory(first, labels, ids=torch.arange(6)), loss(first, labels))
    live = second.clone().requires_grad_()
    value = memory(live, labels, ids=torch.arange(6, 12))
    value.backward()
    # Written out: queries are the batch; ranked are batch and bank together, a query not its own positive.
    alone = second.clone().requires_grad_()
    parts = []
    for q in range(6):
        others = [i for i in range(6) if i != q]
        ranked, theirs = torch.cat([alone[others], first]), torch.cat([labels[others], labels])
        parts.append(loss(alone[q : q + 1], labels[q : q + 1], None, ranked, theirs))
    expected = torch.stack(parts).mean()
    expected.backward()
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(live.grad, alone.grad)


def test_an_image_never_meets_its_stale_copy() -> None:
    first, second = batches(2)
    labels, ids = torch.tensor([0, 0, 1, 1, 2, 2]), torch.arange(6)
    loss = PNPLoss("O", temperature=0.1)
    memory = CrossBatchMemory(loss, size=100)
    memory(first, labels, ids=ids)
    # The same images again: nothing else is stored, so the bank must not matter, and is replaced.
    torch.testing.assert_close(memory(second, labels, ids=ids), loss(second, labels))
    assert len(memory) == 6
    torch.testing.assert_close(memory.embeddings, second)
    # Without ids the copies are taken for other images, and do matter.
    careless = CrossBatchMemory(loss, size=100)
    careless(first, labels)
    assert careless(second, labels) != loss(second, labels)
    assert len(careless) == 12


def test_keeps_the_newest_and_one_of_each_image() -> None:
    memory = CrossBatchMemory(PNPLoss(), size=8)
    labels = torch.tensor([0, 0, 1, 1, 2, 2])
    one, two = batches(2)
    memory(one, labels, ids=torch.tensor([0, 1, 2, 3, 4, 4]))
    torch.testing.assert_close(memory.embeddings, one[[0, 1, 2, 3, 5]])
    memory(two, labels, ids=torch.arange(10, 16))
    assert memory.ids.tolist() == [3, 4, 10, 11, 12, 13, 14, 15]
    memory.eval()
    memory(one, labels, ids=torch.arange(20, 26))
    assert memory.ids.tolist() == [3, 4, 10, 11, 12, 13, 14, 15]
    memory.clear()
    assert len(memory) == 0


def test_a_faulty_batch_is_not_stored() -> None:
    labels = torch.tensor([0, 0, 1, 1, 2, 2])
    memory = CrossBatchMemory(PNPLoss("O", temperature=0.1), size=100)
    one, two, three = batches(3)
    memory(one, labels, ids=torch.arange(6))
    two[1, 2], two[4, 0] = torch.inf, torch.nan
    assert memory(two, labels, ids=torch.arange(6, 12)).isnan()
    assert memory.ids.tolist() == [0, 1, 2, 3, 4, 5, 6, 8, 9, 11]
    assert memory(three, labels, ids=torch.arange(12, 18)).isfinite()


def test_precision_may_change_between_batches() -> None:
    labels = torch.tensor([0, 0, 1, 1, 2, 2])
    memory = CrossBatchMemory(PNPLoss("O", temperature=0.1), size=100)
    values = [
        memory(x.to(dtype), labels)
        for x, dtype in zip(batches(3), (torch.float64, torch.float32, torch.float16), strict=True)
    ]
    memory.clear()
    exact = [memory(x, labels) for x in batches(3)]
    torch.testing.assert_close(torch.stack(values), torch.stack(exact), rtol=1e-2, atol=0)


def test_state_is_saved_and_restored() -> None:
    labels, loss = torch.tensor([0, 0, 1, 1, 2, 2]), PNPLoss()
    one, two = batches(2)
    memory = CrossBatchMemory(loss, size=20)
    memory(one, labels, ids=torch.arange(6))
    file = io.BytesIO()
    torch.save(memory.state_dict(), file)
    file.seek(0)
    again = CrossBatchMemory(loss, size=20)
    again.load_state_dict(torch.load(file, weights_only=True))
    assert again(two, labels, ids=torch.arange(3, 9)) == memory(two, labels, ids=torch.arange(3, 9))
    assert again.ids.tolist() == memory.ids.tolist()
    smaller = CrossBatchMemory(loss, size=4)
    smaller.load_state_dict(memory.state_dict())
    assert len(smaller) == 4


def test_bad_input_is_refused() -> None:
    x, labels = batches(1)[0], torch.arange(6) // 2
    with pytest.raises(TypeError, match="ranking loss"):
        CrossBatchMemory(torch.nn.MSELoss(), 10)
    with pytest.raises(ValueError, match="size"):
        CrossBatchMemory(PNPLoss(), 0)
    memory = CrossBatchMemory(PNPLoss(), 10)
    with pytest.raises(ValueError, match="6 embeddings but 5 ids"):
        memory(x, labels, ids=torch.arange(5))
    with pytest.raises(TypeError, match="ids must be integers"):
        memory(x, labels, ids=list("abcdef"))
    with pytest.raises(TypeError, match="in a memory bank"):
        memory(x, list("aabbcc"))
    with pytest.raises(ValueError, match="size must be a whole number"):
        CrossBatchMemory(PNPLoss(), 2.5)
    with pytest.raises(ValueError, match="negative"):
        memory(x, labels, ids=torch.arange(-1, 5))
    with pytest.raises(ValueError, match="indices_tuple"):
        memory(x, labels, (labels,))
    memory(x, labels)
    with pytest.raises(ValueError, match="4 dimensions"):
        memory(x[:, :3], labels)
