"""A model as ONNX, checked against torch before it is given out."""

import copy
import json
import logging
import warnings
from pathlib import Path

import torch

from forerank.errors import ForerankError, InputError, require
from forerank.files import write_atomically
from forerank.models.embedding import EmbeddingModel


def export_onnx(model: EmbeddingModel, file: str | Path, *, tolerance: float = 1e-4) -> float:
    """Write a model as ONNX, any batch size, and compare it with torch through onnxruntime.

    The graph takes `images` (N, channels, size, size), already normalised, and gives unit `vectors` (N, D).
    How to prepare a picture stands in the file's metadata under `forerank`: the model's spec as JSON.

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
    p = model.preprocessing
    generator = torch.Generator().manual_seed(0)
    images = torch.rand((3, p.channels, p.size, p.size), generator=generator) * 4 - 2
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # the exporter talks about its own insides
        logging.getLogger("torch.onnx").setLevel(logging.ERROR)
        program = torch.onnx.export(
            model,
            (images,),
            dynamo=True,
            input_names=["images"],
            output_names=["vectors"],
            dynamic_shapes={"images": {0: torch.export.Dim("batch", min=1)}},
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
    found = session.run(None, {"images": images.numpy()})[0]
    alone = session.run(None, {"images": images[:1].numpy()})[0]
    difference = float(max(abs(found - expected).max(), abs(alone - expected[:1]).max()))
    if not difference <= tolerance:
        raise ForerankError(
            f"onnxruntime differs from torch by {difference:.1e}, more than {tolerance:.0e}: not written"
        )
    write_atomically(file, content)
    return difference
