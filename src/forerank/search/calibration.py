"""The similarity above which a match is trusted, with an honest "not in the catalogue"."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from forerank.errors import InputError
from forerank.metrics.intervals import class_intervals, wilson_interval
from forerank.ranking.hard_rows import unit_rows
from forerank.ranking.hard_same import TIE, compared
from forerank.search.engine import Engine, Vectors
from forerank.search.index import Index

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Calibration:
    """A threshold and what it is worth on the queries it was chosen from.

    Precision is the share of right answers among the answers given, when a share `absent` of the queries show
    what is not in the catalogue at all; its interval comes from resampling the classes of the queries.
    """

    similarity: float  # the threshold
    wanted: float
    precision: float
    low: float  # interval of the precision, 95%
    high: float
    absent: float
    answered: float  # share of queries with a match in the catalogue that get an answer
    false_answers: float  # share of queries without one that get an answer all the same
    queries: int
    classes: int

    def to_dict(self) -> dict[str, Any]:
        """For the meta data of an index."""
        return asdict(self)

    def __str__(self) -> str:
        return (
            f"trust a match from similarity {self.similarity:.4f}: precision {self.precision:.1%} "
            f"(95% interval {self.low:.1%} to {self.high:.1%}) if {self.absent:.0%} of the queries are not "
            f"in the catalogue. Of those that are in it {self.answered:.1%} get an answer, of the others "
            f"{self.false_answers:.1%} wrongly get one. "
            f"From {self.queries:,} queries of {self.classes:,} classes."
        )


@dataclass(frozen=True)
class Trials:
    """What happens to Q queries: with their class in the catalogue, and with it taken out."""

    nearest: (
        Floats  # (Q,) similarity of the nearest image; -inf where the query's class is not in the catalogue
    )
    correct: npt.NDArray[np.bool_]  # (Q,) whether that image has the query's label
    nearest_other: Floats  # (Q,) similarity of the nearest image of another class
    labels: npt.NDArray[np.str_]  # (Q,)


def calibrate(
    index: Index,
    queries: Vectors | None = None,
    labels: Sequence[str] | None = None,
    *,
    precision: float = 0.95,
    absent: float = 0.5,
    max_queries: int = 5000,
    min_answers: int = 20,
    seed: int = 0,
    store: bool = True,
) -> Calibration:
    """Choose the lowest threshold that gives the wanted precision, and store it in the index.

    Args:
        index: a labelled index.
        queries, labels: vectors (Q, D) and labels of validation images that are not in the index, named as in
            the index. Without them every indexed image asks for the others.
        precision: wanted share of right answers among the answers given.
        absent: share of the queries that show what is not in the catalogue. They are imitated by taking a
            query's whole class out of the catalogue; then every answer is wrong.
        max_queries: queries used at most, drawn at random.
        min_answers: answers that a threshold must give among the queries to be considered at all: a few right
            answers are luck.
        seed: of the drawing and of the interval.
        store: write the threshold into the index.
    """
    if not 0 < precision < 1:
        raise InputError(f"the wanted precision lies between 0 and 1, not {precision}.")
    if not 0 <= absent < 1:
        raise InputError(f"the share of absent queries lies from 0 to below 1, not {absent}.")
    if max_queries < 1 or seed < 0:
        raise InputError(f"at least one query and a seed from 0 on are needed, not {max_queries} and {seed}.")
    trials = run_trials(index.engine, queries, labels, max_queries=max_queries, seed=seed)
    result = choose_threshold(trials, precision=precision, absent=absent, min_answers=min_answers, seed=seed)
    if store:
        index.store_threshold(result.to_dict())
    return result


def run_trials(
    engine: Engine,
    queries: Vectors | None,
    labels: Sequence[str] | None,
    *,
    max_queries: int = 5000,
    seed: int = 0,
) -> Trials:
    """Ask every query against all images and against those of other classes, in one pass."""
    generator = np.random.default_rng(seed)
    if queries is None or labels is None:
        labelled = sorted(row.id for row in engine.all_rows() if row.label)
        if not labelled:
            raise InputError("the index has no labels: give labelled images of your own as second argument.")
        chosen = generator.choice(len(labelled), size=min(max_queries, len(labelled)), replace=False)
        rows = engine.rows([labelled[i] for i in np.sort(chosen)])
        vectors = engine.vectors([row.id for row in rows])
        names = np.array([row.label for row in rows])
        own = np.array([row.content for row in rows])
    else:
        chosen = np.sort(generator.choice(len(labels), size=min(max_queries, len(labels)), replace=False))
        vectors, names = np.asarray(queries)[chosen], np.asarray(labels, dtype=np.str_)[chosen]
        own = np.full(len(names), "")
    asked = unit_rows(np.asarray(vectors)).float64(slice(None)).numpy()
    same = np.full(len(names), -np.inf)
    other = np.full(len(names), -np.inf)
    for part, part_vectors in engine.scan():
        similarities = asked @ unit_rows(part_vectors).float64(slice(None)).numpy().T  # (Q, B)
        part_labels = np.array([row.label for row in part])
        known = part_labels != ""  # an unlabelled image is neither right nor wrong
        alike = names[:, None] == part_labels[None, :]
        # Not itself, nor a copy of itself: finding the same bytes again proves nothing.
        copies = own[:, None] == np.array([row.content for row in part])[None, :]
        same = np.maximum(same, np.where(alike & ~copies, similarities, -np.inf).max(axis=1))
        other = np.maximum(other, np.where(~alike & known, similarities, -np.inf).max(axis=1))
    present = np.isfinite(same)
    # A negative tied with the positive stands before it, as in every count: the answer is wrong.
    above, tied = compared(other, same)
    return Trials(np.where(present, np.maximum(same, other), -np.inf), ~(above | tied), other, names)


def choose_threshold(
    trials: Trials, *, precision: float, absent: float, min_answers: int = 20, seed: int = 0
) -> Calibration:
    """The lowest threshold whose precision is the wanted one, with an interval by resampling classes."""
    present = np.isfinite(trials.nearest)
    gone = np.isfinite(trials.nearest_other)
    if not present.any():
        raise InputError(
            "no query has another image of its own label in the index: there is nothing to calibrate on."
        )
    if absent and not gone.any():
        raise InputError("the index has a single class: nothing stands for what is not in the catalogue.")
    weight_present = (1 - absent) / present.sum()
    weight_absent = absent / max(1, gone.sum())
    similarity = np.concatenate([trials.nearest[present], trials.nearest_other[gone]])
    right = np.concatenate([trials.correct[present], np.zeros(gone.sum(), bool)])
    weight = np.concatenate([np.full(present.sum(), weight_present), np.full(gone.sum(), weight_absent)])
    names = np.concatenate([trials.labels[present], trials.labels[gone]])
    # Without absent queries their similarities are no thresholds either.
    counts = weight > 0
    similarity, right, weight, names = similarity[counts], right[counts], weight[counts], names[counts]

    order = np.argsort(-similarity, kind="stable")
    given = np.cumsum(weight[order])
    correct = np.cumsum((weight * right)[order])
    # Equal similarities are accepted together: only the last of them is a possible threshold.
    last = np.append(np.diff(similarity[order]) < -TIE, True)
    enough = np.arange(1, len(order) + 1) >= min_answers
    curve = np.where(last & enough, correct / given, 0.0)
    good = np.flatnonzero(curve >= precision)
    if not len(good):
        best = int(np.argmax(curve))
        raise InputError(
            f"no threshold gives a precision of {precision:.1%} with {min_answers} answers or more: the best "
            f"is {curve[best]:.1%}, from similarity {similarity[order][best]:.4f} on. Ask for less, or train "
            "a better model."
        )
    threshold = float(similarity[order][good[-1]])
    accepted = similarity >= threshold
    low, high = _interval(weight * accepted, weight * accepted * right, names, seed)
    return Calibration(
        similarity=threshold,
        wanted=precision,
        precision=float(curve[good[-1]]),
        low=low,
        high=high,
        absent=absent,
        answered=float((trials.nearest[present] >= threshold).mean()),
        false_answers=float((trials.nearest_other[gone] >= threshold).mean()) if gone.any() else 0.0,
        queries=len(trials.labels),
        classes=len(np.unique(trials.labels)),
    )


def _interval(given: Floats, right: Floats, names: npt.NDArray[np.str_], seed: int) -> tuple[float, float]:
    """95% interval of sum(right) / sum(given), drawing classes anew: images of one class err together."""
    low, high = class_intervals(right[:, None], names, given, seed=seed)[:, 0].tolist()
    classes, code = np.unique(names, return_inverse=True)
    answered, wrong = (np.bincount(code, weight, len(classes)) for weight in (given, given - right))
    # A rare error is missing from most draws: where few classes err, the classes answered set the limits.
    if (wrong > 1e-12).sum() < 5:
        wilson = wilson_interval(float(right.sum() / given.sum()), int((answered > 0).sum()))
        low, high = min(low, wilson[0]), max(high, wilson[1])
    return float(low), float(high)
