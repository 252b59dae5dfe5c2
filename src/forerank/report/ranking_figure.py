"""The ranked list of a query with what each negative is charged: the paper's arrows, for any query.

Each positive sends an arrow to every negative before it, as strong as f'(R) makes it; the bar under a
negative is the sum of the arrows it receives. `ranking_svg` is for a web page (coloured by its CSS),
`ranking_figure` writes PNG and SVG files for a paper or a talk.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from forerank.errors import InputError
from forerank.metrics import neighbours, positive_charges, ranking_penalties
from forerank.metrics.charges import DerivativeFunction
from forerank.ranking.hard_rows import Embeddings, UnitRows

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_CELL, _SIDE, _ARROWS, _BARS = 84, 68, 112, 74  # pixels of the SVG
_GOOD, _BAD, _ASKS = "#14805a", "#c2402f", "#2f62c9"


@dataclass(frozen=True)
class Ranking:
    """The head of a query's ranked list; charges and penalties come from the whole list.

    Attributes:
        query: row of the query.
        rows: (n,) rows found, nearest first.
        similarities, is_positive: (n,).
        charges: (n,) f'(R) that each positive charges every negative before it; 0 for negatives.
        penalties: (n,) what each negative pays; 0 for positives.
        hidden_positives: positives further down, whose charges are in the penalties as well.
    """

    query: int
    rows: NDArray[np.int64]
    similarities: NDArray[np.float64]
    is_positive: NDArray[np.bool_]
    charges: NDArray[np.float64]
    penalties: NDArray[np.float64]
    hidden_positives: int


def rank_query(
    embeddings: Embeddings | UnitRows,
    labels: ArrayLike,
    query: int,
    derivative: DerivativeFunction,
    *,
    shown: int = 12,
    temperature: float | None = None,
    gallery: ArrayLike | None = None,
    ignore: ArrayLike | None = None,
) -> Ranking:
    """Rank the gallery for one query, charge the whole list, keep its first `shown` items.

    Images that share the query's label and its `ignore` (N,) (camera or sequence) are left out.

    Example:
        >>> from forerank.report import derivative
        >>> vectors = np.array([[1.0, 0.0], [0.9, 0.2], [0.8, 0.5], [0.6, 0.8]])
        >>> ranking = rank_query(vectors, ["a", "b", "a", "a"], 0, derivative("O"))
        >>> ranking.rows.tolist(), ranking.penalties.tolist()
        ([1, 2, 3], [2.0, 0.0, 0.0])
    """
    size = len(np.asarray(labels))
    if not 0 <= query < size:
        raise InputError(f"query {query} does not exist: there are {size} images, numbered from 0.")
    whole = neighbours(embeddings, labels, [query], size, gallery=gallery, ignore=ignore)
    similarities, positive = whole.similarity[0], whole.is_positive[0]
    charges = positive_charges(similarities, positive, derivative, temperature=temperature)
    penalties = ranking_penalties(similarities, positive, derivative, temperature=temperature)
    head = slice(0, shown)
    return Ranking(
        query,
        whole.index[0, head],
        similarities[head],
        positive[head],
        charges[head],
        penalties[head],
        int(positive[shown:].sum()),
    )


def ranking_svg(
    ranking: Ranking,
    address: Callable[[int], str | None] = lambda row: None,
    names: Sequence[Any] | NDArray[Any] | None = None,
) -> str:
    """The figure as an HTML fragment: `<figure class="penalties">` with inline SVG, every name escaped.

    Args:
        address: row -> address of its picture (`data:` or a path of your server), or None.
        names: label of each row of the data set, or None to show none.

    Needs the rules `.penalties` of `page.css` for its colours.
    """
    count = len(ranking.rows)
    width = _CELL * (count + 1) + 12
    top, base = _ARROWS, _ARROWS + _SIDE + 34
    parts = []

    def centre(place: int) -> float:
        return _CELL * (place + 1.5) + 12

    for j, i, strength, charge in _arrows(ranking.is_positive, ranking.charges):
        a, b = centre(i), centre(j)
        rise = min(_ARROWS - 10, 22 + 11 * (i - j))
        thick = 1 + 2.6 * strength
        parts.append(
            f'<path class="charge" d="M{a:.0f} {top - 4}'
            f'C{a:.0f} {top - rise} {b:.0f} {top - rise} {b:.0f} {top - 9}"'
            f' stroke-width="{thick:.1f}" opacity="{0.25 + 0.65 * strength:.2f}">'
            f"<title>rank {i + 1} charges rank {j + 1}: {charge:.3g}</title></path>"
            f'<path class="head" d="M{b - 4:.0f} {top - 10}h8l-4 7z" opacity="{0.25 + 0.65 * strength:.2f}"/>'
        )
    highest = max(float(ranking.penalties.max(initial=0.0)), 1e-300)
    for place in range(-1, count):
        row = ranking.query if place < 0 else int(ranking.rows[place])
        kind = "asks" if place < 0 else "good" if ranking.is_positive[place] else "bad"
        label = "" if names is None else str(names[row])
        x = centre(place) - _SIDE / 2 - (8 if place < 0 else 0)
        says = {"asks": "query", "good": "same class", "bad": "another class"}[kind]
        picture = address(row)
        if picture is not None:
            parts.append(
                f'<image href="{escape(picture)}" x="{x:.0f}" y="{top}" width="{_SIDE}" height="{_SIDE}">'
                f"<title>{escape(label)} ({says})</title></image>"
            )
        parts.append(
            f'<rect class="frame {kind}" x="{x:.0f}" y="{top}" width="{_SIDE}" height="{_SIDE}" rx="7"/>'
        )
        middle = x + _SIDE / 2
        words = (
            "query" if place < 0 else f"{'✓' if kind == 'good' else '✕'} {ranking.similarities[place]:.3f}"
        )
        parts.append(f'<text x="{middle:.0f}" y="{top + _SIDE + 17}" text-anchor="middle">{words}</text>')
        if kind == "bad":
            tall = _BARS * ranking.penalties[place] / highest
            parts.append(
                f'<rect class="bar" x="{middle - 15:.0f}" y="{base}" width="30" '
                f'height="{max(tall, 0.8):.1f}" rx="2"/>'
                f'<text class="value" x="{middle:.0f}" y="{base + tall + 14:.0f}" text-anchor="middle">'
                f"{ranking.penalties[place]:.3g}</text>"
            )
    about = f"The first {count} images found for a query, with the penalty of each wrong one"
    return (
        '<figure class="penalties"><div class="scroll" tabindex="0">'
        f'<svg viewBox="0 0 {width} {base + _BARS + 24}" role="img" '
        f'aria-label="{about}" style="max-width:{width}px">{"".join(parts)}</svg></div>'
        f"<figcaption>{escape(_caption(ranking))}</figcaption></figure>"
    )


def ranking_figure(
    ranking: Ranking,
    path: Path | str,
    files: Sequence[Path] | None = None,
    names: Sequence[Any] | NDArray[Any] | None = None,
    title: str = "",
) -> list[Path]:
    """Draw the ranking and save it as `path` with the endings .png and .svg.

    Args:
        path: where to write; its ending is replaced.
        files: image file of each row of the data set; without them frames are empty.
        names: label of each row, written under its picture.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(0.92 * (len(ranking.rows) + 1.4), 0.92 * 4.05), layout="constrained")
    axes = figure.add_subplot()
    _draw(axes, ranking, files, names)
    if title:
        axes.set_title(title, fontsize=11, loc="left", parse_math=False)
    return _save(figure, Path(path))


def _draw(
    axes: "Axes", ranking: Ranking, files: Sequence[Path] | None, names: Sequence[Any] | NDArray[Any] | None
) -> None:
    from matplotlib.patches import FancyBboxPatch

    draw_arrows(axes, ranking.is_positive, ranking.charges, _BAD, height=0.5)
    highest = max(float(ranking.penalties.max(initial=0.0)), 1e-300)
    for place in range(-1, len(ranking.rows)):
        row = ranking.query if place < 0 else int(ranking.rows[place])
        x = -1.2 if place < 0 else float(place)
        good = place >= 0 and bool(ranking.is_positive[place])
        colour = _ASKS if place < 0 else _GOOD if good else _BAD
        picture = None if files is None else _picture(files[row])
        if picture is not None:
            axes.imshow(picture, extent=(x - 0.38, x + 0.38, -0.38, 0.38), zorder=2)
        axes.add_patch(
            FancyBboxPatch(
                (x - 0.38, -0.38),
                0.76,
                0.76,
                boxstyle="round,pad=0.03,rounding_size=0.07",
                fill=False,
                edgecolor=colour,
                linewidth=2,
                linestyle="--" if place >= 0 and not good else "-",
                zorder=3,
            )
        )
        words = "query" if place < 0 else f"{ranking.similarities[place]:.3f}"
        name = "" if names is None else f"{_short(str(names[row]))}\n"
        axes.text(
            x, -0.5, f"{name}{words}", ha="center", va="top", fontsize=7.5, color=colour, parse_math=False
        )
        if place >= 0 and not good:
            tall = 0.8 * float(ranking.penalties[place]) / highest
            axes.bar(x, -tall, 0.4, bottom=-1.02, color=_BAD, alpha=0.85)
            shown = f"{ranking.penalties[place]:.3g}"
            axes.text(x, -1.06 - tall, shown, ha="center", va="top", fontsize=7.5)
    axes.set_xlim(-1.8, len(ranking.rows) - 0.4)
    axes.set_ylim(-2.05, 2.0)
    axes.set_aspect("equal")
    axes.axis("off")


def draw_arrows(
    axes: "Axes", is_positive: NDArray[np.bool_], charges: NDArray[np.float64], colour: str, *, height: float
) -> None:
    """Draw an arrow from every positive to every negative before it, as wide and dark as its charge.

    Args:
        is_positive, charges: (n,) of the items at x = 0, 1, 2, ...
        height: where the arrows begin and end.
    """
    from matplotlib.patches import FancyArrowPatch

    for j, i, strength, _ in _arrows(is_positive, charges):
        arrow = FancyArrowPatch(
            (i, height),
            (j, height),
            connectionstyle=f"arc3,rad={min(0.5, 0.28 + 0.06 / (i - j)):.2f}",
            arrowstyle="-|>",
            mutation_scale=8,
            shrinkA=2,
            shrinkB=2,
            linewidth=0.7 + 1.8 * strength,
            color=colour,
            alpha=0.25 + 0.65 * strength,
        )
        axes.add_patch(arrow)


def _arrows(
    is_positive: NDArray[np.bool_], charges: NDArray[np.float64]
) -> list[tuple[int, int, float, float]]:
    """(negative's place, positive's place, strength to draw, charge) of the shown arrows, weakest first."""
    arrows = [
        (j, int(i), float(charges[i]))
        for i in np.flatnonzero(is_positive)
        for j in np.flatnonzero(~is_positive[:i]).tolist()
    ]
    # Relative to the strongest arrow drawn: a positive before all negatives charges nobody, whatever f'(0).
    strongest = max((charge for *_, charge in arrows), default=0.0) or 1.0
    return [(j, i, charge / strongest, charge) for j, i, charge in sorted(arrows, key=lambda arrow: arrow[2])]


def _caption(ranking: Ranking) -> str:
    if not ranking.penalties.any():
        return "No wrong image stands before a right one here: nothing is charged."
    hidden = ranking.hidden_positives
    stand = "more right image stands" if hidden == 1 else "more right images stand"
    more = f" {hidden:,} {stand} further down; what they charge is in the bars." if hidden else ""
    return (
        f"Each right image charges every wrong image before it; a bar is what a wrong image is charged.{more}"
    )


def _short(name: str, most: int = 14) -> str:
    return name if len(name) <= most else f"{name[: most - 1]}…"


def _picture(file: Path) -> NDArray[np.uint8] | None:
    from PIL import Image, ImageOps

    from forerank.data.decode import BadImageError, read_image

    try:
        picture = read_image(file, shrink_to=160)
    except (BadImageError, OSError):
        return None
    return np.asarray(ImageOps.pad(picture, (160, 160), Image.Resampling.LANCZOS, color="white"))


def _save(figure: "Figure", path: Path) -> list[Path]:
    import matplotlib as mpl

    path.parent.mkdir(parents=True, exist_ok=True)
    written = []
    with mpl.rc_context({"svg.hashsalt": "forerank"}):  # the same figure gives the same file
        for kind, options in (("png", {"dpi": 200}), ("svg", {"metadata": {"Date": None}})):
            target = path.with_suffix(f".{kind}")
            figure.savefig(target, facecolor="white", **options)
            written.append(target)
    return written
