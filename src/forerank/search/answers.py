"""Answers to many queries, as a CSV."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from forerank.search.index import Index, Matches

COLUMNS = ("query", "found", "rank", "path", "label", "similarity")
AT_ONCE = 256


def answer_files(index: Index, files: Sequence[Path], k: int) -> list[tuple[Path, Matches]]:
    """The matches of every query file, in the files' order."""
    answers: list[tuple[Path, Matches]] = []
    for start in range(0, len(files), AT_ONCE):
        part = files[start : start + AT_ONCE]
        answers += zip(part, index.search_many(part, k), strict=True)
    return answers


def write_answers(answers: Sequence[tuple[Path, Matches]], file: TextIO) -> None:
    """One line a hit; `found` says whether the query has a match that can be trusted at all."""
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(COLUMNS)
    for query, matches in answers:
        if not len(matches):
            writer.writerow((query, False, "", "", "", ""))
        for hit in matches:
            line = (query, matches.found, hit.rank, hit.path, hit.label, f"{hit.similarity:.6f}")
            writer.writerow(line)
