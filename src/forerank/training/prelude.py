"""What happened before a run that is to be told with it: a search, and rows of results."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from forerank.metrics import Evaluation
from forerank.metrics.registry import is_share, shown, title
from forerank.report.summary import Section


@dataclass(frozen=True)
class Prelude:
    """Results and words of what came before a run.

    Attributes:
        rows: test rows that stand before the run's own.
        sections: parts of the report.
        trials: how many trainings were compared to choose the settings.
        plain: the choosing figure of the model that the first row is about, if not the run's own.
    """

    rows: Mapping[str, Evaluation] = field(default_factory=dict)
    sections: tuple[Section, ...] = ()
    trials: int = 0
    plain: float | None = None


def gains_sentence(trials: int, figure: str, chosen: float, tested: float) -> str:
    """The gain on the classes that chose, and on classes that chose nothing.

    Their difference is not how much was luck: the two kinds of classes may also be differently hard.

    Args:
        chosen: gain of the figure on the validation classes, as a share.
        tested: gain on the test classes.

    >>> print(gains_sentence(30, "map@r", 0.05, 0.04))
    30 trainings were compared; on the validation classes, which chose, the gain of the chosen one is 5.0 \
points of mAP@R; on the test classes, which chose nothing, it is 4.0 points: expect the second
    """

    def points(gain: float) -> str:
        return shown(figure, gain, digits=1, mark=False) + " points" * is_share(figure)

    compared = "1 training was measured" if trials == 1 else f"{trials:,} trainings were compared"
    return (
        f"{compared}; on the validation classes, which chose, the gain of the chosen one is "
        f"{points(chosen)} of {title(figure)}; on the test classes, which chose nothing, it is "
        f"{points(tested)}: expect the second"
    )
