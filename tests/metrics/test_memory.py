"""Memory stays under its setting whatever is evaluated. Measured in a process of its own."""

import subprocess
import sys

import numpy as np
import pytest

SCRIPT = """
import sys, threading
import numpy as np, psutil, torch
torch.set_num_threads(2)
from forerank import evaluate
from forerank.ranking import hard_count
hard_count.LARGE = 0  # the compiler and what it compiled are not counted either
evaluate(np.eye(8, 4) + 0.1, [0, 0, 1, 1, 2, 2, 3, 3], nmi=False)  # load everything first
labels = np.load(sys.argv[2])
vectors = np.load(sys.argv[1], mmap_mode="r")
queries = np.random.default_rng(0).choice(len(labels), int(sys.argv[3]), replace=False)
def anonymous():  # pages of the mapped file can be dropped at any time and are not counted
    with open("/proc/self/status") as status:
        return sum(int(l.split()[1]) for l in status if l.startswith("RssAnon")) / 1024
before, peak, done = anonymous(), 0.0, threading.Event()
def watch():  # a busy machine may miss a moment; whatever takes too much takes it for long
    global peak
    while not done.wait(0.002):
        peak = max(peak, anonymous())
watcher = threading.Thread(target=watch); watcher.start()
rerank = sys.argv[4] if len(sys.argv) > 4 else None
result = evaluate(vectors, labels, queries=queries, nmi=False, bootstrap=0, memory=128 << 20, rerank=rerank)
done.set(); watcher.join()
print(peak - before, result.counts["gallery"])
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_a_mapped_file_is_not_loaded(tmp_path):
    """200,000 x 128 from disk (98 MiB) within 128 MiB; a copy in float64 alone would take 195."""
    generator = np.random.default_rng(0)
    file = np.lib.format.open_memmap(tmp_path / "e.npy", mode="w+", dtype=np.float32, shape=(200_000, 128))
    for start in range(0, len(file), 20_000):
        file[start : start + 20_000] = generator.standard_normal((20_000, 128), dtype=np.float32)
    file.flush()
    np.save(tmp_path / "l.npy", generator.integers(40_000, size=200_000))
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT, tmp_path / "e.npy", tmp_path / "l.npy", "300"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    growth, gallery = run.stdout.split()
    assert int(gallery) == 200_000
    assert float(growth) < 128


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_one_query_with_many_positives_does_not_widen_all(tmp_path):
    """Classes of 300 images beside one of 20,000, all of them counted in float64, within 128 MiB."""
    generator = np.random.default_rng(0)
    np.save(tmp_path / "e.npy", generator.standard_normal((60_000, 4), dtype=np.float32))
    images = np.arange(60_000)
    np.save(tmp_path / "l.npy", generator.permutation(np.where(images < 20_000, 0, 1 + images // 300)))
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT, tmp_path / "e.npy", tmp_path / "l.npy", "300"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert float(run.stdout.split()[0]) < 128


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize("rerank", ["expansion", "averaging", "reciprocal"])
def test_reranking_never_holds_all_pairs(rerank, tmp_path):
    """20,000 images: all pairs would take 3 GB in float64, or 1.5 in float32."""
    generator = np.random.default_rng(0)
    np.save(tmp_path / "e.npy", generator.standard_normal((20_000, 16), dtype=np.float32))
    np.save(tmp_path / "l.npy", generator.integers(4_000, size=20_000))
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT, tmp_path / "e.npy", tmp_path / "l.npy", "40", rerank],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert float(run.stdout.split()[0]) < 400
