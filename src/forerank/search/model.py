"""The model of an index: told apart by what it computes, not by what it is called."""

import hashlib
import json
from typing import TYPE_CHECKING

from forerank.errors import InputError

if TYPE_CHECKING:
    from forerank.models import EmbeddingModel


def model_identity(model: "EmbeddingModel") -> str:
    """32 hexadecimal digits of everything that decides a vector: architecture, preprocessing, weights.

    >>> import torch
    >>> from forerank.models import create_model
    >>> model = create_model("glyphnet", embedding_dim=4)
    >>> before = model_identity(model)
    >>> with torch.no_grad():
    ...     _ = model.head.weight.mul_(1.01)
    >>> model_identity(model) == before
    False
    """
    import torch

    digest = hashlib.blake2b(digest_size=16)
    digest.update(json.dumps(model.spec, sort_keys=True, default=str).encode())
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return digest.hexdigest()


def refuse_other_model(address: str, stored: dict[str, str], given: str, name: str, instead: str) -> None:
    """Raise unless the identity `given` is the one stored; vectors of two models cannot be compared."""
    if stored["fingerprint"] != given:
        raise InputError(
            f"{address} was built with another model ({stored.get('source', 'unknown')}, "
            f"{stored['fingerprint'][:8]}) than {name} ({given[:8]}): their vectors cannot be compared. "
            f"{instead}"
        )
