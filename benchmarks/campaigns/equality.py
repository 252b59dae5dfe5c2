"""Losses and evaluation against brute force in float64: random shapes, types, ties, threads and devices."""

import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from campaigns.tally import Tally
from forerank import evaluate
from forerank.losses import PNPLoss, RankingLoss, SmoothAPLoss

TESTS = Path(__file__).parents[2] / "tests"
TYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
Count = Callable[[Tensor, Tensor], Tensor]  # negatives before (soft), positives before (soft) -> cost


def run(tries: int, seed: int, folder: Path, end: float) -> Tally:
    """Half of the tries are losses, half evaluations."""
    tally, kinds = Tally(), Counter[str]()
    devices = _devices()
    before = torch.get_num_threads()
    for number in range(tries):
        if time.monotonic() > end:
            break
        rng = np.random.default_rng([seed, number])
        torch.set_num_threads(int(rng.choice([1, 1, 1, 1, 2, 3, 4])))
        device = devices[rng.integers(len(devices))]
        kind, attempt = (("losses", _loss), ("evaluations", _evaluation))[number % 2]
        try:
            trouble = attempt(rng, device)
        except Exception as error:
            trouble = f"{type(error).__name__}: {error}"
        kinds[f"{kind} on {device}"] += 1
        tally.count(not trouble, f"try {number} ({kind} on {device}): {trouble}")
    torch.set_num_threads(before)
    tally.figures = dict(sorted(kinds.items()))
    return tally


def _devices() -> tuple[str, ...]:
    """The processor, a GPU where there is one, and the pretend accelerator of the tests."""
    real = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)
    if not (TESTS / "pretend_device.py").is_file():
        return real
    sys.path.append(str(TESTS))
    from pretend_device import DEVICE

    return (*real, DEVICE)


def _labels(rng: np.random.Generator, count: int) -> np.ndarray:
    """Classes of very different sizes, single images among them."""
    classes = int(rng.integers(1, count + 1))
    return rng.choice(classes, size=count, p=rng.dirichlet(np.full(classes, rng.uniform(0.2, 5))))


def _vectors(rng: np.random.Generator, count: int) -> np.ndarray:
    """Random vectors, vectors on a coarse grid (many ties), or with copies of some rows."""
    dim = int(rng.integers(2, 12))
    vectors = rng.normal(size=(count, dim))
    if rng.random() < 0.3:
        vectors = np.round(2 * vectors)
        vectors[~vectors.any(axis=1), 0] = 1.0  # a row of zeros has no direction
    if rng.random() < 0.3:
        vectors[rng.integers(count, size=count // 2)] = vectors[rng.integers(count, size=count // 2)]
    return vectors


# -- losses -------------------------------------------------------------------------------------------------


def _loss(rng: np.random.Generator, device: str) -> str:
    """Value and gradient of one loss on one batch; what differs, or ""."""
    count = int(rng.integers(2, 40))
    labels = torch.from_numpy(_labels(rng, count))
    dtype = TYPES[rng.integers(len(TYPES))]
    x = torch.from_numpy(_vectors(rng, count)).to(dtype)
    temperature = float(rng.choice([0.01, 0.05, 0.1, 1.0]))
    chunk_size = None if rng.random() < 0.5 else int(rng.integers(1, count + 1))
    name, loss, cost = _choose_loss(rng, temperature=temperature, chunk_size=chunk_size)
    ours, theirs = x.to(device, copy=True).requires_grad_(), x.double().requires_grad_()
    found, expected = loss(ours, labels.to(device)), _written_out(theirs, labels, temperature, cost)
    found.backward()
    expected.backward()
    assert ours.grad is not None
    assert theirs.grad is not None
    gradient = ours.grad.to("cpu").double()
    # float32 similarities are right to about 1e-7; divided by the temperature that is what can differ.
    loose = 1e-9 if dtype == torch.float64 else 3e-6 / temperature
    rounding = {torch.bfloat16: 1e-2, torch.float16: 2e-3}.get(
        dtype, 0.0
    )  # of the gradient that is handed back
    size = float(theirs.grad.abs().max())
    if abs(float(found) - float(expected)) > loose * max(1.0, abs(float(expected))):
        return f"{name} {dtype} of {count}: {float(found)} instead of {float(expected)}"
    gap = float((gradient - theirs.grad).abs().max())
    if gap > (loose + rounding) * max(1.0, size) / min(1.0, temperature):
        return f"{name} {dtype} of {count}: a gradient differs by {gap} of {size}"
    return ""


def _choose_loss(rng: np.random.Generator, **shared: object) -> tuple[str, RankingLoss, Count]:
    alpha, b = float(rng.uniform(1, 8)), float(rng.uniform(0.5, 4))
    curves: dict[str, Count] = {
        "O": lambda n, p: n,
        "Iu": lambda n, p: (1 + n) * (1 + n).log(),
        "Ib": lambda n, p: (b * n - (1 + b * n).log()) / b**2,
        "Ds": lambda n, p: (1 + n).log(),
        "Dq": lambda n, p: 1 - (1 + n) ** -alpha,
    }
    name = str(rng.choice([*curves, "Smooth-AP"]))
    if name == "Smooth-AP":
        return name, SmoothAPLoss(**shared), lambda n, p: n / (1 + p + n)  # type: ignore[arg-type]
    return name, PNPLoss(name, alpha=alpha, b=b, **shared), curves[name]  # type: ignore[arg-type]


def _written_out(x: Tensor, labels: Tensor, temperature: float, cost: Count) -> Tensor:
    """The mean over queries of the mean over their positives, with every triple in one tensor (Q, I, J)."""
    unit = x / x.norm(dim=1, keepdim=True)
    scores = unit @ unit.t()
    same = labels[:, None] == labels
    positive = same & ~torch.eye(len(x), dtype=torch.bool)
    before = ((scores[:, None, :] - scores[:, :, None]) / temperature).sigmoid()  # of q: j before i
    negatives = (before * ~same[:, None, :]).sum(dim=2)
    # sigmoid(0) is what i itself would count before i.
    positives = (before * positive[:, None, :]).sum(dim=2) - 0.5
    number = positive.sum(dim=1)
    means = (cost(negatives, positives) * positive).sum(dim=1)[number > 0] / number[number > 0]
    return means.mean() if len(means) else (x * 0).sum()


# -- evaluation ---------------------------------------------------------------------------------------------


def _evaluation(rng: np.random.Generator, device: str) -> str:
    """Every ranking metric of one set of vectors; what differs, or ""."""
    count = int(rng.integers(4, 120))
    labels = _labels(rng, count)
    dtype = TYPES[rng.integers(len(TYPES))]
    x = torch.from_numpy(_vectors(rng, count)).to(dtype)
    rows = rng.permutation(count)
    cut = int(rng.integers(1, count))
    queries, gallery = (rows, rows) if rng.random() < 0.5 else (np.sort(rows[:cut]), np.sort(rows[cut:]))
    ties = str(rng.choice(["pessimistic", "optimistic"]))
    ks = tuple(k for k in (1, 2, 4, 8) if k < len(gallery))
    if not ks:
        return ""  # a query of its own gallery ranks one item fewer
    expected = _by_sorting(x.double().numpy(), labels, queries, gallery, ks, ties)
    if not expected:
        return ""  # no query has a positive: evaluate refuses it, which the tests of metrics cover
    found = evaluate(
        x.to(device), labels, queries=queries, gallery=gallery, ks=ks, ties=ties, nmi=False, distances=False,
        bootstrap=0, device=device,
    )  # fmt: skip
    wrong = [name for name, value in expected.items() if abs(found[name] - value) > 1e-12]
    return (
        f"{wrong[0]} of {count} {dtype} is {found[wrong[0]]} instead of {expected[wrong[0]]}" if wrong else ""
    )


def _by_sorting(
    vectors: np.ndarray, labels: np.ndarray, queries: np.ndarray, gallery: np.ndarray, ks: tuple[int, ...],
    ties: str,
) -> dict[str, float]:  # fmt: skip
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    lines = []
    for q in queries:
        items = gallery[gallery != q]
        similarity = np.round((unit[items] * unit[q]).sum(axis=1), 11)
        relevant = labels[items] == labels[q]
        if not relevant.any():
            continue
        tied = relevant if ties == "pessimistic" else ~relevant
        relevant = relevant[np.lexsort((tied, -similarity))]
        number = relevant.sum()
        precision = np.cumsum(relevant) / np.arange(1, len(items) + 1)
        lines.append([
            *[relevant[:k].any() for k in ks],
            (precision * relevant).sum() / number,
            (precision * relevant)[:number].sum() / number,
            relevant[:number].mean(),
            1 / (np.argmax(relevant) + 1),
        ])  # fmt: skip
    if not lines:
        return {}
    names = [*[f"recall@{k}" for k in ks], "map", "map@r", "r_precision", "mrr"]
    return dict(zip(names, np.mean(np.array(lines, dtype=float), axis=0).tolist(), strict=True))
