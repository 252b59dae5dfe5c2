"""`forerank index`."""

from typing import Annotated

from cyclopts import Parameter

from forerank.console import print_json, say


def index(
    model: str,
    images: str,
    /,
    *,
    output: Annotated[str, Parameter(name=["--output", "-o"])],
    split: str = "all",
    approximate: Annotated[bool | None, Parameter(negative="--exact")] = None,
    replace: bool = False,
    rehash: bool = False,
    strict: bool = False,
    precision: str = "fp32",
    measured: bool = False,
    rerank: str | None = None,
    json: bool = False,
) -> None:
    """Embed images and keep the vectors where they can be searched.

    Run it again after images were added, changed or removed: only new contents are embedded. After
    an interruption the same command continues; until it is done, searches use the old index. Several
    processes share the images: torchrun --nproc-per-node 4 -m forerank index ...

    Examples:

        forerank index runs/glyphs glyphs -o glyphs.index
        forerank index efficientnet-lite0 ./photos -o photos.index
        forerank index runs/shop ./catalogue -o milvus:http://milvus.example:19530#catalogue
        forerank index runs/shop s3://shop/shards -o shop.index

    Parameters
    ----------
    model
        A run folder, a model folder, or a backbone such as efficientnet-lite0.
    images
        A folder, a CSV with path and label, or a data set's name. Tar shards (or a folder of them) and
        addresses that fsspec opens, such as s3://BUCKET/FOLDER, are read as a stream.
    output
        Where the index is kept: a folder, or SCHEME:PLACE of another engine, for example milvus:FILE.db.
    split
        Which part of a data set: train, validation, test or all.
    approximate
        Build an approximate index, or (--exact) none; by default one is tried where it may pay.
    replace
        Build everything again, although the index there belongs to another model or is damaged.
    rehash
        Read every file again instead of trusting the size and time of unchanged ones.
    strict
        Stop at an image that cannot be read instead of leaving it out.
    precision
        fp32, or bf16: often faster where the processor has it; some neighbours change. See forerank doctor.
    measured
        Take the measured model of a run, although there is one that was trained on all classes (--refit).
    rerank
        Refine searches by neighbours: expansion, averaging or reciprocal, with settings after a colon, or
        none; by default as the index has it. forerank evaluate RUN --rerank auto says what helps.
    json
        Print what was done as JSON.
    """
    from dataclasses import asdict

    from forerank.machine import choose_device
    from forerank.models import keep_freed_memory
    from forerank.models.storage import model_to_use
    from forerank.search import build_index
    from forerank.training.processes import LONG_PATIENCE, joined

    keep_freed_memory()
    chosen = model_to_use(model, measured=measured)
    with joined(choose_device(), patience=LONG_PATIENCE) as processes:
        report = build_index(
            chosen,
            images,
            output,
            split=split,
            approximate=approximate,
            replace=replace,
            rehash=rehash,
            on_bad="refuse" if strict else "skip",
            precision=precision,
            rerank=rerank,
        )
    if not processes.first:
        return
    if json:
        print_json(asdict(report))
    else:
        print(report)
        if len(report.skipped) > 5:
            say(f"{len(report.skipped)} images were left out; --json lists them all")
        say(f"look at it: forerank serve {output}")
