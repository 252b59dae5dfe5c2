"""Every image is checked before the first step: what cannot be used is refused, or left out everywhere."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from forerank.data import Table, check_table
from forerank.data.table import concatenate
from forerank.errors import InputError
from forerank.files import read_json_with_checksum
from forerank.training.features import hash_files
from forerank.training.processes import Processes, from_first
from forerank.training.recipe import Recipe
from forerank.training.record import write_json

CHECKED = "data.json"
# What this process has checked already, by the state of the files: a study trains hundreds of runs on the
# same images, and looking at all of them took a third of a short run.
_checked: dict[str, dict[str, list[str]]] = {}


@dataclass(frozen=True)
class ImageCheck:
    """The parts of the data without what cannot be used, and what a reader of the results must know."""

    parts: dict[str, Table]
    notes: list[str]
    record: Mapping[str, Any] | None  # as kept in the run folder; None: nothing was checked

    def write(self, run: Path) -> None:
        """Write the record, so that a resumed run does not check the same files again."""
        if self.record is not None:
            write_json(run / CHECKED, self.record)


def check_images(run: Path, parts: Mapping[str, Table], recipe: Recipe, processes: Processes) -> ImageCheck:
    """Check every image once per run, by the first process; with ``on_bad=skip`` decode them all.

    The rows that remain are the same in every process and in every way of reading them, so batches can be
    planned on them.

    Raises:
        InputError: images are missing or broken, and the recipe does not say to leave them out.
    """
    skip = recipe.data.on_bad == "skip"
    if recipe.data.source == "glyphs" or not (recipe.data.check or skip):
        return ImageCheck(dict(parts), [], None)
    whole = concatenate([part for part in parts.values() if len(part)])
    usable, record = torch.ones(len(whole), dtype=torch.uint8), dict[str, Any]()
    if processes.first:
        record = _record(run, whole, skip)
        usable = torch.from_numpy(~np.isin(whole.path, record["bad"])).to(torch.uint8)
    usable = from_first(usable, processes)
    if usable.all():
        return ImageCheck(dict(parts), record.get("notes", []), record or None)
    left, start = dict[str, Table](), 0
    for name, part in parts.items():
        mask = usable[start : start + len(part)].numpy().astype(bool)
        left[name], start = part.where(mask), start + len(part)
        if len(part) and not len(left[name]):
            raise InputError(f"none of the {len(part):,} {name} images of {part.name} can be read")
    return ImageCheck(left, record.get("notes", []), record or None)


def _record(run: Path, whole: Table, skip: bool) -> dict[str, Any]:
    """What an earlier check of these very files found, or a new check."""
    digest = hashlib.sha256(b"decoded" if skip else b"headers")
    digest.update(
        "\n".join([*whole.label.tolist(), *whole.split.tolist()]).encode("utf-8", "surrogateescape")
    )
    hash_files(digest, whole)
    key = digest.hexdigest()[:32]
    try:
        known = read_json_with_checksum(run / CHECKED)
        if known["key"] == key and isinstance(known["bad"], list) and isinstance(known["notes"], list):
            return known
    except (OSError, ValueError, TypeError, KeyError):
        pass  # never checked, or written by something else: check now
    if key not in _checked:
        _checked[key] = _check(whole, skip)
    return {"key": key, **_checked[key]}


def _check(whole: Table, skip: bool) -> dict[str, list[str]]:
    check = check_table(whole, pixels=skip)
    bad = [*check.missing, *check.broken]
    if bad and not skip:
        reason = "is missing" if check.missing else check.broken[bad[0]]
        raise InputError(
            f"{len(bad):,} of {check.images:,} images cannot be used, first {bad[0]} ({reason}): "
            "mend or remove them, or give on_bad=skip"
        )
    notes = []
    if bad:
        notes.append(
            f"{len(bad):,} of {check.images:,} images cannot be read and are left out (the first is {bad[0]})"
        )
    if check.leaked:
        notes.append(
            f"{len(check.leaked):,} pictures are in training and in validation or test, first "
            f"{' and '.join(check.leaked[0][:2])}: these numbers are optimistic"
        )
    if check.conflicting:
        notes.append(
            f"{len(check.conflicting):,} pictures appear under two labels, first "
            f"{' and '.join(check.conflicting[0][:2])}"
        )
    return {"bad": bad, "notes": notes}
