"""`forerank export`: a model for other programs."""

from pathlib import Path


def export(model: str, /, *, onnx: Path) -> None:
    """Write a model as ONNX, for any batch size, and check it against torch with onnxruntime.

    Example: forerank export runs/birds --onnx birds.onnx

    Parameters
    ----------
    model
        A run folder, a model folder, or a backbone such as efficientnet-lite0.
    onnx
        The .onnx file to write. Its metadata says how pictures are prepared.
    """
    from forerank.models import Retriever, export_onnx

    retriever = Retriever.load(model, device="cpu")
    difference = export_onnx(retriever.model, onnx)
    p = retriever.model.preprocessing
    print(f"{onnx}: images (N, {p.channels}, {p.size}, {p.size}) to unit vectors (N, {retriever.dim})")
    print(f"largest difference between onnxruntime and torch: {difference:.1e}")
