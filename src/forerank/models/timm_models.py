"""Backbones of timm: `timm:NAME`. Weights come from the hub's cache, the hub, or a file the user names."""

import logging
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from forerank.data.preprocessing import INTERPOLATIONS, Preprocessing
from forerank.errors import InputError, unknown
from forerank.models.backbones import Backbone, gives_map
from forerank.models.hub import hub_file
from forerank.models.torchvision_import import import_timm


class TimmNetwork(nn.Module):
    """A timm network without classifier: features (N, C) by its own pooling, or its last map (N, C, h, w)."""

    def __init__(self, network: Any, own_pooling: bool) -> None:
        super().__init__()
        self.network, self.own_pooling = network, own_pooling

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.network(images) if self.own_pooling else self.network.forward_features(images)
        return features


def timm_backbone(name: str, pretrained: bool, pooling: str, weights: Path | None, asked: str) -> Backbone:
    """The network `timm:NAME`; its weights are found before the network is built.

    Args:
        asked: how the user named it, which may be an alias with a preprocessing of its own.
    """
    timm = import_timm()
    if not timm.is_model(name):
        raise unknown_timm(timm, name)
    users = weights is not None
    if pretrained and weights is None:
        weights = _weights_of(timm, name, asked)
    try:
        if weights is None:
            network = timm.create_model(name, pretrained=False, num_classes=0)
        else:
            overlay = {"file": str(weights)}
            with _watched_loading() as keys:
                network = timm.create_model(
                    name, pretrained=True, num_classes=0, pretrained_cfg_overlay=overlay
                )
            _check_loaded(f"timm:{name}", network, keys, str(weights), surplus_matters=users)
    except InputError:
        raise
    except Exception as error:
        # torch says in its second line what is wrong with a file of weights.
        reason = " ".join(line.strip() for line in str(error).splitlines()[:2])
        raise InputError(f"timm:{name} cannot be built: {reason}") from error
    ours = TimmNetwork(network, own_pooling=pooling == "average")
    backbone = Backbone(ours, network.num_features, _preprocessing(timm, network), pooling=pooling)
    if pooling == "auto":
        backbone.pooling = "gem" if gives_map(backbone, without_negatives=True) else "average"
        ours.own_pooling = backbone.pooling == "average"
    return backbone


class _KeysThatDoNotFit(logging.Handler):
    """Keys of weights that do not fit the network: timm leaves its layers random and only logs the keys."""

    def __init__(self) -> None:
        super().__init__()
        self.keys: dict[str, list[str]] = {"Missing": [], "Unexpected": []}

    def emit(self, record: logging.LogRecord) -> None:
        if logged := re.match(r"(Missing|Unexpected) keys \((.*)\)", record.getMessage()):
            self.keys[logged[1]] += logged[2].split(", ")


@contextmanager
def _watched_loading() -> Iterator[dict[str, list[str]]]:
    """Missing and unexpected keys while timm fills a network; its own messages are not shown meanwhile."""
    log, watching = logging.getLogger("timm"), _KeysThatDoNotFit()
    before = log.level, log.propagate
    log.addHandler(watching)
    log.setLevel(logging.INFO)
    log.propagate = False
    try:
        yield watching.keys
    finally:
        log.removeHandler(watching)
        log.setLevel(before[0])
        log.propagate = before[1]


def _check_loaded(
    name: str, network: Any, keys: Mapping[str, list[str]], file: str, *, surplus_matters: bool
) -> None:
    """Refuse weights that left a layer random, or are of a larger network; a classifier may be there."""
    own = network.pretrained_cfg.get("classifier") or ()
    classifiers = ("head_dist", *((own,) if isinstance(own, str) else own))
    surplus = [
        key
        for key in keys["Unexpected"]
        if surplus_matters and not any(key == c or key.startswith(f"{c}.") for c in classifiers)
    ]
    for what, wrong in (("lacks", sorted(keys["Missing"])), ("has an unexpected", sorted(surplus))):
        if wrong:
            more = f" and {len(wrong) - 1:,} more" if len(wrong) > 1 else ""
            raise InputError(f"{file} does not fit {name}: it {what} {wrong[0]}{more}")


def _weights_of(timm: Any, name: str, asked: str) -> Path:
    config = timm.get_pretrained_cfg(name)
    advice = f"fetch it elsewhere and use backbone {asked}@PATH_OF_THE_FILE"
    if config is None or not (config.hf_hub_id or config.url):
        raise InputError(f"timm has no weights for {name}: use pretrained=False or timm:{name}@FILE")
    if not config.hf_hub_id:
        raise InputError(f"the weights of timm:{name} are at {config.url}: {advice}")
    repo = config.hf_hub_id if "/" in config.hf_hub_id else f"timm/{config.hf_hub_id}"
    if config.hf_hub_id == "timm/":
        repo = f"timm/{config.architecture}.{config.tag}" if config.tag else f"timm/{config.architecture}"
    return hub_file(repo, ("model.safetensors", "pytorch_model.bin"), advice)


def _preprocessing(timm: Any, network: nn.Module) -> Preprocessing:
    config = timm.data.resolve_model_data_config(network)
    channels, size, _ = config["input_size"]
    interpolation = config["interpolation"] if config["interpolation"] in INTERPOLATIONS else "bicubic"
    return Preprocessing(
        size=size,
        resize=max(size, int(size / config["crop_pct"])),
        mean=config["mean"],
        std=config["std"],
        channels=channels,
        squash=config["crop_mode"] == "squash",
        interpolation=interpolation,
    )


def unknown_timm(timm: Any, name: str) -> InputError:
    """The error for a name timm does not know, with the nearest few it does."""
    import difflib

    near = difflib.get_close_matches(name, timm.list_models(), n=3, cutoff=0.4)
    hint = f"did you mean {' or '.join(f'timm:{n}' for n in near)}? " if near else ""
    return (
        unknown("timm model", name, ["see `forerank models list 'timm:*'`"])
        if not near
        else InputError(f"unknown timm model {name!r}: {hint}See `forerank models list 'timm:*'`.")
    )


def list_timm() -> list[dict[str, object]]:
    """Every timm architecture with weights: name, input size, repository of the weights."""
    timm = import_timm()
    rows: list[dict[str, object]] = []
    for name in timm.list_models(pretrained=False):
        config = timm.get_pretrained_cfg(name)
        if config is None or not (config.hf_hub_id or config.url):
            continue
        rows.append({"name": f"timm:{name}", "size": config.input_size[-1], "weights": "hub, on first use"})
    return rows
