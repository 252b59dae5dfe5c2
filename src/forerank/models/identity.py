"""A model told apart by what it computes, not by what it is called."""

import hashlib
import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from forerank.models.embedding import EmbeddingModel


def model_identity(model: "EmbeddingModel", *, head: bool = True) -> str:
    """32 hexadecimal digits of everything that decides a vector: architecture, preprocessing, weights.

    Args:
        head: False leaves the head out: what decides the features.

    >>> import torch
    >>> from forerank.models import create_model
    >>> model = create_model("glyphnet", embedding_dim=4)
    >>> before, below = model_identity(model), model_identity(model, head=False)
    >>> with torch.no_grad():
    ...     _ = model.head.weight.mul_(1.01)
    >>> model_identity(model) == before, model_identity(model, head=False) == below
    (False, True)
    """
    import torch

    digest = hashlib.blake2b(digest_size=16)
    spec = model.spec
    if not head:
        spec = {key: spec[key] for key in ("pooling", "architecture", "preprocessing")}
    digest.update(json.dumps(spec, sort_keys=True, default=str).encode())
    for name, tensor in sorted(model.state_dict().items()):
        if not head and name.startswith(("head.", "layer_norm.")):
            continue
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return digest.hexdigest()
