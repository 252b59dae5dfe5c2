"""The time of a search, over interruptions."""

import time
from dataclasses import dataclass, field
from pathlib import Path

from forerank.errors import InputError
from forerank.training.record import BUDGET, read_json, write_json

# Left unused of every budget: a share of it, and seconds.
MARGIN_SHARE, MARGIN_SECONDS = 0.02, 5.0
MOST_MINUTES = 1_000_000


@dataclass
class Clock:
    """The time of a budget, over interruptions."""

    run: Path
    minutes: float
    spent: float = 0.0  # seconds of earlier starts
    began: float = field(default_factory=time.monotonic)

    @classmethod
    def open(cls, run: Path, minutes: float | None) -> "Clock":
        """Continue the clock of a run, or start it."""
        if minutes is not None and not 0 < minutes <= MOST_MINUTES:  # not a number is neither
            raise InputError(f"--minutes must be above 0 and at most {MOST_MINUTES:,}, not {minutes:g}")
        file = run / BUDGET
        if file.exists():
            known = read_json(file, ("minutes", "spent"), f"remove {run} to start again")
            return cls(run, float(minutes or known["minutes"]), float(known["spent"]))
        if minutes is None:
            raise InputError(f"{run} has no search to continue: give --minutes to begin one")
        return cls(run, minutes)

    def moment(self, share: float) -> float:
        """The moment of `time.monotonic` at which this share of the budget is used."""
        return self.began + share * 60 * self.minutes - self.spent

    def left(self, share: float = 1.0) -> float:
        """Seconds until then."""
        return self.moment(share) - time.monotonic()

    def ending(self, reserve: float) -> float:
        """The moment that leaves this many seconds, and a margin, until the end."""
        return self.moment(1 - MARGIN_SHARE) - MARGIN_SECONDS - reserve

    def save(self) -> None:
        """Remember the time used so far."""
        used = self.spent + time.monotonic() - self.began
        write_json(self.run / BUDGET, {"minutes": self.minutes, "spent": round(used, 1)})
