"""A model as ONNX, checked against torch before it is given out."""

import copy
import json
import logging
import warnings
from pathlib import Path

import torch
from torch import Tensor, nn

from forerank.data.preprocessing import SeveralViews, Views
from forerank.errors import ForerankError, InputError, require
from forerank.files import write_atomically
from forerank.models.embedding import EmbeddingModel


def export_onnx(model: EmbeddingModel, file: str | Path, *, tolerance: float = 1e-4) -> float:
    """Write a model as ONNX, any batch size, and compare it with torch through onnxruntime.

    The graph takes `images` (N, channels, size, size), already normalised, and gives unit `vectors` (N, D).
    Each of several backbones side by side has an input of its own: `images_1`, `images_2`, ... The file's
    metadata says under `forerank` how to prepare a picture: the model's spec as JSON.

    Returns:
        The largest difference between a component from onnxruntime and the same one from torch.

    Raises:
        ForerankError: the difference exceeds `tolerance`; nothing is written then.
    """
    file = Path(file)
    onnx, runtime = require("onnx"), require("onnxruntime")
    require("onnxscript")
    if file.suffix != ".onnx":
        raise InputError(f"the ONNX file should end in .onnx, not {file.name!r}")
    model = copy.deepcopy(model).cpu().eval().to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    generator = torch.Generator().manual_seed(0)
    images = torch.rand((3, *model.preprocessing.shape), generator=generator) * 4 - 2
    inputs = named_inputs(model.preprocessing, images)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # the exporter talks about its own insides
        logging.getLogger("torch.onnx").setLevel(logging.ERROR)
        batch = torch.export.Dim("batch", min=1)
        program = torch.onnx.export(
            _OneInputEach(model),
            tuple(inputs.values()),
            dynamo=True,
            input_names=list(inputs),
            output_names=["vectors"],
            dynamic_shapes=(tuple({0: batch} for _ in inputs),),
            verbose=False,
        )
        expected = model(images).numpy()
    graph = program.model_proto  # type: ignore[union-attr]
    entry = graph.metadata_props.add()
    entry.key, entry.value = "forerank", json.dumps(model.spec)
    onnx.checker.check_model(graph)
    content = graph.SerializeToString()
    session = runtime.InferenceSession(content, providers=["CPUExecutionProvider"])
    # All together, then one alone: the batch size must really be free.
    together = session.run(None, {name: view.numpy() for name, view in inputs.items()})[0]
    alone = session.run(None, {name: view[:1].numpy() for name, view in inputs.items()})[0]
    difference = float(max(abs(together - expected).max(), abs(alone - expected[:1]).max()))
    if not difference <= tolerance:
        raise ForerankError(
            f"onnxruntime differs from torch by {difference:.1e}, more than {tolerance:.0e}: not written"
        )
    write_atomically(file, content)
    return difference


class _OneInputEach(nn.Module):
    """A model whose forward takes the images of each backbone as an argument of its own."""

    def __init__(self, model: EmbeddingModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, *views: Tensor) -> Tensor:
        several = len(views) > 1
        images = torch.cat([view.flatten(1) for view in views], dim=1) if several else views[0]
        vectors: Tensor = self.model(images)
        return vectors


def named_inputs(preprocessing: Views, images: Tensor) -> dict[str, Tensor]:
    """Name of each input of the exported graph -> its share of images (N, ...)."""
    if isinstance(preprocessing, SeveralViews):
        return {f"images_{i}": view for i, view in enumerate(preprocessing.split(images), start=1)}
    return {"images": images}
