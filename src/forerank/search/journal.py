"""Vectors that are embedded but not yet in an index: an append-only file that survives a kill.

The file is one header line of JSON and then records of one size: the content hash (16 bytes), the vector
(D float32, little-endian) and a CRC-32 of both. Reading stops at the first record that is torn.
"""

import json
import os
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from forerank.errors import ForerankError
from forerank.search.engine import Ids, Vectors
from forerank.search.positions import Positions

JOURNAL = "embedded.log"


class Journal:
    """Open or begin the journal at `path` for vectors of `dim` from one model; another model's is emptied.

    Another process's journal is only read: what it still writes is not seen, and nothing of it is cut off.
    """

    def __init__(self, path: Path, dim: int, model: str, *, only_read: bool = False) -> None:
        self._path, self._dim = path, dim
        self._record = 16 + 4 * dim + 4
        header = json.dumps({"format": 1, "dim": dim, "model": model}).encode() + b"\n"
        self._start = len(header)
        self._position = Positions()  # content -> record number
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("rb" if only_read else "r+b" if path.exists() else "w+b")
        if self._file.read(len(header)) == header:
            end = self._read_records()
            if not only_read:  # what follows is torn: cut it off, so that appended records stay aligned
                self._file.seek(end)
                self._file.truncate()
        elif not only_read:
            self._file.seek(0)
            self._file.truncate()
            self._file.write(header)
            self._file.flush()

    def _read_records(self) -> int:
        """Note where each whole record is; the position after the last one."""
        number = 0
        while len(record := self._file.read(self._record)) == self._record and _whole(record):
            self._position.add([record[:16].hex()], [number])
            number += 1
        return self._start + number * self._record

    def contents(self) -> set[str]:
        """Which contents have a vector here."""
        return self._position.contents()

    def find(self, contents: Sequence[str]) -> Ids:
        """The numbers (n,) of the records of these contents, -1 where there is none."""
        return self._position.find(contents)

    def append(self, contents: Sequence[str], vectors: Vectors) -> None:
        """Write vectors (n, D) and wait until they are on disk."""
        records = []
        number = (self._file.seek(0, os.SEEK_END) - self._start) // self._record
        for content, vector in zip(contents, np.asarray(vectors, dtype="<f4"), strict=True):
            body = bytes.fromhex(content) + vector.tobytes()
            records.append(body + zlib.crc32(body).to_bytes(4, "little"))
        self._position.add(contents, range(number, number + len(records)))
        self._file.write(b"".join(records))
        self._file.flush()
        os.fsync(self._file.fileno())

    def vectors(self, numbers: Iterable[int]) -> list[Vectors]:
        """The vectors (D,) of the records with these numbers."""
        result = []
        for number in numbers:
            self._file.seek(self._start + number * self._record + 16)
            result.append(np.frombuffer(self._file.read(4 * self._dim), "<f4"))
        return result

    def close(self) -> None:
        """Close the file and leave it for the next run."""
        self._file.close()

    def remove(self) -> None:
        """The vectors are in an index now."""
        self._file.close()
        self._path.unlink(missing_ok=True)


def _whole(record: bytes) -> bool:
    return zlib.crc32(record[:-4]) == int.from_bytes(record[-4:], "little")


class Journals:
    """The journal of this process, and those that other processes of this run or an earlier one have left."""

    def __init__(self, folder: Path, dim: int, model: str, rank: int) -> None:
        self._folder, self._dim, self._model = folder, dim, model
        self.own = Journal(folder / of_rank(JOURNAL, rank), dim, model)
        self._own_name = of_rank(JOURNAL, rank)
        self._others: list[Journal] = []
        self.read_others()

    def read_others(self) -> None:
        """Look again at what other processes have written."""
        for journal in self._others:
            journal.close()
        names = sorted(f.name for f in self._folder.glob(f"{JOURNAL}*") if f.name != self._own_name)
        self._others = [Journal(self._folder / n, self._dim, self._model, only_read=True) for n in names]

    def stored(self, contents: Sequence[str]) -> set[str]:
        """Those of `contents` that have a vector in any of them."""
        numbers = np.max([journal.find(contents) for journal in (self.own, *self._others)], axis=0)
        return {content for content, number in zip(contents, numbers.tolist(), strict=True) if number >= 0}

    def vectors(self, contents: Sequence[str]) -> Vectors:
        """The vectors (n, D) of these contents."""
        result = np.empty((len(contents), self._dim), np.float32)
        missing = np.ones(len(contents), bool)
        for journal in (self.own, *self._others):
            numbers = journal.find(contents)
            here = np.flatnonzero(missing & (numbers >= 0))
            if len(here):
                result[here] = journal.vectors(numbers[here].tolist())
            missing[here] = False
        if missing.any():
            content = contents[int(missing.argmax())]
            raise ForerankError(
                f"no process has stored a vector of the image with the content {content} in {self._folder}: "
                "give the same command again, which embeds it."
            )
        return result

    def remove(self) -> None:
        """The vectors are in an index now."""
        self.close()
        for file in self._folder.glob(f"{JOURNAL}*"):
            file.unlink()

    def close(self) -> None:
        """Close the files and leave them for the next run."""
        for journal in (self.own, *self._others):
            journal.close()


def of_rank(name: str, rank: int) -> str:
    """The name of a file that every process of a run has for itself."""
    return f"{name}.{rank}" if rank else name
