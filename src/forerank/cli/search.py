"""`forerank search`."""

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from forerank.console import format_table, print_json, say


def search(
    index: str,
    query: Path,
    /,
    *,
    k: Annotated[int, Parameter(name=["--k", "-k"])] = 10,
    where: list[str] | None = None,
    text: str = "",
    json: bool = False,
    model: str | None = None,
    output: Annotated[Path | None, Parameter(name=["--output", "-o"])] = None,
) -> None:
    """The indexed images nearest to a picture; for a folder of pictures, a CSV.

    In an index that was built with --rerank the order is refined; the similarities stay those of the images.
    In a calibrated index (forerank calibrate) a query whose nearest image is not near enough gets "no match".

    Examples:

        forerank search glyphs.index query.png
        forerank search photos.index ./queries -k 3 > found.csv
        forerank search shop.index shoe.jpg --where category=boots --where colour=red

    Parameters
    ----------
    index
        A folder, or SCHEME:PLACE of another engine.
    query
        A picture, or a folder of pictures.
    k
        Images to find.
    where
        COLUMN=VALUE: only images with this value in a column of the CSV they were indexed from, or with this
        label (label=VALUE); give it several times for several conditions.
    text
        Only images with this text in their path or label.
    json
        Print JSON.
    model
        The index's model, if the index has no copy of it and it was moved.
    output
        Write the answers as CSV here instead of printing them.
    """
    from forerank.data.image_files import find_images
    from forerank.errors import InputError
    from forerank.files import write_atomically
    from forerank.models import keep_freed_memory
    from forerank.search.answers import answer_files, write_answers
    from forerank.search.engine import EVERYTHING
    from forerank.search.index import Index, Matches
    from forerank.search.vote import calibrated_vote, vote_on_hits

    if output is not None:
        if json:
            raise InputError("-o writes a CSV and --json prints JSON: give one of them")
        if output.is_dir() or not output.absolute().parent.is_dir():
            raise InputError(f"cannot write {output}: give a file in a folder that exists")
    keep_freed_memory()
    opened = Index.open(index, model=model)
    # An address is not a path: pathlib would make s3:/ of s3://.
    root = opened.meta["root"] if opened.meta.get("streamed") else str(opened.root)
    condition = opened.filter(where or [], text)
    if query.is_dir() or output is not None:
        answers = answer_files(opened, find_images(query), k, condition)
        if json:
            print_json([{"query": str(file), "root": root, **matches.to_dict()} for file, matches in answers])
        elif output is not None:

            def fill(place: Path) -> None:
                with place.open("w", newline="", encoding="utf-8") as file:
                    write_answers(answers, file, opened.columns)

            write_atomically(output, fill)
            say(f"{len(answers)} queries answered in {output}; paths start from {root}")
        else:
            write_answers(answers, sys.stdout, opened.columns)
            say(f"paths start from {root}")
        return
    calibrated = calibrated_vote(opened.meta)
    deep = opened.search(query, max(k, calibrated[0]) if calibrated and k > 0 else k, condition)
    vote = vote_on_hits(opened.meta, deep.hits) if calibrated else None
    matches = Matches(deep.hits[:k], deep.threshold)
    if json:
        voted = {} if vote is None else {"vote": vote.to_dict()}
        print_json({"query": str(query), "root": root, **matches.to_dict(), **voted})
        return
    if vote is not None:
        print(vote)
    if not matches.found:
        nearest = f", the nearest has similarity {matches[0].similarity:.4f}" if len(matches) else ""
        below = (
            ""
            if matches.threshold is None
            else f" from {matches.threshold:.4f} on a match is trusted{nearest}"
        )
        empty = "the index is empty" if condition == EVERYTHING else "no image fulfils the conditions"
        print(f"no match:{below or f' {empty}'}")
    if len(matches):
        rows = [
            (
                *(hit.rank, f"{hit.similarity:.4f}", hit.label or "-", hit.path),
                *(hit.columns.get(name, "-") for name in opened.columns),
            )
            for hit in matches
        ]
        print(format_table(["rank", "similarity", "label", "path", *opened.columns], rows))
        say(f"paths start from {root}")
