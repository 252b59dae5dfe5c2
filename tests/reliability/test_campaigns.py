"""A short, seeded part of every campaign, and the page that is made of the full ones."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from campaigns.page import PAGE, page_text
from campaigns.registry import CAMPAIGNS
from campaigns.tally import RESULTS, Tally
from waiting import LIMIT

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "campaigns.py"
NEEDS = {"readers": "atheris", "requests": "schemathesis"}


@pytest.mark.long
@pytest.mark.campaign
@pytest.mark.parametrize("name", CAMPAIGNS)
def test_nothing_is_lost_in_a_short_campaign(name: str, tmp_path: Path) -> None:
    """In a process of its own: campaigns fork, set limits and count the memory of what they started."""
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])
    program = (
        "import json, sys; sys.path.insert(0, sys.argv[1]); from campaigns.tally import run_campaign; "
        "print('RESULT', json.dumps(run_campaign(sys.argv[2], int(sys.argv[3]), 3, 6)))"
    )
    command = [sys.executable, "-W", "ignore", "-c", program, str(SCRIPT.parent), name]
    done = subprocess.run(
        [*command, str(CAMPAIGNS[name].short)],
        capture_output=True, text=True, check=False, timeout=LIMIT, cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    result = json.loads(done.stdout.rpartition("RESULT ")[2])
    # Times depend on what else the machine does: the full run measures them, this one does not judge them.
    lost = [sentence for sentence in result["sentences"] if "99th percentile" not in sentence]
    assert lost == []
    assert result["tries"] >= 1


def test_the_page_is_made_of_the_results() -> None:
    assert PAGE.read_text() == page_text(), "run: python benchmarks/campaigns.py page"
    results = [json.loads(file.read_text()) for file in sorted(RESULTS.glob("*.json"))]
    assert {result["campaign"] for result in results} <= set(CAMPAIGNS)
    for result in results:
        assert result["tries"] == result["survived"] + result["lost"]


def test_the_script_lists_campaigns_and_refuses_unknown_ones() -> None:
    listed = subprocess.run([sys.executable, str(SCRIPT), "list"], capture_output=True, text=True, check=True)
    assert [line.split()[0] for line in listed.stdout.splitlines()] == list(CAMPAIGNS)
    wrong = subprocess.run(
        [sys.executable, str(SCRIPT), "imges"], capture_output=True, text=True, check=False
    )
    assert wrong.returncode == 2
    assert "did you mean 'images'?" in wrong.stderr


def test_a_lost_try_is_counted_with_its_sentence() -> None:
    tally = Tally()
    tally.count(True, "never shown")
    tally.count(False, "line one\n line two")
    assert (tally.tries, tally.survived, tally.lost) == (2, 1, ["line one line two"])
