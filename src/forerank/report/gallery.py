"""Ranked lists as pictures: green where right; red, dashed and crossed where wrong."""

from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerank.console import percent
from forerank.metrics import ConfusedPair, PerQuery, RankedLists


@dataclass(frozen=True)
class RowPictures:
    """Where the pictures and names of the rows come from.

    Args:
        names: (N,) label of each row, as text to show.
        paths: (N,) file of each row as text to show, or None.
        address: row -> `data:` address, or None for a row without a picture.
    """

    names: NDArray[Any]
    paths: NDArray[Any] | None
    address: Callable[[int], str | None]

    def frame(self, row: int, kind: str) -> str:
        """The framed picture of a row; kind is "good", "bad" or "asks" (the query)."""
        name = str(self.names[row])
        path = f"row {row}" if self.paths is None else str(self.paths[row])
        says = {"good": "same class", "bad": "another class", "asks": "query"}[kind]
        address = self.address(row)
        text = escape(f"{name} ({says}), {path}")
        inside = f'<span class="none">{escape(path)}</span>'
        if address is not None:
            opens = f'<input type="checkbox" aria-label="enlarge {text}" title="{text}">'
            inside = f'{opens}<img src="{address}" alt="{text}">'
        sign = {"good": "✓", "bad": "✕", "asks": "?"}[kind]
        mark = "" if kind == "asks" else f'<span class="mark" aria-hidden="true">{sign}</span>'
        shown = f'<div class="who" title="{text}">{_breakable(name)}</div>'
        file = "" if self.paths is None else f'<div class="file">{_breakable(path.rpartition("/")[2])}</div>'
        return f'<div class="picture">{inside}{mark}</div>{shown}{file}'


def query_card(pictures: RowPictures, lists: RankedLists, each: PerQuery, place: int, shown: int) -> str:
    """The query at `place` of both with its nearest images and, if not among them, its first positive."""
    query = int(lists.query[place])
    items = [f'<li class="asks">{pictures.frame(query, "asks")}<div class="how">query</div></li>']
    # A query with nothing right in the list gives up the last place for its first right image.
    shown = min(shown, lists.index.shape[1])
    rank = int(each.first_rank[place])
    missed = rank > shown
    shown -= missed
    for column in range(shown):
        kind = "good" if lists.is_positive[place, column] else "bad"
        how = f"{column + 1} · {lists.similarity[place, column]:.3f}"
        items.append(
            f'<li class="{kind}">{pictures.frame(int(lists.index[place, column]), kind)}{_how(how)}</li>'
        )
    before = rank - 1
    if missed:
        hidden = before - shown
        gap = f"{hidden:,} more" if hidden > 0 else ""
        items.append(f'<li class="gap"><span aria-hidden="true">⋯</span><br>{gap}</li>')
        first = pictures.frame(int(lists.index[place, before]), "good")
        items.append(f'<li class="good">{first}{_how(f"rank {rank:,}")}</li>')
    count = int(each.positives[place])
    wrong = "nothing wrong" if before == 0 else f"{before:,} wrong image{'s' * (before != 1)}"
    facts = (
        f"{wrong} before the first right one · "
        f"average precision {percent(each.average_precision[place], mark=False)} · "
        f"{count:,} right image{'s' * (count != 1)} to find"
    )
    label = escape(f"results for a query of class {pictures.names[query]}")
    return (
        f'<article class="query card"><h3>{escape(str(pictures.names[query]))}</h3>'
        f'<p class="facts">{facts}</p>'
        f'<ol class="ranked" tabindex="0" aria-label="{label}">{"".join(items)}</ol></article>'
    )


def pair_card(pictures: RowPictures, pair: ConfusedPair) -> str:
    """A class and the class that stands before its first right image, with the clearest example of it."""
    asked = f"{pair.queries:,} quer{'y' if pair.queries == 1 else 'ies'}"
    images = f"{pair.count:,} wrong image{'s' * (pair.count != 1)}"
    return (
        f'<article class="pair card"><div class="asks">{pictures.frame(pair.query, "asks")}</div>'
        f'<div class="bad">{pictures.frame(pair.intruder, "bad")}</div>'
        f"<p><b>{asked}</b>, {images} in all. Pictured: the clearest case, similarity "
        f"{pair.similarity:.3f}.</p></article>"
    )


def _breakable(name: str) -> str:
    """A name escaped, with places to break the line after its separators."""
    return "".join(escape(c) + ("<wbr>" if c in "_-./" else "") for c in name)


def _how(text: str) -> str:
    return f'<div class="how">{escape(text)}</div>'


_RANK_BINS = (1, 2, 3, 6, 11, 31, 101)


def rank_bins(first_rank: NDArray[np.int64]) -> tuple[list[str], list[float]]:
    """Shares of queries by the rank of their first positive, in widening bins.

    >>> rank_bins(np.array([1, 1, 2, 8]))
    (['1', '2', '3–5', '6–10', '11–30', '31–100', '101+'], [0.5, 0.25, 0.0, 0.25, 0.0, 0.0, 0.0])
    """
    names, shares = [], []
    for low, after in zip(_RANK_BINS, (*_RANK_BINS[1:], None), strict=True):
        names.append(f"{low}+" if after is None else str(low) if after == low + 1 else f"{low}–{after - 1}")
        inside = first_rank >= low if after is None else (first_rank >= low) & (first_rank < after)
        shares.append(float(np.mean(inside)))
    return names, shares
