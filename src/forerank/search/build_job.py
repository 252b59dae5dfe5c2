"""One update of an index: what every way to build one needs to know."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from forerank import sharing
from forerank.search.build_report import BuildReport
from forerank.search.engine import Engine, Meta, Update

if TYPE_CHECKING:
    from forerank.models import Retriever

# A file changed this shortly before it was looked at may change again without its time showing it.
RACY_NANOSECONDS = 2_000_000_000


@dataclass(frozen=True)
class Job:
    """Options as `forerank.search.build_index` takes them, and what it found out from them."""

    engine: Engine
    retriever: "Retriever"
    old: Meta | None  # what the index says about itself, if there is one
    meta: Meta  # what it is to say, filled in as it becomes known
    save_model: Callable[[Path], None] | None
    approximate: bool | None
    replace: bool
    rehash: bool
    on_bad: str
    part: int
    report: BuildReport

    @property
    def trusted_until(self) -> int:
        """Files that were written before this time are what they were when the index looked at them."""
        return 0 if self.rehash or self.old is None else int(self.old.get("scanned", 0)) - RACY_NANOSECONDS

    @contextmanager
    def update(self) -> Iterator[Update]:
        """Begin to change the index; the first process begins before the others."""
        first = sharing.rank() == 0
        if not first:
            sharing.exchange(None)
        identity = self.meta["model"]["fingerprint"]
        with self.engine.update(self.retriever.dim, identity, self.approximate, sharing.rank()) as update:
            if first:
                sharing.exchange(None)
            yield update


def reason(data: bytes) -> str:
    """Why a picture has no vector."""
    from forerank.data import BadImageError, read_image

    try:
        read_image(data)
    except BadImageError as error:
        return error.reason
    return "the model gave no finite vector for it"
