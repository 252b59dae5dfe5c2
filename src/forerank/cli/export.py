"""`forerank export`: a model for other programs."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from forerank.console import print_json


def export(
    model: str,
    /,
    *,
    onnx: Annotated[list[Path] | None, Parameter(consume_multiple=(0, 1), negative=())] = None,
    measured: bool = False,
    json: bool = False,
) -> None:
    """Write a model as ONNX, for any batch size, and check it against torch with onnxruntime.

    Examples:

        forerank export runs/birds --onnx
        forerank export runs/birds --onnx birds.onnx

    Parameters
    ----------
    model
        A run folder, a model folder, or a backbone such as efficientnet-lite0.
    onnx
        The .onnx file to write; without a name model.onnx in the folder, or the backbone's name. Its metadata
        says how pictures are prepared.
    measured
        Of a run that was trained once more on all classes (RUN/refit), take the model whose numbers were
        measured; by default the one of all classes is taken.
    json
        Print the result as JSON.
    """
    from forerank.data.preprocessing import SeveralViews
    from forerank.models import Retriever, export_onnx
    from forerank.models.storage import model_to_use

    file = onnx[-1] if onnx else _usual_file(model)
    retriever = Retriever.load(model_to_use(model, measured=measured), device="cpu")
    difference = export_onnx(retriever.model, file)
    views = retriever.model.preprocessing
    shapes = [part.shape for part in views.parts] if isinstance(views, SeveralViews) else [views.shape]
    if json:
        told = {"file": str(file), "images": shapes, "dim": retriever.dim, "difference": difference}
        print_json(told)
        return
    taken = " and ".join(f"({', '.join(map(str, ('N', *shape)))})" for shape in shapes)
    print(f"{file}: images {taken} to unit vectors (N, {retriever.dim})")
    print(f"largest difference between onnxruntime and torch: {difference:.1e}")


def _usual_file(model: str) -> Path:
    """
    >>> _usual_file("timm:resnet50").as_posix()
    'timm-resnet50.onnx'
    """
    folder = Path(model).expanduser()
    if folder.is_dir():
        return folder / "model.onnx"
    return Path(f"{model.replace(':', '-').replace('/', '-')}.onnx")
