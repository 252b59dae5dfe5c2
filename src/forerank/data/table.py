"""One table for every data set: which file shows which class, and in which split it is."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerank.data.cells import is_empty, read_flags
from forerank.errors import InputError
from forerank.files import write_atomically

SPLITS = ("train", "validation", "test")
# open-metric-learning writes a bounding box as these four columns, in this order of names.
BOX_COLUMNS = ("x_1", "y_1", "x_2", "y_2")
REQUIRED_COLUMNS = ("path", "label")
OPTIONAL_COLUMNS = ("split", "is_query", "is_gallery", "category", "sequence", *BOX_COLUMNS)

Strings = NDArray[np.str_]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Table:
    """N labelled images as columns.

    `is_query` and `is_gallery` say what an image does when its split is evaluated. Unless a data set
    says otherwise both are True everywhere: every image queries all the others.

    Args:
        path: (N,) file of each image, relative to `root` (an absolute path stays as it is).
        label: (N,) class of each image, as text.
        split: (N,) "train", "validation" or "test".
        root: folder the paths start from.
        name: what to call this data set in reports.
        is_query, is_gallery: (N,) bool.
        category: (N,) super category, or None.
        sequence: (N,) camera or sequence of each image (re-identification: an image taken by the
            query's own camera may have to be ignored), or None.
        box: (N, 4) int32 bounding box x1, y1, x2, y2 in pixels of the upright image (four
            zeros: the whole image), or None.
        further: columns (N,) of text with other names, such as price or URL; an index keeps them.
        notes: what a reader wants said about the set (for instance counts that differ from the paper's).

    >>> table = Table(["a/1.jpg", "a/2.jpg", "b/3.jpg"], ["a", "a", "b"], ["train", "train", "test"])
    >>> len(table), table.label_ids.tolist(), len(table.select("train"))
    (3, [0, 0, 1], 2)
    """

    path: Strings
    label: Strings
    split: Strings
    root: Path = Path()
    name: str = "table"
    is_query: Bools = None  # type: ignore[assignment]  # None when built means True everywhere
    is_gallery: Bools = None  # type: ignore[assignment]
    category: Strings | None = None
    sequence: Strings | None = None
    box: NDArray[np.int32] | None = None
    further: Mapping[str, Strings] = field(default_factory=dict, repr=False)
    notes: tuple[str, ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        def put(name: str, value: object) -> None:
            object.__setattr__(self, name, value)  # the way into a frozen dataclass

        put("root", Path(self.root))
        for name in ("path", "label", "split", "category", "sequence"):
            value = getattr(self, name)
            if value is not None or name in ("path", "label", "split"):
                put(name, np.asarray(value, dtype=np.str_).reshape(-1))
        n = len(self.path)
        for name in ("is_query", "is_gallery"):
            value = getattr(self, name)
            put(name, np.ones(n, dtype=bool) if value is None else np.asarray(value, dtype=bool))
        if self.box is not None:
            put("box", np.asarray(self.box, dtype=np.int32).reshape(-1, 4))
        put("further", {key: np.asarray(value, dtype=np.str_) for key, value in self.further.items()})
        columns = {column.name: getattr(self, column.name) for column in fields(self)}
        for name, value in (columns | dict(self.further)).items():
            if isinstance(value, np.ndarray) and len(value) != n:
                raise InputError(f"column {name!r} has {len(value)} rows where 'path' has {n}")
        for split in np.unique(self.split):
            if split not in SPLITS:
                row = int(np.flatnonzero(self.split == split)[0])
                raise InputError(
                    f"unknown split {str(split)!r} of {str(self.path[row])!r}: valid are {', '.join(SPLITS)}"
                )

    def __len__(self) -> int:
        return len(self.path)

    @cached_property
    def files(self) -> list[Path]:
        """Where each image lies."""
        return [self.root / p for p in self.path.tolist()]

    @cached_property
    def classes(self) -> Strings:
        """(C,) the labels that occur, sorted."""
        return np.unique(self.label)

    @cached_property
    def label_ids(self) -> NDArray[np.int64]:
        """(N,) class of each image as a number: its place among `classes`."""
        return np.unique(self.label, return_inverse=True)[1].reshape(-1).astype(np.int64)

    def where(self, mask: Bools | NDArray[np.integer[Any]] | Sequence[int]) -> "Table":
        """The rows that a mask (N,) marks, or the rows with the given numbers, in that order."""
        rows = np.asarray(mask)
        if rows.size == 0 and rows.dtype != bool:
            rows = rows.astype(np.int64)
        if rows.dtype == bool and rows.shape != (len(self),):
            raise InputError(f"the mask has shape {rows.shape} where the table has {len(self)} rows")
        cut = {c.name: getattr(self, c.name) for c in fields(self)}
        cut["further"] = {name: column[rows] for name, column in self.further.items()}
        return Table(**{k: v[rows] if isinstance(v, np.ndarray) else v for k, v in cut.items()})

    def select(self, split: str) -> "Table":
        """The rows of one split ("all" for every row)."""
        if split == "all":
            return self
        if split not in SPLITS:
            from forerank.errors import unknown

            raise unknown("split", split, [*SPLITS, "all"])
        return self.where(self.split == split)

    def with_columns(self, **columns: Any) -> "Table":
        """The same table with some columns (or name, root, notes) replaced."""
        return replace(self, **columns)

    def counts(self) -> dict[str, tuple[int, int]]:
        """Images and classes of every split that has any.

        >>> Table(["1.jpg", "2.jpg"], ["a", "b"], ["train", "test"]).counts()
        {'train': (1, 1), 'test': (1, 1)}
        """
        counts = {}
        for split in SPLITS:
            mask = self.split == split
            if mask.any():
                counts[split] = (int(mask.sum()), len(np.unique(self.label[mask])))
        return counts

    @classmethod
    def read_csv(cls, file: str | Path, root: str | Path | None = None) -> "Table":
        """Read a CSV with the columns of open-metric-learning.

        Needed: `path, label`. Understood: `split, is_query, is_gallery, category, sequence` and the box
        `x_1, y_1, x_2, y_2`. Without `split` every row is "train". An empty `is_query` or `is_gallery`
        means true (`read_flags` says when it is refused). Other columns are kept as text in `further`. Paths
        start from `root`, by default the CSV's folder.
        """
        file = Path(file)
        if not file.is_file():
            raise InputError(f"the CSV file {file} does not exist")
        try:
            with file.open(newline="", encoding="utf-8-sig", errors="surrogateescape") as lines:
                reader = csv.DictReader(lines)
                header = [name or "" for name in reader.fieldnames or []]
                rows = list(reader)
        except csv.Error as error:
            raise InputError(f"{file} is not a CSV file: {error}") from error
        missing = [name for name in REQUIRED_COLUMNS if name not in header]
        if missing:
            raise InputError(
                f"{file} has no column {' and no column '.join(map(repr, missing))}: "
                f"its columns are {', '.join(header) or '(none)'}"
            )
        if not rows:
            raise InputError(f"{file} has a header but no rows")
        for number, row in enumerate(rows, start=2):
            if not (row["path"] or "").strip() or not (row["label"] or "").strip():
                raise InputError(f"{file} line {number}: 'path' or 'label' is empty")

        def text(name: str) -> list[str] | None:
            if name not in header:
                return None
            values = [(row[name] or "").strip() for row in rows]
            return None if all(map(is_empty, values)) else values

        def flags(name: str) -> list[bool] | None:
            values = text(name)
            if values is None:
                return None
            # open-metric-learning leaves the cells of training rows empty, where they have no meaning.
            stated = [i for i, v in enumerate(values) if not (is_empty(v) and split[i] == "train")]
            flags = [True] * len(rows)
            read = read_flags([values[i] for i in stated], [i + 2 for i in stated], name, file)
            for i, flag in zip(stated, read, strict=True):
                flags[i] = flag
            return flags

        split = text("split") or ["train"] * len(rows)

        box = None
        if all(name in header for name in BOX_COLUMNS) and text("x_1") is not None:
            try:
                box = [[_pixel(row[name]) for name in BOX_COLUMNS] for row in rows]
            except ValueError as error:
                raise InputError(
                    f"{file}: the box columns must be whole numbers or empty ({error})"
                ) from error
        return cls(
            path=np.array([row["path"].strip().replace("\\", "/") for row in rows]),
            label=np.array([row["label"].strip() for row in rows]),
            split=np.array(split),
            root=file.parent if root is None else Path(root),
            name=file.stem,
            is_query=_array(flags("is_query"), bool),
            is_gallery=_array(flags("is_gallery"), bool),
            category=_array(text("category"), np.str_),
            sequence=_array(text("sequence"), np.str_),
            box=_array(box, np.int32),
            further={
                name: np.array([(row[name] or "").strip() for row in rows])
                for name in header
                if name and name not in (*REQUIRED_COLUMNS, *OPTIONAL_COLUMNS)
            },
        )

    def write_csv(self, file: str | Path, *, oml: bool = False) -> None:
        """Write the columns that `read_csv` reads.

        With `oml=True` exactly as open-metric-learning wants it: labels are whole numbers, the splits
        are "train" and "validation" (our test rows, or our validation rows where there is no test),
        and training rows leave `is_query` and `is_gallery` empty.
        """
        split, label = self.split.astype(object), self.label.astype(object)
        keep = np.ones(len(self), dtype=bool)
        if oml:
            label = self.label_ids.astype(object)
            if (self.split == "test").any():
                keep = self.split != "validation"
                split[self.split == "test"] = "validation"
        columns: dict[str, Any] = {"label": label, "path": self.path, "split": split}
        for name in ("is_query", "is_gallery"):
            flag = getattr(self, name).astype(object)
            if oml:
                flag[split == "train"] = ""
            columns[name] = flag
        columns |= {
            name: value for name in ("category", "sequence") if (value := getattr(self, name)) is not None
        }
        if self.box is not None:
            columns |= dict(zip(BOX_COLUMNS, self.box.T, strict=True))
        columns |= self.further
        rows = zip(*(column[keep] for column in columns.values()), strict=True)
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(rows)
        write_atomically(Path(file), text.getvalue())


def _array(values: Any, dtype: Any) -> Any:
    return None if values is None else np.array(values, dtype=dtype)


def _pixel(value: str | None) -> int:
    return 0 if value is None or is_empty(value) else int(float(value))


def concatenate(tables: Sequence[Table]) -> Table:
    """Rows of several tables with the same root, one after the other.

    >>> one = Table(["1.jpg"], ["a"], ["train"]); two = Table(["2.jpg"], ["b"], ["test"])
    >>> len(concatenate([one, two]))
    2
    """
    first = tables[0]
    columns: Mapping[str, list[Any]] = {c.name: [getattr(t, c.name) for t in tables] for c in fields(first)}
    joined: dict[str, Any] = {}
    for key, parts in columns.items():
        if isinstance(parts[0], np.ndarray):
            joined[key] = np.concatenate(parts)
    shared = [name for name in first.further if all(name in t.further for t in tables)]
    joined["further"] = {name: np.concatenate([t.further[name] for t in tables]) for name in shared}
    return Table(**joined, root=first.root, name=first.name, notes=first.notes)
