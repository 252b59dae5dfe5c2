"""Run the tests room by room, a room on each core: `python tests/rooms.py [--long] [ROOM ...]`.

A room is a folder of tests, the test files beside the folders, or the doctests of src. Each is a process of
its own: together they would load torch, OpenVINO, numba, faiss, Arrow and gRPC into one process, with several
thread pools and allocators, and that was seen to crash.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[1]
AT_ONCE = 4  # rooms at a time at most: each may need three gigabytes of memory
# Begun in this order, longest first, so that no long one is left for the end; the others follow.
LONGEST_FIRST = ("training", "search", "web", "files beside the folders", "paper", "models", "losses")
MINUTES = {False: 25, True: 25}  # of the tests, and of the long ones, on two cores
ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")


def rooms() -> dict[str, list[str]]:
    """Name of each room -> its paths, in the order in which they are begun."""
    found = {
        folder.name: [f"tests/{folder.name}"]
        for folder in sorted((ROOT / "tests").iterdir())
        if any(folder.glob("test_*.py"))
    }
    found["files beside the folders"] = sorted(
        f"tests/{file.name}" for file in (ROOT / "tests").glob("test_*.py")
    )
    found["src"] = ["src"]
    order = {name: place for place, name in enumerate(LONGEST_FIRST)}
    return dict(sorted(found.items(), key=lambda room: order.get(room[0], len(order))))


def run_room(name: str, paths: list[str], long: bool, results: Path) -> str:
    """Run one room in a process of its own; an empty text, or the name if a test failed."""
    label = name.replace(" ", "-")
    threads = {setting: os.environ.get(setting, "1") for setting in ONE_THREAD}
    coverage = {"COVERAGE_FILE": str(ROOT / f".coverage.{label}{'-long' * long}")}
    options = [
        "-m",
        "long" if long else "not long",
        "--cov",
        "--cov-report=",
        f"--junitxml={results / label}.xml",
    ]
    begun = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *paths, *options],
        cwd=ROOT, env=os.environ | threads | coverage, check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
    )  # fmt: skip
    nothing_there = done.returncode == 5  # pytest's word for a room without such a test
    failed = done.returncode != 0 and not nothing_there
    if failed:
        print(f"\n===== {name}\n{done.stdout}", flush=True)
    if not nothing_there:
        last = done.stdout.strip().splitlines()[-1].strip("= ")
        print(f"{name}: {last} ({time.monotonic() - begun:.0f} s with its start)", flush=True)
    return name if failed else ""


def summary(results: Path) -> str:
    """The slowest tests, why some were skipped, and how many passed."""
    cases = [case for file in sorted(results.glob("*.xml")) for case in ET.parse(file).iter("testcase")]
    failed = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    reasons = [skip.get("message", "") for case in cases if (skip := case.find("skipped")) is not None]
    slowest = sorted(cases, key=lambda case: -float(case.get("time", 0)))[:10]
    lines = ["", "The slowest ten tests, in seconds:"]
    lines += [
        f"{float(one.get('time', 0)):6.1f}  {one.get('classname')}::{one.get('name')}" for one in slowest
    ]
    lines += [f"{reasons.count(reason)} skipped: {reason}" for reason in sorted(set(reasons))]
    passed = len(cases) - len(failed) - len(reasons)
    return "\n".join([*lines, f"{passed} passed, {len(failed)} failed, {len(reasons)} skipped"])


def main() -> int:
    """Run what the command line asks for; 1 if a room failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--long", action="store_true", help="only the tests that are long by nature")
    parser.add_argument("room", nargs="*", help=f"of: {', '.join(rooms())}; without any: all")
    asked = parser.parse_args()
    chosen = {name: paths for name, paths in rooms().items() if name in (asked.room or [name])}
    if unknown := set(asked.room) - set(chosen):
        parser.error(f"no such room: {', '.join(sorted(unknown))}. Valid: {', '.join(rooms())}.")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    at_once = min(AT_ONCE, cores, len(chosen))
    expected = "" if asked.room else f"; about {MINUTES[asked.long]} minutes on two cores"
    kind = "long tests" if asked.long else "tests"
    print(f"The {kind} of {len(chosen)} rooms, {at_once} at a time, one thread each{expected}", flush=True)
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as results, ThreadPoolExecutor(at_once) as pool:
        work = [
            pool.submit(run_room, name, paths, asked.long, Path(results)) for name, paths in chosen.items()
        ]
        failed = [name for one in work if (name := one.result())]
        told = summary(Path(results))
    print(f"{told}\nin {(time.monotonic() - begun) / 60:.1f} minutes", flush=True)
    if failed:
        print(f"Tests failed in: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
