"""Image batch -> unit vectors; pretrained weights; export."""

from forerank.models.backbones import list_backbones
from forerank.models.embedding import EmbeddingModel, create_model
from forerank.models.memory import keep_freed_memory
from forerank.models.onnx_export import export_onnx
from forerank.models.pooling import GeM
from forerank.models.retriever import Retriever, choose_device, embed_files, find_images
from forerank.models.storage import load_model, save_model, write_atomically

__all__ = [
    "EmbeddingModel",
    "GeM",
    "Retriever",
    "choose_device",
    "create_model",
    "embed_files",
    "export_onnx",
    "find_images",
    "keep_freed_memory",
    "list_backbones",
    "load_model",
    "save_model",
    "write_atomically",
]
