"""`forerank duplicates`."""

from forerank.console import print_json


def duplicates(index: str, /, *, similarity: float = 0.98, json: bool = False) -> None:
    """List groups of near-identical images.

    Examples:

        forerank duplicates photos.index
        forerank duplicates photos.index --similarity 0.999 --json

    Parameters
    ----------
    index
        A folder, or SCHEME:PLACE of another engine.
    similarity
        Images at least this similar belong together.
    json
        Print JSON.
    """
    from forerank.search import Index, find_duplicates

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
    images = sum(len(group.rows) for group in groups)
    print(f"{len(groups):,} groups of {images:,} near-identical images (similarity {similarity} or more)")
