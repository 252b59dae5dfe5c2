"""Forerank: train, evaluate and serve image retrieval by counting what stands before.

Names are loaded on first use, so that ``import forerank`` costs milliseconds.

>>> import forerank
>>> forerank.__version__
'0.1.0'
"""

from typing import TYPE_CHECKING

from forerank.lazy import import_on_demand

__version__ = "0.1.0"

# Module -> the public names that it defines.
_MODULES = {
    "losses": ["PNPLoss", "SmoothAPLoss", "CrossBatchMemory"],
    "metrics": ["evaluate"],
    "data": ["Table", "ClassBalancedSampler"],
    "models": ["create_model", "Retriever"],
    "search": ["Index"],
    "client": ["Client"],
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


__getattr__ = import_on_demand(__name__, _MODULES)


def __dir__() -> list[str]:
    return sorted(__all__)
