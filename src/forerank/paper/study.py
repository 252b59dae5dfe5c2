"""A study: one data set, some seeds, a folder; and the conditions of the paper as training runs in it.

A condition says what is varied (method, batch, |P|, merged classes, wrong labels, options of the loss).
Together with a seed it is a recipe, and a recipe's fingerprint names its run folder, so experiments that need
the same condition share its runs and a finished run is never trained again.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from forerank.errors import unknown
from forerank.paper.methods import METHODS
from forerank.training.recipe import INCIDENTAL, Recipe, flatten, load_recipe

RESULT = "paper.json"  # what this room keeps of a run, in the run's folder


@dataclass(frozen=True)
class Setting:
    """How the paper's protocol is carried to a data set.

    Attributes:
        values: recipe assignments for every run, over the shipped recipe of the same name.
        batch: images in a step for the variants, the sweeps and the robustness (112 in the paper).
        compared: batch of the comparison tables (384; 224 for iNaturalist).
        quick: whether runs take seconds, so that everything may run in one sitting.
    """

    values: tuple[str, ...] = ()
    batch: int = 112
    compared: int = 384
    quick: bool = False


# Runs in their dozens: no page for each, one recall list that answers every table.
_LEAN = ("evaluation.report=false", "evaluation.ks=[1,4,5,10,16,32,100,1000]")
SETTINGS: dict[str, Setting] = {
    "glyphs": Setting(("schedule.steps=150", "evaluation.every=150", *_LEAN), quick=True),
    "cub": Setting(("mode=head", "schedule.steps=200", *_LEAN), batch=64, compared=224, quick=True),
    "cars": Setting(compared=224),
    "inshop": Setting(),
    "sop": Setting(),
    "vehicle_id": Setting(),
    "inaturalist": Setting(compared=224),
}


@dataclass(frozen=True)
class Condition:
    """What one cell of a table, or one point of a curve, was trained under."""

    method: str = "Dq"
    batch: int | None = None  # None: the setting's batch
    images_per_class: int = 4
    merged: int = 0
    noise: float = 0.0
    options: tuple[tuple[str, float], ...] = ()

    def __str__(self) -> str:
        parts = [self.method, *(f"{key}={value:g}" for key, value in self.options)]
        if self.batch:
            parts.append(f"batch {self.batch}")
        if self.images_per_class != 4:
            parts.append(f"|P|={self.images_per_class}")
        if self.merged:
            parts.append(f"merged by {self.merged}")
        if self.noise:
            parts.append(f"{self.noise:.0%} wrong labels")
        return ", ".join(parts)


@dataclass(frozen=True)
class Run:
    """One training run: a complete recipe and where it goes."""

    title: str
    recipe: Recipe
    folder: Path

    @property
    def key(self) -> str:
        return self.folder.name

    def result(self) -> dict[str, Any] | None:
        """What the ended run measured: "metrics", "seconds", "broke" (see `runs.conclude`); None before."""
        path = self.folder / RESULT
        if not path.is_file():
            return None
        values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return values


@dataclass(frozen=True)
class Study:
    """Where and how often.

    Args:
        on: data set to train on, by the name of its recipe.
        seeds: how many, from 0 up.
        folder: what is written: `tables`, `figures`, `index.html`.
        runs: folder of the training runs, shared by all experiments.
        roots: data set name -> where its images lie.
        values: further recipe assignments for every run.
    """

    on: str = "glyphs"
    seeds: int = 3
    folder: Path = Path("runs/paper/glyphs")
    runs: Path = Path("runs/paper/glyphs/training")
    roots: Mapping[str, str] = field(default_factory=dict)
    values: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.on not in SETTINGS:
            raise unknown("data set", self.on, SETTINGS)

    @property
    def setting(self) -> Setting:
        return SETTINGS[self.on]

    def recipe(self, condition: Condition, seed: int) -> Recipe:
        """The complete recipe of a condition and a seed."""
        return _recipe(self.on, self.roots.get(self.on), self.values, condition, seed)

    def run(self, condition: Condition, seed: int) -> Run:
        recipe = self.recipe(condition, seed)
        words = "".join(c if c.isalnum() else "-" for c in str(condition).lower()).strip("-")
        while "--" in words:
            words = words.replace("--", "-")
        folder = self.runs / f"{words}-seed{seed}-{fingerprint(recipe)}"
        return Run(f"{condition}, seed {seed}", recipe, folder)

    def seeds_of(self, condition: Condition) -> range:
        """The seeds of a condition; where runs are many and small, other people's losses get one."""
        ours = not any("pml:" in value for value in METHODS[condition.method].values)
        return range(self.seeds if ours or not self.setting.quick else 1)

    def plan(self, conditions: Iterable[Condition]) -> list[Run]:
        """Every run the conditions need, each once."""
        runs = [self.run(condition, seed) for condition in conditions for seed in self.seeds_of(condition)]
        return list({run.key: run for run in runs}.values())

    def measured(self, condition: Condition, metric: str) -> list[float]:
        """The metric of each seed's run, as the paper prints it (recall and NMI in percent).

        Runs that have not ended are left out.
        """
        values = [result["metrics"].get(metric) for result in self._results(condition)]
        factor = 1 if metric.startswith("dists") else 100
        return [factor * value for value in values if value is not None]

    def broken(self, condition: Condition) -> int:
        """How many seeds of a condition ended with a loss that was not a number."""
        return sum(bool(result["broke"]) for result in self._results(condition))

    def unlearned(self, condition: Condition) -> int:
        """How many seeds never got better than what they started from, which is then what was measured."""
        return sum(not result.get("learned", True) for result in self._results(condition))

    def _results(self, condition: Condition) -> list[dict[str, Any]]:
        found = [self.run(condition, seed).result() for seed in self.seeds_of(condition)]
        return [result for result in found if result is not None]


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


@cache
def _recipe(on: str, root: str | None, values: tuple[str, ...], condition: Condition, seed: int) -> Recipe:
    """Kept, because reading YAML is slow and tables, claims and the page ask for the same recipes."""
    setting = SETTINGS[on]
    clusters = not (condition.batch or condition.merged or condition.noise)
    assignments = [
        f"seed={seed}",
        f"batch.batch_size={condition.batch or setting.batch}",
        f"batch.images_per_class={condition.images_per_class}",
        f"data.merge_classes={condition.merged}",
        f"data.noisy_labels={condition.noise}",
        *setting.values,
        # Clustering takes seconds, and only the tables of variants and the sweeps show it.
        f"evaluation.nmi={str(clusters).lower()}",
        *METHODS[condition.method].values,
        *(f"loss.options.{key}={value:g}" for key, value in condition.options),
        *values,
    ]
    recipe = load_recipe(on, assignments)
    return recipe if root is None else replace(recipe, data=replace(recipe.data, root=root))
