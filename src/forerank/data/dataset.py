"""Rows of a table -> tensors, for a torch data loader."""

import os
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch.utils.data import Dataset

from forerank.console import progress
from forerank.data.decode import BadImageError, read_image
from forerank.data.preprocessing import Views, evaluation_view, training_view
from forerank.data.table import Table
from forerank.data.threads import map_in_threads
from forerank.errors import InputError, unknown

Item: TypeAlias = tuple[torch.Tensor, int, int]  # image (C, H, W) float32, label id, row of the table
BAD_POLICIES = ("refuse", "skip")
CACHE_LIMIT = 8 * 2**30  # bytes of decoded pixels that `cache=True` accepts


class ImageDataset(Dataset[Item | None]):
    """The images of a table as (image, label id, row).

    `dataset[i]` is the evaluation view of row i, always the same. `dataset[i, draw]` is a training view
    whose randomness depends on (seed, i, draw) alone: the same in any worker, process or resumed run.

    Args:
        table: the rows; label ids are `table.label_ids`.
        preprocessing: how the model wants its pictures.
        on_bad: "refuse" raises `BadImageError` at a picture that cannot be decoded. "skip" gives None for
            it, which `collate` leaves out; `skipped` lists those met so far, whichever worker met them.
        cache: decode everything once and keep the pixels in one array (for sets of small pictures).
        seed: of the training views.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> Image.new("RGB", (40, 30)).save(folder / "1.png")
    >>> table = Table(["1.png"], ["a"], ["test"], root=folder)
    >>> from forerank.data import Preprocessing
    >>> dataset = ImageDataset(table, Preprocessing(size=8, resize=9))
    >>> image, label, row = dataset[0]
    >>> image.shape, label, row
    (torch.Size([3, 8, 8]), 0, 0)
    """

    def __init__(
        self,
        table: Table,
        preprocessing: Views,
        *,
        on_bad: str = "refuse",
        cache: bool = False,
        seed: int = 0,
    ) -> None:
        if on_bad not in BAD_POLICIES:
            raise unknown("policy for bad images", on_bad, BAD_POLICIES)
        self.table, self.preprocessing, self.on_bad, self.seed = table, preprocessing, on_bad, seed
        self.labels: NDArray[np.int64] = table.label_ids
        self._files = [os.fspath(file) for file in table.files]
        # Shared memory: a data-loader worker marks a bad row and the main process sees it.
        self._bad = torch.zeros(len(table), dtype=torch.bool)
        self._bad.share_memory_()  # type: ignore[no-untyped-call]
        self._cache: _PixelCache | None = None
        if cache:
            self._cache = _PixelCache.fill(self)

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, key: int | tuple[int, int]) -> Item | None:
        index, draw = key if isinstance(key, tuple) else (key, None)
        index = int(index)
        try:
            image = self.picture(index)
        except BadImageError:
            if self.on_bad == "refuse":
                raise
            self._bad[index] = True
            return None
        if draw is None:
            view = evaluation_view(image, self.preprocessing)
        else:
            rng = Random(f"{self.seed} {index} {int(draw)}")
            view = training_view(image, self.preprocessing, rng)
        return view, int(self.labels[index]), index

    def picture(self, index: int) -> Image.Image:
        """Row `index` decoded and cut to its bounding box, before any view is taken."""
        if self._cache is not None:
            return self._cache.picture(index, self._files[index])
        return self._decode(index)

    def _decode(self, index: int) -> Image.Image:
        p, box = self.preprocessing, self.table.box
        # The authors' crop may enlarge a small part, and a box is in pixels of the full picture:
        # both need every pixel. Otherwise JPEG may decode at a fraction.
        shrink = p.resize if box is None and p.crop == "paper" else None
        image = read_image(self._files[index], channels=p.channels, shrink_to=shrink)
        if box is None:
            return image
        x1, y1, x2, y2 = (int(v) for v in box[index])
        if not (x1 or y1 or x2 or y2):
            return image
        if not (0 <= x1 < x2 <= image.width and 0 <= y1 < y2 <= image.height):
            raise BadImageError(
                self._files[index],
                f"the box {(x1, y1, x2, y2)} does not lie in the picture of {image.width} x {image.height}",
            )
        return image.crop((x1, y1, x2, y2))

    @property
    def skipped(self) -> list[Path]:
        """The bad pictures met so far under `on_bad="skip"`."""
        return [Path(self._files[i]) for i in torch.nonzero(self._bad).flatten().tolist()]


class _PixelCache:
    """Decoded pictures of any sizes, one after the other in one array of bytes."""

    def __init__(self, shapes: NDArray[np.int64], pixels: NDArray[np.uint8], reasons: dict[int, str]) -> None:
        self.shapes, self.pixels, self.reasons = shapes, pixels, reasons  # shapes (N, 2): height, width
        self.channels = 1

    @classmethod
    def fill(cls, dataset: ImageDataset) -> "_PixelCache":
        channels, n = dataset.preprocessing.channels, len(dataset)
        shapes, reasons = np.zeros((n, 2), dtype=np.int64), dict[int, str]()
        parts: list[NDArray[np.uint8]] = []
        total = 0

        def decode(index: int) -> NDArray[np.uint8] | BadImageError:
            try:
                return np.array(dataset._decode(index), dtype=np.uint8)
            except BadImageError as error:
                return error

        # Pillow decodes outside the GIL, but tiny pictures spend their time inside it: one thread is faster.
        tiny = n == 0 or (Path(dataset._files[0]).is_file() and Path(dataset._files[0]).stat().st_size < 4096)
        decoded = map_in_threads(decode, range(n), workers=1 if tiny else os.cpu_count() or 1)
        for index, found in enumerate(progress(decoded, "decoding", total=n)):
            if isinstance(found, BadImageError):
                if dataset.on_bad == "refuse":
                    raise found
                reasons[index] = found.reason
                continue
            shapes[index] = found.shape[:2]
            total += found.size
            if total > CACHE_LIMIT:
                raise InputError(
                    f"{dataset.table.name}: the decoded pictures exceed {CACHE_LIMIT / 2**30:.0f} GiB "
                    f"(after {index + 1:,} of {n:,}): use cache=False"
                )
            parts.append(found.reshape(-1))
        cache = cls(shapes, np.concatenate(parts) if parts else np.zeros(0, np.uint8), reasons)
        cache.channels = channels
        cache.ends = np.cumsum(shapes.prod(axis=1) * channels)
        return cache

    ends: NDArray[np.int64]

    def picture(self, index: int, name: str) -> Image.Image:
        if index in self.reasons:
            raise BadImageError(name, self.reasons[index])
        high, wide = (int(v) for v in self.shapes[index])
        end = int(self.ends[index])
        flat = self.pixels[end - high * wide * self.channels : end]
        return Image.fromarray(flat.reshape((high, wide) if self.channels == 1 else (high, wide, 3)))


def collate(items: Sequence[Item | None]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Join items to (images (B, C, H, W), label ids (B,), rows (B,)), leaving out skipped pictures.

    >>> images, labels, rows = collate([(torch.zeros(3, 4, 4), 7, 0), None])
    >>> images.shape, labels.tolist(), rows.tolist()
    (torch.Size([1, 3, 4, 4]), [7], [0])
    """
    kept = [item for item in items if item is not None]
    if not kept:
        raise InputError(f"none of the {len(items)} pictures of a batch can be decoded")
    images, labels, rows = zip(*kept, strict=True)
    return torch.stack(images), torch.tensor(labels, dtype=torch.int64), torch.tensor(rows, dtype=torch.int64)
