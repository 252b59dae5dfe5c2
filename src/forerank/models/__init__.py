"""Image batch -> unit vectors; pretrained weights; inference engines; export."""

from typing import TYPE_CHECKING

from forerank.lazy import import_on_demand

if TYPE_CHECKING:
    from forerank.models.backbones import list_backbones
    from forerank.models.embedding import EmbeddingModel, create_model
    from forerank.models.memory import keep_freed_memory
    from forerank.models.onnx_export import export_onnx
    from forerank.models.pooling import GeM
    from forerank.models.retriever import Retriever
    from forerank.models.storage import load_model, save_model
    from forerank.models.vector_file import embed_files

# Name -> module: a converted model embeds a picture without loading torch.
_WHERE = {
    "list_backbones": "backbones",
    "EmbeddingModel": "embedding",
    "create_model": "embedding",
    "keep_freed_memory": "memory",
    "export_onnx": "onnx_export",
    "GeM": "pooling",
    "Retriever": "retriever",
    "embed_files": "vector_file",
    "load_model": "storage",
    "save_model": "storage",
}

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


__getattr__ = import_on_demand(__name__, _WHERE)
