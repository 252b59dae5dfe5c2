"""Properties that every loss here must have."""

import copy
import pickle
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from forerank.errors import InputError
from forerank.losses import LinearTail, PNPLoss, RankingLoss, RecallAtKLoss, SmoothAPLoss, SupAPLoss

VARIANTS = ["O", "Iu", "Iu_exact", "Ib", "Ds", "Dq"]
ALL: dict[str, Callable[..., RankingLoss]] = {
    **{variant: partial(PNPLoss, variant) for variant in VARIANTS},
    "AP": SmoothAPLoss,
    "Recall": RecallAtKLoss,
    "tail": partial(PNPLoss, linear_tail=LinearTail(start=0.2, slope=3.0)),
    "SupAP": SupAPLoss,
}


def batch(dtype: torch.dtype = torch.float64, count: int = 14, dimension: int = 5) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    labels = torch.tensor([5, 5, 5, 5, 9, 9, 9, 2, 2, 7, -1, -1, 2, 5])[:count]
    return torch.randn(count, dimension, dtype=torch.float64, generator=generator).to(dtype), labels


@pytest.mark.parametrize("name", ALL)
def test_gradient_is_that_of_the_value(name: str) -> None:
    x, labels = batch()
    for settings in ({}, {"count_self": True}, {"chunk_size": 3}):
        loss = ALL[name](temperature=0.15, **settings)
        assert torch.autograd.gradcheck(lambda e, loss=loss: loss(e, labels), x.clone().requires_grad_())


@pytest.mark.parametrize("name", ALL)
def test_gradient_in_references(name: str) -> None:
    x, labels = batch()
    loss = ALL[name](temperature=0.15)
    queries, references = x[:5].clone().requires_grad_(), x[5:].clone().requires_grad_()
    assert torch.autograd.gradcheck(
        lambda q, r: loss(q, labels[:5], None, r, labels[5:]), (queries, references)
    )


@pytest.mark.parametrize("name", ALL)
def test_invariances(name: str) -> None:
    x, labels = batch()
    loss = ALL[name](temperature=0.1)
    value = loss(x, labels)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(loss(x[order], labels[order]), value)
    lengths = torch.linspace(0.01, 50, len(x), dtype=x.dtype)[:, None]
    torch.testing.assert_close(loss(x * lengths, labels), value)
    torch.testing.assert_close(loss(x, 1000 - 3 * labels), value)
    torch.testing.assert_close(loss(x, [f"class {label}" for label in labels.tolist()]), value)
    torch.testing.assert_close(loss(x, labels.numpy()), value)
    torch.testing.assert_close(loss(x, labels.to(torch.int8)), value)
    torch.testing.assert_close(loss(x, labels, None, x, labels), value)  # the same tensor: the batch itself


def test_scaling_as_far_as_float32_goes() -> None:
    x, labels = batch(torch.float32)
    loss = PNPLoss(temperature=0.1)
    plain = x.clone().requires_grad_()
    value = loss(plain, labels)
    value.backward()
    for scale in (1e-30, 1e20):  # squares of these are 0 and infinity
        scaled = (x * scale).requires_grad_()
        result = loss(scaled, labels)
        result.backward()
        torch.testing.assert_close(result, value)
        torch.testing.assert_close(scaled.grad * scale, plain.grad, rtol=1e-4, atol=1e-6)


def test_labels_of_any_kind_make_the_same_classes() -> None:
    x, labels = batch()
    wanted = PNPLoss()(x, labels)
    assert wanted > 0
    for same in (
        list(labels),
        list(labels.numpy()),
        [2**70 + v for v in labels.tolist()],
    ):
        assert PNPLoss()(x, same) == wanted


@pytest.mark.parametrize("double", ["queries", "references"])
def test_precisions_may_differ(double: str) -> None:
    x, labels = batch(torch.float32)
    queries, references = x[:5].clone(), x[5:].clone()
    loss = PNPLoss(temperature=0.1)
    expected = loss(queries.double(), labels[:5], None, references.double(), labels[5:])
    if double == "queries":
        queries = queries.double()
    else:
        references = references.double()
    queries.requires_grad_()
    value = loss(queries, labels[:5], None, references, labels[5:])
    value.backward()
    torch.testing.assert_close(value, expected)
    assert queries.grad.dtype == queries.dtype


def test_a_tail_from_a_recipe() -> None:
    assert PNPLoss(linear_tail={"start": 0.1, "slope": 7}).linear_tail == LinearTail(0.1, 7)
    assert PNPLoss(linear_tail=True).linear_tail == LinearTail()
    assert PNPLoss(linear_tail=False).linear_tail is None


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("name", ALL)
def test_half_precision_has_finite_gradients(name: str, dtype: torch.dtype) -> None:
    # 400 negatives at alpha = 18 overflow a power taken in half or single precision.
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(408, 16, generator=generator).to(dtype).requires_grad_()
    labels = torch.arange(408) // 4
    loss = PNPLoss("Dq", alpha=18) if name == "Dq" else ALL[name]()
    value = loss(x, labels)
    assert value.dtype == torch.float32
    (value * 1024).backward()
    assert torch.isfinite(x.grad).all()
    assert x.grad.dtype == dtype
    exact = x.detach().double().requires_grad_()
    (loss(exact, labels) * 1024).backward()
    torch.testing.assert_close(value.double(), loss(exact, labels), rtol=2e-4, atol=1e-6)
    scale = exact.grad.abs().max()
    assert (x.grad.double() - exact.grad).abs().max() <= {torch.float32: 1e-3}.get(dtype, 1e-2) * scale


@pytest.mark.parametrize("name", ALL)
def test_batches_without_positives_or_negatives(name: str) -> None:
    x = batch()[0].requires_grad_()
    loss = ALL[name]()
    lonely = loss(x, torch.arange(len(x)))
    lonely.backward()
    assert lonely.item() == 0
    assert not x.grad.any()
    united = loss(x, torch.zeros(len(x), dtype=torch.int64))
    united.backward()
    assert torch.isfinite(x.grad).all()
    if name != "Recall":  # positives compete for the first k places
        assert united.item() == pytest.approx(0, abs=1e-12)
    empty = loss(x, torch.arange(len(x)), None, x[:0], torch.arange(0))
    empty.backward()
    assert empty.item() == 0
    assert loss(x[:0], torch.arange(0)).item() == 0
    assert loss(x[:1], torch.arange(1)).item() == 0


@pytest.mark.parametrize("name", ALL)
def test_identical_and_zero_embeddings(name: str) -> None:
    labels = torch.arange(12) // 3
    same = torch.ones(12, 4, requires_grad=True)
    value = ALL[name]()(same, labels)
    value.backward()
    assert torch.isfinite(value)
    assert torch.isfinite(same.grad).all()
    if name == "O":
        assert value.item() == pytest.approx(9 / 2)  # every negative is half before
    zero = torch.randn(12, 4, generator=torch.Generator().manual_seed(0))
    zero[3] = 0
    zero.requires_grad_()
    ALL[name]()(zero, labels).backward()
    assert torch.isfinite(zero.grad).all()
    assert not zero.grad[3].any()


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_faulty_embeddings_show_in_the_loss(bad: float) -> None:
    for labels in (torch.arange(12) // 3, torch.arange(12)):
        x = torch.randn(12, 4, generator=torch.Generator().manual_seed(0))
        x[5, 1] = bad
        assert PNPLoss()(x, labels).isnan()


def test_references_by_hand() -> None:
    queries = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    references = torch.tensor([[0.6, 0.8], [0.8, 0.6], [1.0, 0.0]])
    # Query 0: its positive is last of three (R = 2). Query 1: its only positive is last too (R = 2).
    loss = PNPLoss("O", temperature=1e-3)
    value = loss(queries, torch.tensor([0, 1]), None, references, torch.tensor([0, 2, 1]))
    assert value.item() == pytest.approx(2)


def test_autocast_changes_nothing() -> None:
    x, labels = batch(torch.float32)
    expected = PNPLoss()(x, labels)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert PNPLoss()(x, labels) == expected


def test_torch_compile() -> None:
    x, labels = batch(torch.float32)
    plain, compiled = x.clone().requires_grad_(), x.clone().requires_grad_()
    loss = PNPLoss()
    loss(plain * 2, labels).backward()
    step = torch.compile(lambda e: loss(e * 2, labels), backend="aot_eager")
    step(compiled).backward()
    torch.testing.assert_close(compiled.grad, plain.grad)


def test_no_gradient_is_made_when_none_is_asked() -> None:
    x, labels = batch()
    with torch.no_grad():
        assert not PNPLoss()(x.requires_grad_(), labels).requires_grad
    assert not PNPLoss()(x.detach(), labels).requires_grad


@pytest.mark.parametrize("loss", [PNPLoss("Ib", b=3), SmoothAPLoss(), PNPLoss.from_derivative("1/(1+R)")])
def test_survives_copy_and_pickle(loss: RankingLoss) -> None:
    x, labels = batch()
    for twin in (copy.deepcopy(loss), pickle.loads(pickle.dumps(loss))):
        assert twin(x, labels) == loss(x, labels)
        assert repr(twin) == repr(loss)


BAD_CALLS: list[tuple[type[Exception], str, Callable[[Tensor, Tensor], Any]]] = [
    (ValueError, "2-D", lambda x, y: PNPLoss()(x[0], y)),
    (ValueError, "14 embeddings but 13 labels", lambda x, y: PNPLoss()(x, y[:-1])),
    (TypeError, "integers", lambda x, y: PNPLoss()(x, y.float())),
    (TypeError, "discrete", lambda x, y: PNPLoss()(x, [0.5] * 14)),
    (TypeError, "floating point", lambda x, y: PNPLoss()(x.long(), y)),
    (TypeError, "torch tensor", lambda x, y: PNPLoss()(x.numpy(), y)),
    (ValueError, "1-D", lambda x, y: PNPLoss()(x, y[:, None])),
    (ValueError, "alpha", lambda x, y: PNPLoss(alpha=0.5)),
    (ValueError, "b must", lambda x, y: PNPLoss(b=0)),
    (ValueError, "temperature", lambda x, y: PNPLoss(temperature=0)),
    (ValueError, "temperature", lambda x, y: SmoothAPLoss(temperature=float("nan"))),
    (ValueError, "chunk_size", lambda x, y: PNPLoss(chunk_size=0)),
    (ValueError, "Valid: O, Iu, Iu_exact, Ib, Ds, Dq", lambda x, y: PNPLoss("dq")),
    (ValueError, "go together", lambda x, y: PNPLoss()(x, y, None, x.clone())),
    (ValueError, "go together", lambda x, y: PNPLoss()(x, y, None, None, y)),
    (ValueError, "dimensions", lambda x, y: PNPLoss()(x, y, None, x[:, :3].clone(), y)),
    (ValueError, "indices_tuple", lambda x, y: PNPLoss()(x, y, (y, y, y))),
    (ValueError, "labels are missing", lambda x, y: PNPLoss()(x, None)),
    (ValueError, "ks", lambda x, y: RecallAtKLoss(ks=[0])),
    (ValueError, "each of ks", lambda x, y: RecallAtKLoss(ks=[1.5])),
    (ValueError, "sequence of ranks", lambda x, y: RecallAtKLoss(ks=5)),
    (ValueError, "rank_temperature", lambda x, y: RecallAtKLoss(rank_temperature=float("inf"))),
    (ValueError, "slope of a linear tail", lambda x, y: SupAPLoss(slope=-1)),
    (ValueError, "slope .* not inf", lambda x, y: SupAPLoss(slope=float("inf"))),
    (ValueError, "start of a linear tail", lambda x, y: LinearTail(-1, 5)),
    (ValueError, "linear_tail .* 'yes'", lambda x, y: PNPLoss(linear_tail="yes")),
    (ValueError, "did you mean 'start'", lambda x, y: PNPLoss(linear_tail={"strat": 0.1})),
    (ValueError, "alpha .* at least 1, not '4'", lambda x, y: PNPLoss(alpha="4")),
    (ValueError, "temperature .* not None", lambda x, y: PNPLoss(temperature=None)),
    (ValueError, "chunk_size .* not 2.5", lambda x, y: PNPLoss(chunk_size=2.5)),
    (TypeError, "not floating point", lambda x, y: PNPLoss()(x, list(y.numpy().astype("float32")))),
    (TypeError, "unhashable", lambda x, y: PNPLoss()(x, [[1], [2]] * 7)),
    (TypeError, "tensor of several", lambda x, y: PNPLoss()(x, list(y[:, None]))),
    (TypeError, "not iterable", lambda x, y: PNPLoss()(x, 5)),
    (ValueError, "batch itself", lambda x, y: PNPLoss()(x, y, None, x, y.flip(0))),
    (ValueError, "14 embeddings but 3 ref_labels", lambda x, y: PNPLoss()(x, y, None, x, y[:3])),
]


@pytest.mark.parametrize(("kind", "words", "call"), BAD_CALLS, ids=[words for _, words, _ in BAD_CALLS])
def test_bad_input_is_refused(
    kind: type[Exception], words: str, call: Callable[[Tensor, Tensor], Any]
) -> None:
    with pytest.raises(kind, match=words) as caught:
        call(*batch())
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value, InputError | TypeError)


def test_never_holds_the_similarity_matrix() -> None:
    # At B = 6,144 the matrix alone is 144 MiB. A process of its own, since a peak cannot be reset.
    program = """
import torch
from pathlib import Path
from forerank import PNPLoss
torch.set_num_threads(2)
def peak():
    return next(int(l.split()[1]) for l in open("/proc/self/status") if l.startswith("VmHWM"))
x = torch.randn(6144, 16, requires_grad=True)
y = torch.arange(6144) // 4
PNPLoss()(x[:64], y[:64]).backward()
open("/proc/self/clear_refs", "w").write("5")  # the peak starts again from here
before = peak()
PNPLoss()(x, y).backward()
print((peak() - before) // 1024)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 72  # MiB


@pytest.mark.parametrize("alpha", [24, 32])
def test_the_power_as_written_has_no_gradient_and_the_default_has(alpha: int) -> None:
    # 28 classes of 4, untrained: (1 + R)^(alpha - 1) is above float32, 1 / (1 + R)^alpha is 0; 0 * inf = NaN.
    x = torch.randn(112, 128, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(112) // 4
    written, stable = x.clone().requires_grad_(), x.clone().requires_grad_()
    one, two = PNPLoss(alpha=alpha, naive=True)(written, labels), PNPLoss(alpha=alpha)(stable, labels)
    torch.testing.assert_close(one, two)  # the loss itself shows nothing
    one.backward()
    two.backward()
    assert written.grad.isnan().all()
    assert stable.grad.isfinite().all()


def test_the_power_as_written_is_the_same_where_it_can_be_computed() -> None:
    x = torch.randn(112, 128, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(112) // 4
    written, stable = x.clone().requires_grad_(), x.clone().requires_grad_()
    PNPLoss(alpha=4, temperature=0.1, naive=True)(written, labels).backward()
    PNPLoss(alpha=4, temperature=0.1)(stable, labels).backward()
    torch.testing.assert_close(written.grad, stable.grad, rtol=1e-3, atol=1e-9)
    with pytest.raises(InputError, match="PNP-Ds has none"):
        PNPLoss("Ds", naive=True)
