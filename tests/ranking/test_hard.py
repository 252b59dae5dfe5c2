"""Hard ranks against brute force in float64, over every screen, tile and protocol."""

import inspect
import os
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from threadpoolctl import threadpool_info

from forerank.errors import InputError
from forerank.metrics import evaluate
from forerank.ranking import hard_blocks, hard_compiled, hard_count, hard_kernel, hard_screen
from forerank.ranking.hard import hard_ranks
from forerank.ranking.hard_rows import unit_rows
from forerank.ranking.hard_same import TIE


def brute_force(vectors, labels, queries, gallery, ignore):
    """(negatives above, tied) of each positive of each query, most similar first, by plain loops."""
    unit = vectors.astype(np.float64)
    unit /= np.linalg.norm(unit, axis=1, keepdims=True)
    answer = []
    for q in queries:
        positive, negative = [], []
        for g in gallery:
            similarity = float((unit[q] * unit[g]).sum())
            if labels[g] != labels[q]:
                negative.append(similarity)
            elif g != q and (ignore is None or ignore[g] != ignore[q]):
                positive.append(similarity)
        negative = np.array(negative)
        positive = sorted(positive, reverse=True)
        above = [int((negative > s + TIE).sum()) for s in positive]
        tied = [int((np.abs(negative - s) <= TIE).sum()) for s in positive]
        answer.append((above, tied))
    return answer


def counted(vectors, labels, queries, gallery, ignore, **options):
    answer = [None] * len(queries)
    for part in hard_ranks(
        unit_rows(vectors), labels, queries=queries, gallery=gallery, ignore=ignore, **options
    ):
        for i, query in enumerate(part.queries):
            own = slice(part.offsets[i], part.offsets[i + 1])
            answer[query] = (part.above[own].tolist(), part.tied[own].tolist())
    return answer


@st.composite
def cases(draw):
    seed = draw(st.integers(0, 2**32 - 1))
    generator = np.random.default_rng(seed)
    count, dim = draw(st.integers(2, 70)), draw(st.integers(1, 9))
    vectors = generator.normal(size=(count, dim)).astype(draw(st.sampled_from([np.float32, np.float64])))
    if draw(st.booleans()):  # exact duplicates, also scaled
        copies = generator.integers(count, size=count // 2)
        vectors[copies] = vectors[generator.integers(count, size=count // 2)] * 4
    if draw(st.booleans()):  # coordinates that make many different pairs equally similar
        vectors = np.round(vectors) + np.where(
            np.abs(np.round(vectors)).sum(axis=1, keepdims=True) == 0, 1, 0
        )
    labels = generator.integers(draw(st.integers(1, 12)), size=count)
    queries = gallery = np.arange(count)
    if draw(st.booleans()):
        queries = generator.permutation(count)[: draw(st.integers(1, count))]
        gallery = generator.permutation(count)[: draw(st.integers(1, count))]
    ignore = generator.integers(3, size=count) if draw(st.booleans()) else None
    return vectors, labels, queries, gallery, ignore


@settings(max_examples=300, deadline=None)
@given(case=cases(), precision=st.sampled_from(["auto", "bfloat16", "float32", "float64"]),
       memory=st.sampled_from([1 << 13, 1 << 29]), block=st.sampled_from([32, 2048]),
       wide=st.sampled_from([2, 64]), easy=st.sampled_from([0.02, 1e9]),
       large=st.sampled_from([0, 1 << 24]), huge=st.sampled_from([0, 1 << 28]))  # fmt: skip
def test_equals_brute_force_in_float64(case, precision, memory, block, wide, easy, large, huge):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hard_blocks, "BLOCK", block)  # several tiles, and tiles on both sides of the diagonal
        patch.setattr(hard_blocks, "EASY", easy)  # 1e9: as many queries as possible are screened in bfloat16
        for counter in (hard_count.Counter, hard_compiled.CompiledCounter):
            patch.setattr(counter, "wide", wide)  # many positives: the float64 branch beside the screens
        patch.setattr(hard_count, "LARGE", large)  # 0: counted by compiled code, else by torch
        patch.setattr(hard_count, "HUGE", huge)  # 0: "auto" may screen in bfloat16
        assert counted(*case, precision=precision, memory=memory) == brute_force(*case)


def grouped(count, dim, per_class, noise, seed=0):
    generator = np.random.default_rng(seed)
    labels = np.arange(count) // per_class
    centres = generator.normal(size=(count, dim))
    vectors = centres[labels] + noise * generator.normal(size=(count, dim))
    shuffled = generator.permutation(count)
    return vectors[shuffled].astype(np.float32), labels[shuffled]


@pytest.mark.parametrize("noise", [0.7, 2.0, 8.0])
def test_every_precision_gives_the_same_counts(noise, monkeypatch):
    """Large enough that low precision alone would be wrong: 64 dimensions, 3,000 images, 15,000 positives."""
    vectors, labels = grouped(3000, 64, 6, noise)
    vectors[:40] = vectors[40:80]  # some ties
    exact = unit_rows(vectors).float64(slice(0, 3000)).numpy()
    similarity = exact @ exact.T
    for large, precision in (
        (1, "float64"),
        (1, "float32"),
        (1, "bfloat16"),
        (0, "float32"),
        (0, "bfloat16"),
    ):
        monkeypatch.setattr(hard_count, "LARGE", large << 24)
        (part,) = hard_ranks(unit_rows(vectors), labels, precision=precision)
        for q in range(0, 3000, 97):
            negative = similarity[q, labels != labels[q]]
            own = slice(part.offsets[q], part.offsets[q + 1])
            above = [(negative > s + TIE).sum() for s in part.similarity[own]]
            assert part.above[own].tolist() == above
        if precision == "float64":
            first = part
        assert np.array_equal(part.above, first.above)
        assert np.array_equal(part.tied, first.tied)


@pytest.mark.parametrize("dim", [2, 3, 48])
def test_narrow_numbers_count_exactly(dim, monkeypatch):
    """From 1 to 256 positives per query, at similarity 1 and -1 too, with ties across labels."""
    monkeypatch.setattr(hard_count, "LARGE", 0)
    # A whole segment and a part of one; rows that are no multiple of four.
    monkeypatch.setattr(hard_blocks, "BLOCK", 602)
    # No tile may go to float64, though a block of one label is its own ties.
    monkeypatch.setattr(hard_compiled, "CROWDED", 1)
    monkeypatch.setattr(hard_compiled.CompiledCounter, "_exact", None)
    generator = np.random.default_rng(dim)
    sizes = [257, 130, 65, 33, *[17] * 4, *[9] * 8, *[5] * 20, *[3] * 40, *[2] * 80]
    labels = np.repeat(np.arange(len(sizes)), sizes)
    vectors = generator.normal(size=(len(labels), dim))
    some = generator.permutation(len(labels))
    vectors[some[:60]] = vectors[some[60:120]] * 2  # the same direction, usually under another label
    vectors[some[120:180]] = -vectors[some[180:240]]
    last = np.flatnonzero(labels == labels[-1])
    vectors[last[1]] = -vectors[last[0]]  # a threshold of -1: everyone reaches it
    vectors[last - 2] = vectors[last[0] - 2]  # and one of 1
    shuffled = generator.permutation(len(labels))
    vectors, labels = vectors[shuffled], labels[shuffled]
    everyone = np.arange(len(labels))
    found = counted(vectors, labels, everyone, everyone, None, precision="float32")
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    similarity = unit @ unit.T
    for q in everyone:
        same = labels == labels[q]
        positive = np.sort(similarity[q, same & (everyone != q)])[::-1]
        negative = similarity[q, ~same]
        above = (negative > positive[:, None] + TIE).sum(axis=1)
        reached = (negative >= positive[:, None] - TIE).sum(axis=1)
        assert found[q] == (above.tolist(), (reached - above).tolist())


def test_narrow_numbers_keep_their_order():
    """Numbers outside of what 16 bits hold become the last step, on both sides."""
    values = np.sort(np.random.default_rng(0).normal(size=(1, 4000)).astype(np.float32))
    values[0, 0], values[0, -1] = -2, np.inf
    narrow = np.empty(values.shape, np.int16)
    hard_kernel.narrow(values, narrow)
    assert (np.diff(narrow) >= 0).all()
    assert (narrow.min(), narrow.max()) == (-32767, 32767)
    inside = np.abs(values) <= 1
    assert np.abs(narrow / hard_kernel.SCALE - values)[inside].max() < 1.01 / hard_kernel.SCALE


@pytest.mark.parametrize("large", [0, 1 << 24])
@pytest.mark.parametrize("spread", [0.0, 1e-4, 1e-2])
def test_a_collapsed_model_is_counted_exactly(large, spread, monkeypatch):
    """All similarities nearly or exactly alike: no screen decides anything, whole tiles go to float64."""
    monkeypatch.setattr(hard_count, "LARGE", large)
    generator = np.random.default_rng(0)
    vectors = 1 + spread * generator.normal(size=(300, 16))
    labels = generator.integers(40, size=300)
    everyone = np.arange(300)
    case = vectors, labels, everyone, everyone, None
    assert counted(*case, precision="auto") == brute_force(*case)


def test_without_compiled_code_the_counts_are_the_same(monkeypatch):
    vectors, labels = grouped(500, 16, 5, 2.0)
    monkeypatch.setattr(hard_count, "LARGE", 0)
    everyone = np.arange(500)
    compiled = counted(vectors, labels, everyone, everyone, None)
    monkeypatch.setitem(sys.modules, "forerank.ranking.hard_compiled", None)  # as if numba were missing
    assert hard_count._counter(torch.device("cpu"), 1, quick=True) is hard_count.Counter
    assert counted(vectors, labels, everyone, everyone, None) == compiled


def test_compiled_code_needs_no_place_to_be_kept():
    """Installed where nobody may write, without a home folder: compiled again in each process."""
    script = """
import numpy as np
from numba.core import caching
caching.FunctionCache._impl_class._locator_classes = []
from forerank.ranking import hard_kernel
print(hard_kernel._dot(np.ones(3, np.float32), np.ones(3, np.float32)))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.stdout == "3.0\n", done.stderr


def test_a_full_disk_is_no_reason_to_fail(tmp_path):
    """What was compiled cannot be kept: torch counts instead."""
    script = """
import resource, signal
import numpy as np
from forerank import evaluate
from forerank.ranking import hard_count
hard_count.LARGE = 0
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
vectors = np.random.default_rng(0).normal(size=(60, 8))
print(evaluate(vectors, np.arange(60) // 5, nmi=False)["map"])
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False,
        env=os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)},
    )  # fmt: skip
    vectors = np.random.default_rng(0).normal(size=(60, 8))
    assert done.stdout, done.stderr
    assert float(done.stdout) == evaluate(vectors, np.arange(60) // 5, nmi=False)["map"]


@pytest.mark.parametrize("large", [0, 1 << 24])
def test_works_in_inference_mode(large, monkeypatch):
    monkeypatch.setattr(hard_count, "LARGE", large)
    vectors, labels = grouped(300, 8, 5, 2.0)
    plain = evaluate(vectors, labels, nmi=False)
    with torch.inference_mode():
        assert dict(evaluate(torch.from_numpy(vectors), labels, nmi=False)) == dict(plain)


@pytest.mark.parametrize("precision", ["float64", "float32", "bfloat16"])
def test_the_border_of_a_tie_is_a_tie(precision):
    """A negative that is TIE more similar than the positive, exactly, is tied; also beside ignored items."""
    vectors = np.array([[1.0, 0.0], [0.0, 1.0], [TIE, 1.0]])
    everyone = np.arange(3)
    case = vectors, np.array([0, 0, 1]), everyone, everyone, None
    assert counted(*case, precision=precision) == [([0], [1]), ([1], [0]), ([], [])]
    vectors = np.vstack([vectors, [[0.5, 0.5]]])
    everyone = np.arange(4)
    case = vectors, np.array([0, 0, 0, 1]), everyone, everyone, np.array([0, 1, 0, 2])
    assert counted(*case, precision=precision) == brute_force(*case)


def test_evaluations_at_the_same_time_give_back_the_threads(monkeypatch):
    monkeypatch.setattr(hard_count, "LARGE", 0)
    vectors, labels = grouped(3000, 16, 5, 2.0)
    before = torch.get_num_threads(), [pool["num_threads"] for pool in threadpool_info()]
    works = [threading.Thread(target=evaluate, args=(vectors[:n], labels[:n])) for n in (500, 3000, 1500)]
    for work in works:
        work.start()
    for work in works:
        work.join()
    assert (torch.get_num_threads(), [pool["num_threads"] for pool in threadpool_info()]) == before


def test_threads_are_given_back(monkeypatch):
    """Counting takes the threads of torch and numpy for itself; afterwards they are as before."""
    monkeypatch.setattr(hard_count, "LARGE", 0)
    vectors, labels = grouped(300, 8, 5, 2.0)
    before = torch.get_num_threads(), [pool["num_threads"] for pool in threadpool_info()]
    list(hard_ranks(unit_rows(vectors), labels))
    assert (torch.get_num_threads(), [pool["num_threads"] for pool in threadpool_info()]) == before


def test_the_screens_would_be_wrong_alone():
    """The verdicts in float64 are needed: plain bfloat16 and float32 counts differ from the exact ones."""
    vectors, labels = grouped(2000, 64, 5, 2.0)
    (part,) = hard_ranks(unit_rows(vectors), labels)
    unit = torch.nn.functional.normalize(torch.from_numpy(vectors))
    rough = (unit.bfloat16() @ unit.bfloat16().T).float()
    wrong = 0
    for q in range(0, 2000, 50):
        same = torch.from_numpy(labels == labels[q])
        positive = rough[q, same & (torch.arange(2000) != q)].sort(descending=True).values
        counts = [(rough[q, ~same] > s).sum().item() for s in positive]
        wrong += counts != part.above[part.offsets[q] : part.offsets[q + 1]].tolist()
    assert wrong > 10


@pytest.mark.parametrize("dim", [3, 64, 129, 512, 2048])
def test_products_stay_within_their_margins(dim):
    generator = torch.Generator().manual_seed(dim)
    exact = torch.randn(256, dim, generator=generator, dtype=torch.float64)
    exact[:64] = exact[64:128] + 1e-3 * exact[:64]  # also pairs near 1
    exact[128:160, dim // 2 :] = 0
    exact = torch.nn.functional.normalize(exact)
    unit, true = exact.float(), exact @ exact.T
    out = torch.empty(256, 256)
    for faster in (True, False):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(hard_screen, "numpy_is_faster", lambda faster=faster: faster)
            hard_screen.product(unit, unit, out)
        assert (out.double() - true).abs().max() <= hard_screen.margin(torch.float32, dim)
    dots = unit.double() @ unit.double().T
    assert (dots - true).abs().max() <= hard_screen.dot_margin(dim)
    short = unit.bfloat16()
    moved = hard_screen.residual(unit, short)
    margin = hard_screen.margin(torch.bfloat16, dim, moved, moved)
    rounded = (short @ short.T).double()
    # Rounded limits: a result must lie between the rounded ends of the true value's interval.
    low, high = ((true + d).to(torch.bfloat16).double() for d in (-margin, margin))
    assert bool(((low <= rounded) & (rounded <= high)).all())
    assert moved <= hard_screen.UNIT16


def set_by_name(value: str) -> None:
    torch.set_float32_matmul_precision("medium" if value == "bf16" else "highest")


def set_by_backend(value: str) -> None:
    torch.backends.fp32_precision = value
    torch.backends.mkldnn.matmul.fp32_precision = value


@pytest.mark.parametrize("way", [set_by_name, set_by_backend])
def test_a_shortcut_for_float32_products_is_undone(way):
    """torch has an older and a newer way to allow it; each in its own process, because they do not mix."""
    script = f"""
import torch
from forerank.metrics import evaluate
from forerank.ranking import hard_screen
{inspect.getsource(way)}
{way.__name__}("bf16")
products = torch.backends.mkldnn.matmul
allowed = products.fp32_precision
assert allowed == "bf16", allowed
with hard_screen.exact_sums():
    assert products.fp32_precision == "ieee"
assert products.fp32_precision == allowed
torch.manual_seed(0)
print(evaluate(torch.randn(40, 8), [i % 5 for i in range(40)], nmi=False, precision="float32")["map"])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    torch.manual_seed(0)
    plain = evaluate(torch.randn(40, 8), [i % 5 for i in range(40)], nmi=False, precision="float32")
    assert float(done.stdout) == plain["map"]


def test_a_row_without_direction_is_refused():
    with pytest.raises(InputError, match="row 1"):
        unit_rows(np.array([[1.0, 0.0], [np.nan, 0.0]]))
    with pytest.raises(InputError, match=r"zero vectors.*row 0"):
        unit_rows(np.zeros((1, 3)))
    with pytest.raises(InputError, match="shape"):
        unit_rows(np.ones(3))


def test_one_huge_class_needs_little_memory():
    """900 images of one label among 1,000: counted in parts that fit, with the same result."""
    vectors, _ = grouped(1000, 8, 1, 0.0)
    labels = (np.arange(1000) < 100).astype(np.int64)
    (whole,) = hard_ranks(unit_rows(vectors), labels)
    parts = list(hard_ranks(unit_rows(vectors), labels, memory=1 << 22))
    assert len(parts) > 5
    assert np.array_equal(np.concatenate([p.above for p in parts]), whole.above)
