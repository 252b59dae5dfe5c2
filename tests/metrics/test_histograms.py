"""The similarities that the plots show."""

import numpy as np

from forerank.metrics import unit_rows
from forerank.metrics.histograms import similarity_histogram


def test_ignored_pairs_are_not_shown_as_positives():
    # Images 0 and 1 are one, taken by one camera; 2 is a true positive at a right angle.
    rows = unit_rows(np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]]))
    labels, camera = np.array([0, 0, 0, 1]), np.array([5, 5, 6, 5])
    first, everyone = np.array([0]), np.arange(4)
    plain = similarity_histogram(rows, labels, first, everyone, bins=4)
    assert plain.positives.tolist() == [0.0, 0.0, 0.5, 0.5]
    histogram = similarity_histogram(rows, labels, first, everyone, bins=4, ignore=camera)
    assert histogram.positives.tolist() == [0.0, 0.0, 1.0, 0.0]
    assert histogram.negatives.tolist() == [1.0, 0.0, 0.0, 0.0]  # a negative of the same camera stays
