"""The embedded data set: characters in the typefaces that matplotlib ships.

A class is a character, an image is that character in one typeface: 12 DejaVu faces have all of them, 4 STIX
faces some. Characters that look identical (Latin A, Greek Alpha, Cyrillic A) are one class, and no two images
are the same. Nothing is downloaded: the images are drawn once, in seconds, and cached as PNG files.
"""

import hashlib
import importlib.util
import json
import shutil
import struct
import unicodedata
import zlib
from collections import defaultdict
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import ImageFont, features

from forerank.console import say
from forerank.data.cache import cache_folder
from forerank.data.data_set import DataSet
from forerank.data.preprocessing import Preprocessing
from forerank.data.split import merge_classes, noisy_labels
from forerank.data.table import Table
from forerank.errors import InputError, command_for
from forerank.files import temporary_folder

DEJAVU = [f"DejaVu{family}" for family in (
    "Sans-Bold", "Sans-BoldOblique", "Sans-Oblique", "Sans", "SansMono-Bold", "SansMono-BoldOblique",
    "SansMono-Oblique", "SansMono", "Serif-Bold", "Serif-BoldItalic", "Serif-Italic", "Serif")]  # fmt: skip
STIX = ["STIXGeneral", "STIXGeneralBol", "STIXGeneralBolIta", "STIXGeneralItalic"]
FACES = DEJAVU + STIX

SIDE, EM, BASELINE = 32, 20, 22  # pixels: image, height of the letters' body, row on which letters stand
LAYOUT = 3  # raised when the drawing or the files change, so that old caches are left alone
MIN_IMAGES = 4  # a class with fewer different images is left out: batches take four
TEST_SHARE, VALIDATION_SHARE = 1 / 3, 1 / 10
# The pixels as drawn by DejaVu 2.35 and STIX 1.0.0 with FreeType 2.14.3; see `notes` of the table.
REFERENCE = "32a6fe1567e759dfed9cca37244e79a36459ceee159153135d172f9014571667"

COUNTS = {"train": (14_108, 1_148), "validation": (2_464, 199), "test": (7_622, 633)}  # images, classes

# How a small network wants them: grey, as they are, never mirrored (a mirrored letter is another letter).
PREPROCESSING = Preprocessing(size=32, resize=32, mean=(0.5,), std=(0.5,), channels=1, flip=0.0)

Pixels = NDArray[np.uint8]


def read(root: Path | None = None, *, merged: int = 1, noise: float = 0.0, seed: int = 0) -> Table:
    """The table of glyphs, drawn first if the cache has none.

    Args:
        root: where to keep the images, by default the cache folder.
        merged: merge training classes in groups of this size (the paper's robustness study: 3).
        noise: share of the training images that get a wrong label.
        seed: of the two variants; the split is always the same.
    """
    folder = (root or cache_folder() / "glyphs") / _cache_key()
    table = _read_whole(folder)
    if table is None:
        if folder.exists():
            say(f"the glyphs in {folder} do not match their checksum: drawing them again")
        draw(folder)
        table = _read_whole(folder)
        if table is None:
            raise InputError(
                f"the glyphs just written to {folder} cannot be read back: is the disk full or failing?"
            )
    if merged != 1:
        table = merge_classes(table, merged, seed).with_columns(
            name=f"glyphs, {merged} classes merged into one"
        )
    if noise:
        table = noisy_labels(table, noise, seed).with_columns(name=f"{table.name}, {noise:.0%} noisy labels")
    return table


def _notes(manifest: dict[str, Any]) -> tuple[str, ...]:
    if manifest["pixels"] == REFERENCE:
        return ()
    fonts = ", ".join(f"{face} {version}" for face, version in manifest["fonts"].items())
    return (
        f"these glyphs differ from the reference pixels (here {fonts}, FreeType {manifest['freetype']}): "
        "scores may differ slightly from published ones",
    )


def font_folder() -> Path:
    """Where matplotlib keeps its typefaces (found without importing it)."""
    spec = importlib.util.find_spec("matplotlib")
    if spec is None or spec.origin is None:
        raise InputError(f"glyphs needs matplotlib's typefaces: {command_for('matplotlib')}")
    folder = Path(spec.origin).parent / "mpl-data" / "fonts" / "ttf"
    missing = [face for face in FACES if not (folder / f"{face}.ttf").is_file()]
    if missing:
        raise InputError(f"matplotlib's font folder {folder} lacks {', '.join(missing)}")
    return folder


@cache
def _cache_key() -> str:
    """Names the drawing: other fonts, another FreeType or another layout get another folder."""
    digest = hashlib.sha256(f"{LAYOUT} {SIDE} {EM} {BASELINE} {features.version('freetype2')}".encode())
    for face in FACES:
        digest.update((font_folder() / f"{face}.ttf").read_bytes())
    return digest.hexdigest()[:16]


def draw(folder: Path) -> None:
    """Draw every character in every face, merge the identical ones, write the files; whole or not at all."""
    drawn, versions = draw_characters()
    classes = distinct_images(drawn, merge_identical(drawn))
    say(f"drawing {len(classes):,} characters in {len(FACES)} typefaces into {folder}")
    rows: list[tuple[str, str, str, str]] = []
    images: list[Pixels] = []
    for codes, faces in classes:
        name = f"U+{codes[0]:04X}"
        script = unicodedata.name(chr(codes[0]), "OTHER").split()[0].lower()
        for face, pixels in faces.items():
            rows.append((f"{name}/{FACES[face]}.png", name, split_of(name), script))
            images.append(pixels)
    path, label, split, category = (np.array(column) for column in zip(*rows, strict=True))
    table = Table(path, label, split, category=category)

    with temporary_folder(folder) as temporary:
        for name in table.classes:
            (temporary / str(name)).mkdir()
        digest = hashlib.sha256()
        for place, pixels in zip(path, images, strict=True):
            content = png(pixels)
            digest.update(content)
            (temporary / place).write_bytes(content)
        table.write_csv(temporary / "table.csv")
        digest.update((temporary / "table.csv").read_bytes())
        manifest = {
            "images": len(table),
            "classes": len(table.classes),
            "pixels": hashlib.sha256(np.stack(images).tobytes()).hexdigest(),
            "files": digest.hexdigest(),  # what `_digest_files` finds
            "fonts": versions,
            "freetype": features.version("freetype2"),
            "look_alikes": {f"U+{c[0]:04X}": [f"U+{x:04X}" for x in c[1:]] for c, _ in classes if len(c) > 1},
        }
        (temporary / "manifest.json").write_text(json.dumps(manifest, indent=1), encoding="utf-8")
        if folder.exists():
            shutil.rmtree(folder)
        try:
            temporary.rename(folder)
        except OSError:
            if _read_whole(folder) is None:  # otherwise another process was faster, with the same files
                raise


def png(pixels: Pixels) -> bytes:
    """Grey pixels (H, W) as a PNG file; far quicker than Pillow's writer for pictures this small.

    >>> import io; from PIL import Image
    >>> Image.open(io.BytesIO(png(np.full((2, 3), 7, np.uint8)))).getpixel((2, 1))
    7
    """

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    high, wide = pixels.shape
    lines = np.concatenate([np.zeros((high, 1), np.uint8), pixels], axis=1)  # a filter byte before each line
    header = struct.pack(">IIBBBBB", wide, high, 8, 0, 0, 0, 0)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(lines.tobytes(), 1)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def _digest_files(folder: Path, paths: list[str]) -> str:
    """One checksum over the contents of the files, the table's last."""
    digest = hashlib.sha256()
    for path in [*paths, "table.csv"]:
        with open(f"{folder}/{path}", "rb", buffering=0) as file:  # noqa: PTH123 - 30,000 times
            digest.update(file.read())
    return digest.hexdigest()


def _read_whole(folder: Path) -> Table | None:
    """The table, if the files are there and as they were written."""
    try:
        manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
        table = Table.read_csv(folder / "table.csv").with_columns(name="glyphs", notes=_notes(manifest))
        return table if manifest["files"] == _digest_files(folder, table.path.tolist()) else None
    except (OSError, ValueError, KeyError):
        return None


def split_of(name: str) -> str:
    """Train, validation or test by a hash of the class name: the same on every machine, for ever.

    >>> split_of("U+0041")
    'train'
    """
    place = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") / 2**64
    if place < TEST_SHARE:
        return "test"
    return "validation" if place < TEST_SHARE + VALIDATION_SHARE else "train"


def draw_characters() -> tuple[dict[int, dict[int, Pixels]], dict[str, str]]:
    """Code point -> {face number: (32, 32) pixels}, and the version of each font family.

    Letters stand on a common line at a common size, centred from left to right, white on black. A character
    that is blank or does not fit in some face is left out.
    """
    from matplotlib.ft2font import FT2Font

    fonts = {face: FT2Font(str(font_folder() / f"{face}.ttf")) for face in FACES}
    maps = {face: set(font.get_charmap()) for face, font in fonts.items()}
    versions = {
        face: fonts[face].get_sfnt()[(1, 0, 0, 5)].decode("latin-1") for face in ("DejaVuSans", "STIXGeneral")
    }
    shared = sorted(set.intersection(*(maps[face] for face in DEJAVU)))
    drawn: dict[int, dict[int, Pixels]] = {code: {} for code in shared}
    for number, face in enumerate(FACES):
        # The basic layout: no shaping library, whose version would matter too.
        font = ImageFont.truetype(font_folder() / f"{face}.ttf", EM, layout_engine=ImageFont.Layout.BASIC)
        for code in shared:
            if code in drawn and code in maps[face]:
                pixels = draw_one(font, chr(code))
                if pixels is None:
                    del drawn[code]
                else:
                    drawn[code][number] = pixels
    return drawn, versions


def draw_one(font: ImageFont.FreeTypeFont, character: str) -> Pixels | None:
    """One character on a (32, 32) canvas, or None if it is blank or too large."""
    mask, (_, above) = font.getmask2(character, mode="L", anchor="ls")
    wide, high = mask.size
    if not wide or not high:
        return None
    ink = np.array(mask, dtype=np.uint8).reshape(high, wide)
    columns, lines = np.flatnonzero(ink.any(axis=0)), np.flatnonzero(ink.any(axis=1))
    if not len(columns):
        return None
    ink = ink[lines[0] : lines[-1] + 1, columns[0] : columns[-1] + 1]
    high, wide = ink.shape
    top, left = BASELINE + above + int(lines[0]), (SIDE - wide) // 2
    if left < 0 or top < 0 or top + high > SIDE:
        return None
    canvas = np.zeros((SIDE, SIDE), dtype=np.uint8)
    canvas[top : top + high, left : left + wide] = ink
    return canvas


def merge_identical(drawn: dict[int, dict[int, Pixels]]) -> list[list[int]]:
    """Group the characters that have the same pixels in more than half of the faces that have both."""
    same: dict[tuple[int, int], int] = defaultdict(int)
    for face in range(len(FACES)):
        by_pixels: dict[bytes, list[int]] = defaultdict(list)
        for code, faces in drawn.items():
            if face in faces:
                by_pixels[faces[face].tobytes()].append(code)
        for codes in by_pixels.values():
            for pair in combinations(codes, 2):
                same[pair] += 1
    leader = {code: code for code in drawn}

    def find(code: int) -> int:
        while leader[code] != code:
            leader[code] = leader[leader[code]]
            code = leader[code]
        return code

    for (one, other), faces_alike in same.items():
        if 2 * faces_alike > len(drawn[one].keys() & drawn[other].keys()):
            a, b = sorted((find(one), find(other)))
            leader[b] = a  # the lowest code point leads
    groups: dict[int, list[int]] = defaultdict(list)
    for code in sorted(drawn):
        groups[find(code)].append(code)
    return list(groups.values())


def distinct_images(
    drawn: dict[int, dict[int, Pixels]], groups: list[list[int]]
) -> list[tuple[list[int], dict[int, Pixels]]]:
    """Code points and images of each class, without copies.

    An image that two classes share (3 and the Cyrillic Ze in one face) says nothing and is left out of both;
    of equal images within a class (an upright and a slanted minus) the first stays. Otherwise finding the
    copy would count as success.
    """
    owners: dict[bytes, set[int]] = defaultdict(set)
    for codes in groups:
        for pixels in drawn[codes[0]].values():
            owners[pixels.tobytes()].add(codes[0])
    kept = []
    for codes in groups:
        images: dict[bytes, int] = {}
        for face, pixels in drawn[codes[0]].items():
            if len(owners[pixels.tobytes()]) == 1:
                images.setdefault(pixels.tobytes(), face)
        if len(images) >= MIN_IMAGES:
            kept.append((codes, {face: drawn[codes[0]][face] for face in images.values()}))
    return kept


DATA_SET = DataSet(
    title="Glyphs: characters in the typefaces that matplotlib ships",
    read=read,
    published={"reference": COUNTS},
    home="drawn on this machine from matplotlib's fonts",
    steps=("Nothing to do: the images are drawn when first needed and kept in the cache.",),
    options={
        "merged": "merge training classes in groups of this size",
        "noise": "share of wrong training labels",
        "seed": "of the two variants",
    },
)
