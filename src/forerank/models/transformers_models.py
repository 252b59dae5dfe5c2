"""Backbones of transformers: `hf:NAME` of the hub or `hf:FOLDER` on disk.

ResNet and ConvNeXt give a feature map; ViT, DINOv2 and DINOv3 their class token; SigLIP and CLIP the pooled
features of their image tower (the text tower is dropped).
"""

import contextlib
import inspect
import json
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from forerank.data.preprocessing import IMAGENET_MEAN, IMAGENET_STD, Preprocessing
from forerank.errors import ForerankWarning, InputError, MissingExtraError, require
from forerank.models.backbones import Backbone, gives_map
from forerank.models.hub import hub_file
from forerank.models.torchvision_import import import_torchvision

# How Pillow numbers its filters, as stored in a preprocessor_config.json.
_FILTERS = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic"}


class HuggingFaceNetwork(nn.Module):
    """A transformers image model: features (N, C) by its own pooling, or its last map (N, C, h, w)."""

    def __init__(self, network: nn.Module, own_pooling: bool) -> None:
        super().__init__()
        self.network, self.own_pooling = network, own_pooling

    def forward(self, images: Tensor) -> Tensor:
        output = self.network(pixel_values=images)
        hidden: Tensor = output.last_hidden_state
        if not self.own_pooling:
            return hidden
        pooled: Tensor | None = getattr(output, "pooler_output", None)
        if pooled is not None:
            return pooled.flatten(1)  # (N, C, 1, 1) of ResNet, (N, C) of the others
        return hidden.mean((2, 3)) if hidden.dim() == 4 else hidden[:, 0]


def hf_backbone(
    name: str, pretrained: bool, pooling: str, architecture: Mapping[str, Any] | None
) -> Backbone:
    """The network `hf:NAME`; with an `architecture` (its configuration) the hub is not asked."""
    transformers = require("transformers")
    with contextlib.suppress(MissingExtraError):
        import_torchvision()  # some image models import it, and a CUDA build beside CPU torch breaks them
    folder = None if architecture else _folder(name, pretrained)
    values = _read_json(folder / "config.json") if folder else dict((architecture or {})["config"])
    config = _config(transformers, values, name)
    # A ViT's pooling layer is usually not in its weights: take the class token instead.
    extra = {"add_pooling_layer": False} if config.model_type in ("vit", "deit", "beit") else {}
    try:
        if pretrained and folder:
            with _quiet(transformers):
                model, loaded = transformers.AutoModel.from_pretrained(
                    str(folder), local_files_only=True, output_loading_info=True, **extra
                )
            _check_loaded(model, loaded, name)
        else:
            model = transformers.AutoModel.from_config(config, **extra)
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"hf:{name} cannot be built: {str(error).splitlines()[0]}") from error
    model = getattr(model, "vision_model", model).float()  # some weights are stored in half precision
    _check_input(model, name)
    # A saved model carries its own preprocessing, which replaces this one.
    pictures = _preprocessing(_picture_config(folder, name), values) if folder else Preprocessing()
    channels = _channels(model.config)
    network = HuggingFaceNetwork(model, own_pooling=pooling == "average")
    backbone = Backbone(network, channels, pictures, {"config": values}, pooling)
    if pooling == "auto":
        backbone.pooling = "gem" if gives_map(backbone, without_negatives=True) else "average"
        network.own_pooling = backbone.pooling == "average"
    return backbone


@contextlib.contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    """What it would list of the weights, key by key, is ours to say in one sentence."""
    level = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    try:
        yield
    finally:
        transformers.logging.set_verbosity(level)


def _check_loaded(model: nn.Module, loaded: Mapping[str, Any], name: str) -> None:
    """Refuse weights that left a layer random, or are of a deeper network; a classifier may be there."""
    parts = {part for part, _ in model.named_children()}
    prefix = f"{getattr(model, 'base_model_prefix', '')}."
    surplus = [
        key
        for key in sorted(loaded["unexpected_keys"])
        if key.removeprefix(prefix).split(".")[0] in parts and any(p.isdigit() for p in key.split("."))
    ]
    for what, keys in (("lack", sorted(loaded["missing_keys"])), ("have an unexpected", surplus)):
        if keys:
            more = f" and {len(keys) - 1:,} more" if len(keys) > 1 else ""
            raise InputError(
                f"the weights of hf:{name} do not fit its config.json: they {what} {keys[0]}{more}"
            )


def _check_input(model: nn.Module, name: str) -> None:
    """Refuse a model that reads something else than a batch of pictures of one size."""
    parameters = inspect.signature(model.forward).parameters
    if "pixel_values" not in parameters:
        raise InputError(f"hf:{name} is not an image model: it reads {next(iter(parameters), 'nothing')}")
    needed = [
        p.name for p in parameters.values() if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD
    ]
    more = [p for p in needed if p != "pixel_values"]
    if more:
        raise InputError(
            f"hf:{name} needs {' and '.join(more)} beside the pixels, which is not supported: take a variant "
            "of one input size, such as hf:google/siglip2-base-patch16-224"
        )


def _folder(name: str, pretrained: bool) -> Path:
    """The folder on this disk with the files of `hf:NAME`, fetched first if need be."""
    folder = Path(name).expanduser()
    if folder.is_dir():
        return folder
    advice = f"fetch config.json, preprocessor_config.json and model.safetensors of {name} and use hf:FOLDER"
    folder = hub_file(name, ("config.json",), advice).parent
    if pretrained:
        sharded = "model.safetensors.index.json"
        weights = hub_file(name, ("model.safetensors", "pytorch_model.bin", sharded), advice)
        if weights.name == sharded:
            return Path(require("huggingface_hub").snapshot_download(name))
    with contextlib.suppress(InputError):  # not every repository has one; _picture_config says so
        hub_file(name, ("preprocessor_config.json",), advice)
    return folder


def _read_json(file: Path) -> dict[str, Any]:
    try:
        values: dict[str, Any] = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise InputError(f"{file} cannot be read: {error}") from error
    return values


def _picture_config(folder: Path, name: str) -> dict[str, Any]:
    file = folder / "preprocessor_config.json"
    if file.is_file():
        return _read_json(file)
    warnings.warn(
        f"hf:{name} has no preprocessor_config.json: its pictures are normalised as for ImageNet, which may "
        "be wrong for it",
        ForerankWarning,
        stacklevel=2,
    )
    return {}


def _config(transformers: Any, values: Mapping[str, Any], name: str) -> Any:
    kind = values.get("model_type")
    if not kind:
        raise InputError(f"hf:{name} has no model_type in its config.json, so it is not a transformers model")
    try:
        return transformers.AutoConfig.for_model(**values)
    except ValueError as error:
        raise InputError(
            f"this version of transformers does not know models of type {kind!r} ({name})"
        ) from error


def _channels(config: Any) -> int:
    sizes = getattr(config, "hidden_sizes", None)
    return int(sizes[-1] if sizes else config.hidden_size)


def _preprocessing(pictures: Mapping[str, Any], config: Mapping[str, Any]) -> Preprocessing:
    """From a preprocessor_config.json, in the forms transformers has written it over the years."""

    def side(value: Any) -> int | None:
        if isinstance(value, Mapping):
            value = value.get("height") or value.get("shortest_edge")
        return int(value) if value else None

    vision = config.get("vision_config") or {}
    resize = (
        side(pictures.get("size")) or side(config.get("image_size")) or side(vision.get("image_size")) or 224
    )
    crop = (
        side(pictures.get("crop_size")) if pictures.get("do_center_crop", "crop_size" in pictures) else None
    )
    fraction = pictures.get("crop_pct")  # ConvNeXt: resize to size / crop_pct, then cut size
    size, resize = (
        (crop, max(crop, resize)) if crop else (resize, int(resize / fraction) if fraction else resize)
    )
    normalise = pictures.get("do_normalize", True)
    return Preprocessing(
        size=size,
        resize=resize,
        mean=pictures.get("image_mean", IMAGENET_MEAN) if normalise else (0.0,) * 3,
        std=pictures.get("image_std", IMAGENET_STD) if normalise else (1.0,) * 3,
        squash=isinstance(pictures.get("size"), Mapping) and "height" in pictures["size"],
        interpolation=_FILTERS.get(pictures.get("resample", 2), "bicubic"),
    )
