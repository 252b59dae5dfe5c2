"""What an update of an index did, and which images it had to leave out."""

from dataclasses import dataclass, field
from typing import Any

from forerank import sharing
from forerank.console import say
from forerank.errors import InputError


@dataclass
class BuildReport:
    """What an update of an index did."""

    address: str
    count: int = 0
    embedded: int = 0  # images that went through the model in this run
    reused: int = 0  # images whose features training had computed
    resumed: int = 0  # images embedded by an earlier run that was killed
    kept: int = 0  # images whose bytes the index already knew
    removed: int = 0  # rows of the old index that are gone
    seconds: float = 0.0
    skipped: dict[str, str] = field(default_factory=dict)  # path -> why
    changed: bool = True
    approximate: dict[str, Any] | None = None
    inference: str = ""  # engine and precision of the vectors, and how far they are from torch's

    def __str__(self) -> str:
        if not self.changed:
            return f"{self.address} is up to date: {self.count:,} images"
        rate = f", {self.embedded / self.seconds:.0f} images/s" if self.embedded and self.seconds else ""
        return (
            f"{self.address}: {self.count:,} images ({self.embedded:,} embedded, {self.reused:,} from the "
            f"features of a training, {self.resumed:,} taken over from an interrupted run, "
            f"{self.kept:,} kept, {self.removed:,} removed, {len(self.skipped):,} unreadable) "
            f"in {self.seconds:.1f} s{rate}; vectors by {self.inference}"
        )

    def leave_out(self, path: str, reason: str, on_bad: str) -> None:
        """Note an image that cannot be indexed; the first few are printed. `on_bad="refuse"` stops there."""
        if on_bad == "refuse":
            raise InputError(f"cannot index {path}: {reason}")
        self.skipped[path] = reason
        if len(self.skipped) <= 5 and sharing.rank() == 0:
            say(f"left out {path}: {reason}")
