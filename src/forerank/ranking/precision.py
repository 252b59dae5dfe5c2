"""Products in all of float32, whatever shortcuts the user has allowed the hardware."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def whole_products(device_type: str) -> Iterator[None]:
    """No TF32 and no bfloat16 inside float32 products of this kind of device; the setting is put back.

    torch has two ways to set this and refuses to read the older one once the newer was used.

    >>> with whole_products("cpu"):
    ...     _ = torch.ones(2, 2) @ torch.ones(2, 2)
    """
    backend: Any = torch.backends.mkldnn if device_type == "cpu" else torch.backends.cuda
    products = getattr(backend, "matmul", None)
    before = getattr(products, "fp32_precision", None)
    if before in ("none", "ieee"):
        yield
    elif products is not None and before is not None:
        products.fp32_precision = "ieee"
        try:
            yield
        finally:
            products.fp32_precision = before
    else:  # torch before 2.9
        precision = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("highest")
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(precision)
