"""Pictures that visitors sent, kept for a while so that the address of a search survives a reload."""

import secrets
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass, field

from forerank.search.engine import Vectors
from forerank.web.uploads import Limits, RefusedUpload

MOST_VECTORS = 32  # vectors of one upload: of the whole picture, and of boxes in it


@dataclass
class KeptUpload:
    """The bytes of a picture as they were sent, and the vectors that were computed from it."""

    data: bytes
    until: float
    vectors: dict[object, Vectors] = field(default_factory=dict)


class KeptUploads:
    """Keeps uploads in memory under names that nobody can guess; the oldest go first when it is full.

    They are bounded in number, in bytes and in time, and gone when the server ends.

    >>> kept = KeptUploads(Limits(kept=1))
    >>> first, second = kept.keep(b"1"), kept.keep(b"2")
    >>> kept.get(second).data
    b'2'
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._kept: OrderedDict[str, KeptUpload] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def keep(self, data: bytes) -> str:
        """Keep a picture and give its name: "u" and 128 random bits."""
        name = "u" + secrets.token_urlsafe(16)
        with self._lock:
            self._kept[name] = KeptUpload(data, time.monotonic() + self._limits.kept_seconds)
            self._bytes += len(data)
            self._drop_old()
        return name

    def get(self, name: str) -> KeptUpload:
        """The upload of that name; one that is gone is refused."""
        with self._lock:
            self._drop_old()
            if name not in self._kept:
                sentence = "this picture is no longer kept by the server: choose it again"
                raise RefusedUpload(404, sentence)
            return self._kept[name]

    def remember(self, name: str, key: object, vector: Vectors) -> None:
        """Keep a vector of an upload for the next search with it."""
        with self._lock:
            upload = self._kept.get(name)
            if upload is not None and len(upload.vectors) < MOST_VECTORS:
                upload.vectors[key] = vector

    def _drop_old(self) -> None:
        # All are kept equally long, so the first to come is the first to go.
        while self._kept:
            oldest = next(iter(self._kept.values()))
            full = len(self._kept) > self._limits.kept or self._bytes > self._limits.kept_bytes
            if not full and oldest.until > time.monotonic():
                return
            self._bytes -= len(self._kept.popitem(last=False)[1].data)
