"""Every table and figure of the paper by name, and what each needs."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from forerank.paper import all_methods, sweeps, tables
from forerank.paper.methods import WITHOUT_POSITIVES
from forerank.paper.published import published_table
from forerank.paper.study import Condition, Run, Study


@dataclass(frozen=True)
class Experiment:
    """One result of the paper.

    Attributes:
        name: what `forerank paper run` takes.
        kind: a table or a figure.
        title: what it shows.
        reference: where the paper has it; "ours" if it only argues about it.
        native: the data set the paper used, None if only formulas or the toy are needed.
        conditions: what has to be trained.
        most_seeds: how many seeds it looks at, at most; None: all.
    """

    name: str
    kind: Literal["table", "figure"]
    title: str
    reference: str
    native: str | None
    conditions: Callable[[Study], list[Condition]]
    most_seeds: int | None = None

    def plan(self, study: Study) -> list[Run]:
        """The training runs that it needs."""
        return study.plan(self.conditions(study), self.most_seeds)


def _nothing(study: Study) -> list[Condition]:
    return []


def _table(name: str) -> Experiment:
    published = published_table(name)
    return Experiment(
        name,
        "table",
        published.title,
        published.number,
        tables.NATIVE[name],
        lambda study: tables.conditions(name, study),
    )


def _sweep(name: str, title: str) -> Experiment:
    return Experiment(name, "figure", title, "Figure 8", "sop", lambda study: sweeps.conditions(name))


_ALL = (
    *(_table(name) for name in tables.NATIVE),
    Experiment(
        "label-noise",
        "table",
        "Wrong training labels: 0, 20, 40%",
        "argued, not run",
        "sop",
        lambda study: tables.conditions("label-noise", study),
    ),
    Experiment(
        "redundancy",
        "table",
        "AP without the positives before a positive",
        "argued, not run",
        "sop",
        lambda study: [Condition(m) for m in (WITHOUT_POSITIVES, "Smooth-AP", "Dq")],
    ),
    Experiment(
        "alpha-crash",
        "table",
        "Does a large alpha break training? The power as printed, and as computed here",
        "Impact of hyper-parameters",
        "sop",
        lambda study: [
            sweeps.naive_condition(a, naive=n) for a in sweeps.NAIVE_ALPHAS for n in (True, False)
        ],
    ),
    Experiment(
        all_methods.NAME,
        "table",
        "Every method of the registry: where it began, what it reached",
        "ours",
        "sop",
        lambda study: all_methods.all_conditions(),
    ),
    Experiment(
        "all-weights",
        "table",
        "The central losses with all weights trained, where a head alone stands in elsewhere",
        "ours",
        "sop",
        lambda study: tables.conditions("all-weights", study),
    ),
    Experiment(
        "ap-surface", "figure", "The AP loss over positives and negatives before", "Figure 1", None, _nothing
    ),
    Experiment("penalties", "figure", "Penalties on negatives before positives", "Figure 2", None, _nothing),
    Experiment(
        "loss-variants", "figure", "The five losses and their derivatives", "Figure 3", None, _nothing
    ),
    Experiment(
        "centres", "figure", "Several centres in one class: PNP-I and PNP-D", "Figure 4", None, _nothing
    ),
    Experiment("ap-gradients", "figure", "Gradients of AP and of PNP-Dq", "Figure 5", None, _nothing),
    Experiment("toy", "figure", "The toy: unseen classes on the circle", "Figure 6", None, _nothing),
    Experiment(
        "retrieval-examples",
        "figure",
        "Retrieval examples with green and red frames",
        "Figure 7",
        "sop",
        lambda study: [Condition("Dq")],
        most_seeds=1,
    ),
    _sweep("sweep-alpha", "Steepness alpha of PNP-Dq"),
    _sweep("sweep-b", "Boundary b of PNP-Ib"),
    _sweep("sweep-p", "Images per class |P|"),
)
EXPERIMENTS: dict[str, Experiment] = {experiment.name: experiment for experiment in _ALL}
"""The tables and figures of the paper by name, in the order of `forerank paper list`."""
