"""k-means and mutual information against plain Lloyd iterations, scikit-learn and faiss."""

import numpy as np
import pytest
from sklearn.metrics import normalized_mutual_info_score

from forerank.errors import InputError
from forerank.metrics import kmeans, normalized_mutual_information
from forerank.ranking.hard_rows import unit_rows


def points(count=900, dim=16, seed=0):
    generator = np.random.default_rng(seed)
    hidden = np.tanh(generator.normal(size=(count, 3)) @ generator.normal(size=(3, dim)))
    return hidden + 0.1 * generator.normal(size=(count, dim))


@pytest.mark.parametrize("seed", range(20))
def test_nmi_is_scikit_learns(seed):
    generator = np.random.default_rng(seed)
    first = generator.integers(generator.integers(1, 30), size=200)
    second = np.where(generator.random(200) < 0.5, first, generator.integers(10, size=200))
    assert normalized_mutual_information(first, second) == pytest.approx(
        normalized_mutual_info_score(first, second), abs=1e-12
    )


def lloyd(vectors, start, iterations):
    """All points against all centres every time, in float64."""
    centres = vectors[start].copy()
    for _ in range(iterations):
        assigned = ((vectors[:, None] - centres) ** 2).sum(axis=2).argmin(axis=1)
        for k in range(len(centres)):
            centres[k] = vectors[assigned == k].mean(axis=0)
    assigned = ((vectors[:, None] - centres) ** 2).sum(axis=2).argmin(axis=1)
    return assigned, ((vectors - centres[assigned]) ** 2).sum()


@pytest.mark.parametrize("iterations", [1, 3, 20])
def test_skipping_what_did_not_move_changes_nothing(iterations):
    import torch

    rows = unit_rows(points())
    start = torch.randperm(900, generator=torch.Generator().manual_seed(5))[:40].numpy()
    expected, squares = lloyd(rows.float64(slice(0, 900)).numpy(), start, iterations)
    assigned, centres = kmeans(rows, 40, iterations=iterations, seed=5)
    assert centres == pytest.approx(squares, rel=1e-5)
    assert (assigned == expected).mean() > 0.99  # points between two centres may fall either way in float32


def test_as_good_as_faiss():
    faiss = pytest.importorskip("faiss")
    vectors = points(3000)
    rows = unit_rows(vectors)
    unit = rows.float32(slice(0, 3000)).numpy()
    ours, theirs = [], []
    for seed in range(5):
        ours.append(kmeans(rows, 150, seed=seed)[1])
        judge = faiss.Kmeans(16, 150, niter=20, seed=seed, min_points_per_centroid=1)
        judge.train(unit)
        theirs.append(float(judge.index.search(unit, 1)[0].sum()))
    assert np.mean(ours) == pytest.approx(np.mean(theirs), rel=0.01)


def test_seeded():
    rows = unit_rows(points())
    first, again, other = (kmeans(rows, 30, seed=seed)[0] for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_empty_clusters_are_filled():
    # 50 copies of one point among 30 others: random starts coincide, and their clusters start empty.
    generator = np.random.default_rng(0)
    vectors = np.concatenate([np.ones((50, 8)), generator.normal(size=(30, 8))])
    assigned, _ = kmeans(unit_rows(vectors), 20, seed=0)
    assert len(np.unique(assigned)) >= 19
    with pytest.raises(InputError, match="cannot form"):
        kmeans(unit_rows(vectors), 81)
