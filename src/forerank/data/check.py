"""Look at every image of a table and say what is wrong with it. Nothing is changed."""

import hashlib
import os
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from forerank.console import format_table, progress
from forerank.data.decode import BadImageError, bad_image_if_it_fails, open_header, read_image
from forerank.data.table import SPLITS, Table
from forerank.data.threads import map_in_threads

ENDINGS_OF_FORMAT = {
    "JPEG": {".jpg", ".jpeg", ".jpe", ".jfif"},
    "MPO": {".jpg", ".jpeg", ".mpo"},
    "PNG": {".png", ".apng"},
    "TIFF": {".tif", ".tiff"},
    "WEBP": {".webp"},
    "GIF": {".gif"},
    "BMP": {".bmp", ".dib"},
}
ORIENTATION = 0x0112  # EXIF tag
MOST_NAMED = 10  # files of each kind that the report names


@dataclass
class Check:
    """What `check_table` found.

    `problems` counts what makes results wrong: missing or broken files, the same picture in train and test
    or under two labels, one file listed twice. The rest is worth knowing and does no harm.
    """

    name: str
    root: str
    images: int
    counts: dict[str, tuple[int, int]]
    published: dict[str, dict[str, tuple[int, int]]]
    pixels: bool
    missing: list[str] = field(default_factory=list)
    broken: dict[str, str] = field(default_factory=dict)  # path -> reason
    leaked: list[list[str]] = field(default_factory=list)  # equal pictures in train and in validation or test
    conflicting: list[list[str]] = field(default_factory=list)  # equal pictures under different labels
    listed_twice: list[str] = field(default_factory=list)
    repeated: int = 0  # further copies of a picture within its class and split
    shared_classes: list[str] = field(default_factory=list)  # in train and in test
    look_alike_labels: list[list[str]] = field(default_factory=list)  # differ only in case or spaces
    small_classes: dict[str, list[str]] = field(default_factory=dict)  # split -> classes of one image
    queries_without_positive: int = 0
    formats: dict[str, int] = field(default_factory=dict)
    modes: dict[str, int] = field(default_factory=dict)
    wrong_ending: int = 0
    rotated: int = 0
    animated: int = 0
    smallest: tuple[int, int] = (0, 0)
    largest: tuple[int, int] = (0, 0)
    notes: list[str] = field(default_factory=list)

    @property
    def problems(self) -> int:
        """How many things make results wrong."""
        parts = (self.missing, self.broken, self.leaked, self.conflicting, self.listed_twice)
        return sum(len(part) for part in parts)

    def to_dict(self) -> dict[str, Any]:
        """Everything, ready for JSON."""
        return {**asdict(self), "problems": self.problems}

    def __str__(self) -> str:
        return _as_text(self)


@dataclass
class _Seen:
    """What one file is."""

    reason: str | None = None  # why it cannot be used
    missing: bool = False
    bytes: int = 0
    content: str = ""  # digest of the decoded pixels, if they were decoded
    format: str = ""
    mode: str = ""
    size: tuple[int, int] = (0, 0)
    rotated: bool = False
    animated: bool = False
    wrong_ending: bool = False


def check_table(
    table: Table,
    published: Mapping[str, Mapping[str, tuple[int, int]]] | None = None,
    *,
    pixels: bool = False,
) -> Check:
    """Read the header of every image, in parallel, and compare what the table says with what is there.

    Args:
        published: source -> split -> (images, classes) to show beside the counts.
        pixels: decode every image too (finds truncated files), and compare pictures by their pixels instead
            of their bytes.

    >>> import tempfile; from PIL import Image
    >>> folder = Path(tempfile.mkdtemp())
    >>> for name in ("1.png", "2.png"):
    ...     Image.new("L", (4, 4)).save(folder / name)
    >>> table = Table(["1.png", "2.png", "3.png"], ["a", "a", "b"], ["train", "test", "test"], root=folder)
    >>> check = check_table(table)
    >>> check.missing, check.leaked
    (['3.png'], [['1.png', '2.png']])
    """
    check = Check(
        name=table.name,
        root=str(table.root),
        images=len(table),
        counts=table.counts(),
        published={source: dict(counts) for source, counts in (published or {}).items()},
        pixels=pixels,
        notes=list(table.notes),
    )
    files = table.files
    workers = max(4, os.cpu_count() or 1)  # at least four, because reading waits for the disk
    looks = map_in_threads(lambda file: _look(file, pixels), files, workers=workers)
    seen = list(progress(looks, "reading images" if pixels else "reading headers", total=len(files)))
    _headers(check, table, seen)
    usable = [i for i, s in enumerate(seen) if s.reason is None]
    if pixels:
        content = {i: seen[i].content for i in usable}
    else:
        # Equal files have equal sizes, so most files need not be read at all.
        sizes = Counter(seen[i].bytes for i in usable)
        doubtful = [i for i in usable if sizes[seen[i].bytes] > 1]
        digests = map_in_threads(
            lambda i: hashlib.blake2b(files[i].read_bytes()).hexdigest(), doubtful, workers=workers
        )
        content = dict(zip(doubtful, progress(digests, "comparing", total=len(doubtful)), strict=True))
    _duplicates(check, table, content)
    _labels(check, table)
    return check


def _look(file: Path, pixels: bool) -> _Seen:
    try:
        with bad_image_if_it_fails(str(file), "damaged"), open_header(file) as image:
            size, format_name = image.size, image.format or ""
            seen = _Seen(
                bytes=file.stat().st_size,
                format=format_name,
                mode=image.mode,
                size=size,
                rotated=_is_rotated(image),
                animated=format_name != "MPO" and getattr(image, "n_frames", 1) > 1,
                wrong_ending=file.suffix.lower()
                not in ENDINGS_OF_FORMAT.get(format_name, {file.suffix.lower()}),
            )
        if pixels:
            picture = read_image(file)
            digest = hashlib.blake2b(picture.tobytes(), digest_size=16)
            seen.content = f"{picture.size} {digest.hexdigest()}"
        return seen
    except BadImageError as error:
        return _Seen(reason=error.reason, missing=not file.exists())


def _is_rotated(image: Image.Image) -> bool:
    if image.format == "PNG" and "exif" not in image.info:
        return False  # Pillow would decode the whole picture to look behind the pixels
    return image.getexif().get(ORIENTATION, 1) not in (0, 1)


def _headers(check: Check, table: Table, seen: list[_Seen]) -> None:
    for path, s in zip(table.path.tolist(), seen, strict=True):
        if s.missing:
            check.missing.append(path)
        elif s.reason is not None:
            check.broken[path] = s.reason
    usable = [s for s in seen if s.reason is None]
    check.formats = dict(Counter(s.format for s in usable).most_common())
    check.modes = dict(Counter(s.mode for s in usable).most_common())
    check.rotated = sum(s.rotated for s in usable)
    check.animated = sum(s.animated for s in usable)
    check.wrong_ending = sum(s.wrong_ending for s in usable)
    if usable:
        check.smallest = min((s.size for s in usable), key=lambda size: size[0] * size[1])
        check.largest = max((s.size for s in usable), key=lambda size: size[0] * size[1])


def _duplicates(check: Check, table: Table, content: dict[int, str]) -> None:
    path, label, split = table.path.tolist(), table.label.tolist(), table.split.tolist()
    box = None if table.box is None else [tuple(b) for b in table.box.tolist()]
    rows_of_path: dict[object, list[int]] = defaultdict(list)
    for i, p in enumerate(path):
        rows_of_path[p if box is None else (p, box[i])].append(i)  # one picture may show several objects
    check.listed_twice = sorted({path[rows[0]] for rows in rows_of_path.values() if len(rows) > 1})
    groups: dict[object, list[int]] = defaultdict(list)
    for i, digest in content.items():
        groups[digest if box is None else (digest, box[i])].append(i)
    for rows in groups.values():
        # The same path again is "listed twice", not a copy, unless it is in both train and test.
        if len({path[i] for i in rows}) < 2 and len({split[i] for i in rows}) < 2:
            continue
        parts = {split[i] for i in rows}
        if "train" in parts and len(parts) > 1:
            check.leaked.append([path[i] for i in rows])
        if len({label[i] for i in rows}) > 1:
            check.conflicting.append([path[i] for i in rows])
        if len(parts) == 1 and len({label[i] for i in rows}) == 1:
            check.repeated += len(rows) - 1


def _labels(check: Check, table: Table) -> None:
    trained = table.label[table.split == "train"]
    check.shared_classes = [str(c) for c in np.intersect1d(trained, table.label[table.split == "test"])]
    folded: dict[str, list[str]] = defaultdict(list)
    for name in table.classes.tolist():
        folded["".join(name.casefold().split())].append(name)
    check.look_alike_labels = [names for names in folded.values() if len(names) > 1]
    for split in SPLITS:
        part = table.select(split)
        classes, number = np.unique(part.label, return_counts=True)
        if (number < 2).any():
            check.small_classes[split] = [str(c) for c in classes[number < 2]]
        if split != "train" and len(part):
            gallery = Counter(part.label[part.is_gallery].tolist())
            needed = part.is_gallery.astype(int) + 1  # a query does not find itself
            has = np.array([gallery[name] for name in part.label.tolist()])
            check.queries_without_positive += int((part.is_query & (has < needed)).sum())


def _as_text(c: Check) -> str:
    """The report for a person."""
    sources = list(c.published)
    rows = []
    for split in [s for s in SPLITS if s in c.counts or any(s in p for p in c.published.values())]:
        images, classes = c.counts.get(split, (0, 0))
        cells = [p.get(split) for p in c.published.values()]
        rows.append(
            [split, f"{images:,}", f"{classes:,}", *(f"{x[0]:,} / {x[1]:,}" if x else "" for x in cells)]
        )
    lines = [f"{c.name}: {c.images:,} images in {c.root}"]
    lines += [
        "",
        format_table(["split", "images", "classes", *(f"{s}: images / classes" for s in sources)], rows),
        "",
    ]
    if c.published:
        same = [s for s in sources if all(c.counts.get(k) == v for k, v in c.published[s].items())]
        lines.append(
            f"counts equal those of: {', '.join(same)}" if same else "counts DIFFER from the published ones"
        )

    def names(title: str, items: list[str]) -> None:
        if items:
            lines.append(f"{title}: {len(items):,}")
            lines.extend(f"  {item}" for item in items[:MOST_NAMED])
            if len(items) > MOST_NAMED:
                lines.append(f"  ... and {len(items) - MOST_NAMED:,} more (--json lists all)")

    kind = "pixels" if c.pixels else "bytes"
    names("MISSING files", c.missing)
    names("BROKEN files", [f"{path}: {reason}" for path, reason in c.broken.items()])
    names(f"LEAKED: same {kind} in train and in validation or test", [" = ".join(g) for g in c.leaked])
    names(f"CONFLICTING: same {kind} under different labels", [" = ".join(g) for g in c.conflicting])
    names("LISTED TWICE", c.listed_twice)
    if c.repeated:
        lines.append(f"copies of a picture within its class: {c.repeated:,}")
    names(
        "classes in both train and test (this is right only if you do not test on unseen classes)",
        c.shared_classes,
    )
    names(
        "labels that differ only in upper and lower case or in spaces",
        [" | ".join(group) for group in c.look_alike_labels],
    )
    for split, single in c.small_classes.items():
        names(f"{split} classes of a single image, which have no positive", single)
    if c.queries_without_positive:
        lines.append(f"queries without a positive in the gallery: {c.queries_without_positive:,}")
    lines.append(f"formats: {_counted(c.formats)}; modes: {_counted(c.modes)}")
    lines.append(f"sizes: {c.smallest[0]} x {c.smallest[1]} to {c.largest[0]} x {c.largest[1]} (by area)")
    for number, what in (
        (c.wrong_ending, "files whose ending does not fit their format (they are read by content)"),
        (c.rotated, "images with an EXIF rotation (applied when read)"),
        (c.animated, "animations (only the first picture is read)"),
    ):
        if number:
            lines.append(f"{what}: {number:,}")
    lines += c.notes
    looked = "every pixel" if c.pixels else "every header (--pixels also decodes)"
    lines += ["", f"looked at {looked}: {f'{c.problems:,} problems' if c.problems else 'no problems'}"]
    return "\n".join(lines)


def _counted(numbers: dict[str, int]) -> str:
    return ", ".join(f"{name} {n:,}" for name, n in numbers.items()) or "none"
