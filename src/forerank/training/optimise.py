"""What changes the weights: parameter groups and the rate of each step; the mean or blend that is kept."""

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from forerank.training.recipe import Recipe


def build_optimiser(
    recipe: Recipe,
    backbone: Iterable[nn.Parameter],
    head: Iterable[nn.Parameter],
    loss: Iterable[nn.Parameter],
) -> torch.optim.Optimizer:
    """One group each for the backbone, the head and the loss's own parameters, with their own rates.

    >>> weight = nn.Parameter(torch.ones(1))
    >>> [group["peak_lr"] for group in build_optimiser(Recipe(), [], [weight], []).param_groups]
    [1e-05]
    """
    o = recipe.optimiser
    lr = peak_rate(recipe)
    rates = {
        "backbone": (list(backbone), lr, o.weight_decay),
        "head": (list(head), lr if o.head_lr is None else o.head_lr, o.weight_decay),
        # Proxies and margins are positions, not weights: no decay pulls them to zero.
        "loss": (list(loss), 100 * lr if o.loss_lr is None else o.loss_lr, 0.0),
    }
    groups = [
        {"params": parameters, "lr": rate, "peak_lr": rate, "weight_decay": decay, "name": name}
        for name, (parameters, rate, decay) in rates.items()
        if parameters
    ]
    if o.algorithm == "sgd":
        return torch.optim.SGD(groups, lr=lr, momentum=0.9)
    kind = torch.optim.AdamW if o.algorithm == "adamw" else torch.optim.Adam
    return kind(groups, lr=lr, eps=1e-8 if o.eps is None else o.eps)


def peak_rate(recipe: Recipe) -> float:
    """The learning rate a recipe means.

    >>> from forerank.training.recipe import override
    >>> peak_rate(override(Recipe(), ["lr=null", "mode=head"])), peak_rate(Recipe())
    (0.0002, 1e-05)
    """
    lr = recipe.optimiser.lr
    return lr if lr is not None else 2e-4 if recipe.mode == "head" else 1e-4


def rate_factor(recipe: Recipe, step: int, steps: int, steps_per_epoch: int) -> float:
    """Factor on the learning rate at a step: a function of the step alone, so nothing has to be saved.

    >>> from forerank.training.recipe import override
    >>> cosine = override(Recipe(), ["schedule.kind=cosine", "warmup_steps=10"])
    >>> [round(rate_factor(cosine, step, 110, 10), 2) for step in (0, 9, 10, 60, 109)]
    [0.1, 1.0, 1.0, 0.5, 0.0]
    >>> authors = override(Recipe(), ["schedule.kind=steps"])
    >>> [round(rate_factor(authors, 10 * epoch, 4000, 10), 3) for epoch in (119, 120, 220)]
    [1.0, 0.3, 0.09]
    """
    s = recipe.schedule
    if step < s.warmup_steps:
        return (step + 1) / s.warmup_steps
    if s.kind == "steps":
        passed: float = s.gamma ** sum(step // steps_per_epoch >= m for m in s.milestones)
        return passed
    if s.kind == "cosine":
        done = (step - s.warmup_steps) / max(1, steps - s.warmup_steps)
        return 0.5 * (1 + math.cos(math.pi * min(1.0, done)))
    return 1.0


def set_rates(optimiser: torch.optim.Optimizer, factor: float) -> None:
    """Set every group's rate to `factor` times its peak."""
    for group in optimiser.param_groups:
        group["lr"] = group["peak_lr"] * factor


class RunningMean:
    """A running (exponential) mean of a module's parameters; buffers are those of the module.

    >>> layer = nn.Linear(1, 1, bias=False); _ = nn.init.zeros_(layer.weight)
    >>> mean = RunningMean(layer, 0.5); _ = nn.init.ones_(layer.weight)
    >>> mean.update(layer); mean.tensors["weight"].item()
    0.5
    """

    def __init__(self, module: nn.Module, decay: float) -> None:
        self.decay = decay
        self.tensors = {name: p.detach().clone() for name, p in module.named_parameters() if p.requires_grad}

    @torch.no_grad()
    def update(self, module: nn.Module) -> None:
        """Move a little towards the module's present weights."""
        for name, parameter in module.named_parameters():
            if name in self.tensors:
                self.tensors[name].lerp_(parameter, 1 - self.decay)

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Put saved values back."""
        for name, value in tensors.items():
            self.tensors[name].copy_(value)

    def swap(self, module: nn.Module) -> None:
        """Exchange the module's weights and the mean; a second call undoes it."""
        with torch.no_grad():
            for name, parameter in module.named_parameters():
                if name in self.tensors:
                    held = parameter.detach().clone()
                    parameter.copy_(self.tensors[name])
                    self.tensors[name].copy_(held)


class Blend:
    """The trained weights mixed with those training began with, as WiSE-FT does (Wortsman et al., 2022).

    Fine-tuning gains on what it saw and forgets some of what the pretrained network knew of everything else;
    half way between the two, networks are often better than at either end.

    >>> layer = nn.Linear(1, 1, bias=False); _ = nn.init.zeros_(layer.weight)
    >>> blend = Blend(layer, 0.25); _ = nn.init.ones_(layer.weight)
    >>> with blend.inside(layer):
    ...     layer.weight.item()
    0.25
    >>> layer.weight.item()
    1.0
    """

    def __init__(self, module: nn.Module, share: float) -> None:
        self.share = share
        self.start = {name: p.detach().clone() for name, p in module.named_parameters()}

    @contextmanager
    def inside(self, module: nn.Module) -> Iterator[None]:
        """Within the block the module's weights are the mixture; afterwards they are what they were."""
        held = {name: p.detach().clone() for name, p in module.named_parameters()}
        with torch.no_grad():
            for name, parameter in module.named_parameters():
                parameter.copy_(self.start[name].lerp(held[name], self.share))
        try:
            yield
        finally:
            with torch.no_grad():
                for name, parameter in module.named_parameters():
                    parameter.copy_(held[name])
