"""`forerank embed`: pictures to vectors in a file."""

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
    on_bad: str = "refuse",
    json: bool = False,
) -> None:
    """Embed pictures: write their vectors (N, D) as .npy, and their paths, one per line, beside it as .txt.

    Example: forerank embed runs/birds ./photos -o vectors.npy

    Parameters
    ----------
    model
        A run folder, a model folder, or a backbone such as efficientnet-lite0.
    images
        Folders (searched to the bottom) and files.
    output
        The .npy file to write.
    batch_size
        Pictures that go through the network at once.
    device
        auto, cpu, cuda, ...
    on_bad
        refuse: stop at a picture that cannot be decoded. skip: leave it out and say so.
    json
        Print the result as JSON.
    """
    from forerank.models import Retriever, embed_files, keep_freed_memory

    keep_freed_memory()
    written, skipped = embed_files(
        lambda: Retriever.load(model, device=device, batch_size=batch_size), images, output, on_bad=on_bad
    )
    for file in skipped:
        say(f"left out, cannot be decoded: {file}")
    if json:
        paths = str(output.with_suffix(".txt"))
        told = {"file": str(output), "paths": paths, "images": written[0], "dim": written[1]}
        print_json({**told, "left_out": [str(file) for file in skipped]})
        return
    print(f"{written[0]:,} vectors of {written[1]} in {output}, their paths in {output.with_suffix('.txt')}")
