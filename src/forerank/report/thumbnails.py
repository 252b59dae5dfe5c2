"""Small pictures written into the page itself, within a budget, so that the page needs no other file."""

import base64
import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from PIL import Image

MOST_BYTES = 3_500_000  # of base64 text in one page: it stays easy to mail and quick to open


class Thumbnails:
    """Turns image files into `data:` addresses until the budget is spent.

    Args:
        files: (N,) image files by row.
        boxes: (N, 4) bounding boxes x1, y1, x2, y2 to crop to, or None.
        side: longest side in pixels. Smaller images are kept as they are.
        most_bytes: budget for the text of all addresses handed out, repeated ones included.

    Example:
        >>> Thumbnails([Path("missing.jpg")])(0) is None
        True
    """

    def __init__(
        self,
        files: Sequence[Path],
        boxes: NDArray[np.int32] | None = None,
        *,
        side: int = 224,
        most_bytes: int = MOST_BYTES,
    ) -> None:
        self.files = files
        self.boxes = boxes
        self.side = side
        self.left = most_bytes
        self.skipped = 0
        self._made: dict[int, str | None] = {}

    def __call__(self, row: int) -> str | None:
        """The address of an image, or None when it cannot be read or the budget is spent."""
        if row not in self._made:
            x1, y1, x2, y2 = (0, 0, 0, 0) if self.boxes is None else (int(v) for v in self.boxes[row])
            box = (x1, y1, x2, y2) if x2 > x1 and y2 > y1 else None
            self._made[row] = data_address(self.files[row], self.side, box)
        address = self._made[row]
        if address is not None and len(address) > self.left:
            self.skipped += 1
            return None
        self.left -= len(address or "")
        return address


def data_address(file: Path, side: int = 224, box: tuple[int, int, int, int] | None = None) -> str | None:
    """An image file as a `data:` address no larger than `side` pixels, or None when it cannot be read."""
    from PIL import Image

    from forerank.data.decode import BadImageError, read_image

    try:
        # A box is in pixels of the full picture, so a boxed picture is decoded whole.
        picture = read_image(file, shrink_to=side if box is None else None)
    except (BadImageError, OSError):
        return None  # a report about a run must not fail for one unreadable picture
    if box is not None:
        picture = picture.crop(box)
    picture.thumbnail((side, side), Image.Resampling.LANCZOS)
    return encoded(picture)


def encoded(picture: "Image.Image") -> str:
    """The shorter of a lossless (drawings, glyphs) and a lossy (photographs) encoding, as an address."""
    written = []
    for kind, options in (("png", {"optimize": True}), ("jpeg", {"quality": 78, "optimize": True})):
        out = io.BytesIO()
        picture.save(out, kind, **options)
        written.append((kind, out.getvalue()))
    kind, data = min(written, key=lambda one: len(one[1]))
    return f"data:image/{kind};base64,{base64.b64encode(data).decode('ascii')}"
