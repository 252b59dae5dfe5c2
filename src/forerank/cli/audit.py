"""`forerank audit`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from forerank.console import print_json, say
from forerank.errors import InputError, require

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from forerank.data import Table


def audit(
    source: str,
    /,
    *,
    output: Annotated[Path | None, Parameter(name=["--output", "-o"])] = None,
    limit: float = 0.1,
    similarity: float = 0.95,
    spoil: float | None = None,
    seed: int = 0,
    model: str = "efficientnet-lite0",
    serve: bool = False,
    port: int = 8010,
    json: bool = False,
) -> None:
    """Look for wrong labels, near-copies and unusual pictures, and correct them on a page.

    Writes audit.html (pictures: labels worth a look, unusual pictures, classes with several centres,
    confusing pairs) and audit.csv (every image, most suspicious first). How many labels are worth a look, and
    how many of those are likely wrong, is measured by making some labels wrong on purpose.

    With --serve it opens a page instead, on this machine only: keep, change or remove each suspected image by
    key or click. Every decision is on the disk at once (corrections.jsonl), the same command continues, and
    corrected.csv is the table to train on next.

    If the run was trained on labels spoiled on purpose (data.noisy_labels), or with --spoil, it prints how
    many of those were found; with --spoil the files are audit-spoiled.html and audit-spoiled.csv, whose
    labels are not to be trained on.

    Examples:

        forerank audit runs/glyphs
        forerank audit runs/glyphs --serve
        forerank audit ./my_images
        forerank audit runs/glyphs --spoil 0.05

    Parameters
    ----------
    source
        A finished run, or labelled images: a folder (one sub-folder per class), a CSV, a data set.
    output
        Folder to write to; by default the run, or audit-NAME here.
    limit
        Lower suspects more images. At least a share 1 - limit of randomly wrong labels is found.
    similarity
        What near-copies must reach, for the model and pixel by pixel.
    spoil
        Make this share of the labels wrong first: a test of how far the audit can be trusted on this data.
    seed
        Seed of --spoil.
    model
        The model that embeds the images, if the source is not a run.
    serve
        Open the page on which everything is looked at and corrected.
    port
        Port of the page; 0 takes a free one.
    json
        Print the numbers as JSON.
    """
    from dataclasses import asdict

    from forerank.data import noisy_labels
    from forerank.models import keep_freed_memory
    from forerank.search.audit_page import write_csv, write_page
    from forerank.search.curation import curate, summary
    from forerank.search.label_audit import score
    from forerank.training.record import is_run

    if spoil is not None and not 0 < spoil < 1:
        raise InputError(f"--spoil is a share of the labels, between 0 and 1, not {spoil}")
    if serve:
        check_page(port)
    if serve and (spoil is not None or json):
        raise InputError("--serve opens a page: leave out --spoil and --json")
    run = Path(source).expanduser()
    name = run.resolve().name if run.exists() else source
    folder = output or (run if is_run(run) else Path(f"audit-{Path(name).stem}"))
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file: give a folder to write the audit to")
    keep_freed_memory()
    if is_run(run):
        table, vectors, identity, truth = _run_parts(
            run, ("train", "validation", "test") if serve else ("train",)
        )
    else:
        (table, vectors, identity), truth = _images(source, model), None
    if serve:
        from forerank.search.corrections import Corrections
        from forerank.web.curation_serving import serve_curation

        # Opened first: a corrections file of another run is refused before anything is computed.
        corrections = Corrections(folder / "corrections.jsonl", table, identity)
        curation = curate(
            table, vectors, audited="train" if is_run(run) else "all", limit=limit, similarity=similarity
        )
        print(curation.claim)
        serve_curation(curation, corrections, folder, title=f"Audit of {name}", port=port)
        return
    if spoil is not None:
        if truth is not None:
            raise InputError("this run was trained on spoiled labels already: leave out --spoil")
        truth = table.label
        split = table.split
        table = noisy_labels(table.with_columns(split=["train"] * len(table)), spoil, seed)
        table = table.with_columns(split=split)
    stem = "audit" if spoil is None else "audit-spoiled"
    page, listed = folder / f"{stem}.html", folder / f"{stem}.csv"
    curation = curate(table, vectors, limit=limit, similarity=similarity)
    checked = None
    if truth is not None:
        by_path = dict(zip(table.path.tolist(), truth.tolist(), strict=True))
        audited = curation.labels.table
        checked = score(curation.labels, audited.label != [by_path[path] for path in audited.path.tolist()])
    write_csv(curation.labels, listed)
    write_page(curation, page, title=f"Audit of {name}", checked=checked)
    if json:
        print_json(
            {
                "images": len(table),
                **summary(curation),
                "suspects": int(curation.labels.suspect.sum()),
                "split_classes": len(curation.labels.split_classes),
                "checked": None if checked is None else asdict(checked),
                "page": str(page),
                "csv": str(listed),
            }
        )
        return
    print(curation.claim)
    for line in _about_pictures(summary(curation)):
        print(line)
    several, classes = len(curation.labels.split_classes), len(curation.labels.table.classes)
    print(f"{several:,} of {classes:,} classes have several centres")
    if checked is not None:
        print(checked)
    how = f"; correct them: forerank audit {source} --serve" if spoil is None else ""
    say(f"look at them: {page}{how}")


def check_page(port: int) -> None:
    """Refuse a number that is not a port, and say which packages the page needs."""
    if not 0 <= port <= 65535:
        raise InputError(f"a port is a number from 0 to 65535, not {port}")
    for module in ("fastapi", "uvicorn", "jinja2"):
        require(module)


def _about_pictures(numbers: dict[str, Any], listed: int = 3) -> list[str]:
    """One line for each kind of unusual picture, and one for near-copies."""
    lines = []
    for kind, paths in numbers["pictures"].items():
        more = f" and {len(paths) - listed:,} more" if len(paths) > listed else ""
        lines.append(f"{len(paths):,} {kind}: {', '.join(paths[:listed])}{more}")
    if groups := numbers["near_copies"]:
        leaks = sum(group["leaks"] for group in groups)
        lines.append(
            f"{len(groups):,} groups of near-identical pictures, {leaks:,} of them across training and test"
        )
    return lines


def _images(source: str, model: str) -> "tuple[Table, NDArray[np.float32], str]":
    """Labelled images and their vectors (N, D) by a pretrained or saved model."""
    from forerank.data import open_table
    from forerank.models import Retriever

    place = Path(source).expanduser()
    table = open_table(place if place.exists() else source)
    for note in table.notes:
        say(note)
    if table.box is not None:
        raise InputError(f"{table.name} marks objects by boxes: train a run on it, and audit the run")
    retriever = Retriever.load(model)
    return table, retriever.embed(table.files, on_bad="skip"), retriever.identity


def _run_parts(
    run: Path, parts: tuple[str, ...]
) -> "tuple[Table, NDArray[np.float32], str, NDArray[np.str_] | None]":
    """Parts of a run's data, their vectors (N, D) with NaN where a picture cannot be read, and what tells the
    run from others; also the true labels (N,), if the run was trained on labels spoiled on purpose."""
    import numpy as np

    from forerank.data.table import concatenate
    from forerank.search.rows import hash_file
    from forerank.training import embed_run
    from forerank.training.prepare import open_parts
    from forerank.training.recipe import load_recipe
    from forerank.training.record import recipe_source

    recipe = load_recipe(recipe_source(run), ["device=auto", "train_size=null"])
    opened = open_parts(recipe)
    chosen = [part for part in parts if len(opened[part])]
    vectors = []
    for part in chosen:
        embedded, _ = embed_run(run, part)
        whole = np.full((len(opened[part]), embedded.vectors.shape[1]), np.nan, np.float32)
        rows, table = 0, embedded.table
        for i, path in enumerate(opened[part].path.tolist()):  # what could be read, in the same order
            if rows < len(table) and table.path[rows] == path:
                whole[i] = embedded.vectors[rows]
                rows += 1
        vectors.append(whole)
    weights = "".join(hash_file(file)[0] for file in sorted((run / "best").glob("*.safetensors")))
    truth = None
    if recipe.data.noisy_labels:
        clean = open_parts(load_recipe(recipe_source(run), ["data.noisy_labels=0"]))
        truth = concatenate([clean[part] for part in chosen]).label
    return concatenate([opened[part] for part in chosen]), np.concatenate(vectors), weights, truth
