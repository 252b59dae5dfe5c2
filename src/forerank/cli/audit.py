"""`forerank audit`."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from forerank.console import print_json, say
from forerank.errors import InputError


def audit(
    run: Path,
    /,
    *,
    output: Annotated[Path | None, Parameter(name=["--output", "-o"])] = None,
    limit: float = 0.1,
    spoil: float | None = None,
    seed: int = 0,
    json: bool = False,
) -> None:
    """Look for wrong labels among the images a run was trained on.

    Writes audit.html (pictures: likely wrong labels, classes with several centres, confusing pairs) and
    audit.csv (every image, most suspicious first). If the run was trained on labels spoiled on purpose
    (data.noisy_labels), or with --spoil, it prints how many of those were found; with --spoil the files are
    audit-spoiled.html and audit-spoiled.csv, whose labels are not to be trained on.

    Examples:

        forerank audit runs/glyphs
        forerank audit runs/glyphs --spoil 0.05

    Parameters
    ----------
    run
        A finished run.
    output
        Folder to write to; by default the run.
    limit
        Lower suspects more images. At least a share 1 - limit of randomly wrong labels is found.
    spoil
        Make this share of the labels wrong first: a test of how far the audit can be trusted on this data.
    seed
        Of --spoil.
    json
        Print the numbers as JSON.
    """
    from dataclasses import asdict

    from forerank.data import noisy_labels
    from forerank.models import keep_freed_memory
    from forerank.search.audit_page import write_csv, write_page
    from forerank.search.label_audit import audit, score
    from forerank.training import embed_run
    from forerank.training.prepare import open_parts
    from forerank.training.recipe import load_recipe

    if spoil is not None and not 0 < spoil < 1:
        raise InputError(f"--spoil is a share of the labels, between 0 and 1, not {spoil}")
    folder, name = output or run, "audit" if spoil is None else "audit-spoiled"
    page, listed = folder / f"{name}.html", folder / f"{name}.csv"
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file: give a folder to write the audit to")
    keep_freed_memory()
    embedded, recipe = embed_run(run, "train")
    table, truth = embedded.table, None
    if recipe.data.noisy_labels:
        clean = open_parts(load_recipe(run / "recipe.yaml", ["data.noisy_labels=0"]))["train"]
        truth = dict(zip(clean.path.tolist(), clean.label.tolist(), strict=True))
    if spoil is not None:
        if truth is not None:
            raise InputError("this run was trained on spoiled labels already: leave out --spoil")
        truth = dict(zip(table.path.tolist(), table.label.tolist(), strict=True))
        table = noisy_labels(table, spoil, seed)
    found = audit(embedded.vectors, table, limit=limit)
    checked = None
    if truth is not None:
        checked = score(found, table.label != [truth[path] for path in table.path.tolist()])
    write_csv(found, listed)
    write_page(found, page, title=f"Audit of {run.resolve().name}", checked=checked)
    if json:
        print_json(
            {
                "images": len(table),
                "suspects": int(found.suspect.sum()),
                "split_classes": len(found.split_classes),
                "checked": None if checked is None else asdict(checked),
                "page": str(page),
                "csv": str(listed),
            }
        )
        return
    print(
        f"{int(found.suspect.sum()):,} of {len(table):,} labels are likely wrong; "
        f"{len(found.split_classes):,} of {len(table.classes):,} classes have several centres"
    )
    if checked is not None:
        print(checked)
    say(f"look at them: {page}" + (f"; act on them: {listed}" if spoil is None else ""))
