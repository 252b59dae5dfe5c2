"""What half precision does to a ranking: Recall@1, and how many images get another nearest neighbour.

    python benchmarks/precision.py PATH_TO_CUB:test --images 1500

Every image is a query against all others; the model is a pretrained backbone. On a processor that has no
instructions for bf16 they are simulated: weights, and what goes into and comes out of every layer, are
rounded to bf16, and sums are in float32, which is what such instructions do.
"""

import argparse

import numpy as np
from torch import Tensor, nn

from backbone_defaults import open_sample
from forerank.console import format_table
from forerank.errors import ForerankError
from forerank.models import Retriever, create_model, keep_freed_memory

WAYS = [("torch", "fp32"), ("openvino", "fp32"), ("openvino", "bf16"), ("simulated", "bf16")]


def rounded(value: Tensor) -> Tensor:
    """The same numbers with the 8 digits (binary) of bf16."""
    return value.bfloat16().float() if value.is_floating_point() else value


def round_layers(model: nn.Module) -> None:
    """Let every layer of a model compute as with bf16 instructions."""
    for layer in model.modules():
        if next(layer.children(), None) is not None:
            continue
        if isinstance(layer, nn.Conv2d | nn.Linear):
            layer.weight.data = rounded(layer.weight.data)
            layer.register_forward_pre_hook(lambda _, given: tuple(rounded(value) for value in given))
        layer.register_forward_hook(lambda _, __, out: rounded(out) if isinstance(out, Tensor) else out)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", help="FOLDER or FOLDER:PART")
    parser.add_argument("--backbone", default="efficientnet-lite0")
    parser.add_argument("--images", type=int, default=1500)
    options = parser.parse_args()
    keep_freed_memory()
    table = open_sample(options.source, options.images)
    model = create_model(options.backbone, embedding_dim=None)
    rows: list[list[object]] = []
    reference: np.ndarray | None = None
    for name, precision in WAYS:
        engine = name
        if name == "simulated":  # the last: it changes the model
            round_layers(model)
            engine = "torch"
        computed = "fp32" if name == "simulated" else precision
        try:
            retriever = Retriever(model, device="cpu", engine=engine, precision=computed, batch_size=32)
            vectors = retriever.embed(table.files)
        except ForerankError as error:
            rows.append([f"{name} {precision}", "-", "-", str(error)])
            continue
        similarities = vectors @ vectors.T
        np.fill_diagonal(similarities, -np.inf)
        first = similarities.argmax(1)
        reference = first if reference is None else reference
        recall = (table.label_ids[first] == table.label_ids).mean()
        changed = (first != reference).mean()
        rows.append([f"{name} {precision}", f"{100 * recall:.2f}", f"{100 * changed:.2f}%", ""])
    print(f"{options.backbone} on {len(table):,} images of {len(table.classes):,} classes")
    print(format_table(["engine", "Recall@1", "other first neighbour", ""], rows))


if __name__ == "__main__":
    main()
