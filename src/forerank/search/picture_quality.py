"""Pictures worth a look for what they are and not for their label: outliers, very dark, blurred, tiny ones.

Each measure has an absolute limit, and a picture must also be unusual within its own collection: a collection
of night photographs, or of 32-pixel icons, is not a list of faults.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from forerank.console import progress
from forerank.data import BadImageError, Table, read_image
from forerank.data.decode import open_header
from forerank.data.threads import map_in_threads
from forerank.metrics import neighbours

TINY = 64  # pixels of the shorter side, and less than half of the collection's median
DARK = 60  # brightness (0 to 255) below which 95% of the pixels lie
BLURRED = 60.0  # variance of the Laplacian at a shorter side of 160 pixels, brightness from 0 to 255
UNUSUAL = 3.5  # robust standard deviations from the median, the usual limit of the modified z-score
OUTLIER_NEIGHBOURS = 5
SHARPNESS_SIDE, SMALLEST_JUDGED, THUMBNAIL = 160, 64, 12

RULES = {
    "unreadable": "cannot be read as a picture",
    "tiny": f"the shorter side has less than {TINY} pixels and less than half of the collection's median",
    "dark": f"95% of the pixels are darker than {DARK} of 255, and unusually so for the collection",
    "blurred": f"the variance of the Laplacian is below {BLURRED:.0f}, and unusually low for the collection",
    "outlier": (
        f"its {OUTLIER_NEIGHBOURS} nearest images are unusually far away: by more than {UNUSUAL} robust "
        "standard deviations"
    ),
}

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class PictureMeasures:
    """What was measured of N pictures; NaN where a picture cannot be read or is too small to judge."""

    side: Floats  # (N,) pixels of the shorter side
    brightness: Floats  # (N,) 95th percentile, 0 to 255
    sharpness: Floats  # (N,) variance of the Laplacian
    thumbnails: npt.NDArray[np.float32]  # (N, 432) small pictures as unit vectors, for near-copies
    reasons: dict[int, str]  # row -> why it cannot be read


@dataclass(frozen=True)
class PictureIssue:
    """One picture, which rule of `RULES` it meets, and a sentence with the number."""

    row: int
    kind: str
    reason: str


def measure_pictures(table: Table) -> PictureMeasures:
    """Decode every picture once, in threads."""
    boxes = [None] * len(table) if table.box is None else [tuple(map(int, box)) for box in table.box]
    work = list(zip(table.files, boxes, strict=True))
    done = map_in_threads(lambda one: _measure(*one), work, workers=max(2, os.cpu_count() or 1))
    each = list(progress(done, "measuring pictures", total=len(work)))
    numbers = np.array([one[0] for one in each], dtype=np.float64).reshape(-1, 3)
    thumbnails = np.stack([one[1] for one in each]) if each else np.zeros((0, 3 * THUMBNAIL**2), np.float32)
    reasons = {row: one[2] for row, one in enumerate(each) if one[2]}
    return PictureMeasures(numbers[:, 0], numbers[:, 1], numbers[:, 2], thumbnails, reasons)


def _measure(file: Path, box: Any) -> tuple[tuple[float, float, float], npt.NDArray[np.float32], str]:
    blank = np.zeros(3 * THUMBNAIL**2, np.float32)
    boxed = box is not None and box[2] > box[0] and box[3] > box[1]
    try:
        with open_header(file) as header:
            size = (box[2] - box[0], box[3] - box[1]) if boxed else header.size
        picture = read_image(file, shrink_to=None if boxed else SHARPNESS_SIDE)
    except (BadImageError, OSError) as error:
        return (np.nan, np.nan, np.nan), blank, getattr(error, "reason", None) or str(error)
    if boxed:
        picture = picture.crop(box)
    small = picture.resize((THUMBNAIL, THUMBNAIL), Image.Resampling.BOX)
    pixels = np.asarray(small, np.float32).ravel()
    pixels = pixels - pixels.mean()
    pixels /= max(float(np.linalg.norm(pixels)), 1e-6)
    grey = picture.convert("L")
    brightness = float(np.percentile(np.asarray(grey), 95))
    return (float(min(size)), brightness, sharpness(grey)), pixels, ""


def sharpness(grey: Image.Image) -> float:
    """Variance of the Laplacian of a grey picture, at one common size; NaN where it is too small to tell.

    >>> checks = Image.fromarray((np.indices((200, 200)).sum(0) // 10 % 2 * 255).astype(np.uint8))
    >>> sharpness(checks) > 1000, sharpness(Image.new("L", (200, 200), 99))
    (True, 0.0)
    """
    if min(grey.size) < SMALLEST_JUDGED:
        return float("nan")
    scale = SHARPNESS_SIDE / min(grey.size)
    if scale < 1:
        wanted = (max(1, round(grey.width * scale)), max(1, round(grey.height * scale)))
        grey = grey.resize(wanted, Image.Resampling.BOX)
    p = np.asarray(grey, np.float64)
    laplacian = p[:-2, 1:-1] + p[2:, 1:-1] + p[1:-1, :-2] + p[1:-1, 2:] - 4 * p[1:-1, 1:-1]
    return float(laplacian.var())


def unusually_low(values: Floats) -> npt.NDArray[np.bool_]:
    """Which values (N,) lie more than `UNUSUAL` robust standard deviations below the median.

    >>> unusually_low(np.array([5.0, 5.1, 4.9, 5.0, 1.0, np.nan])).tolist()
    [False, False, False, False, True, False]
    """
    known = values[np.isfinite(values)]
    if not len(known):
        return np.zeros(len(values), bool)
    centre = np.median(known)
    spread = 1.4826 * np.median(np.abs(known - centre))  # equals the standard deviation of a normal curve
    low: npt.NDArray[np.bool_] = np.nan_to_num(values, nan=np.inf) < centre - max(UNUSUAL * spread, 1e-9)
    return low


def find_issues(vectors: npt.NDArray[Any] | None, measured: PictureMeasures) -> list[PictureIssue]:
    """Pictures worth a look, by kind and then the most extreme first.

    Args:
        vectors: (N, D) of the same rows for outliers, NaN where a picture could not be read; or None.
        measured: what `measure_pictures` found.
    """
    issues = [PictureIssue(row, "unreadable", reason) for row, reason in measured.reasons.items()]

    def add(kind: str, values: Floats, which: npt.NDArray[np.bool_], sentence: str) -> None:
        rows = np.flatnonzero(which)
        for row in rows[np.argsort(values[rows], kind="stable")]:
            issues.append(PictureIssue(int(row), kind, sentence.format(values[row])))

    with np.errstate(invalid="ignore"):
        side, dark = measured.side, measured.brightness
        if np.isfinite(side).any():
            tiny = (side < TINY) & (side < np.nanmedian(side) / 2)
            add("tiny", side, tiny, "its shorter side has {:.0f} pixels")
            add(
                "dark", dark, (dark < DARK) & unusually_low(dark), "95% of its pixels are below {:.0f} of 255"
            )
            sharp = measured.sharpness
            blurred = (sharp < BLURRED) & unusually_low(np.log1p(sharp))
            add("blurred", sharp, blurred & ~(dark < DARK), "its variance of the Laplacian is {:.1f}")
    if vectors is not None:
        usable = np.flatnonzero(np.isfinite(vectors).all(axis=1))
        if len(usable) > OUTLIER_NEIGHBOURS:
            near = neighbours(vectors[usable], np.zeros(len(usable), int), k=OUTLIER_NEIGHBOURS)
            closeness = np.full(len(vectors), np.nan)
            closeness[usable] = near.similarity.mean(axis=1)
            sentence = f"the mean similarity of its {OUTLIER_NEIGHBOURS} nearest images is {{:.3f}}"
            add("outlier", closeness, unusually_low(closeness), sentence)
    return issues
