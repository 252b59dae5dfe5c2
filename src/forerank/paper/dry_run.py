"""What a plan would take, before it is started: data, memory, time, and the exact commands."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from forerank.errors import ForerankError
from forerank.machine import choose_device
from forerank.paper.methods import METHODS
from forerank.paper.runs import torchrun_command
from forerank.paper.study import Run, Study
from forerank.paper.tuning import can_tune
from forerank.training.recipe import Recipe, recipe_text

if TYPE_CHECKING:
    import torch

HEAD_STEP = 0.03  # seconds of one step of a head, measured on one core (docs/paper.md)


@dataclass(frozen=True)
class Estimate:
    """What a study's runs would take.

    Attributes:
        data: one line on the data.
        weights: one line on the weights that training starts from.
        ready: whether the weights and every file of the data are there.
        train_images, test_images: counted, or published if the data is not there.
        activation_bytes: memory of one image on its way forward, kept for the way back (measured).
        fixed_bytes: weights, gradients and Adam's two moments.
        seconds_per_image: forward and backward of one image on this machine (measured).
        device: where that was measured.
        available_bytes: memory of that device.
    """

    data: str
    weights: str
    ready: bool
    train_images: int
    test_images: int
    activation_bytes: int
    fixed_bytes: int
    seconds_per_image: float
    device: str
    available_bytes: int

    def steps(self, recipe: Recipe) -> int:
        """Steps of a run."""
        if recipe.schedule.steps:
            return recipe.schedule.steps
        return recipe.schedule.epochs * max(1, self.train_images // (recipe.batch.batch_size or 112))

    def seconds(self, recipe: Recipe) -> float:
        """Time of a run: its training images both ways, its test images one way (a third of both)."""
        if recipe.mode == "head":  # the backbone is not run; see `features_seconds`
            return HEAD_STEP * self.steps(recipe)
        images = self.steps(recipe) * (recipe.batch.batch_size or 112)
        return (images + self.test_images / 3) * self.seconds_per_image

    def features_seconds(self, recipe: Recipe) -> float:
        """Time for the features on which heads are trained: every image once, for all runs together."""
        if recipe.mode != "head":
            return 0.0
        return (self.train_images + self.test_images) * self.seconds_per_image / 3

    def bytes_needed(self, recipe: Recipe, processes: int = 1) -> int:
        """Peak memory of one process, before fragmentation."""
        share = (recipe.batch.micro_batch or (recipe.batch.batch_size or 112)) / (
            1 if recipe.batch.micro_batch else processes
        )
        if recipe.mode == "head":
            share = recipe.evaluation.embed_batch / 3
        return int(self.fixed_bytes + share * self.activation_bytes)

    def fitting_micro_batch(self, processes: int = 1) -> int:
        """The largest power of two of images that fits in four fifths of the memory."""
        room = 0.8 * self.available_bytes / (1 if self.device == "cuda" else processes) - self.fixed_bytes
        fits = max(1, int(room // max(1, self.activation_bytes)))
        return 1 << (fits.bit_length() - 1)


def estimate(study: Study, run: Run) -> Estimate:
    """Measure what can be measured here: the data, one image's memory, a few timed steps."""
    import torch

    from forerank.training.assemble import build_model
    from forerank.training.prepare import open_parts

    recipe = run.recipe
    try:
        parts = open_parts(recipe)
        counted = {name: (len(table), len(table.classes)) for name, table in parts.items()}
        listed = ", ".join(
            f"{name} {images:,} images of {classes:,} classes" for name, (images, classes) in counted.items()
        )
        absent = [file for table in parts.values() for file in table.files if not file.is_file()]
        data, ready = f"{study.on}: {listed}", not absent
        if absent:
            data = f"{study.on} is not ready: {len(absent):,} image files are missing, the first {absent[0]}"
        train_images, test_images = counted["train"][0], counted["test"][0]
    except ForerankError as error:
        data, ready = f"{study.on} is not ready: {error}", False
        train_images, test_images = _published_counts(study.on)
    device = choose_device()
    try:
        model = build_model(recipe)
        weights = f"of {recipe.model.backbone}: there"
    except ForerankError as error:
        # As large and as fast as the one it stands for.
        model = build_model(replace(recipe, model=replace(recipe.model, pretrained=False)))
        weights, ready = f"are not there: {error}", False
    model = model.to(device)
    shape, small = model.preprocessing.shape, model.preprocessing.resize <= 64
    images = torch.zeros(56 if small else 4, *shape, device=device)  # small ones together
    parameter_bytes = sum(p.numel() * p.element_size() for p in model.parameters())
    return Estimate(
        data,
        weights,
        ready,
        train_images,
        test_images,
        _activation_bytes(model, images) // len(images),
        4 * parameter_bytes,
        _seconds_per_step(model, images) / len(images),
        device,
        _available_bytes(device),
    )


def describe_plan(
    study: Study, plan: Sequence[Run], methods: Sequence[str] = (), *, processes: int = 1, jobs: int = 1
) -> tuple[str, bool]:
    """The plan as text, and whether it could start now.

    Args:
        methods: whose learning rates would be chosen first.
    """
    if not plan:
        return "Nothing to train: this needs only formulas or the toy.", True
    done = [result for run in plan if (result := run.result()) is not None]
    left = [run for run in plan if run.result() is None]
    first = (left or list(plan))[0]
    recipe = first.recipe
    need = estimate(study, first)
    largest = max((run.recipe for run in left or plan), key=lambda r: need.bytes_needed(r, processes))
    needed = need.bytes_needed(largest, processes)
    together = needed * (processes if need.device == "cpu" else 1) * jobs
    fits = together <= 0.8 * need.available_bytes
    refused = _refused(left, processes) if need.ready else []
    lines = [
        f"data      {need.data}",
        *refused,
        f"weights   {need.weights}",
        f"runs      {len(plan)}, of which {len(done)} are there and {len(left)} to do",
        *_tuning(study, methods),
        f"steps     {need.steps(recipe):,} of {recipe.batch.batch_size} images each",
        f"memory    {_size(needed)} per process for {largest.batch.batch_size} images over {processes} "
        f"process{'es' if processes > 1 else ''} ({_size(need.activation_bytes)} per image, "
        "measured); "
        f"{_size(need.available_bytes)} free on this {need.device}"
        + ("" if fits else f"; too much: add --set batch.micro_batch={need.fitting_micro_batch(processes)}"),
        f"time      {_time(need, left, [r['seconds'] for r in done], processes, jobs)}",
    ]
    if need.device == "cpu" and not study.setting.quick:
        total = sum(need.steps(run.recipe) * (run.recipe.batch.batch_size or 112) for run in left)
        lines.append(
            f"          {total:,} images to train on: on a GPU that takes 400 per second "
            f"{_duration(total / 400)}, on eight of them {_duration(total / 3200)}"
        )
    marks = [f"  {'done ' if run.result() else '     '}{run.title}  ({run.key})" for run in plan]
    settings = [f"  {line}" for line in recipe_text(recipe).splitlines()]
    by_hand = " ".join(torchrun_command(first, max(2, processes), Path(f"{first.key}.yaml")))
    lines += ["", "runs in order:", *marks, "", "settings of the first, every value:", *settings]
    lines += [
        "",
        "one of them by hand, over several processes (the settings above in the file):",
        f"  {by_hand}",
    ]
    return "\n".join(lines), need.ready and fits and not refused


def _refused(left: Sequence[Run], processes: int) -> list[str]:
    """A line for each kind of run that training would refuse, such as one with larger batches than classes.

    One seed of each kind is looked at: the others differ in which classes they draw.
    """
    from forerank.training.prepare import complete_recipe, open_parts

    kinds = {(r.batch, r.data.merge_classes): r for r in (run.recipe for run in reversed(left))}
    lines = []
    for recipe in kinds.values():
        try:
            complete_recipe(recipe, open_parts(recipe)["train"], processes, choose_device())
        except ForerankError as error:
            lines.append(f"          {error}")
    return lines


def _tuning(study: Study, methods: Sequence[str]) -> list[str]:
    """A line about the learning rates, if any are still to be chosen."""
    open_methods = [method for method in methods if method not in study.chosen]
    if not open_methods or not can_tune(study):
        return []
    count = sum(len(study.setting.rates) + len(METHODS[method].candidates) for method in open_methods)
    shorter = f", shorter ones ({', '.join(study.setting.tuning)})" if study.setting.tuning else ""
    return [
        f"choosing  {count} runs or more come first{shorter}, which choose "
        f"the learning rates of {len(open_methods)} methods on the validation classes (--no-tune leaves them "
        "out)"
    ]


def _time(need: Estimate, left: Sequence[Run], ended: Sequence[float], processes: int, jobs: int) -> str:
    """How long the rest would take: by the runs that have ended, otherwise by a few timed steps."""
    if ended:
        each = sum(ended) / len(ended)
        total = len(left) * each / jobs
        return f"about {_duration(total)} here, by the {len(ended)} runs that have ended ({each:.0f} s each)"
    # The timed steps had the whole machine; several processes help only where each has a device of its own.
    seconds = sum(need.seconds(run.recipe) for run in left) / (processes if need.device == "cuda" else 1)
    seconds += max((need.features_seconds(run.recipe) for run in left), default=0.0)
    return (
        f"about {_duration(seconds)} here ({1 / need.seconds_per_image:.0f} images/s forward and backward, "
        f"a few steps timed on this {need.device})"
    )


def _published_counts(name: str) -> tuple[int, int]:
    from forerank.data.registry import DATA_SETS

    entry = DATA_SETS.get(name)
    if entry is None:
        return 0, 0
    counts = next(iter(entry.published_counts({}).values()))
    return counts["train"][0], counts["test"][0]


def _activation_bytes(model: "torch.nn.Module", images: "torch.Tensor") -> int:
    """Bytes that the way forward keeps for the way back, each storage once, weights left out."""
    import torch

    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    model.train()
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        embedded = model(images)
    embedded.sum().backward()
    return sum(kept.values())


def _seconds_per_step(model: "torch.nn.Module", images: "torch.Tensor", budget: float = 3.0) -> float:
    """Forward and backward, the fastest of up to ten after a first that warms up, or of `budget` seconds."""
    import torch

    taken: list[float] = []
    while len(taken) < 3 or (len(taken) < 11 and sum(taken) < budget):
        began = time.perf_counter()
        model(images).sum().backward()
        if images.is_cuda:
            torch.cuda.synchronize()
        taken.append(time.perf_counter() - began)
    return min(taken[1:])


def _available_bytes(device: str) -> int:
    import torch

    if device == "cuda":
        return int(torch.cuda.mem_get_info()[0])
    try:
        text = Path("/proc/meminfo").read_text(encoding="ascii")
        return int(text.split("MemAvailable:")[1].split()[0]) * 1024
    except (OSError, IndexError):
        import os

        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _size(count: float) -> str:
    """
    >>> _size(3 * 2**30), _size(50_000_000), _size(300_000)
    ('3.0 GiB', '48 MiB', '293 KiB')
    """
    if count >= 2**30:
        return f"{count / 2**30:.1f} GiB"
    return f"{count / 2**20:.0f} MiB" if count >= 2**20 else f"{count / 2**10:.0f} KiB"


def _duration(seconds: float) -> str:
    """
    >>> _duration(50), _duration(4000), _duration(400000)
    ('50 s', '67 min', '4.6 days')
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 2 * 3600:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} hours" if seconds < 2 * 86400 else f"{seconds / 86400:.1f} days"
