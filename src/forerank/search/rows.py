"""One indexed image: where it lies, what it is called, and what its bytes are."""

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from forerank.errors import InputError

# Integers that a page's JavaScript and JSON readers hold exactly.
LARGEST_ID = 2**53 - 1


@dataclass(frozen=True, slots=True)
class Row:
    """An image of the index. `label` is empty when it is not known; `id` is given by the engine."""

    path: str  # relative to the index's image root, with forward slashes
    label: str
    content: str  # 32 hexadecimal digits: the file's bytes, hashed
    size: int  # bytes
    modified: int  # nanoseconds, as the file system tells it
    id: int = -1


def hash_bytes(data: bytes) -> str:
    """The name of a content: 128 bits of BLAKE2b.

    >>> hash_bytes(b"")
    'cae66941d9efbd404e4d88758ea67670'
    """
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def hash_file(path: Path) -> tuple[str, os.stat_result]:
    """The content hash of a file and the file's state, both taken from one open file."""
    try:
        with path.open("rb") as file:
            digest = hashlib.blake2b(digest_size=16)
            while chunk := file.read(1 << 20):
                digest.update(chunk)
            return digest.hexdigest(), os.fstat(file.fileno())
    except OSError as error:
        raise InputError(f"cannot read the image {path}: {error.strerror}") from error


def id_of(content: str, path: str) -> int:
    """An identity that only content and place decide, so that storing a row twice stores it once.

    >>> id_of("00" * 16, "a.jpg") == id_of("00" * 16, "a.jpg") != id_of("00" * 16, "b.jpg")
    True
    """
    digest = hashlib.blake2b(f"{content} {path}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") & LARGEST_ID
