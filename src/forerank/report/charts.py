"""Small charts as inline SVG: crisp at any size, coloured by the page's CSS, readable without colour.

Every function returns an HTML string. Text from callers is escaped here, so labels may be user data. No
namespace address is written: inside HTML none is needed, and the page stays free of outside addresses.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from html import escape

import numpy as np
from numpy.typing import NDArray

from forerank.console import percent

WIDTH, HEIGHT = 440, 250
_LEFT, _RIGHT, _TOP, _BOTTOM = 48, 14, 12, 40
_MOST_POINTS = 240  # a longer line is averaged into this many bins, its spread drawn as a band

Format = Callable[[float], str]


@dataclass(frozen=True)
class Line:
    """A named curve; `style` is the CSS class that colours it (s0, s1, ... good, bad)."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    style: str = "s1"
    dots: bool = False


@dataclass(frozen=True)
class Interval:
    """A value with its confidence interval, when one is known."""

    name: str
    value: float
    low: float | None
    high: float | None
    style: str = "s1"


def plain(value: float) -> str:
    """A number as short as it can be read.

    >>> [plain(x) for x in (0, 0.25, 3, 1500, 2_000_000, 1e-5)]
    ['0', '0.25', '3', '1.5k', '2M', '1e-05']
    """
    size = abs(value)
    if size >= 1e6:
        return f"{value / 1e6:.4g}M"
    if size >= 1e3:
        return f"{value / 1e3:.4g}k"
    return f"{value:.4g}"


bare_percent: Format = partial(percent, mark=False)  # for axes and tables that name the unit once


def whole_percent(value: float) -> str:
    """
    >>> whole_percent(0.25), whole_percent(0.125)
    ('25', '12.5')
    """
    return f"{100 * value:.4g}"


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round numbers that cover [low, high] within.

    >>> [round(float(t), 2) for t in ticks(0.0, 1.0)]
    [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    """
    if not high > low:
        return [low]
    raw = (high - low) / max(1, most - 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(i * step, 12) for i in range(first, last + 1)]


def line_chart(
    title: str,
    lines: Sequence[Line],
    *,
    x_label: str,
    y_label: str,
    share: bool = False,
    log_x: bool = False,
    mark: tuple[float, str] | None = None,
) -> str:
    """Curves over a common axis; long ones are averaged and keep their spread as a band.

    Args:
        share: the values are shares of one: shown in percent, on an axis that ends at 0 and 100.
        mark: where on the x axis to draw an upright line, and what to write on it.
    """
    y_format = whole_percent if share else plain
    usable = [Line(c.name, *_finite(c.x, c.y), c.style, c.dots) for c in lines]
    usable = [c for c in usable if len(c.x)]
    if not usable:
        return ""
    xs = np.concatenate([np.asarray(c.x, dtype=float) for c in usable])
    ys = np.concatenate([np.asarray(c.y, dtype=float) for c in usable])
    y_low, y_high = _padded(float(ys.min()), float(ys.max()), share)
    place_x = _scale(_log(xs.min(), log_x), _log(xs.max(), log_x), _LEFT, WIDTH - _RIGHT)
    place_y = _scale(y_low, y_high, HEIGHT - _BOTTOM, _TOP)
    x_ticks = sorted({float(x) for x in xs}) if log_x else ticks(float(xs.min()), float(xs.max()))
    parts = [_y_axis(ticks(y_low, y_high), place_y, y_format, y_label)]
    parts.append(_x_axis([(place_x(_log(t, log_x)), plain(t)) for t in x_ticks], x_label))
    if mark is not None and xs.min() <= mark[0] <= xs.max():
        parts.append(_mark(place_x(_log(mark[0], log_x)), mark[1]))
    for curve in usable:
        x, mean, low, high = _binned(np.asarray(curve.x, dtype=float), np.asarray(curve.y, dtype=float))
        px = [place_x(_log(v, log_x)) for v in x]
        if len(curve.x) > _MOST_POINTS:
            band = [f"{a:.1f},{place_y(b):.1f}" for a, b in zip(px, high, strict=True)]
            band += [f"{a:.1f},{place_y(b):.1f}" for a, b in zip(px[::-1], low[::-1], strict=True)]
            parts.append(f'<polygon class="band {curve.style}" points="{" ".join(band)}"/>')
        points = " ".join(f"{a:.1f},{place_y(b):.1f}" for a, b in zip(px, mean, strict=True))
        parts.append(f'<polyline class="line {curve.style}" points="{points}"/>')
        if curve.dots or len(px) == 1:
            parts += [
                f'<circle class="dot {curve.style}" cx="{a:.1f}" cy="{place_y(b):.1f}" r="3.2">'
                f"<title>{escape(curve.name)}, {plain(v)}: {escape(y_format(b))}</title></circle>"
                for a, v, b in zip(px, x, mean, strict=True)
            ]
    return _figure(title, parts, [(c.name, c.style) for c in usable])


def histogram(
    title: str,
    edges: Sequence[float],
    counts: Mapping[str, Sequence[float]],
    styles: Sequence[str],
    *,
    x_label: str,
) -> str:
    """Overlaid distributions, each scaled to area one, as steps; only the range that holds pairs is shown."""
    borders = np.asarray(edges, dtype=float)
    filled = np.sum([np.asarray(c) for c in counts.values()], axis=0)
    if not filled.sum():
        return ""
    used = np.flatnonzero(filled)
    first, last = max(0, used[0] - 1), min(len(filled), used[-1] + 2)
    borders = borders[first : last + 1]
    densities = {}
    for name, values in counts.items():
        inside = np.asarray(values, dtype=float)[first:last]
        densities[name] = inside / max(1.0, inside.sum()) / np.diff(borders)
    top = max(float(d.max()) for d in densities.values()) * 1.06 or 1.0
    place_x = _scale(borders[0], borders[-1], _LEFT - 24, WIDTH - _RIGHT)
    place_y = _scale(0.0, top, HEIGHT - _BOTTOM, _TOP)
    parts = [_x_axis([(place_x(t), plain(t)) for t in ticks(borders[0], borders[-1])], x_label, _LEFT - 24)]
    for (_name, density), style in zip(densities.items(), styles, strict=True):
        path = [f"M{place_x(borders[0]):.1f} {place_y(0):.1f}"]
        for right, value in zip(borders[1:], density, strict=True):
            path.append(f"V{place_y(value):.1f}H{place_x(right):.1f}")
        path.append(f"V{place_y(0):.1f}Z")
        parts.append(f'<path class="area {style}" d="{"".join(path)}"/>')
    return _figure(title, parts, list(zip(densities, styles, strict=True)))


def bars(
    title: str,
    names: Sequence[str],
    groups: Mapping[str, Sequence[float]],
    styles: Sequence[str],
    *,
    x_label: str,
    y_label: str,
) -> str:
    """Grouped bars of shares, in percent: one group of neighbours for each name."""
    top = max((max(values) for values in groups.values()), default=0.0)
    if not top:
        return ""
    top = min(1.0, top * 1.05)
    place_y = _scale(0.0, top, HEIGHT - _BOTTOM, _TOP)
    slot = (WIDTH - _LEFT - _RIGHT) / len(names)
    width = slot * 0.78 / len(groups)
    parts = [_y_axis(ticks(0.0, top), place_y, whole_percent, y_label)]
    parts.append(_x_axis([(_LEFT + slot * (i + 0.5), name) for i, name in enumerate(names)], x_label))
    for g, ((group, values), style) in enumerate(zip(groups.items(), styles, strict=True)):
        for i, value in enumerate(values):
            x = _LEFT + slot * (i + 0.11) + width * g
            parts.append(
                f'<rect class="bar {style}" x="{x:.1f}" y="{place_y(value):.1f}" width="{width * 0.94:.1f}"'
                f' height="{max(0.0, place_y(0) - place_y(value)):.1f}" rx="1.5">'
                f"<title>{escape(group)}, {escape(names[i])}: {whole_percent(value)}</title></rect>"
            )
    return _figure(title, parts, list(zip(groups, styles, strict=True)))


def intervals(title: str, rows: Sequence[Interval]) -> str:
    """Values as dots with their intervals as whiskers, one under another on a shared axis."""
    ends = [e for r in rows for e in (r.value, r.low, r.high) if e is not None]
    if not ends:
        return ""
    low, high = _padded(min(ends), max(ends), max(ends) <= 1)
    height = 38 * len(rows) + 34
    place = _scale(low, high, 16, WIDTH - 16)
    grid = ticks(low, high, 5)
    parts = [
        f'<line class="grid" x1="{place(t):.1f}" x2="{place(t):.1f}" y1="4" y2="{height - 26}"/>'
        f'<text class="tick" x="{place(t):.1f}" y="{height - 8}" text-anchor="middle">'
        f"{whole_percent(t)}</text>"
        for t in grid
    ]
    for i, row in enumerate(rows):
        y = 38 * i + 28
        x = place(row.value)
        anchor = "start" if x < WIDTH * 0.35 else "end" if x > WIDTH * 0.65 else "middle"
        spread = ""
        if row.low is not None and row.high is not None:
            a, b = place(row.low), place(row.high)
            spread = f", {bare_percent(row.low)} to {bare_percent(row.high)}"
            parts.append(
                f'<path class="line {row.style}" '
                f'd="M{a:.1f} {y}H{b:.1f}M{a:.1f} {y - 5}v10M{b:.1f} {y - 5}v10"/>'
            )
        parts.append(
            f'<circle class="dot {row.style}" cx="{x:.1f}" cy="{y}" r="4.5">'
            f"<title>{escape(row.name)}: {bare_percent(row.value)}{spread}</title></circle>"
            f'<text class="name" x="{x:.1f}" y="{y - 12}" text-anchor="{anchor}">{escape(row.name)}</text>'
        )
    return _figure(title, parts, [], height)


def _figure(title: str, parts: Sequence[str], legend: Sequence[tuple[str, str]], height: int = HEIGHT) -> str:
    keys = "".join(
        f'<span class="key"><i class="{style}" aria-hidden="true"></i>{escape(name)}</span>'
        for name, style in legend
    )
    shown = f'<div class="legend">{keys}</div>' if len(legend) > 1 else ""
    return (
        f'<figure class="chart"><figcaption>{escape(title)}</figcaption>{shown}'
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title)}">{"".join(parts)}</svg>'
        "</figure>"
    )


def _y_axis(values: Sequence[float], place: Callable[[float], float], shown: Format, label: str) -> str:
    lines = [
        f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{place(v):.1f}" y2="{place(v):.1f}"/>'
        f'<text class="tick" x="{_LEFT - 7}" y="{place(v) + 4:.1f}" text-anchor="end">'
        f"{escape(shown(v))}</text>"
        for v in values
    ]
    middle = (HEIGHT - _BOTTOM + _TOP) / 2
    lines.append(
        f'<text class="axis" transform="translate(12 {middle:.0f}) rotate(-90)" text-anchor="middle">'
        f"{escape(label)}</text>"
    )
    return "".join(lines)


def _x_axis(values: Sequence[tuple[float, str]], label: str, left: float = _LEFT) -> str:
    base = HEIGHT - _BOTTOM
    lines = [f'<line class="base" x1="{left}" x2="{WIDTH - _RIGHT}" y1="{base}" y2="{base}"/>']
    lines += [
        f'<text class="tick" x="{x:.1f}" y="{base + 16}" text-anchor="middle">{escape(text)}</text>'
        for x, text in values
    ]
    middle = (left + WIDTH - _RIGHT) / 2
    lines.append(
        f'<text class="axis" x="{middle:.0f}" y="{HEIGHT - 5}" text-anchor="middle">{escape(label)}</text>'
    )
    return "".join(lines)


def _scale(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    span = (high - low) or 1.0
    middle = 0.5 if high == low else 0.0  # a single value stands in the middle
    return lambda value: float(start + (end - start) * (((value - low) / span) + middle))


def _padded(low: float, high: float, share: bool) -> tuple[float, float]:
    """The range with room around it; a share of one needs none below 0 or above 1.

    >>> _padded(0.5, 1.0, True), _padded(1.0, 1.0, True)
    ((0.47, 1.0), (0.9, 1.0))
    """
    pad = (high - low) * 0.06 or abs(high) * 0.1 or 1.0
    low, high = low - pad, high + pad
    return (max(0.0, low), min(1.0, high)) if share else (low, high)


def _mark(x: float, text: str) -> str:
    anchor = "start" if x < WIDTH * 0.35 else "end" if x > WIDTH * 0.65 else "middle"
    return (
        f'<line class="best" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{HEIGHT - _BOTTOM}"/>'
        f'<text class="name" x="{x:.1f}" y="{_TOP - 3}" text-anchor="{anchor}">{escape(text)}</text>'
    )


def _log(value: float, log: bool) -> float:
    return math.log10(max(value, 1e-12)) if log else float(value)


def _finite(x: Sequence[float], y: Sequence[float]) -> tuple[list[float], list[float]]:
    kept = [(a, b) for a, b in zip(x, y, strict=True) if math.isfinite(a) and math.isfinite(b)]
    return [a for a, _ in kept], [b for _, b in kept]


def _binned(
    x: NDArray[np.float64], y: NDArray[np.float64]
) -> tuple[list[float], list[float], list[float], list[float]]:
    if len(x) <= _MOST_POINTS:
        return x.tolist(), y.tolist(), y.tolist(), y.tolist()
    pieces = list(zip(np.array_split(x, _MOST_POINTS), np.array_split(y, _MOST_POINTS), strict=True))
    return (
        [float(a.mean()) for a, _ in pieces],
        [float(b.mean()) for _, b in pieces],
        [float(b.min()) for _, b in pieces],
        [float(b.max()) for _, b in pieces],
    )
