"""A study: one data set, some seeds, a folder; and the conditions of the paper as training runs in it.

A condition says what is varied (method, batch, |P|, merged classes, wrong labels, options of the loss).
Together with a seed it is a recipe. A fingerprint of the recipe names the run folder, so experiments that
need the same recipe share its run, and a finished run is never trained again.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from forerank.errors import check_name
from forerank.paper.methods import METHODS, WITHOUT_POSITIVES
from forerank.training.recipe import INCIDENTAL, Recipe, flatten, load_recipe, override

RESULT = "paper.json"  # what this room keeps of a run, in the run's folder


@dataclass(frozen=True)
class Setting:
    """How the paper's protocol is carried to a data set.

    Attributes:
        values: recipe assignments for every run, over the shipped recipe of the same name.
        batch: images in a step for the variants, the sweeps and the robustness (112 in the paper).
        compared: batch of the comparison tables (384; 224 for iNaturalist).
        merged: batch where classes are merged, if so few are left that `batch` does not fit; None: `batch`.
        rates: learning rates from which one is chosen for every method; empty: the recipe's own, as the
        paper.
        tuning: recipe assignments for the runs that choose; none: they are as long as those that measure.
        all_weights: recipe assignments that train all weights, where `values` train a head alone.
    """

    values: tuple[str, ...] = ()
    batch: int = 112
    compared: int = 384
    merged: int | None = None
    rates: tuple[float, ...] = ()
    tuning: tuple[str, ...] = ()
    all_weights: tuple[str, ...] = ()

    @property
    def quick(self) -> bool:
        """Whether a run takes about a minute on a processor, so that everything can be run many times."""
        return bool(self.rates)


# For many short runs: no report for each, one list of recalls that answers every table.
_LEAN = ("evaluation.report=false", "evaluation.ks=[1,4,5,10,16,32,100,1000]")
SETTINGS: dict[str, Setting] = {
    # Half the channels: a quarter of the multiplications, and recall@1 falls by a point or two.
    "glyphs": Setting(
        ("model.backbone=glyphnet-small", "schedule.steps=600", "evaluation.every=300", *_LEAN),
        compared=224,
        rates=(3e-4, 1e-3, 3e-3),  # tried at full length: 200 steps choose rates that are too high for 600
    ),
    # 30 of the 100 training classes choose: ten of them choose rates that harm the test classes. Nothing is
    # blended with the start, which would hide differences between the losses. All weights are trained and
    # measured on smaller views, because such runs would otherwise take half a day on two cores. The images
    # of this data set are known to be sound.
    "cub": Setting(
        (
            "mode=head",
            "schedule.steps=600",
            "evaluation.every=100",
            "data.validation=0.3",
            "data.check=false",
            "optimiser.blend=null",
            *_LEAN,
        ),
        batch=112,
        compared=224,
        merged=92,  # 70 classes in groups of three are 23
        rates=(1e-4, 3e-4, 9e-4),
        tuning=("schedule.steps=300",),
        all_weights=(
            "mode=full",
            "model.frozen=0",
            "data.train_size=128",
            "model.image_size=128",
            "schedule.steps=100",
            "evaluation.every=100",
            "batch.batch_size=64",
        ),
    ),
    "cars": Setting(compared=224),
    "inshop": Setting(),
    "sop": Setting(),
    "vehicle_id": Setting(),
    "inaturalist": Setting(compared=224),
}
# The boundary b that the paper found best on its own data sets, and reports there.
PAPER_VALUES: dict[str, dict[str, tuple[str, ...]]] = {
    "sop": {"Ib": ("loss.options.b=4",)},
    "vehicle_id": {"Ib": ("loss.options.b=1",)},
}


@dataclass(frozen=True)
class Condition:
    """What one cell of a table, or one point of a curve, was trained under.

    What it leaves open (learning rate, b, the proxies' rate) has one value per method in a study, the same in
    every experiment.
    """

    method: str = "Dq"
    batch: int | None = None  # None: the setting's batch
    images_per_class: int = 4
    merged: int = 0
    noise: float = 0.0
    options: tuple[tuple[str, float], ...] = ()
    all_weights: bool = False  # only where the setting trains a head

    def __str__(self) -> str:
        parts = [self.method, *(f"{key}={_text(value)}" for key, value in self.options)]
        if self.batch:
            parts.append(f"batch {self.batch}")
        if self.images_per_class != 4:
            parts.append(f"|P|={self.images_per_class}")
        if self.merged:
            parts.append(f"classes merged by {self.merged}")
        if self.noise:
            parts.append(f"{self.noise:.0%} wrong labels")
        if self.all_weights:
            parts.append("all weights")
        return ", ".join(parts)


# Conditions of these methods stand in claims that compare two losses.
COMPARED = (
    "O", "Iu", "Ib", "Ds", "Dq", WITHOUT_POSITIVES, "Smooth-AP", "FastAP", "Contrastive with memory"
)  # fmt: skip


@dataclass(frozen=True)
class Run:
    """One training run: a complete recipe and where it goes.

    `chooses`: it chooses values on the validation classes, and its test numbers are never read.
    """

    title: str
    recipe: Recipe
    folder: Path
    chooses: bool = False

    @property
    def key(self) -> str:
        return self.folder.name

    def result(self) -> dict[str, Any] | None:
        """What the ended run measured (see `run_results.write_result`); None as long as it has not ended."""
        path = self.folder / RESULT
        if not path.is_file():
            return None
        values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return values


@dataclass(frozen=True)
class Study:
    """A data set, its seeds, and the folders for results and runs.

    Args:
        on: data set to train on, by the name of its recipe.
        seeds: of conditions that stand in claims comparing two losses, from 0 up.
        other_seeds: of all other conditions, from 0 up, never more than `seeds`.
        folder: what is written: `tables`, `figures`, `index.html`.
        runs: folder of the training runs, shared by all experiments.
        roots: data set name -> where its images lie.
        values: further recipe assignments for every run.
        chosen: method -> recipe assignments that were chosen for it, see `tuning`.
        beside: studies of other data sets, shown beside this one in the figures that allow it.
    """

    on: str = "glyphs"
    seeds: int = 10
    other_seeds: int = 3
    folder: Path = Path("runs/paper/glyphs")
    runs: Path = Path("runs/paper/glyphs/training")
    roots: Mapping[str, str] = field(default_factory=dict)
    values: tuple[str, ...] = ()
    chosen: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    beside: tuple["Study", ...] = ()

    def __post_init__(self) -> None:
        check_name("data set", self.on, SETTINGS)

    @property
    def setting(self) -> Setting:
        return SETTINGS[self.on]

    def values_of(self, method: str) -> tuple[str, ...]:
        """The recipe assignments of a method in this study: chosen here, or found best by the paper."""
        return self.chosen.get(method) or PAPER_VALUES.get(self.on, {}).get(method, ())

    def recipe(self, condition: Condition, seed: int, extra: tuple[str, ...] = ()) -> Recipe:
        """The complete recipe of a condition and a seed; only the study's own values override `extra`."""
        values = (*self.values_of(condition.method), *_options(condition), *extra)
        if condition.all_weights:  # the chosen rates are those of a head
            values = tuple(value for value in values if value.startswith("loss."))
        return _recipe(self.on, self.roots.get(self.on), condition, seed, values, self.values)

    def run(
        self, condition: Condition, seed: int, extra: tuple[str, ...] = (), *, chooses: bool = False
    ) -> Run:
        """The run of a condition and a seed; its folder is named by the method, the seed and the recipe."""
        recipe = self.recipe(condition, seed, extra)
        words = "".join(c if c.isalnum() else "-" for c in condition.method.lower()).strip("-")
        folder = self.runs / f"{words}-seed{seed}-{fingerprint(recipe)}"
        return Run(f"{condition}, seed {seed}", recipe, folder, chooses)

    def seeds_of(self, condition: Condition) -> range:
        """The seeds of a condition: more where a claim compares two losses."""
        usual = not condition.options and condition.images_per_class == 4
        central = condition.method in COMPARED and usual
        few = min(self.seeds, self.other_seeds)
        return range(self.seeds if central and not condition.all_weights else few)

    def plan(self, conditions: Iterable[Condition], most: int | None = None) -> list[Run]:
        """Every run the conditions need, each once; of `most` seeds at most."""
        runs = [self.run(c, seed) for c in conditions for seed in self.seeds_of(c)[:most]]
        return list({run.key: run for run in runs}.values())

    def results(self, condition: Condition) -> dict[int, dict[str, Any]]:
        """Seed -> what its run measured, for the runs that have ended."""
        results = {seed: self.run(condition, seed).result() for seed in self.seeds_of(condition)}
        return {seed: result for seed, result in results.items() if result is not None}

    def by_seed(self, condition: Condition, metric: str) -> dict[int, float]:
        """Seed -> the metric of its run as the paper prints it (recall and NMI in percent)."""
        factor = 1 if metric.startswith(("dists", "correlation")) else 100
        return {
            seed: factor * result["metrics"][metric]
            for seed, result in self.results(condition).items()
            if result["metrics"].get(metric) is not None
        }

    def measured(self, condition: Condition, metric: str) -> list[float]:
        """The metric of each seed's run; runs that have not ended are left out."""
        return list(self.by_seed(condition, metric).values())

    def started(self, condition: Condition, metric: str) -> list[float]:
        """The metric (%) of each seed's network before training."""
        results = self.results(condition).values()
        return [100 * result["start"][metric] for result in results if "start" in result]

    def broken(self, condition: Condition) -> int:
        """How many seeds of a condition ended with a loss that was not a number."""
        return sum(bool(result["broke"]) for result in self.results(condition).values())

    def unlearned(self, condition: Condition) -> int:
        """How many seeds never improved on what they started from, which is then what was measured."""
        return sum(not result.get("learned", True) for result in self.results(condition).values())


def fingerprint(recipe: Recipe) -> str:
    """Ten hexadecimal digits that change with any value that changes the numbers, and with no other.

    >>> fingerprint(Recipe(seed=1)) == fingerprint(Recipe(seed=1, device="cpu"))
    True
    >>> fingerprint(Recipe(seed=1)) == fingerprint(Recipe(seed=2))
    False
    """
    skipped = INCIDENTAL | {"name", "variant", "data.root"}
    usual = flatten(Recipe())  # a key that recipes gain later, at its default, leaves old runs valid
    values = {k: v for k, v in flatten(recipe).items() if k not in skipped and v != usual[k]}
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:10]


def _text(value: float) -> str:
    """A value as YAML writes it."""
    return str(value).lower() if isinstance(value, bool) else f"{value:g}"


def _options(condition: Condition) -> tuple[str, ...]:
    return tuple(f"loss.options.{key}={_text(value)}" for key, value in condition.options)


@cache
def _recipe(
    on: str, root: str | None, condition: Condition, seed: int, values: tuple[str, ...], last: tuple[str, ...]
) -> Recipe:
    """Cached, because reading YAML is slow and tables, claims and the page ask for the same recipes."""
    setting, method = SETTINGS[on], METHODS[condition.method]
    clusters = not (condition.batch or condition.merged or condition.noise)
    usual = (condition.merged and setting.merged) or setting.batch
    assignments = [
        f"seed={seed}",
        f"batch.batch_size={condition.batch or usual}",
        f"batch.images_per_class={condition.images_per_class}",
        f"data.merge_classes={condition.merged}",
        f"data.noisy_labels={condition.noise}",
        *setting.values,
        *(setting.all_weights if condition.all_weights else ()),
        # Clustering takes seconds, and only the tables of variants and the sweeps show it.
        f"evaluation.nmi={str(clusters).lower()}",
    ]
    recipe = load_recipe(on, [*assignments, *(text for text in last if text.startswith("variant="))])
    if not method.ours:  # options that a variant gives to our losses, such as count_self, mean nothing to it
        recipe = replace(recipe, loss=replace(recipe.loss, options={}))
    others = [text for text in last if not text.startswith("variant=")]
    recipe = override(recipe, [*method.values, *values, *others])
    return recipe if root is None else replace(recipe, data=replace(recipe.data, root=root))
