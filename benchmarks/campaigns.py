"""Campaigns of hostile input, faults and load: `python benchmarks/campaigns.py NAME`, `list` or `page`.

Each writes its result to docs/reliability/NAME.json; `page` makes docs/reliability.md of these files.
"""

import argparse
import json
import sys
from math import inf

from campaigns.page import write_page
from campaigns.registry import CAMPAIGNS
from campaigns.tally import run_campaign, write_result
from forerank.errors import unknown


def main() -> int:
    """Run one campaign; the exit code is 1 if anything was lost."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", nargs="?", default="list", help="a campaign, or list, or page")
    parser.add_argument("--tries", type=int, help="how many tries; without it the full run")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=inf, help="no try is begun after so many minutes")
    given = parser.parse_args()
    if given.name == "list":
        for name, campaign in CAMPAIGNS.items():
            print(f"{name:10} {campaign.tries:>7,} tries: {campaign.tried}")
        return 0
    if given.name == "page":
        print(write_page())
        return 0
    if given.name not in CAMPAIGNS:
        print(unknown("campaign", given.name, ["list", "page", *CAMPAIGNS]), file=sys.stderr)
        return 2
    tries = given.tries or CAMPAIGNS[given.name].tries
    result = run_campaign(given.name, tries, given.seed, given.minutes)
    print(json.dumps(result, indent=2))
    print(write_result(result))
    return 1 if result["lost"] else 0


if __name__ == "__main__":
    sys.exit(main())
