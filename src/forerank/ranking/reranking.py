"""Rankings refined by the neighbours of the query: three kinds, each a few settings and a formula.

Only numpy, because a search page uses these formulas without loading torch. No formula sees a label.

- `expansion`: the query is replaced by a weighted mean of itself and its nearest images (alpha query
  expansion: Radenović, Tolias and Chum, "Fine-tuning CNN Image Retrieval with No Human Annotation", 2019).
- `averaging`: every gallery image is replaced by such a mean (database-side feature augmentation:
  Arandjelović and Zisserman, "Three things everyone should know to improve object retrieval", 2012; the
  weights are those of the expansion).
- `reciprocal`: the first images of a list are ordered again by the k-reciprocal neighbours that they share
  with the query (Zhong, Zheng, Cao and Li, "Re-ranking Person Re-identification with k-reciprocal Encoding",
  2017).
"""

from dataclasses import dataclass, fields
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from forerank.errors import InputError, check_name, unknown

Floats: TypeAlias = NDArray[np.float64]

NONE = "none"
# Similarities are rounded to this many digits before neighbours are ordered, so that copies of an image tie.
DIGITS = 11


class _Written:
    """Text that `read_reranking` takes: the kind and its settings."""

    def __str__(self) -> str:
        settings = ",".join(f"{name}={value}" for name, value in vars(self).items())
        return f"{type(self).__name__.lower()}:{settings}"


@dataclass(frozen=True)
class Expansion(_Written):
    """The query and its `neighbours` nearest, each with the weight similarity ** `alpha`."""

    neighbours: int = 5
    alpha: float = 3.0


@dataclass(frozen=True)
class Averaging(_Written):
    """Each gallery image and its `neighbours` nearest, each with the weight similarity ** `alpha`."""

    neighbours: int = 5
    alpha: float = 3.0


@dataclass(frozen=True)
class Reciprocal(_Written):
    """The first `depth` places ordered by shared k-reciprocal neighbours.

    Attributes:
        k1: size of a neighbourhood.
        k2: neighbours whose sets are averaged (local query expansion), the image itself included.
        weight: of the original distance beside the Jaccard distance (lambda in the paper).
        depth: places that are ordered again; the others keep their ranks.
    """

    k1: int = 20
    k2: int = 6
    weight: float = 0.3
    depth: int = 200


Reranking: TypeAlias = Expansion | Averaging | Reciprocal
RERANKINGS: dict[str, type[Reranking]] = {
    "expansion": Expansion,
    "averaging": Averaging,
    "reciprocal": Reciprocal,
}
_LEAST = {"neighbours": 1, "alpha": 0, "k1": 1, "k2": 1, "weight": 0, "depth": 1}


def read_reranking(text: "str | Reranking | None") -> Reranking | None:
    """A kind with its settings from text such as "expansion" or "reciprocal:k1=10,depth=100".

    >>> read_reranking("reciprocal:k1=10,weight=0.5")
    Reciprocal(k1=10, k2=6, weight=0.5, depth=200)
    >>> print(read_reranking("expansion")), read_reranking("none")
    expansion:neighbours=5,alpha=3.0
    (None, None)
    >>> read_reranking("reciprocal:k=3")
    Traceback (most recent call last):
    forerank.errors.InputError: unknown setting of reciprocal 'k': did you mean 'k2'? Valid: k1, ...
    """
    if text is None or text == NONE:
        return None
    if not isinstance(text, str):
        return _checked(text)
    kind, _, settings = text.partition(":")
    if kind not in RERANKINGS:
        raise unknown("kind of re-ranking", kind, (*RERANKINGS, NONE))
    known: dict[str, Any] = {field.name: type(field.default) for field in fields(RERANKINGS[kind])}
    values = {}
    for setting in filter(None, settings.split(",")):
        name, _, value = setting.partition("=")
        check_name(f"setting of {kind}", name, known)
        try:
            values[name] = known[name](value)
        except ValueError as error:
            number = "a whole number" if known[name] is int else "a number"
            raise InputError(f"{name} of {kind} must be {number}, not {value!r}.") from error
    return _checked(RERANKINGS[kind](**values))


def _checked(chosen: Reranking) -> Reranking:
    for field in fields(chosen):
        name, value = field.name, getattr(chosen, field.name)
        if not (np.isfinite(value) and _LEAST[name] <= value <= (1 if name == "weight" else np.inf)):
            upper = " and at most 1" if name == "weight" else ""
            kind = type(chosen).__name__.lower()
            raise InputError(f"{name} of {kind} must be at least {_LEAST[name]}{upper}, not {value}.")
    return chosen


def weighted_means(own: Floats, nearest: Floats, similarity: Floats, alpha: float) -> Floats:
    """Unit vectors (n, D) of means of each vector and its neighbours.

    Args:
        own: (n, D) unit vectors; each has the weight 1.
        nearest: (n, m, D) unit vectors of its neighbours.
        similarity: (n, m) of a vector and its neighbour; -inf where there is none. Its alpha-th power is the
            weight of the neighbour; the weight is 0 where the similarity is not positive.

    >>> weighted_means(np.array([[1.0, 0.0]]), np.array([[[0.6, 0.8]]]), np.array([[0.6]]), alpha=1).round(3)
    array([[0.943, 0.333]])
    """
    weight = np.where(similarity > 0, np.maximum(similarity, 0) ** alpha, 0.0)
    total: Floats = own + np.einsum("nm,nmd->nd", weight, nearest)
    total /= np.linalg.norm(total, axis=1, keepdims=True)
    return total


def reciprocal_distances(vectors: Floats, chosen: Reciprocal) -> Floats:
    """Distance (n,) of the query to each of n candidates: Jaccard distance of their sets, plus the original.

    All neighbourhoods are those among these n + 1 images. The original distance is 1 - cosine.

    Args:
        vectors: (n + 1, D) unit vectors; the first is the query's.
    """
    similarity = vectors @ vectors.T  # (n + 1, n + 1)
    distance = 1 - similarity
    np.fill_diagonal(similarity, np.inf)  # an image stands first in its own list, also before its copies
    order = np.argsort(-similarity.round(DIGITS), axis=1, kind="stable")
    place = np.empty_like(order)  # place[i, j]: where j stands in the list of i, from 0
    np.put_along_axis(place, order, np.arange(len(order))[None], axis=1)

    def reciprocal(k: int) -> NDArray[np.bool_]:  # R(i, k)
        near = place <= k
        return near & near.T

    wide, narrow = reciprocal(chosen.k1), reciprocal(round(chosen.k1 / 2))
    # How many images R(i, k1) and R(j, k1 / 2) share; both matrices are symmetric.
    shared = wide.astype(np.float32) @ narrow.astype(np.float32)
    joining = wide & (3 * shared >= 2 * narrow.sum(axis=1))
    expanded = wide | (joining.astype(np.float32) @ narrow.astype(np.float32) > 0)  # R*(i, k1)
    encoding = np.where(expanded, np.exp(-distance), 0.0)
    encoding /= encoding.sum(axis=1, keepdims=True)
    local = (place < chosen.k2).astype(np.float64)
    encoding = (local @ encoding) / local.sum(axis=1, keepdims=True)
    smaller = np.minimum(encoding[0], encoding[1:]).sum(axis=1)
    jaccard = 1 - smaller / (2 - smaller)  # each encoding sums to 1: the larger ones sum to 2 - smaller
    final: Floats = (1 - chosen.weight) * jaccard + chosen.weight * distance[0, 1:]
    return final
