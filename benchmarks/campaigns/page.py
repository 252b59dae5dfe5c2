"""docs/reliability.md from the result files of the campaigns."""

import json
from pathlib import Path
from typing import Any

from campaigns.registry import CAMPAIGNS
from campaigns.tally import RESULTS
from forerank.files import write_atomically

PAGE = RESULTS.parent / "reliability.md"
HEAD = """# Reliability

Forerank promises that nothing that was saved is lost, and that files and requests from strangers do no harm.
Campaigns try to break that promise: many seeded tries of one kind of trouble, counted. This page is made of
their result files by `python benchmarks/campaigns.py page`. A short part of each campaign runs with the tests
(`python -m pytest -m campaign`). The file SECURITY.md of the repository says what follows for files and
requests that you did not make yourself. A campaign that made fewer tries than were asked for was stopped by
its time: it shows no more than the tries that it made.
"""


def write_page() -> Path:
    """Write the page; its path."""
    write_atomically(PAGE, page_text())
    return PAGE


def page_text() -> str:
    """The page: one table of all campaigns, then what each tried and measured."""
    results = [json.loads((RESULTS / f"{name}.json").read_text()) for name in CAMPAIGNS if _has(name)]
    lines = [
        HEAD,
        "| campaign | tries | asked for | seed | survived | lost | minutes |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for result in results:
        numbers = (f"{result[key]:,}" for key in ("tries", "asked", "seed", "survived", "lost"))
        name = result["campaign"]
        lines.append(f"| [{name}](#{name}) | {' | '.join(numbers)} | {result['seconds'] / 60:.1f} |")
    return "\n".join([*lines, *(line for result in results for line in _section(result))]) + "\n"


def _has(name: str) -> bool:
    return (RESULTS / f"{name}.json").is_file()


def _section(result: dict[str, Any]) -> list[str]:
    campaign = CAMPAIGNS[result["campaign"]]
    lines = [
        f"\n## {result['campaign']}\n",
        f"One try: {campaign.tried}. It is lost by: {campaign.lost_if}.\n",
        f"Command: `{result['command']}`\n",
    ]
    lines += [f"- {key}: {value}" for key, value in result["figures"].items()]
    lines += [f"- lost: {sentence}" for sentence in result["sentences"]]
    return lines
