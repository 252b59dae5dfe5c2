"""Forerank: train, evaluate and serve image retrieval by counting what stands before.

Names are loaded on first use, so that ``import forerank`` costs milliseconds.

>>> import forerank
>>> forerank.__version__
'0.1.0'
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# Public name -> module that defines it.
_HOMES = {
    "PNPLoss": "forerank.losses",
    "SmoothAPLoss": "forerank.losses",
    "CrossBatchMemory": "forerank.losses",
    "evaluate": "forerank.metrics",
    "Table": "forerank.data",
    "ClassBalancedSampler": "forerank.data",
    "create_model": "forerank.models",
    "Retriever": "forerank.models",
    "Index": "forerank.search",
    "Client": "forerank.client",
}

__all__ = [
    "ClassBalancedSampler",
    "Client",
    "CrossBatchMemory",
    "Index",
    "PNPLoss",
    "Retriever",
    "SmoothAPLoss",
    "Table",
    "__version__",
    "create_model",
    "evaluate",
]

if TYPE_CHECKING:
    from forerank.client import Client
    from forerank.data import ClassBalancedSampler, Table
    from forerank.losses import CrossBatchMemory, PNPLoss, SmoothAPLoss
    from forerank.metrics import evaluate
    from forerank.models import Retriever, create_model
    from forerank.search import Index


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = getattr(import_module(_HOMES[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'forerank' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
