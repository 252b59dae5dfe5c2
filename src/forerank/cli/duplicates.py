"""`forerank duplicates`."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from forerank.cli.audit import check_page
from forerank.console import print_json
from forerank.errors import InputError


def duplicates(
    index: str,
    /,
    *,
    similarity: float = 0.98,
    images: Path | None = None,
    serve: bool = False,
    output: Annotated[Path | None, Parameter(name=["--output", "-o"])] = None,
    port: int = 8010,
    json: bool = False,
) -> None:
    """List groups of near-identical images, or look at them on a page.

    With --serve the groups are shown as pictures, on this machine only, together with very dark, blurred,
    tiny and outlying ones. What you remove can be moved to a folder after a dry run; nothing is ever deleted.

    Examples:

        forerank duplicates photos.index
        forerank duplicates photos.index --serve
        forerank duplicates photos.index --similarity 0.999 --json

    Parameters
    ----------
    index
        A folder, or SCHEME:PLACE of another engine.
    similarity
        Images at least this similar belong together.
    images
        Where the images lie now, if they were moved.
    serve
        Open the page on which the groups are looked at.
    output
        Folder for what the page writes; by default audit-NAME here.
    port
        Port of the page; 0 takes a free one.
    json
        Print JSON.
    """
    from forerank.search import Index, find_duplicates

    if serve:
        from forerank.search.corrections import Corrections
        from forerank.search.curation import curate_index
        from forerank.web.curation_serving import serve_curation

        if json:
            raise InputError("--serve opens a page: leave out --json")
        check_page(port)
        opened = Index.open(index, root=images)
        curation = curate_index(opened, similarity)
        name = Path(index.rpartition(":")[2]).name
        folder = output or Path(f"audit-{name}")
        corrections = Corrections(
            folder / "corrections.jsonl", curation.table, opened.meta["model"]["fingerprint"]
        )
        print(curation)
        serve_curation(curation, corrections, folder, title=f"Duplicates of {name}", port=port)
        return
    groups = find_duplicates(Index.open(index).engine, similarity)
    if json:
        print_json(
            [
                {
                    "paths": [row.path for row in group.rows],
                    "labels": list(group.labels),
                    "identical": group.identical,
                    "lowest_similarity": round(group.lowest, 6),
                }
                for group in groups
            ]
        )
        return
    for group in groups:
        what = "the same bytes" if group.identical else f"similarity from {group.lowest:.4f}"
        several = f", labelled {' and '.join(group.labels)}" if len(group.labels) > 1 else ""
        print(f"{len(group.rows)} images, {what}{several}")
        for row in group.rows:
            print(f"  {row.path}")
    together = sum(len(group.rows) for group in groups)
    print(f"{len(groups):,} groups of {together:,} near-identical images (similarity {similarity} or more)")
