"""Low-precision products that screen a tile of pairs, with proved bounds on how far they can be off.

Let u be the float64 unit vectors and v what the screen multiplies. For every pair
|u.u' - v.v'| <= |u - v| |u'| + |v| |u' - v'| (Cauchy-Schwarz), and adding n products in float32 in any order
is off by at most n * 2^-24 * |v| |v'| (Higham, Accuracy and Stability, section 3.1; a little more for the
higher-order terms). Their sum is the margin: a pair further than that from a threshold is decided.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

import numpy as np
import torch
from torch import Tensor

from forerank.console import say_if_slow
from forerank.machine import bf16_fault
from forerank.ranking.hard_same import TIE
from forerank.ranking.hard_threads import one_thread_each
from forerank.ranking.precision import whole_products

UNIT32 = 2.0**-24
UNIT16 = 2.0**-8  # bfloat16 keeps 8 bits, the leading one included
# Float64 rounding, ties and second-order terms, all far below the margins themselves.
SLACK = 1e-11 + 2 * TIE


def margin(dtype: torch.dtype, dim: int, own: float = 0.0, other: float = 0.0) -> float:
    """Error of a product of unit vectors that were rounded to this type, added up in any order.

    `own` and `other` tell how far rounding to bfloat16 moved the vectors. The rounding of a bfloat16 result
    needs no margin: it never swaps two numbers, so thresholds rounded the same way decide the same.
    """
    if dtype == torch.float64:
        return TIE
    moved = (own + (1 + UNIT16) * other) * (1 + 1e-5) if dtype == torch.bfloat16 else 0.0
    return 1.01 * (dim + 3) * UNIT32 + moved + SLACK


def dot_margin(dim: int) -> float:
    """Error of a dot product of float32 unit vectors, multiplied and added up in float64."""
    return 2.01 * UNIT32 + dim * 2.0**-52 + SLACK


def residual(exact: Tensor, rounded: Tensor) -> float:
    """The longest |u - v| over rows, from float32 vectors (N, D) and their bfloat16 copies."""
    return float((exact - rounded.float()).norm(dim=1).max()) * (1 + 1e-4) + UNIT32


def product(left: Tensor, right: Tensor, out: Tensor) -> None:
    """left (A, D) times right (B, D) transposed into out (A, B)."""
    if out.device.type == "cpu" and out.dtype != torch.bfloat16 and numpy_is_faster():
        np.matmul(left.numpy(), right.numpy().T, out=out.numpy())
    else:
        torch.mm(left, right.T, out=out)


def numpy_is_faster() -> bool:
    """Whether numpy's BLAS clearly beats torch's here.

    torch brings MKL, which is slow on some AMD processors; numpy usually brings OpenBLAS. The counts do not
    depend on the answer.
    """
    times = _trial("numpy", "torch")
    return times["numpy"] < 0.9 * times["torch"]


def bfloat16_is_faster(device: torch.device) -> bool:
    """Whether bfloat16 products pay: a processor without the instructions is far slower at them."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported())
    if device.type != "cpu":
        return False
    with say_if_slow("trying whether this processor's instructions for bfloat16 work"):
        if bf16_fault() is not None:
            return False
    times = _trial("numpy", "torch", "bfloat16")
    return times["bfloat16"] < 0.8 * min(times["numpy"], times["torch"])


@cache
def _trial(*names: str) -> dict[str, float]:
    """Seconds of a product each way, the best of a few: some hundredths of a second altogether, once."""
    side = torch.randn(768, 512, generator=torch.Generator().manual_seed(0))
    array, total, short = side.numpy(), np.empty((768, 768), dtype=np.float32), side.bfloat16()
    out, out16 = torch.zeros(768, 768), torch.zeros(768, 768, dtype=torch.bfloat16)
    ways: dict[str, Callable[[], object]] = {
        "numpy": lambda: np.matmul(array, array.T, out=total),
        "torch": lambda: torch.mm(side, side.T, out=out),
        "bfloat16": lambda: torch.mm(short, short.T, out=out16),
    }
    best = dict.fromkeys(names, float("inf"))
    with one_thread_each():  # as large sets are counted; and threads of one library would disturb the other
        for _ in range(4):
            for name in names:
                start = time.perf_counter()
                ways[name]()
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
