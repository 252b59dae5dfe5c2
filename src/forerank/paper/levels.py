"""What each loss reached, and where it began: the levels behind the differences that claims are judged by."""

import numpy as np

from forerank.paper.study import COMPARED, Condition, Study
from forerank.paper.tables import NOISE_RATES, spread
from forerank.report.tables import Cell, ResultTable


def below_start(study: Study, condition: Condition) -> bool:
    """Whether training made R@1 on the test classes worse than that of the network before it."""
    began, ended = study.started(condition, "recall@1"), study.measured(condition, "recall@1")
    return bool(began and ended) and float(np.mean(ended)) < float(np.mean(began))


def levels_table(study: Study) -> ResultTable | None:
    """A row per condition that claims compare, with its figures at the end and at the start."""
    ways: tuple[dict[str, float], ...] = (
        {},
        {"batch": study.setting.compared},
        {"merged": 3},
        *({"noise": rate} for rate in NOISE_RATES[1:]),
        {"all_weights": True},
    )
    rows: list[list[Cell]] = []
    for way in ways:
        for method in COMPARED:
            condition = Condition(method, **way)  # type: ignore[arg-type]
            measured = study.measured(condition, "recall@1")
            if not measured:
                continue
            worse = " (below its start)" if below_start(study, condition) else ""
            rows.append(
                [
                    str(condition),
                    len(measured),
                    f"{spread(measured)}{worse}",
                    spread(study.measured(condition, "map@r")),
                    spread(study.started(condition, "recall@1")),
                    study.unlearned(condition) or None,
                ]
            )
    if not rows:
        return None
    return ResultTable(
        ["condition", "seeds", "R@1", "mAP@R", "R@1 at the start", "runs that learned nothing"],
        rows,
        title=f"What each loss reached on the test classes of {study.on} (%)",
        notes=[
            "± is the standard deviation over seeds. Rates and checkpoints are chosen by "
            f"{study.recipe(Condition(), 0).evaluation.choose_by} on validation classes and never on these: "
            "here R@1 may end below its start."
        ],
    )
