"""Where the time of `forerank search` from the shell goes, on a warm cache.

    python benchmarks/first_search.py
    python benchmarks/first_search.py --backbone glyphnet --images 1000

Beside the command itself, a process of its own does the same steps and tells when each is done. The limit is
what cannot be avoided: Python's own start and end, and the inference engine's import, reading and first run
of the network. The peer is a process that only imports torch.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from embedding import make_photographs
from forerank.console import format_table
from forerank.models import keep_freed_memory
from forerank.search import build_index

STEPS = """
import sys, time
marks = [("Python's start", time.time())]
def done(name):
    marks.append((name, time.time()))
import forerank.cli.search
from forerank.data.image_files import find_images
from forerank.files import write_atomically
from forerank.models import keep_freed_memory
from forerank.search.answers import answer_files
from forerank.search.index import Index
from forerank.search.vote import calibrated_vote
keep_freed_memory()
done("imports (numpy, Pillow, cyclopts, ...)")
index = Index.open(sys.argv[1])
done("opening the index")
import openvino
done("import of OpenVINO")
index.retriever
done("reading the converted network")
vectors = index.embed([sys.argv[2]])
done("decoding the picture and running the network")
index.search_vectors(vectors, 10)
done("searching")
import json
print(json.dumps(marks))
"""


def run_steps(index: Path, query: Path) -> dict[str, float]:
    """Seconds of each step in a new process."""
    began = time.time()
    command = [sys.executable, "-c", STEPS, str(index), str(query)]
    marks = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    ended = time.time()
    names = [*(name for name, _ in marks), "Python's end"]
    times = [began, *(mark for _, mark in marks), ended]
    return {name: after - before for name, before, after in zip(names, times, times[1:], strict=False)}


def run_command(*words: str) -> float:
    """Seconds of a command."""
    began = time.time()
    subprocess.run([sys.executable, *words], check=True, capture_output=True)
    return time.time() - began


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--backbone", default="efficientnet-lite0")
    parser.add_argument("--images", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    keep_freed_memory()
    with tempfile.TemporaryDirectory() as folder:
        files = make_photographs(Path(folder), options.images)
        index = Path(folder) / "index"
        build_index(options.backbone, Path(folder), index)
        whole: list[float] = []
        torch: list[float] = []
        steps: list[dict[str, float]] = []
        for turn in range(options.rounds + 1):
            took = run_command("-m", "forerank", "search", str(index), str(files[0]))
            alone = run_command("-c", "import torch")
            parts = run_steps(index, files[0])
            if turn:  # the first turn fills the caches
                whole.append(took)
                torch.append(alone)
                steps.append(parts)
    middle = {name: statistics.median(step[name] for step in steps) for name in steps[0]}
    total = sum(middle.values())
    print(
        f"forerank search with {options.backbone} among {options.images} images, median of {options.rounds}\n"
    )
    rows = [[name, f"{1000 * part:.0f}", f"{100 * part / total:.0f}%"] for name, part in middle.items()]
    print(format_table(["step", "ms", "share"], [*rows, ["all steps", f"{1000 * total:.0f}", "100%"]]))
    avoidable = ("imports (numpy, Pillow, cyclopts, ...)", "opening the index", "searching")
    limit = sum(part for name, part in middle.items() if name not in avoidable)
    command, peer = statistics.median(whole), statistics.median(torch)
    print(f"\nthe command: {command:.2f} s, {command / limit:.2f} times what cannot be avoided")
    print(f"import torch alone: {peer:.2f} s, {peer / command:.2f} times the command")


if __name__ == "__main__":
    main()
