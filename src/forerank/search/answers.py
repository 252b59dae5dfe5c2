"""Answers to many queries, as a CSV."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

import numpy as np

from forerank.console import is_text, progress_bar, say
from forerank.search.engine import EVERYTHING, Filter
from forerank.search.index import Index, Matches

COLUMNS = ("query", "found", "rank", "path", "label", "similarity")
AT_ONCE = 256


def answer_files(
    index: Index, files: Sequence[Path], k: int, where: Filter = EVERYTHING
) -> list[tuple[Path, Matches]]:
    """The matches of every query file, in their order; those that cannot be read are left out and named."""
    answers: list[tuple[Path, Matches]] = []
    for file in files:
        if not is_text(str(file)):
            say(f"left out, its name is not UTF-8: {file}")
    files = [file for file in files if is_text(str(file))]
    with progress_bar("searching", len(files)) as advance:
        for start in range(0, len(files), AT_ONCE):
            part = files[start : start + AT_ONCE]
            vectors = index.retriever.embed(part, progress=False, on_bad="skip")
            readable = [bool(row.all()) for row in np.isfinite(vectors)]
            for file, fine in zip(part, readable, strict=True):
                if not fine:
                    say(f"left out, not a picture that can be read: {file}")
            good = [file for file, fine in zip(part, readable, strict=True) if fine]
            if good:
                answers += zip(good, index.search_vectors(vectors[readable], k, where), strict=True)
            advance(len(part))
    return answers


def write_answers(answers: Sequence[tuple[Path, Matches]], file: TextIO, columns: Sequence[str] = ()) -> None:
    """One line per hit; `found` says whether the query has a match that can be trusted at all.

    `columns` names further columns of the index, which go along.
    """
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow((*COLUMNS, *columns))
    for query, matches in answers:
        if not len(matches):
            writer.writerow((query, False, *[""] * (len(COLUMNS) - 2 + len(columns))))
        for hit in matches:
            line = (query, matches.found, hit.rank, hit.path, hit.label, f"{hit.similarity:.6f}")
            writer.writerow((*line, *(hit.columns.get(name, "") for name in columns)))
