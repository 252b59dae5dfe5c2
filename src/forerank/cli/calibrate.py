"""`forerank calibrate`."""

from forerank.console import print_json


def calibrate(
    index: str,
    validation: str | None = None,
    /,
    *,
    precision: float = 0.95,
    absent: float = 0.5,
    queries: int = 5000,
    seed: int = 0,
    model: str | None = None,
    vote: int = 1,
    anyway: bool = False,
    json: bool = False,
) -> None:
    """Choose the similarity from which on a match is trusted, and store it in the index.

    Without validation images every indexed image asks for the others of its label, once with its class in the
    catalogue and once with it taken out: so "not in the catalogue" is part of the count. The curve of
    precision against the share of questions answered is stored with the threshold. A threshold that leaves
    nine in ten questions without an answer is not stored, unless --anyway is given.

    Examples:

        forerank calibrate glyphs.index --precision 0.95
        forerank calibrate shop.index ./photos_of_customers --absent 0.2
        forerank calibrate shop.index --vote 10

    Parameters
    ----------
    index
        A labelled index: a folder, or SCHEME:PLACE of another engine.
    validation
        Labelled images that are not in the index: a folder (one sub-folder per label), a CSV, a data set.
    precision
        Wanted share of right answers among the answers given.
    absent
        Share of what people will ask for that is not in the catalogue.
    queries
        Queries to use at most.
    seed
        Of the choice of queries and of the interval.
    model
        The index's model, if the index has no copy of it and it was moved.
    vote
        How many nearest images decide by a vote; 1 trusts the nearest image. The threshold of a vote is
        stored beside that of the nearest image.
    anyway
        Store the threshold even if it answers almost nothing.
    json
        Print the result as JSON.
    """
    from forerank.search import Index, calibrate

    opened = Index.open(index, model=model)
    vectors, labels = None, None
    if validation is not None:
        from forerank.search.images import list_images

        images = list_images(validation)
        vectors = opened.embed([images.root / path for path in images.paths])
        labels = images.labels
    result = calibrate(
        opened,
        vectors,
        labels,
        precision=precision,
        absent=absent,
        max_queries=queries,
        seed=seed,
        neighbours=vote,
        anyway=anyway,
    )
    if json:
        print_json(result.to_dict())
    else:
        print(result)
