"""Decisions about images: a journal that survives a kill, and the table that they lead to.

The journal is a text file of JSON lines. The first line says which collection it belongs to; each further
line is one decision, an undo, or a file that was moved. A line is on the disk before its decision is
acknowledged.
"""

import errno
import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from forerank.data import Table
from forerank.errors import InputError, check_name
from forerank.files import CHECKSUM, checksum_of_values, json_with_checksum, sync_folder, write_atomically

ACTIONS = ("keep", "change", "remove")
LONGEST_LABEL = 200


@dataclass(frozen=True)
class Decision:
    """What a person decided about one row of the table; `label` is the new one of a change."""

    row: int
    action: str
    label: str | None = None


@dataclass(frozen=True)
class Move:
    """A file and the place it is moved to."""

    row: int
    source: Path
    target: Path


def collection_identity(table: Table, model: str) -> str:
    """What tells a collection from others: its paths, labels and parts, and the model that looked at it.

    >>> one = Table(["1.png", "2.png"], ["a", "b"], ["train"] * 2)
    >>> collection_identity(one, "m") == collection_identity(one.with_columns(label=["a", "a"]), "m")
    False
    """
    digest = hashlib.blake2b(model.encode(), digest_size=16)
    for column in (table.path, table.label, table.split):
        digest.update("\0".join(column.tolist()).encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


class Corrections:
    """The decisions about a table's rows, kept in `file`; a file of another collection is refused.

    One process at a time may hold the file. A last line that was torn by a power cut was never acknowledged,
    and is cut off.

    Example:
        >>> import tempfile
        >>> table = Table(["1.png", "2.png", "3.png"], ["a", "b", "b"], ["train"] * 3)
        >>> file = Path(tempfile.mkdtemp()) / "corrections.jsonl"
        >>> corrections = Corrections(file, table, "m")
        >>> corrections.decide(0, "change", "b"); corrections.decide(1, "remove"); corrections.undo()
        Decision(row=1, action='remove', label=None)
        >>> corrections.close()
        >>> Corrections(file, table, "m").table().label.tolist()
        ['b', 'b', 'b']
    """

    def __init__(self, file: Path, table: Table, model: str) -> None:
        self.file, self._table = file, table
        self._stack: list[Decision] = []
        self.moved: dict[int, Path] = {}  # row -> where its file lies now
        self.cut = 0  # bytes of a torn line that were dropped
        header = {
            "forerank": "corrections",
            "format": 1,
            "of": collection_identity(table, model),
            "images": len(table),
        }
        file.parent.mkdir(parents=True, exist_ok=True)
        self._out = file.open("a+b")
        try:
            self._lock()
            self._out.seek(0)
            self._read(self._out.read(), header)
        except BaseException:
            self._out.close()
            raise

    def _lock(self) -> None:
        try:
            fcntl.flock(self._out, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise InputError(f"{self.file} is in use by another forerank: end that one first.") from error

    def _read(self, data: bytes, header: Mapping[str, Any]) -> None:
        whole = data[: data.rfind(b"\n") + 1]
        if len(whole) < len(data):
            self.cut = len(data) - len(whole)
            self._out.truncate(len(whole))
        lines = whole.splitlines()
        if not lines:
            self._append(header)
            sync_folder(self.file.parent)
            return
        for number, line in enumerate(lines, start=1):
            try:
                read = json.loads(line)
                told = read.pop(CHECKSUM, None)  # a person who writes a line by hand leaves it out
                if told is not None and told != checksum_of_values(read):
                    raise ValueError
                if number == 1:
                    belongs = read["forerank"] == "corrections" and read["of"] == header["of"]
                else:
                    self._replay(read)
            except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError):
                raise InputError(
                    f"{self.file} line {number} is not a line of corrections, or it is damaged: mend it (and "
                    "leave out its checksum), or move the file away."
                ) from None
            if number == 1 and not belongs:
                raise InputError(
                    f"{self.file} holds corrections of another run or of other data: nothing was changed; "
                    "move it away, or give another place with --output."
                )
        self.moved = {row: place for row, place in self.moved.items() if place.exists()}

    def _replay(self, read: Mapping[str, Any]) -> None:
        if "undo" in read:
            self._stack.pop()
        elif "moved" in read:
            self.moved[int(read["moved"])] = Path(read["to"])
        elif "restored" in read:
            self.moved.pop(int(read["restored"]), None)
        else:
            decision = Decision(int(read["row"]), read["action"], read.get("label"))
            if decision.action not in ACTIONS or not 0 <= decision.row < len(self._table):
                raise ValueError
            self._stack.append(decision)

    def _append(self, line: Mapping[str, Any]) -> None:
        end = os.fstat(self._out.fileno()).st_size
        try:
            os.write(self._out.fileno(), json_with_checksum(line, None).encode())  # appended: at the end
            os.fsync(self._out.fileno())
        except OSError:  # a full disk: half a line must not stand before the next one
            self._out.truncate(end)
            raise

    def decide(self, row: int, action: str, label: str | None = None) -> None:
        """Write a decision down; when this returns it is on the disk."""
        check_name("action", action, ACTIONS)
        if not 0 <= row < len(self._table):
            raise InputError(f"there is no image {row}: the table has {len(self._table):,}.")
        label = label.strip() if label is not None and action == "change" else None
        if action == "change" and (not label or len(label) > LONGEST_LABEL or not label.isprintable()):
            raise InputError(f"a label is one line of text, from 1 to {LONGEST_LABEL} characters.")
        if row in self.moved and action != "remove":
            raise InputError(f"{self._table.path[row]} was moved away: put the files back first.")
        decision = Decision(row, action, label)
        known = {} if label is None else {"label": label}
        path = str(self._table.path[row])  # for a person who reads the file
        self._append({"row": row, "action": action, **known, "path": path})
        self._stack.append(decision)

    def undo(self) -> Decision | None:
        """Take the last decision back and return it; None where there is none."""
        if not self._stack:
            return None
        if self._stack[-1].row in self.moved:
            raise InputError("the files were moved away: put them back first.")
        self._append({"undo": True})
        return self._stack.pop()

    def decisions(self) -> dict[int, Decision]:
        """The decision that counts for each row: the last one."""
        return {decision.row: decision for decision in self._stack}

    def table(self) -> Table:
        """The table as decided: new labels, without what was removed."""
        label, kept = self._table.label.astype(object), np.ones(len(self._table), bool)
        for decision in self.decisions().values():
            kept[decision.row] = decision.action != "remove"
            if decision.label is not None:
                label[decision.row] = decision.label
        return self._table.with_columns(label=label.astype(np.str_)).where(kept)

    def planned_moves(self, folder: Path) -> list[Move]:
        """Where the files of removed rows would go: nothing is touched, and no place is used twice.

        A file that another row still needs (several objects in one picture) stays.
        """
        files = [Path(os.path.abspath(file)) for file in self._table.files]  # noqa: PTH100 - links stay links
        removed = {row for row, decision in self.decisions().items() if decision.action == "remove"}
        needed = {files[row] for row in range(len(files)) if row not in removed}
        moves: dict[Path, Move] = {}
        root = Path(os.path.commonpath([file.parent for file in files])) if files else Path()
        for row in sorted(removed - self.moved.keys()):
            source = files[row]
            if source not in needed and source not in moves and source.exists():
                moves[source] = Move(row, source, folder / source.relative_to(root))
        return list(moves.values())

    def move(self, folder: Path) -> list[Move]:
        """Move the files of removed rows into `folder`; an image is never deleted and never overwritten."""
        done = []
        for move in self.planned_moves(folder):
            if move.target.exists():
                raise InputError(f"{move.target} exists already: move it away first.")
            # Written first: after a crash between the two the file is still known, at one place or the other.
            self._append({"moved": move.row, "to": str(move.target)})
            _move_file(move.source, move.target)
            self.moved[move.row] = move.target
            done.append(move)
        return done

    def restore(self) -> int:
        """Put every moved file back to its place; how many there were."""
        count = 0
        for row, place in list(self.moved.items()):
            source = Path(self._table.files[row]).absolute()
            if source.exists():
                raise InputError(f"{source} exists already: move it away first.")
            if place.exists():
                _move_file(place, source)
                count += 1
            self._append({"restored": row})
            del self.moved[row]
        return count

    def write_csv(self, file: Path) -> None:
        """Write the table that the decisions lead to; paths are absolute, so that it can lie anywhere."""
        decided = self.table()
        if not len(decided):
            raise InputError("every image was removed: there is nothing to train on.")
        decided.with_columns(path=[str(f.absolute()) for f in decided.files]).write_csv(file)

    def close(self) -> None:
        """Close the file."""
        self._out.close()


def _move_file(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        source.rename(target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        # Another disk: the copy is whole and on the disk before the original goes.
        write_atomically(target, lambda copy: shutil.copy2(source, copy))
        source.unlink()
    sync_folder(target.parent)
    sync_folder(source.parent)
