"""What half precision does to a ranking: Recall@1, and how many images get another nearest neighbour.

    python benchmarks/precision.py PATH_TO_CUB:test --images 1500

Every image is a query against all others; the model is a pretrained backbone. Torch computes in bf16 on any
processor, slowly where it has no instructions for it; openvino only where it has them.
"""

import argparse

import numpy as np

from backbone_defaults import open_sample
from forerank.console import format_table
from forerank.errors import ForerankError
from forerank.models import Retriever, create_model, keep_freed_memory

WAYS = [("torch", "fp32"), ("torch", "bf16"), ("openvino", "fp32"), ("openvino", "bf16")]


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
    for engine, precision in WAYS:
        try:
            retriever = Retriever(model, device="cpu", engine=engine, precision=precision, batch_size=32)
            vectors = retriever.embed(table.files)
        except ForerankError as error:
            rows.append([f"{engine} {precision}", "-", "-", str(error)])
            continue
        similarities = vectors @ vectors.T
        np.fill_diagonal(similarities, -np.inf)
        first = similarities.argmax(1)
        reference = first if reference is None else reference
        recall = (table.label_ids[first] == table.label_ids).mean()
        changed = (first != reference).mean()
        rows.append([f"{engine} {precision}", f"{100 * recall:.2f}", f"{100 * changed:.2f}%", ""])
    print(f"{options.backbone} on {len(table):,} images of {len(table.classes):,} classes")
    print(format_table(["engine", "Recall@1", "other first neighbour", ""], rows))


if __name__ == "__main__":
    main()
