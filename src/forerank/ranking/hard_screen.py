"""Low-precision products that screen a tile of pairs, with proved bounds on how far they can be off.

Let u be the float64 unit vectors and v what the screen multiplies. For every pair
|u.u' - v.v'| <= |u - v| |u'| + |v| |u' - v'| (Cauchy-Schwarz), and adding n products in float32 in any order
is off by at most n * 2^-24 * |v| |v'| (Higham, Accuracy and Stability, section 3.1; a little more for the
higher-order terms). Their sum is the margin: a pair further than that from a threshold is decided.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from forerank.ranking.hard_same import TIE
from forerank.ranking.precision import whole_products

UNIT32 = 2.0**-24
UNIT16 = 2.0**-8  # bfloat16 keeps 8 bits, the leading one included
# Adding up 128 products at a time makes the float32 margin four times narrower at D = 512, for nothing.
CHUNK = 128
# Float64 rounding, ties and second-order terms, all far below the margins themselves.
SLACK = 1e-11 + 2 * TIE


def dot_margin(dim: int) -> float:
    """Error of a float32 dot product of float32 unit vectors, added up in any order."""
    return 1.01 * (dim + 3) * UNIT32 + SLACK


def product_margin(dim: int) -> float:
    """Error of `product32`."""
    return 1.01 * (min(dim, CHUNK) + -(-dim // CHUNK) + 3) * UNIT32 + SLACK


def bfloat16_margin(dim: int, own: float, other: float) -> float:
    """Error of a bfloat16 product before its result is rounded, from how far rounding moved the vectors.

    The result's own rounding needs no margin: rounding never swaps two numbers, so thresholds rounded the
    same way decide the same.
    """
    return 1.01 * (dim + 3) * UNIT32 + (own + (1 + UNIT16) * other) * (1 + 1e-5) + SLACK


def residual(exact: Tensor, rounded: Tensor) -> float:
    """The longest |u - v| over rows, from float32 vectors (N, D) and their bfloat16 copies."""
    return float((exact - rounded.float()).norm(dim=1).max()) * (1 + 1e-4) + UNIT32


def product32(left: Tensor, right: Tensor, out: Tensor, spare: Tensor) -> Tensor:
    """left (A, D) times right (B, D) transposed into out (A, B) in float32."""
    if out.device.type == "cpu" and numpy_is_faster():
        a, b, total, part = left.numpy(), right.numpy(), out.numpy(), spare.numpy()
        np.matmul(a[:, :CHUNK], b[:, :CHUNK].T, out=total)
        for start in range(CHUNK, a.shape[1], CHUNK):
            np.matmul(a[:, start : start + CHUNK], b[:, start : start + CHUNK].T, out=part)
            np.add(total, part, out=total)
        return out
    torch.mm(left[:, :CHUNK], right[:, :CHUNK].T, out=out)
    for start in range(CHUNK, left.shape[1], CHUNK):
        out.addmm_(left[:, start : start + CHUNK], right[:, start : start + CHUNK].T)
    return out


def numpy_is_faster() -> bool:
    """Whether numpy's BLAS beats torch's here, in the way `product32` uses them.

    torch brings MKL, which is slow on some AMD processors; numpy usually brings OpenBLAS. The counts do not
    depend on the answer.
    """
    times = _trial()
    return times["numpy"] < times["torch"]


def bfloat16_is_faster(device: torch.device) -> bool:
    """Whether bfloat16 products pay: a processor without the instructions is far slower at them."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported())
    if device.type != "cpu":
        return False
    times = _trial()
    return times["bfloat16"] < 0.8 * min(times["numpy"], times["torch"])


@lru_cache(maxsize=1)
def _trial() -> dict[str, float]:
    """Seconds of a small product each way, the best of a few: some milliseconds altogether, once."""
    side = torch.randn(512, CHUNK, generator=torch.Generator().manual_seed(0))
    array, total, short = side.numpy(), np.empty((512, 512), dtype=np.float32), side.bfloat16()
    out, out16 = torch.zeros(512, 512), torch.zeros(512, 512, dtype=torch.bfloat16)
    ways: dict[str, Callable[[], object]] = {
        "numpy": lambda: np.add(np.matmul(array, array.T, out=total), total, out=total),
        "torch": lambda: out.addmm_(side, side.T),
        "bfloat16": lambda: torch.mm(short, short.T, out=out16),
    }
    best = dict.fromkeys(ways, float("inf"))
    for _ in range(5):
        for name, way in ways.items():
            start = time.perf_counter()
            way()
            best[name] = min(best[name], time.perf_counter() - start)
    return best


@contextmanager
def exact_sums() -> Iterator[None]:
    """Add up products in float32, as the margins assume, whatever shortcuts the user has allowed."""
    cuda = torch.backends.cuda.matmul
    before = cuda.allow_bf16_reduced_precision_reduction
    cuda.allow_bf16_reduced_precision_reduction = False  # no bfloat16 sums in bfloat16 products
    try:
        with whole_products("cpu"), whole_products("cuda"):
            yield
    finally:
        cuda.allow_bf16_reduced_precision_reduction = before
