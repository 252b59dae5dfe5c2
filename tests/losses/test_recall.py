"""Recall@k with virtual examples (SiMix), against mixed similarities written out."""

import pytest
import torch

from forerank.errors import InputError
from forerank.losses import CrossBatchMemory, RecallAtKLoss
from forerank.losses.recall import pairs_of_a_class


def test_mixup_mixes_similarities() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(8, 4, dtype=torch.float64, generator=generator)
    labels = torch.tensor([0, 0, 0, 1, 1, 2, 2, 3])
    live = x.clone().requires_grad_()
    loss = RecallAtKLoss(ks=[1, 2], rank_temperature=[1.0, 3.0], temperature=0.1, mixup=True)
    torch.manual_seed(5)
    value = loss(live, labels)
    value.backward()

    # The similarities of all real and virtual examples are W S W' for the weights W of the mixture.
    torch.manual_seed(5)
    first, second = pairs_of_a_class(labels)
    place = torch.rand(len(first), 1, dtype=torch.float64)
    weights = torch.cat([torch.eye(8), torch.zeros(len(first), 8)]).double()
    rows = torch.arange(8, 8 + len(first))
    weights[rows, first], weights[rows, second] = place[:, 0], 1 - place[:, 0]
    classes = torch.cat([labels, labels[first]])
    again = x.clone().requires_grad_()
    units = torch.nn.functional.normalize(again)
    scores = weights @ (units @ units.t()) @ weights.t()
    queries = []
    for q in range(len(scores)):
        others = [i for i in range(len(scores)) if i != q]
        positives = [i for i in others if classes[i] == classes[q]]
        if not positives:
            continue
        total = torch.zeros(())
        for k, t in ((1, 1.0), (2, 3.0)):
            hits = torch.zeros(())
            for p in positives:
                before = sum(torch.sigmoid((scores[q, j] - scores[q, p]) / 0.1) for j in others if j != p)
                hits = hits + torch.sigmoid((k - 1 - before) / t)
            total = total + (1 - hits / min(k, len(positives))) / 2
        queries.append(total)
    wanted = torch.stack(queries).mean()
    wanted.backward()
    torch.testing.assert_close(value, wanted)
    torch.testing.assert_close(live.grad, again.grad)


def test_mixup_is_off_by_default_and_works_with_a_bank() -> None:
    x, labels = torch.randn(12, 4), torch.arange(12) // 4
    assert not RecallAtKLoss().mixup
    assert RecallAtKLoss()(x, labels) == RecallAtKLoss()(x, labels)
    mixed = RecallAtKLoss(mixup=True)
    assert mixed(x, labels) != mixed(x, labels)  # other places between the images
    bank = CrossBatchMemory(mixed, 100)
    bank(x, labels, ids=torch.arange(12))
    assert bank(3 * x, labels, ids=torch.arange(12, 24)).isfinite()
    assert len(bank) == 24  # no virtual example is stored
    with pytest.raises(InputError, match="one for each of ks"):
        RecallAtKLoss(ks=[1, 2], rank_temperature=[1.0])
