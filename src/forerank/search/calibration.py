"""The similarity above which a match is trusted, with an honest "not in the catalogue"."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from forerank.console import percent
from forerank.errors import InputError
from forerank.metrics.intervals import class_intervals, wilson_interval
from forerank.metrics.ranked_lists import ranked
from forerank.ranking.hard_rows import unit_rows
from forerank.ranking.hard_same import TIE, compared
from forerank.search.engine import Engine, Vectors
from forerank.search.index import Index
from forerank.search.vote import Vote, count_votes

Floats = npt.NDArray[np.float64]


# A threshold that answers a smaller share of the questions than this is stored only on demand.
FEW_ANSWERS = 0.1
CURVE_POINTS = 60


@dataclass(frozen=True)
class CurvePoint:
    """What one threshold would give: the page's slider goes along these."""

    similarity: float
    precision: float
    answered: float  # share of queries with a match in the catalogue that get an answer


@dataclass(frozen=True)
class Calibration:
    """A threshold and what it is worth on the queries it was chosen from.

    Precision is the share of right answers among the answers given, when a share `absent` of the queries show
    what is not in the catalogue at all; its interval comes from resampling the classes of the queries.

    With `neighbours` of 1 the answer is the label of the nearest image, and `similarity` is that image's.
    With more the nearest images vote, and `similarity` is compared with the support of the winner (see
    `search.vote`).
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
    neighbours: int = 1  # how many nearest images decide
    curve: tuple[CurvePoint, ...] = ()  # from the highest threshold to the lowest

    def to_dict(self) -> dict[str, Any]:
        """For the meta data of an index."""
        return {**asdict(self), "curve": [asdict(point) for point in self.curve]}

    def __str__(self) -> str:
        if self.neighbours == 1:
            rule = f"trust a match from similarity {self.similarity:.4f}"
        else:
            rule = f"trust a vote of the nearest {self.neighbours} from support {self.similarity:.4f}"
        return (
            f"{rule}: {promise(self.to_dict())} if {percent(self.absent, digits=0)} of the queries are not "
            f"in the catalogue. Of those that are in it {percent(self.answered)} get an answer, "
            f"of the others {percent(self.false_answers)} wrongly get one. "
            f"From {self.queries:,} queries of {self.classes:,} classes."
        )


def promise(stored: Mapping[str, Any]) -> str:
    """What a stored threshold promises, in words that a finite number of trials can support.

    >>> promise({"precision": 0.953, "low": 0.91, "high": 0.97})
    'about 95% of the answers are right (91% to 97%)'
    >>> promise({"precision": 0.953, "low": 0.91, "high": 1.0})
    'about 95% of the answers are right (91% or more)'
    >>> promise({"precision": 1.0, "low": 0.93, "high": 1.0})
    'at least 93% of the answers are right'
    """
    precision, low = (math.floor(100 * stored[name]) for name in ("precision", "low"))
    low, high = min(low, 99), math.ceil(100 * stored["high"])
    if precision >= 100:
        return f"at least {low}% of the answers are right"
    ends = f"{low}% to {high}%" if high < 100 else f"{low}% or more"
    return f"about {precision}% of the answers are right ({ends})"


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
    neighbours: int = 1,
    anyway: bool = False,
) -> Calibration:
    """Choose the lowest threshold that gives the wanted precision, and store it in the index.

    The threshold of the nearest image is what searches obey. That of a vote is stored beside it, under
    "vote".

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
        neighbours: how many nearest images decide by a vote; 1 asks the nearest alone.
        anyway: store a threshold that leaves most questions without an answer, too.
    """
    if not 0 < precision < 1:
        raise InputError(f"the wanted precision lies between 0 and 1, not {precision}.")
    if not 0 <= absent < 1:
        raise InputError(f"the share of absent queries lies from 0 to below 1, not {absent}.")
    if max_queries < 1 or seed < 0:
        raise InputError(f"at least one query and a seed from 0 on are needed, not {max_queries} and {seed}.")
    if not 1 <= neighbours <= 100:
        raise InputError(f"from 1 to 100 nearest images can decide, not {neighbours}.")
    trials = run_trials(
        index.engine, queries, labels, max_queries=max_queries, seed=seed, neighbours=neighbours
    )
    result = choose_threshold(trials, precision=precision, absent=absent, min_answers=min_answers, seed=seed)
    result = replace(result, neighbours=neighbours)
    if store and result.answered < FEW_ANSWERS and not anyway:
        raise InputError(_too_few(result))
    if store:
        known = dict(index.meta.get("threshold") or {})
        if neighbours > 1:
            index.store_threshold({**known, "vote": result.to_dict()})
        else:
            kept = {"vote": known["vote"]} if "vote" in known else {}
            index.store_threshold({**result.to_dict(), **kept})
    return result


def _too_few(result: Calibration) -> str:
    """Why a threshold is not stored, with the precision at which it would be useful."""
    useful = [point for point in result.curve if point.answered >= max(FEW_ANSWERS, 0.3)]
    best = max(useful, key=lambda point: point.precision, default=None)
    instead = (
        ""
        if best is None
        else f"; with --precision {math.floor(100 * best.precision) / 100:.2f} "
        f"about {percent(best.answered, digits=0)} are"
    )
    return (
        f"a precision of {percent(result.wanted)} needs similarity {result.similarity:.4f}, and then only "
        f"{percent(result.answered)} of the questions about things in the catalogue are answered{instead}. "
        "Nothing was stored: ask for less, train a better model, or store it all the same with --anyway."
    )


def run_trials(
    engine: Engine,
    queries: Vectors | None,
    labels: Sequence[str] | None,
    *,
    max_queries: int = 5000,
    seed: int = 0,
    neighbours: int = 1,
) -> Trials:
    """Ask every query against all images and against those of other classes, in one pass.

    With several `neighbours` the nearest images vote, and the similarities of the trials are supports.
    """
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
    same = np.full((len(names), neighbours), -np.inf)  # the nearest of the query's own class, nearest first
    other = same.copy()
    other_labels = np.full((len(names), neighbours), "", dtype=object)
    for part, part_vectors in engine.scan():
        similarities = asked @ unit_rows(part_vectors).float64(slice(None)).numpy().T  # (Q, B)
        part_labels = np.array([row.label for row in part], dtype=object)
        known = part_labels != ""  # an unlabelled image is neither right nor wrong
        alike = names[:, None] == part_labels[None, :]
        # Not itself, nor a copy of itself: finding the same bytes again proves nothing.
        copies = own[:, None] == np.array([row.content for row in part])[None, :]
        same, _ = _nearest(same, None, np.where(alike & ~copies, similarities, -np.inf), None)
        apart = np.where(~alike & known, similarities, -np.inf)
        other, merged = _nearest(other, other_labels, apart, part_labels)
        other_labels = other_labels if merged is None else merged
    present = np.isfinite(same[:, 0])
    if neighbours == 1:
        # A negative tied with the positive stands before it, as in every count: the answer is wrong.
        above, tied = compared(other[:, 0], same[:, 0])
        nearest = np.where(present, np.maximum(same[:, 0], other[:, 0]), -np.inf)
        return Trials(nearest, ~(above | tied), other[:, 0], names)
    support, correct = np.full(len(names), -np.inf), np.zeros(len(names), bool)
    support_other = np.full(len(names), -np.inf)
    for i, name in enumerate(names.tolist()):
        wrong = [(s, label) for s, label in zip(other[i], other_labels[i], strict=True) if np.isfinite(s)]
        right = [(s, name) for s in same[i] if np.isfinite(s)]
        if wrong:
            support_other[i] = _vote(wrong, neighbours).support
        if right:
            both = [*wrong, *right]
            is_right = np.arange(len(both)) >= len(wrong)
            order = ranked(np.array([s for s, _ in both]), is_right, np.arange(len(both)))
            vote = _vote([both[place] for place in order], neighbours)
            support[i], correct[i] = vote.support, vote.label == name
    return Trials(support, correct, support_other, names)


def _vote(images: Sequence[tuple[float, str]], voters: int) -> Vote:
    vote = count_votes([label for _, label in images], [similarity for similarity, _ in images], voters)
    assert vote is not None  # every image of the trials has a label
    return vote


def _nearest(
    best: Floats, labels: npt.NDArray[Any] | None, new: Floats, new_labels: npt.NDArray[Any] | None
) -> tuple[Floats, npt.NDArray[Any] | None]:
    """The k largest of (Q, k) and (Q, B) in each row, largest first, with their labels if they have any."""
    k = best.shape[1]
    some = np.argpartition(-new, min(k, new.shape[1]) - 1, axis=1)[:, :k]
    values = np.concatenate([best, np.take_along_axis(new, some, axis=1)], axis=1)
    order = np.argsort(-values, axis=1, kind="stable")[:, :k]
    joined = None
    if labels is not None and new_labels is not None:
        joined = np.take_along_axis(np.concatenate([labels, new_labels[some]], axis=1), order, axis=1)
    return np.take_along_axis(values, order, axis=1), joined


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
            f"no threshold gives a precision of {percent(precision)} with {min_answers} answers or more: "
            f"the best is {percent(curve[best])}, from similarity {similarity[order][best]:.4f} on. "
            "Ask for less, or train a better model."
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
        curve=_curve(similarity[order], curve, last & enough, trials.nearest[present]),
    )


def _curve(
    thresholds: Floats, precision: Floats, possible: npt.NDArray[np.bool_], present: Floats
) -> tuple[CurvePoint, ...]:
    """Precision against the share answered, at thresholds that answer evenly growing shares."""
    places = np.flatnonzero(possible)
    places = places[np.unique(np.linspace(0, len(places) - 1, CURVE_POINTS).round().astype(int))]
    return tuple(
        CurvePoint(
            round(float(thresholds[i]), 6),
            round(float(precision[i]), 4),
            round(float((present >= thresholds[i]).mean()), 4),
        )
        for i in places
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
