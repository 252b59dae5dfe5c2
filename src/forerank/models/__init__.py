"""Image batch -> unit vectors; pretrained weights; export."""

from forerank.models.backbones import list_backbones
from forerank.models.embedding import EmbeddingModel, GeM, create_model
from forerank.models.memory import keep_freed_memory
from forerank.models.storage import load_model, save_model, write_atomically

__all__ = [
    "EmbeddingModel",
    "GeM",
    "create_model",
    "keep_freed_memory",
    "list_backbones",
    "load_model",
    "save_model",
    "write_atomically",
]
