"""`forerank embed`: images to vectors in a file."""

from functools import cache
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from forerank.console import print_json, say


def embed(
    model: str,
    images: list[str],
    /,
    *,
    output: Annotated[Path, Parameter(name=["--output", "-o"])],
    batch_size: int = 64,
    device: str = "auto",
    engine: str = "auto",
    precision: str = "fp32",
    on_bad: str = "refuse",
    measured: bool = False,
    json: bool = False,
) -> None:
    """Embed images: write their vectors (N, D) as .npy, and their paths, one per line, beside it as .txt.

    After an interruption the same command continues. Several processes share the images.

    Examples:

        forerank embed runs/birds ./photos -o vectors.npy
        torchrun --nproc-per-node 4 -m forerank embed runs/birds shards/ -o vectors.npy

    Parameters
    ----------
    model
        A run folder, a model folder, or a backbone such as efficientnet-lite0.
    images
        Folders (searched to the bottom), images, CSV tables with a column path, tar shards (key.jpg), or
        addresses of these that fsspec opens, such as s3://BUCKET/FOLDER (needs the
        extra s3, see: forerank doctor).
    output
        The .npy file to write.
    batch_size
        Pictures that go through the network at once.
    device
        auto, cpu, cuda, ...
    engine
        auto, torch or openvino, which is faster on a processor (needs the extra openvino).
    precision
        fp32, or bf16: often faster where the processor has it, and some neighbours change.
    on_bad
        refuse: stop at an image that cannot be decoded. skip: leave it out and say so.
    measured
        Of a run that was trained once more on all classes (RUN/refit), take the model whose numbers were
        measured; by default the one of all classes is taken.
    json
        Print the result as JSON.
    """
    from forerank.machine import choose_device
    from forerank.models import Retriever, embed_files, keep_freed_memory
    from forerank.models.storage import model_to_use
    from forerank.training.processes import LONG_PATIENCE, joined

    keep_freed_memory()
    chosen = model_to_use(model, measured=measured)
    with joined(choose_device(device), patience=LONG_PATIENCE) as processes:
        place = str(processes.device)

        @cache
        def load() -> Retriever:
            return Retriever.load(
                chosen, device=place, batch_size=batch_size, engine=engine, precision=precision
            )

        written, skipped = embed_files(load, images, output, on_bad=on_bad)
    if not processes.first:
        return
    for file in skipped:
        say(f"left out, cannot be decoded: {file}")
    if json:
        paths = str(output.with_suffix(".txt"))
        told = {"file": str(output), "paths": paths, "images": written[0], "dim": written[1]}
        print_json({**told, "inference": str(load().network), "left_out": [str(file) for file in skipped]})
        return
    print(f"{written[0]:,} vectors of {written[1]} in {output}, their paths in {output.with_suffix('.txt')}")
    print(f"vectors by {load().network}")
