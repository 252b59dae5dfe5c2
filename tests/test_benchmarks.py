"""The benchmarks that the documents name still run in their smallest form; the figures are not judged."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.long  # what they measure is tested in the rooms
BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.mark.parametrize(
    ("words", "printed"),
    [
        ("training.py --quick", "over bare"),
        ("evaluate.py --sizes 300 --sets hard --skip whole", "faiss/default"),
        ("evaluate_memory.py --count 300 --large 2000", "gallery of 2,000"),
        ("kmeans.py --count 500 --dim 8 --clusters 10", "faiss takes"),
        (f"embedding.py --images 4 --rounds 1 --before {BENCHMARKS.parent}", "times as fast as before"),
        ("pipeline.py --images 4 --rounds 1", "plain Pillow"),
        ("first_search.py --backbone glyphnet --images 2 --rounds 1", "what cannot be avoided"),
        ("table.py --rows 500", "500"),
        ("streamed_index.py --rows 500", "500 images (500 embedded"),
    ],
)
def test_runs(words: str, printed: str, tmp_path: Path) -> None:
    script, *options = words.split()
    command = [sys.executable, str(BENCHMARKS / script), *options]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert printed in ended.stdout
