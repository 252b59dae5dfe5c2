"""dists@intra and dists@inter against loops over pairs."""

import numpy as np
import pytest

from forerank.metrics import class_distances
from forerank.ranking.hard_rows import unit_rows


def test_equals_loops_over_pairs():
    generator = np.random.default_rng(0)
    vectors, labels = generator.normal(size=(60, 5)) + 1, generator.integers(9, size=60)
    labels[0] = 99  # a class of one image has a centre but no pair
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    within, centres = [], []
    for label in np.unique(labels):
        members = unit[labels == label]
        centre = members.mean(axis=0)
        centres.append(centre / np.linalg.norm(centre))
        if len(members) > 1:
            pairs = [1 - a @ b for i, a in enumerate(members) for b in members[:i]]
            within.append(np.mean(pairs))
    between = [1 - a @ b for i, a in enumerate(centres) for b in centres[:i]]
    distances = class_distances(unit_rows(vectors), labels)
    assert distances == pytest.approx((np.mean(within), np.mean(between)), abs=1e-12)


def test_tight_classes_lose_no_digits():
    """Vectors 1e-6 apart: the distance, 5e-13, survives the subtraction of sums."""
    vectors = np.array([[1.0, 0.0], [1.0, 1e-6]])
    assert class_distances(unit_rows(vectors), np.array([0, 0]))[0] == pytest.approx(5e-13, rel=1e-2)


def test_equal_centres_are_not_nearer_than_equal():
    for vector in np.random.default_rng(0).normal(size=(20, 7)):
        inter = class_distances(unit_rows(np.stack([vector] * 9)), np.arange(9) % 3)[1]
        assert 0.0 <= inter < 1e-12


def test_chosen_rows_only():
    vectors, labels = np.eye(3)[[0, 0, 1, 2]], np.array([0, 0, 1, 1])
    assert class_distances(unit_rows(vectors), labels, np.array([0, 1, 2])) == pytest.approx((0.0, 1.0))
