"""Low-precision products that screen a tile of pairs, with proved bounds on how far they can be off.

Let u be the float64 unit vectors and v what the screen multiplies. For every pair
|u.u' - v.v'| <= |u - v| |u'| + |v| |u' - v'| (Cauchy-Schwarz), and adding n products in float32 in any order
is off by at most n * 2^-24 * |v| |v'| (Higham, Accuracy and Stability, section 3.1; a little more for the
higher-order terms). Their sum is the margin: a pair further than that from a threshold is decided.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from forerank.ranking.hard_same import TIE

UNIT32 = 2.0**-24
UNIT16 = 2.0**-9  # bfloat16 keeps 8 bits
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


@lru_cache(maxsize=1)
def numpy_is_faster() -> bool:
    """Which of the two installed BLAS libraries is faster here, by a few milliseconds of trial.

    torch brings MKL, which is slow on some AMD processors; numpy usually brings OpenBLAS. The counts do not
    depend on the answer.
    """
    side = torch.randn(512, CHUNK, generator=torch.Generator().manual_seed(0))
    array, best = side.numpy(), {True: float("inf"), False: float("inf")}
    out, total = np.empty((512, 512), dtype=np.float32), torch.empty(512, 512)
    for _ in range(6):
        start = time.perf_counter()
        np.matmul(array, array.T, out=out)
        np.add(out, out, out=out)
        middle = time.perf_counter()
        total.addmm_(side, side.T)
        end = time.perf_counter()
        best = {True: min(best[True], middle - start), False: min(best[False], end - middle)}
    return best[True] < best[False]


@contextmanager
def true_float32() -> Iterator[None]:
    """Float32 products in float32: a user's TF32 or bfloat16 shortcut would break the margins."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
