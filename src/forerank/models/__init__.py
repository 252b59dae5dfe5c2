"""Image batch -> unit vectors; pretrained weights; export."""

from forerank.models.backbones import list_backbones
from forerank.models.embedding import EmbeddingModel, create_model
from forerank.models.memory import keep_freed_memory
from forerank.models.onnx_export import export_onnx
from forerank.models.pooling import GeM
from forerank.models.retriever import Retriever, embed_files
from forerank.models.storage import load_model, save_model

__all__ = [
    "EmbeddingModel",
    "GeM",
    "Retriever",
    "create_model",
    "embed_files",
    "export_onnx",
    "keep_freed_memory",
    "list_backbones",
    "load_model",
    "save_model",
]
