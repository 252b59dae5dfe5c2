"""A file, bytes, picture or array -> an upright 8-bit picture, or a refusal that names the file."""

import importlib.util
import io
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from forerank.errors import InputError

ImageSource: TypeAlias = "str | Path | bytes | Image.Image | NDArray[Any]"

# Raster formats only. Pillow can also open formats that start other programs (EPS) or stand for
# something else (PDF); a file handed over by a stranger must not reach those.
FORMATS = ("JPEG", "MPO", "PNG", "WEBP", "GIF", "BMP", "DIB", "TIFF", "PPM", "JPEG2000", "AVIF", "ICO", "TGA")
EXTENSIONS = (
    *(".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".apng", ".webp", ".gif", ".bmp", ".dib", ".tif", ".tiff"),
    *(".ppm", ".pgm", ".pbm", ".pnm", ".jp2", ".avif", ".tga"),
)
# A picture of more pixels than this is refused before it is decoded (Pillow warns at the same number).
MAX_PIXELS = 89_478_485


# What the extra `heic` adds: the photographs of iPhones.
HEIC_EXTENSIONS = (".heic", ".heif", ".hif")


@cache
def known_formats() -> tuple[str, ...]:
    """Those of FORMATS that this Pillow was built with, and HEIF if pillow-heif is installed."""
    Image.init()
    formats = tuple(name for name in FORMATS if name in Image.OPEN)
    if not _has_pillow_heif():
        return formats
    import pillow_heif

    pillow_heif.register_heif_opener()
    return (*formats, "HEIF")


@cache
def image_endings() -> tuple[str, ...]:
    """The endings of image files that can be read here, in lower case."""
    return (*EXTENSIONS, *HEIC_EXTENSIONS) if _has_pillow_heif() else EXTENSIONS


def _has_pillow_heif() -> bool:
    return importlib.util.find_spec("pillow_heif") is not None


class BadImageError(InputError):
    """A picture that cannot be used: which one, and why."""

    def __init__(self, source: object, reason: str | None = None) -> None:
        if reason is None:
            # A torch data loader raises a worker's error again with the traceback as its only argument;
            # the last line of that is our sentence.
            sentence = str(source).strip().splitlines()[-1].split("BadImageError: ", 1)[-1]
            source, _, reason = sentence.rpartition(": ")
        super().__init__(f"{source}: {reason}")
        self.source, self.reason = source, reason

    def __reduce__(self) -> tuple[Any, ...]:  # so that it crosses from a data-loader worker unharmed
        return type(self), (self.source, self.reason)


def name_of(source: ImageSource) -> str:
    """How to call a source in a message."""
    if isinstance(source, bytes):
        return f"image of {len(source):,} bytes"
    if isinstance(source, Image.Image):
        return str(getattr(source, "filename", "") or "the given picture")
    return "the given array" if isinstance(source, np.ndarray) else str(source)


@contextmanager
def bad_image_if_it_fails(name: str, doing: str) -> Iterator[None]:
    """Turn whatever a decoder raises into `BadImageError`.

    Decoders of damaged files raise errors of every type: AVIF a RuntimeError, others OSError, ValueError,
    SyntaxError, OverflowError, struct.error, IndexError and more. None of them is worth a traceback.
    """
    try:
        yield
    except BadImageError:
        raise
    except FileNotFoundError:
        raise BadImageError(name, "no such file") from None
    except Image.DecompressionBombError:
        raise BadImageError(name, "too many pixels, refused as a decompression bomb") from None
    except MemoryError:
        raise BadImageError(name, "too large for this machine's memory") from None
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise BadImageError(name, f"{doing} ({reason})") from None


def open_header(source: "str | Path | bytes", max_pixels: int = MAX_PIXELS) -> Image.Image:
    """Open a file and read no more than its header: format, mode and size are known afterwards."""
    name = name_of(source)
    with bad_image_if_it_fails(name, "cannot be opened"):
        if not isinstance(source, bytes) and not stat.S_ISREG(Path(source).stat().st_mode):
            raise BadImageError(name, "cannot be opened (not a file)")  # a pipe would wait for ever
        try:
            image = Image.open(
                io.BytesIO(source) if isinstance(source, bytes) else source, formats=known_formats()
            )
        except UnidentifiedImageError:
            size = len(source) if isinstance(source, bytes) else Path(source).stat().st_size
            raise BadImageError(
                name, "the file is empty" if size == 0 else "not an image in a known format"
            ) from None
    if not 0 < image.width * image.height <= max_pixels:
        sides = f"{image.width} x {image.height}"
        limit = f"is more than {max_pixels:,} pixels, refused as a decompression bomb"
        image.close()
        raise BadImageError(name, f"{sides} {limit}" if min(image.size) else f"{sides} holds no pixels")
    return image


def read_image(
    source: ImageSource, *, channels: int = 3, shrink_to: int | None = None, max_pixels: int = MAX_PIXELS
) -> Image.Image:
    """Decode to an upright picture of mode "RGB" (or "L" for `channels=1`).

    - EXIF rotation is applied; transparency is laid over white; palettes, CMYK, 1-bit become 8-bit;
    - 16-bit grey keeps its upper 8 bits; 32-bit and floating-point pixels are refused;
    - of an animation (GIF, APNG, WebP) or a multi-page TIFF the first picture counts;
    - the extension is not trusted: the content says what the format is;
    - unreadable, truncated, empty and oversized files raise `BadImageError` with name and reason.

    Args:
        source: path, encoded bytes, Pillow picture, or uint8 array (H, W[, 1 or 3 or 4]).
        shrink_to: the shorter side that will be needed; JPEG then decodes at a half, a quarter or an eighth
            where at least twice that many pixels remain, which is several times faster for large photographs.

    >>> import numpy as np
    >>> read_image(np.zeros((4, 5), np.uint8)).size
    (5, 4)
    """
    name = name_of(source)
    if isinstance(source, np.ndarray):
        return _flatten(_from_array(source), channels, name)
    if isinstance(source, Image.Image):
        return _flatten(ImageOps.exif_transpose(source), channels, name)
    with open_header(source, max_pixels) as image, bad_image_if_it_fails(name, "damaged"):
        if shrink_to is not None and image.format in ("JPEG", "MPO"):
            ratio = 2 * shrink_to / min(image.size)
            if ratio < 1:
                wanted = (int(image.width * ratio), int(image.height * ratio))
                image.draft("L" if channels == 1 and image.mode == "L" else "RGB", wanted)
        image.load()
        says_rotation = image.format == "TIFF" or not ROTATION_KEYS.isdisjoint(image.info)
        upright = ImageOps.exif_transpose(image) if says_rotation else image
        return _flatten(upright, channels, name)


# Where Pillow keeps what may speak of a rotation; asking when there is nothing costs time (TIFF has tags).
ROTATION_KEYS = frozenset(("exif", "xmp", "XML:com.adobe.xmp", "Raw profile type exif"))


def _from_array(array: NDArray[Any]) -> Image.Image:
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    if array.dtype != np.uint8 or not (array.ndim == 2 or (array.ndim == 3 and array.shape[2] in (3, 4))):
        raise InputError(
            f"an image array must be uint8 of shape (H, W), (H, W, 1), (H, W, 3) or (H, W, 4), "
            f"not {array.dtype} of shape {array.shape}"
        )
    if array.size == 0:
        raise InputError(f"an image array of shape {array.shape} has no pixels")
    return Image.fromarray(array)


def _flatten(image: Image.Image, channels: int, name: str) -> Image.Image:
    """8 bits, no transparency, three channels or one."""
    mode = "L" if channels == 1 else "RGB"
    if image.mode == mode and "transparency" not in image.info:
        return image
    if image.mode.startswith("I;16"):
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    elif image.mode == "I":  # older Pillow opens 16-bit PNG in 32 bits
        values = np.asarray(image)
        if values.min() < 0 or values.max() > 65535:
            raise BadImageError(name, "32-bit pixels beyond 16 bits: convert them to 8 bits first")
        image = Image.fromarray((values >> 8).astype(np.uint8))
    elif image.mode == "F":
        raise BadImageError(
            name, "floating-point pixels, whose range is unknown: convert them to 8 bits first"
        )
    if image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info:
        over = image.convert("RGBA")
        white = Image.new("RGBA", over.size, (255, 255, 255, 255))
        image = Image.alpha_composite(white, over)
    return image.convert(mode)
