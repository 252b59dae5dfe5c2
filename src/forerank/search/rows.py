"""One indexed image: where it lies, what it is called, and what its bytes are."""

import hashlib
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

# Integers that a page's JavaScript and JSON readers hold exactly.
LARGEST_ID = 2**53 - 1


@dataclass(frozen=True, slots=True)
class Row:
    """An image of the index. `label` is empty when it is not known; `id` is given by the engine.

    `columns` holds what else is known of the image, by the name of the CSV column: category, price, URL,
    camera. Values are text, and a column in which the image has no value is missing.
    """

    path: str  # relative to the index's image root, with forward slashes
    label: str
    content: str  # 32 hexadecimal digits: the file's bytes, hashed
    size: int  # bytes
    modified: int  # nanoseconds, as the file system tells it
    id: int = -1
    columns: Mapping[str, str] = field(default_factory=dict, hash=False)


def hash_bytes(data: bytes) -> str:
    """The name of a content: 128 bits of BLAKE2b.

    >>> hash_bytes(b"")
    'cae66941d9efbd404e4d88758ea67670'
    """
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def open_plain(path: Path) -> BinaryIO:
    """Open a plain file; anything else (a pipe, whose other end may never write) raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(0, "not a plain file")
    return os.fdopen(descriptor, "rb")


def hash_file(path: Path) -> tuple[str, os.stat_result]:
    """The content hash of a file and the file's state, both taken from one open file."""
    with open_plain(path) as file:
        digest = hashlib.blake2b(digest_size=16)
        while chunk := file.read(1 << 20):
            digest.update(chunk)
        return digest.hexdigest(), os.fstat(file.fileno())


def id_of(content: str, path: str) -> int:
    """An identity that only content and place decide, so that storing a row twice stores it once.

    >>> id_of("00" * 16, "a.jpg") == id_of("00" * 16, "a.jpg") != id_of("00" * 16, "b.jpg")
    True
    """
    digest = hashlib.blake2b(f"{content} {path}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") & LARGEST_ID
