"""Import torchvision beside a CPU build of torch.

Some torchvision wheels are CUDA builds. Beside CPU torch their compiled operators do not load, and
`import torchvision` (so also timm, and parts of transformers) dies with "operator torchvision::nms does not
exist": its Python side registers shape rules for operators that nobody declared. Declaring the two operator
schemas first lets everything that does not call them work: transforms, models, timm. Where the real operators
load, this module changes nothing. A data-loader worker that is spawned (not forked) has to call it too.
"""

import importlib
import sys
from types import ModuleType
from typing import Any

from forerank.errors import InputError, require

# The operators that torchvision's Python side refers to at import, with torchvision's own signatures.
_SCHEMAS = {
    "nms": "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms": "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
}
_declared: list[object] = []  # keeps the torch.library fragment alive: it undeclares itself when collected


def import_torchvision() -> ModuleType:
    """`import torchvision`, declaring its operator schemas only if the import fails without them."""
    try:
        return require("torchvision")
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            raise
        for name in [n for n in sys.modules if n == "torchvision" or n.startswith("torchvision.")]:
            del sys.modules[name]  # half loaded
        _declare_schemas()
    try:
        return importlib.import_module("torchvision")
    except RuntimeError as error:
        raise InputError(
            f"torchvision cannot be imported beside this torch ({error}): install the pair of versions that "
            "belong together, or use a backbone that needs no torchvision, such as efficientnet-lite0"
        ) from error


def _declare_schemas() -> None:
    import torch

    library: Any = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
    for name, schema in _SCHEMAS.items():
        if not hasattr(torch.ops.torchvision, name):
            library.define(schema)
    _declared.append(library)


def import_timm() -> ModuleType:
    """`import timm`, with torchvision made importable first."""
    import_torchvision()
    return require("timm")
