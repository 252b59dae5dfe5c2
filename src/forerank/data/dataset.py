"""Rows of a table -> tensors, for a torch data loader."""

import os
from collections import OrderedDict
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
from forerank.data.preprocessing import (
    SeveralViews,
    Views,
    cut_pixels,
    cuts_without_resizing,
    evaluation_view,
    normalise_pixels,
    resized_once,
    training_view,
)
from forerank.data.table import Table
from forerank.data.threads import map_in_threads
from forerank.errors import InputError, check_name

Item: TypeAlias = tuple[torch.Tensor, int, int]  # image (C, H, W) float32, label id, row of the table
Joined: TypeAlias = tuple[torch.Tensor, torch.Tensor, torch.Tensor]  # images (B, C, H, W), labels, rows
Key: TypeAlias = int | tuple[int, int]  # row, or row and number of the draw
BAD_POLICIES = ("refuse", "skip")
CACHE_LIMIT = 8 * 2**30  # bytes of decoded pixels that `cache=True` accepts
SHARED_LIMIT = (
    256 * 2**20
)  # bytes of decoded pixels that a process keeps for the next data set of these files


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
        check_name("policy for bad images", on_bad, BAD_POLICIES)
        self.table, self.preprocessing, self.on_bad, self.seed = table, preprocessing, on_bad, seed
        self.labels: NDArray[np.int64] = table.label_ids
        self._files = [os.fspath(file) for file in table.files]
        # Shared memory: a data-loader worker marks a bad row and the main process sees it.
        self._bad = torch.zeros(len(table), dtype=torch.bool)
        self._bad.share_memory_()  # type: ignore[no-untyped-call]
        self._cache: _PixelCache | None = None
        if cache:
            self._cache = _shared_pixels(self)

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, key: Key) -> Item | None:
        index, draw = _row_and_draw(key)
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
            view = training_view(image, self.preprocessing, self._random(index, draw))
        return view, int(self.labels[index]), index

    def __getitems__(self, keys: Sequence[Key]) -> Joined | list[Item | None]:
        """A whole batch, which the data loader asks for; small pictures in memory are cut in one pass."""
        p, whole = self.preprocessing, self._whole
        if whole is None or isinstance(p, SeveralViews):
            return [self[key] for key in keys]
        wanted = [_row_and_draw(key) for key in keys]
        rows = np.array([index for index, _ in wanted], dtype=np.int64)
        if p.size == p.resize and not p.flip:  # every view is the picture itself
            views = whole[rows]
        else:
            views = np.empty((len(rows), p.size, p.size, p.channels), np.uint8)
            for view, (index, draw) in zip(views, wanted, strict=True):
                rng = None if draw is None else self._random(index, draw)
                view[:] = cut_pixels(whole[index], p, rng)
        images = torch.from_numpy(normalise_pixels(views, p))
        return images, torch.from_numpy(self.labels[rows]), torch.from_numpy(rows)

    @property
    def gives_joined_batches(self) -> bool:
        """Whether `__getitems__` gives tensors of the whole batch, because all pictures lie in one array."""
        return self._whole is not None

    @property
    def _whole(self) -> NDArray[np.uint8] | None:
        """All pictures (N, H, W, C) in memory, if every view is a part of their pixels."""
        whole, p = None if self._cache is None else self._cache.whole, self.preprocessing
        if whole is None or isinstance(p, SeveralViews) or not cuts_without_resizing(whole.shape[1:3], p):
            return None
        return whole

    def _random(self, index: int, draw: int) -> Random:
        return Random(f"{self.seed} {index} {draw}")

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


def _row_and_draw(key: Key) -> tuple[int, int | None]:
    if isinstance(key, tuple):
        return int(key[0]), int(key[1])
    return int(key), None


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
                return np.array(resized_once(dataset._decode(index), dataset.preprocessing), dtype=np.uint8)
            except BadImageError as error:
                return error

        # Pillow decodes outside the GIL, but tiny pictures spend their time inside it: one thread is faster.
        tiny = n == 0 or (Path(dataset._files[0]).is_file() and Path(dataset._files[0]).stat().st_size < 4096)
        decoded = map_in_threads(decode, range(n), workers=1 if tiny else os.cpu_count() or 1)
        for index, pixels in enumerate(progress(decoded, "decoding", total=n)):
            if isinstance(pixels, BadImageError):
                if dataset.on_bad == "refuse":
                    raise pixels
                reasons[index] = pixels.reason
                continue
            shapes[index] = pixels.shape[:2]
            total += pixels.size
            if total > CACHE_LIMIT:
                raise InputError(
                    f"{dataset.table.name}: the decoded pictures exceed {CACHE_LIMIT / 2**30:.0f} GiB "
                    f"(after {index + 1:,} of {n:,}): use cache=False"
                )
            parts.append(pixels.reshape(-1))
        cache = cls(shapes, np.concatenate(parts) if parts else np.zeros(0, np.uint8), reasons)
        cache.channels = channels
        cache.ends = np.cumsum(shapes.prod(axis=1) * channels)
        return cache

    ends: NDArray[np.int64]

    @property
    def whole(self) -> NDArray[np.uint8] | None:
        """All pictures as (N, H, W, C), if they are of one size and none is bad."""
        if self.reasons or not len(self.shapes) or (self.shapes != self.shapes[0]).any():
            return None
        return self.pixels.reshape(-1, *self.shapes[0].tolist(), self.channels)

    def picture(self, index: int, name: str) -> Image.Image:
        if index in self.reasons:
            raise BadImageError(name, self.reasons[index])
        high, wide = (int(v) for v in self.shapes[index])
        end = int(self.ends[index])
        flat = self.pixels[end - high * wide * self.channels : end]
        return Image.fromarray(flat.reshape((high, wide) if self.channels == 1 else (high, wide, 3)))


_shared: OrderedDict[tuple[object, ...], _PixelCache] = OrderedDict()


def _shared_pixels(dataset: ImageDataset) -> _PixelCache:
    """The decoded pixels of a data set; an earlier one of the same unchanged files has them already.

    Measuring a run opens its data again, and a study trains hundreds of runs on the same small pictures.
    """
    try:
        about = [os.stat(name) for name in dataset._files]  # noqa: PTH116 - thousands of times
    except OSError:  # not all of them are files of their own; decoding says what is wrong
        return _PixelCache.fill(dataset)
    box = None if dataset.table.box is None else dataset.table.box.tobytes()
    versions = tuple((file.st_ino, file.st_mtime_ns, file.st_size) for file in about)
    key = (dataset.preprocessing, box, tuple(dataset._files), versions)
    kept = _shared.pop(key, None)
    pixels = _PixelCache.fill(dataset) if kept is None else kept
    if not pixels.reasons and pixels.pixels.nbytes <= SHARED_LIMIT:  # bad pictures are met anew each time
        _shared[key] = pixels
    while sum(one.pixels.nbytes for one in _shared.values()) > SHARED_LIMIT:
        _shared.popitem(last=False)
    return pixels


def collate(items: Sequence[Item | None] | Joined) -> Joined:
    """Join items to (images (B, C, H, W), label ids (B,), rows (B,)), leaving out skipped pictures.

    A batch that `ImageDataset` has joined already stays as it is.

    >>> images, labels, rows = collate([(torch.zeros(3, 4, 4), 7, 0), None])
    >>> images.shape, labels.tolist(), rows.tolist()
    (torch.Size([1, 3, 4, 4]), [7], [0])
    """
    if isinstance(items, tuple):
        return items
    kept = [item for item in items if item is not None]
    if not kept:
        raise InputError(f"none of the {len(items)} pictures of a batch can be decoded")
    images, labels, rows = zip(*kept, strict=True)
    return torch.stack(images), torch.tensor(labels, dtype=torch.int64), torch.tensor(rows, dtype=torch.int64)
