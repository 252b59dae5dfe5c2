"""What a campaign counts, and the small file that it leaves behind."""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import forerank
from forerank.files import write_atomically

RESULTS = Path(__file__).parents[2] / "docs" / "reliability"


@dataclass
class Tally:
    """Tries that were survived, one sentence for each that was lost, and what else was measured."""

    survived: int = 0
    lost: list[str] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)

    def count(self, good: bool, sentence: str) -> None:
        """Count one try; the sentence says what was lost if it was not good."""
        if good:
            self.survived += 1
        else:
            self.lost.append(" ".join(sentence.split())[:500])

    @property
    def tries(self) -> int:
        """All tries that were made."""
        return self.survived + len(self.lost)


# Tries, seed, a folder to work in, and the moment of `time.monotonic` after which no try is begun.
Run = Callable[[int, int, Path, float], Tally]


@dataclass(frozen=True)
class Campaign:
    """An entry of the registry; `campaigns.NAME` holds its function `run(tries, seed, folder, end)`."""

    tried: str  # what one try is
    lost_if: str
    tries: int  # of the full run
    short: int  # of the part that the tests run


def run_campaign(name: str, tries: int, seed: int, minutes: float = inf) -> dict[str, Any]:
    """Run a campaign; its result as it is written to docs/reliability/NAME.json."""
    run: Run = import_module(f"campaigns.{name}").run
    began, end = time.perf_counter(), time.monotonic() + 60 * minutes
    with TemporaryDirectory(prefix=f"forerank-{name}-", ignore_cleanup_errors=True) as folder:
        tally = run(tries, seed, Path(folder), end)
    limit = "" if minutes == inf else f" --minutes {minutes:g}"
    return {
        "campaign": name,
        "asked": tries,
        "tries": tally.tries,
        "seed": seed,
        "survived": tally.survived,
        "lost": len(tally.lost),
        "seconds": round(time.perf_counter() - began, 1),
        "command": f"python benchmarks/campaigns.py {name} --tries {tries} --seed {seed}{limit}",
        "version": forerank.__version__,
        "figures": tally.figures,
        "sentences": tally.lost[:20],
    }


def write_result(result: dict[str, Any]) -> Path:
    """Keep the result of a campaign in place of the older one."""
    file = RESULTS / f"{result['campaign']}.json"
    write_atomically(file, json.dumps(result, indent=2) + "\n")
    return file
