"""Indexed images as small JPEG or PNG bytes, made when first asked for and kept within a budget."""

import io
import os
import stat
import threading
from collections import OrderedDict
from dataclasses import dataclass

from PIL import Image

from forerank.data import BadImageError, read_image
from forerank.data.sources import read_again
from forerank.errors import InputError
from forerank.search.index import Index
from forerank.search.rows import Row

SIDES = {"small": 240, "large": 1200}
TINY = 96  # pixels; a drawing of so few stays exact
PICTURE_KINDS = ("image/jpeg", "image/png")  # MIME types of what is shown


@dataclass(frozen=True)
class EncodedPicture:
    """Encoded bytes and what they are."""

    data: bytes
    kind: str  # MIME type


class PictureStore:
    """Makes and keeps pictures of an index's rows.

    Args:
        index: the index; only files of its rows, inside its image root, are ever opened.
        budget: bytes of encoded pictures kept in memory.
        pixels: an image with more is not decoded.
    """

    def __init__(self, index: Index, *, budget: int = 128 * 2**20, pixels: int = 200_000_000) -> None:
        self._index, self._budget, self._pixels = index, budget, pixels
        self._kept: OrderedDict[tuple[str, str], EncodedPicture] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()
        # More decoders than cores only fight for them.
        self._decoding = threading.Semaphore(max(2, os.cpu_count() or 1))

    def get(self, row: Row, size: str) -> EncodedPicture:
        """The picture of a row, "small" or "large"; one that cannot be shown raises `InputError`."""
        key = (row.content, size)
        with self._lock:
            kept = self._kept.get(key)
            if kept is not None:
                self._kept.move_to_end(key)
                return kept
        with self._decoding:
            made = self._encode_row(row, SIDES[size])
        with self._lock:
            if key not in self._kept:
                self._kept[key] = made
                self._bytes += len(made.data)
            while self._bytes > self._budget and len(self._kept) > 1:
                self._bytes -= len(self._kept.popitem(last=False)[1].data)
        return made

    def _encode_row(self, row: Row, side: int) -> EncodedPicture:
        try:
            image = read_image(self.read(row), shrink_to=side, max_pixels=self._pixels)
        except BadImageError as error:
            raise InputError(f"{row.path} cannot be shown: {error.reason}") from error
        return encode_picture(image, side)

    def read(self, row: Row) -> bytes:
        """The bytes of a row's file: a plain file inside the image root, or one that a stream brought."""
        if self._index.meta.get("streamed"):
            if "://" in row.path or row.path.startswith("/") or ".." in row.path.split("/"):
                raise InputError(f"{row.path} leads outside the image root: it is not shown.")
            return read_again(f"{self._index.meta['root']}/{row.path}")
        file = self._index.file(row)
        try:
            # The path is resolved; a link that is put in its place now is not followed.
            descriptor = os.open(
                file, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
            )
        except OSError as error:
            raise InputError(f"{row.path} is not there any more: index the images again.") from error
        with os.fdopen(descriptor, "rb") as opened:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise InputError(f"{row.path} is not a plain file.")
            return opened.read()


def encode_picture(image: Image.Image, side: int) -> EncodedPicture:
    """An image for a browser, `side` pixels at most: PNG for tiny drawings, JPEG for the rest; no metadata.

    >>> encode_picture(Image.new("RGB", (2, 2)), 240).kind
    'image/png'
    """
    out = io.BytesIO()
    if max(image.size) <= TINY:
        image.save(out, "PNG")
        return EncodedPicture(out.getvalue(), "image/png")
    image.thumbnail((side, side), Image.Resampling.BILINEAR)
    image.convert("RGB").save(out, "JPEG", quality=86)
    return EncodedPicture(out.getvalue(), "image/jpeg")
