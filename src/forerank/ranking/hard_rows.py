"""Unit vectors read block by block from whatever holds the embeddings: an array, a tensor, a file on disk."""

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from forerank.errors import InputError
from forerank.ranking.hard_threads import in_parts

Embeddings: TypeAlias = NDArray[np.floating] | NDArray[np.integer] | Tensor
RowIndex: TypeAlias = slice | NDArray[np.int64]

# Rows read at a time where the whole would not fit: 2,048 x 512 in float64 is 8 MiB.
BLOCK_ELEMENTS = 1 << 20
# Lengths beyond these come of squares that left the range of float64; such a row is scaled before use.
SHORT, LONG = 1e-100, 1e100


@dataclass(frozen=True)
class UnitRows:
    """The embeddings (N, D) divided by their length in float64; nothing of that size is kept.

    The similarity of two rows is the float64 dot product of their unit vectors: the one definition
    that every count in this package follows, whatever precision did the screening.
    """

    source: Embeddings
    length: Tensor  # (N,) float64, on the CPU
    device: torch.device
    scale: Tensor | None = None  # (N,) divides a row before anything else; None: no row needs it

    def __len__(self) -> int:
        return self.length.shape[0]

    @property
    def dim(self) -> int:
        """Width D of an embedding."""
        return int(self.source.shape[1])

    def float64(self, index: RowIndex) -> Tensor:
        """Unit vectors (len(index), D) in float64."""
        return self._scaled(index) / self.length[index].to(self.device)[:, None]

    def float32(self, index: RowIndex) -> Tensor:
        """Unit vectors (len(index), D), rounded once to float32, converted in small blocks."""
        rows = np.arange(len(self), dtype=np.int64)[index] if isinstance(index, slice) else index
        unit = torch.empty(len(rows), self.dim, dtype=torch.float32, device=self.device)
        for start, stop in blocks(len(rows), self.dim):
            unit[start:stop] = self.float64(rows[start:stop])
        return unit

    def similarity(self, first: NDArray[np.int64], second: NDArray[np.int64]) -> Tensor:
        """Similarity (n,) of row first[i] and row second[i], in float64."""
        step = max(1, 2 * BLOCK_ELEMENTS // 8 // self.dim)

        def part(some: slice) -> NDArray[np.float64]:
            left, right = (self._scaled(which[some]) for which in (first, second))
            if left.device.type == "cpu":
                dots: NDArray[np.float64] = np.einsum("nd,nd->n", left.numpy(), right.numpy())
                return dots
            products: NDArray[np.float64] = torch.linalg.vecdot(left, right).cpu().numpy()
            return products

        dots = torch.from_numpy(in_parts(part, len(first), step))
        return (dots / (self.length[first] * self.length[second])).to(self.device)

    def _scaled(self, index: RowIndex) -> Tensor:
        values = _read(self.source, index, self.device)
        return values if self.scale is None else values / self.scale[index].to(self.device)[:, None]


def unit_rows(embeddings: Embeddings | UnitRows, device: torch.device | str | None = None) -> UnitRows:
    """Measure every row once, refusing what has no direction; rows that are measured stay as they are.

    >>> rows = unit_rows(np.array([[3.0, 4.0], [0.0, 2.0]]))
    >>> rows.float64(slice(0, 2)).tolist()
    [[0.6, 0.8], [0.0, 1.0]]
    """
    if isinstance(embeddings, UnitRows):
        return embeddings
    if not isinstance(embeddings, np.ndarray | Tensor):
        embeddings = np.asarray(embeddings)
    if embeddings.ndim != 2:
        raise InputError(
            f"embeddings must be a matrix (images, dimensions), not of shape {tuple(embeddings.shape)}."
        )
    if isinstance(embeddings, Tensor):
        embeddings = embeddings.detach()
        real = embeddings.dtype != torch.bool and not embeddings.is_complex()
    else:
        real = embeddings.dtype.kind in "fiu"
    if not real:
        raise InputError(f"embeddings must be real numbers, not {embeddings.dtype}.")
    if device is None:
        device = embeddings.device if isinstance(embeddings, Tensor) else "cpu"
    place = _usable(device)

    count, dim = embeddings.shape
    if dim == 0 or count == 0:
        raise InputError(f"embeddings are empty: shape {tuple(embeddings.shape)}.")
    length, scale = torch.empty(2, count, dtype=torch.float64).unbind(0)
    for start, stop in blocks(count, dim):
        length[start:stop], scale[start:stop] = _measured(_read(embeddings, slice(start, stop), place))
    bad = torch.nonzero(~torch.isfinite(length)).flatten()
    if len(bad):
        raise InputError(
            f"{len(bad)} of {count} embeddings hold NaN or infinity, the first is row {int(bad[0])}: "
            "leave those rows out or embed those images again."
        )
    bad = torch.nonzero(length == 0).flatten()
    if len(bad):
        raise InputError(
            f"{len(bad)} of {count} embeddings are zero vectors, which have no direction to compare; "
            f"the first is row {int(bad[0])}: leave those rows out."
        )
    return UnitRows(embeddings, length, place, scale if bool((scale != 1).any()) else None)


def _measured(values: Tensor) -> tuple[Tensor, Tensor]:
    """Lengths (n,) of rows (n, D), and what they must be divided by first (n,), 1 for ordinary rows."""
    length = torch.linalg.vector_norm(values, dim=1)
    scale = torch.ones_like(length)
    odd = ~((length > SHORT) & (length < LONG))
    if bool(odd.any()):
        largest = values[odd].abs().amax(dim=1)
        scale[odd] = torch.where(largest == 0, 1.0, largest)
        length[odd] = torch.linalg.vector_norm(values[odd] / scale[odd, None], dim=1)
    return length, scale


def _usable(device: torch.device | str) -> torch.device:
    try:
        place = torch.device(device)
        torch.empty(0, dtype=torch.float64, device=place)
    except (RuntimeError, AssertionError, NotImplementedError, TypeError) as error:
        raise InputError(
            f"device {str(device)!r} cannot count here, because it is unavailable or lacks float64: "
            "give device='cpu'."
        ) from error
    return place


def blocks(count: int, dim: int) -> list[tuple[int, int]]:
    """(start, stop) of consecutive blocks of rows, each about a million numbers."""
    step = max(1, BLOCK_ELEMENTS // dim)
    return [(start, min(count, start + step)) for start in range(0, count, step)]


def _read(source: Embeddings, index: RowIndex, device: torch.device) -> Tensor:
    if isinstance(source, Tensor):
        chosen = (
            source[index] if isinstance(index, slice) else source[torch.from_numpy(index).to(source.device)]
        )
        return chosen.to(device=device, dtype=torch.float64)
    # A copy in float64: never a view of a file that is open for reading only.
    return torch.from_numpy(np.array(source[index], dtype=np.float64)).to(device)
