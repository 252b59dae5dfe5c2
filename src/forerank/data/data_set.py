"""What is known of a data set by name: how to read it, what its paper counted, where it comes from."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from forerank.data.table import Table

Counts = Mapping[str, tuple[int, int]]  # split -> images, classes


@dataclass(frozen=True)
class Archive:
    """A file to download: where it is, and what it must be.

    Args:
        md5: as published by the people who made the set; None if nobody published one.
        size: bytes, if known.
    """

    url: str
    md5: str | None = None
    size: int | None = None

    @property
    def name(self) -> str:
        """File name of the archive."""
        return self.url.rsplit("/", 1)[-1].split("?")[0]


@dataclass(frozen=True)
class DataSet:
    """A data set that is known by name.

    Args:
        read: folder and options -> table.
        recognise: whether a folder has the official layout; by default none is recognised.
        published: source -> counts by split; a function where they depend on the options.
        ks: recall is reported at these ranks.
        home: page of the people who made it.
        archives: what can be downloaded without asking anybody.
        steps: how to get the set, or what else to do after the download.
        options: of the reader -> what they mean.
    """

    title: str
    read: Callable[..., Table]
    recognise: Callable[[Path], bool] = lambda root: False
    published: Mapping[str, Counts] | Callable[[dict[str, Any]], Mapping[str, Counts]] = field(
        default_factory=dict
    )
    ks: tuple[int, ...] = (1, 2, 4, 8)
    home: str = ""
    archives: tuple[Archive, ...] = ()
    steps: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)

    def published_counts(self, options: dict[str, Any]) -> Mapping[str, Counts]:
        """Source -> split -> (images, classes)."""
        return self.published(options) if callable(self.published) else self.published
