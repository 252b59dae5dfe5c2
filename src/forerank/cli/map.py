"""`forerank map`."""

from forerank.console import print_json, say


def draw_map(index: str, /, *, seed: int = 0, json: bool = False) -> None:
    """Lay out the images of an index in a plane, near ones near each other, for the map of its page.

    It is computed once, by UMAP, and kept with the index. Images that are added later have no place until the
    command is run again.

    Examples:

        forerank map photos.index

    Parameters
    ----------
    index
        An index in a local folder.
    seed
        The same seed gives the same map.
    json
        Print the result as JSON.
    """
    from forerank.errors import InputError, require
    from forerank.search.index import Index
    from forerank.search.map import make_map

    if seed < 0:
        raise InputError(f"a seed is a whole number from 0 on, not {seed}.")
    require("umap")  # before minutes of work
    count = make_map(Index.open(index), seed=seed)
    if json:
        print_json({"index": index, "images": count})
    else:
        print(f"{index}: a map of {count:,} images")
        say(f"look at it: forerank serve {index}")
