"""The test images as a map in the report: near ones near each other, coloured by class. No script."""

import importlib.util
from html import escape
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerank.metrics.layout import NEIGHBOURS, lay_out
from forerank.ranking.hard_rows import UnitRows
from forerank.report.summary import Section

FEWEST_IMAGES = 30
MOST_IMAGES = 2000  # about 20 kB of the page
MOST_NAMES = 24  # classes whose names are written into the map
SIDE = 640


def map_section(rows: UnitRows, names: NDArray[Any], *, most: int = MOST_IMAGES) -> Section:
    """A section with the map of N images; empty where they are few or UMAP is not installed.

    Args:
        rows: (N, D) vectors.
        names: (N,) class of each, as text to show.
        most: images drawn at most, chosen at random with a fixed seed.
    """
    if len(names) < FEWEST_IMAGES or importlib.util.find_spec("umap") is None:
        return Section("map", "", "")
    shown = np.arange(len(names))
    if len(names) > most:
        shown = np.sort(np.random.default_rng(0).choice(len(names), most, replace=False))
    vectors = rows.float64(slice(None)).numpy()[shown].astype(np.float32)
    similarities = vectors @ vectors.T
    nearest = np.argsort(-similarities, axis=1, kind="stable")[:, :NEIGHBOURS]
    places = lay_out(vectors, nearest, np.take_along_axis(similarities, nearest, axis=1))
    drawn = "" if len(shown) == len(names) else f" {len(shown):,} of {len(names):,} images, drawn at random."
    about = (
        '<p class="under">Every dot is an image, near dots are similar images (UMAP), colours are classes; '
        f"point at one for its class. Distances between far dots mean little.{drawn}</p>"
    )
    body = f'{about}<div class="card">{map_svg(places, names[shown])}</div>'
    return Section("map", "Map of the test images", body)


def map_svg(places: NDArray[np.float32], names: NDArray[Any]) -> str:
    """Dots (N, 2) between 0 and 1 as SVG, one path per class with the class's name as its title.

    >>> map_svg(np.array([[0, 0], [1, 1]], np.float32), np.array(["a", "b"])).count("<path")
    2
    """
    spots = np.round(10 + places * (SIDE - 20)).astype(int)
    classes, codes = np.unique(names.astype(str), return_inverse=True)
    parts, written = [], []
    for code, name in enumerate(classes):
        own = spots[codes == code]
        colour = f"hsl({code * 137.508 % 360:.0f} 62% {(50, 42, 58)[code % 3]}%)"
        dots = "".join(f"M{x} {y}h0" for x, y in own)  # a line of no length with round ends is a dot
        parts.append(f'<path d="{dots}" stroke="{colour}"><title>{escape(name)}</title></path>')
        if len(classes) <= MOST_NAMES:
            x, y = np.median(own, axis=0)
            written.append(f'<text x="{x:.0f}" y="{y - 8:.0f}" text-anchor="middle">{escape(name)}</text>')
    return (
        f'<svg class="map" viewBox="0 0 {SIDE} {SIDE}" role="img" aria-label="Map of the test images">'
        f'<g fill="none" stroke-width="6" stroke-linecap="round">{"".join(parts)}</g>{"".join(written)}</svg>'
    )
