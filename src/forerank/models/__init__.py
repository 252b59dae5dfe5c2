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

# Module -> names: a converted model embeds a picture without loading torch.
_MODULES = {
    "backbones": ["list_backbones"],
    "embedding": ["EmbeddingModel", "create_model"],
    "memory": ["keep_freed_memory"],
    "onnx_export": ["export_onnx"],
    "pooling": ["GeM"],
    "retriever": ["Retriever"],
    "vector_file": ["embed_files"],
    "storage": ["load_model", "save_model"],
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


__getattr__ = import_on_demand(__name__, _MODULES)
