"""Everything that a person looks at while curating a collection, computed once before the page opens."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from forerank.data import Table
from forerank.errors import InputError
from forerank.metrics import UnitRows, unit_rows
from forerank.metrics.ranked_lists import ranked
from forerank.search.audit_claim import AuditClaim, expected_wrong
from forerank.search.class_figures import ClassFigures, class_figures
from forerank.search.duplicates import find_duplicates, near_copies
from forerank.search.index import Index
from forerank.search.label_audit import Audit, Ints, audit
from forerank.search.picture_quality import PictureIssue, PictureMeasures, find_issues, measure_pictures
from forerank.search.rows import hash_file

Floats32 = npt.NDArray[np.float32]


@dataclass(frozen=True)
class CopyGroup:
    """Near-identical pictures. `leaks` where some are in training and others are tested on."""

    rows: tuple[int, ...]
    correlation: float  # the weakest link: of small versions of the pictures, or of an index's vectors
    identical: bool  # the same bytes throughout
    leaks: bool


@dataclass(frozen=True)
class Suspect:
    """A label worth a look; `own` and `other` are the most similar rows of the two classes."""

    row: int
    suggestion: str
    agreement: float
    before_nearest: int
    own: tuple[int, ...]
    other: tuple[int, ...]


@dataclass(frozen=True)
class Curation:
    """A collection and the pictures worth a look in it; rows are those of `table`."""

    table: Table
    copies: tuple[CopyGroup, ...]
    issues: tuple[PictureIssue, ...]

    def __str__(self) -> str:
        return f"{len(self.copies):,} groups of near-identical pictures among {len(self.table):,}"


@dataclass(frozen=True)
class LabelledCuration(Curation):
    """Also the labels and classes worth a look."""

    labels: Audit
    claim: AuditClaim
    suspects: tuple[Suspect, ...]
    classes: tuple[ClassFigures, ...]

    def __str__(self) -> str:
        return str(self.claim)


def curate(
    table: Table, vectors: Floats32, *, audited: str = "all", limit: float = 0.1, similarity: float = 0.95
) -> LabelledCuration:
    """Look at labels, copies, pictures and classes of a collection.

    Args:
        table: N images.
        vectors: (N, D) of the same rows, NaN where an image cannot be read.
        audited: the part of the data whose labels are audited, "all" for every part.
        limit: of the label audit.
        similarity: that near-copies must reach, for the model and pixel by pixel.
    """
    readable = np.asarray(np.isfinite(vectors).all(axis=1))
    unit = np.where(readable[:, None], vectors, 0.0)
    unit = unit / np.maximum(np.linalg.norm(unit, axis=1, keepdims=True), 1e-12)
    unit = unit.astype(np.float32)
    rows = np.flatnonzero(readable & ((table.split == audited) | (audited == "all")))
    labels = audit(vectors[rows], table.where(rows), limit=limit)
    claim = expected_wrong(labels, vectors[rows], limit=limit)
    measured = measure_pictures(table)
    usable, measured_rows = np.flatnonzero(readable), unit_rows(vectors[rows])
    return LabelledCuration(
        table=table,
        labels=labels,
        claim=claim,
        suspects=tuple(
            _suspect(labels, int(i), rows, measured_rows) for i in labels.order()[: claim.shown].tolist()
        ),
        copies=_copies(table, unit, measured, similarity),
        issues=tuple(find_issues(vectors, measured)),
        classes=tuple(class_figures(vectors[usable], table.where(usable))),
    )


def curate_index(index: Index, similarity: float = 0.98) -> Curation:
    """Near-identical and unusual pictures of an index; an image without a label is called "unlabelled"."""
    rows, parts = [], []
    for part, vectors in index.engine.scan():
        rows += part
        parts.append(vectors)
    if not rows:
        raise InputError(f"{index.engine.address} is empty: there is nothing to look at.")
    table = Table(
        np.array([row.path for row in rows]),
        np.array([row.label or "unlabelled" for row in rows]),
        np.full(len(rows), "train"),
        root=index.root,
        name=str(index.engine.address),
    )
    measured = measure_pictures(table)
    place = {row.id: i for i, row in enumerate(rows)}
    copies = [
        CopyGroup(
            rows=tuple(
                sorted(
                    (place[row.id] for row in group.rows), key=lambda i: (-np.nan_to_num(measured.side[i]), i)
                )
            ),
            correlation=group.lowest,
            identical=group.identical,
            leaks=False,
        )
        for group in find_duplicates(index.engine, similarity)
    ]
    return Curation(table, tuple(copies), tuple(find_issues(np.concatenate(parts), measured)))


def _suspect(labels: Audit, i: int, rows: Ints, vectors: UnitRows, shown: int = 4) -> Suspect:
    """The suspect at place `i` of the audited rows, with the nearest images of both classes."""

    def nearest(label: str) -> tuple[int, ...]:
        places = np.flatnonzero(labels.table.label == label)
        places = places[places != i]
        similarity = vectors.similarity(np.full(len(places), i), places).numpy()
        order = ranked(similarity, np.ones(len(places), bool), places)[:shown]
        return tuple(rows[places[order]].tolist())

    suggestion = str(labels.suggestion[i])
    return Suspect(
        row=int(rows[i]),
        suggestion=suggestion,
        agreement=float(labels.agreement[i]),
        before_nearest=int(labels.before_nearest[i]),
        own=nearest(str(labels.table.label[i])),
        other=nearest(suggestion),
    )


def _copies(
    table: Table, unit: Floats32, measured: PictureMeasures, similarity: float
) -> tuple[CopyGroup, ...]:
    """Groups of near-copies, leakage first."""
    files, groups = table.files, []
    for members, correlation in near_copies(unit, measured.thumbnails, similarity):
        chosen = tuple(members.tolist())
        parts = set(table.split[members].tolist())
        contents = {_content(files[row]) for row in chosen}
        groups.append(
            CopyGroup(
                rows=tuple(sorted(chosen, key=lambda row: (-measured.side[row], row))),  # the largest first
                correlation=correlation,
                identical=len(contents) == 1,
                leaks="train" in parts and len(parts) > 1,
            )
        )
    return tuple(sorted(groups, key=lambda group: (not group.leaks, -len(group.rows), group.rows[0])))


def _content(file: Path) -> str:
    return hash_file(file)[0]


def summary(curation: LabelledCuration) -> dict[str, Any]:
    """The numbers and paths of a curation as plain values, for JSON.

    The issues are listed by kind; copies with whether they leak from training into the test.
    """
    path = curation.table.path.tolist()
    kinds: dict[str, list[str]] = {}
    for issue in curation.issues:
        kinds.setdefault(issue.kind, []).append(path[issue.row])
    return {
        "worth_a_look": curation.claim.shown,
        "expected_wrong": round(curation.claim.wrong, 1),
        "pictures": kinds,
        "near_copies": [
            {"paths": [path[row] for row in group.rows], "identical": group.identical, "leaks": group.leaks}
            for group in curation.copies
        ],
    }
