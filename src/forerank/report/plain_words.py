"""What a run achieved, in words for people who do not know the metrics."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerank.console import percent
from forerank.metrics.registry import title
from forerank.report.readings import recall_difference, shown_value

# Below this many classes an interval over classes says little itself.
FEW_CLASSES = 10
# Figures that should move together; a change below this is not told.
COMPARED, SMALLEST = ("recall@1", "map@r"), 0.002


def plain_sentence(before: Any | None, after: Any, *, changed: bool = True) -> str:
    """Recall@1 in one sentence; `before` and `after` are evaluations or mappings of figures.

    >>> plain_sentence({"recall@1": 0.583}, {"recall@1": 0.652})
    'Of 100 searches 65 now find the right class first; before it was 58.'
    >>> plain_sentence({"recall@1": 0.583}, {"recall@1": 0.583}, changed=False)
    'Of 100 searches 58 find the right class first; training did not help, so the model from before is kept.'
    """
    now = percent(after["recall@1"], digits=0, mark=False)
    if before is None:
        return f"Of 100 searches {now} find the right class first."
    if not changed:
        return (
            f"Of 100 searches {now} find the right class first; "
            "training did not help, so the model from before is kept."
        )
    return f"Of 100 searches {now} now find the right class first; before it was {_before(before, after)}."


def _before(before: Any, after: Any) -> str:
    """The figure from before, with a decimal where rounding would hide the change."""
    shares = before["recall@1"], after["recall@1"]
    old, new = (percent(share, digits=0, mark=False) for share in shares)
    if old != new or shares[0] == shares[1]:
        return old
    return f"{percent(shares[0], mark=False)} (now {percent(shares[1], mark=False)})"


def plain_warnings(before: Any | None, after: Any, labels: NDArray[Any]) -> list[str]:
    """What speaks against trusting the sentence: too few classes, chance, figures that contradict.

    Args:
        before: evaluation of the model from before, or None.
        labels: (N,) classes of the rows that were evaluated.

    >>> plain_warnings(None, {"recall@1": 1.0}, np.array(["a", "a", "b", "b"]))
    ['only 2 classes were searched: too few to tell how well the model finds others']
    """
    warnings = []
    classes = len(np.unique(labels))
    if classes < FEW_CLASSES:
        warnings.append(
            f"only {classes} classes were searched: too few to tell how well the model finds others"
        )
    if before is None:
        return warnings
    spread = recall_difference(before, after, labels)
    if spread is not None and before["recall@1"] != after["recall@1"] and spread[0] <= 0 <= spread[1]:
        low, high = (shown_value("recall@1", end, True) for end in spread)
        warnings.append(
            f"the change of Recall@1 may be chance: on other classes of this kind it could lie anywhere "
            f"between {low} and {high} points"
        )
    changes = {key: after[key] - before[key] for key in COMPARED if key in after and key in before}
    rose = [key for key, change in changes.items() if change > SMALLEST]
    fell = [key for key, change in changes.items() if change < -SMALLEST]
    if rose and fell:
        up, down = (shown_value(key, abs(changes[key])) for key in (rose[0], fell[0]))
        warnings.append(
            f"{title(rose[0])} rose by {up} points but {title(fell[0])} fell by {down}: look at both before "
            "you decide"
        )
    return warnings
