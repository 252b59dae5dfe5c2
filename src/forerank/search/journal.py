"""Vectors that are embedded but not yet in an index: an append-only file that survives a kill.

The file is one header line of JSON and then records of one size: the content hash (16 bytes), the vector
(D float32, little-endian) and a CRC-32 of both. Reading stops at the first record that is torn.
"""

import json
import os
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from forerank.search.engine import Vectors


class Journal:
    """Open or begin the journal at `path` for vectors of `dim` from one model; another model's is emptied."""

    def __init__(self, path: Path, dim: int, model: str) -> None:
        self._path, self._dim = path, dim
        self._record = 16 + 4 * dim + 4
        header = json.dumps({"format": 1, "dim": dim, "model": model}).encode() + b"\n"
        self._start = len(header)
        self._position: dict[str, int] = {}  # content -> record number
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("r+b" if path.exists() else "w+b")
        if self._file.read(len(header)) == header:
            self._read_records()
        else:
            self._file.seek(0)
            self._file.truncate()
            self._file.write(header)
        self._file.flush()

    def _read_records(self) -> None:
        number = 0
        while len(record := self._file.read(self._record)) == self._record and _whole(record):
            self._position[record[:16].hex()] = number
            number += 1
        # What follows is torn: cut it off, so that appended records stay aligned.
        self._file.seek(self._start + number * self._record)
        self._file.truncate()

    def contents(self) -> set[str]:
        """Which contents have a vector here."""
        return set(self._position)

    def append(self, contents: Sequence[str], vectors: Vectors) -> None:
        """Write vectors (n, D) and wait until they are on disk."""
        records = []
        number = (self._file.seek(0, os.SEEK_END) - self._start) // self._record
        for content, vector in zip(contents, np.asarray(vectors, dtype="<f4"), strict=True):
            body = bytes.fromhex(content) + vector.tobytes()
            records.append(body + zlib.crc32(body).to_bytes(4, "little"))
            self._position[content] = number
            number += 1
        self._file.write(b"".join(records))
        self._file.flush()
        os.fsync(self._file.fileno())

    def vectors(self, contents: Sequence[str]) -> Vectors:
        """The vectors (n, D) of these contents."""
        result = np.empty((len(contents), self._dim), np.float32)
        for i, content in enumerate(contents):
            self._file.seek(self._start + self._position[content] * self._record + 16)
            result[i] = np.frombuffer(self._file.read(4 * self._dim), "<f4")
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
