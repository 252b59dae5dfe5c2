"""Pictures in, vectors out: a trained or pretrained model in use."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from forerank.console import is_text, progress_bar
from forerank.data.decode import BadImageError, ImageSource, read_image
from forerank.data.image_files import find_images
from forerank.data.preprocessing import evaluation_view
from forerank.data.threads import map_in_threads
from forerank.errors import InputError, unknown
from forerank.files import write_atomically
from forerank.machine import choose_device
from forerank.models.backbones import is_name
from forerank.models.embedding import EmbeddingModel, channels_last, create_model, saved_folder
from forerank.models.storage import load_model

BAD_POLICIES = ("refuse", "skip")


class Retriever:
    """A model that embeds pictures: files, encoded bytes, Pillow pictures or arrays.

    Args:
        model: from `create_model` or `load_model`; it is put into evaluation mode.
        device: "auto" takes a GPU where there is one; else a torch device such as "cpu" or "cuda:1".
        batch_size: pictures that go through the network at once.

    >>> import numpy as np
    >>> from forerank.models import create_model
    >>> retriever = Retriever(create_model("glyphnet", embedding_dim=8))
    >>> retriever.embed([np.zeros((32, 32), np.uint8), np.full((40, 60, 3), 255, np.uint8)]).shape
    (2, 8)
    """

    def __init__(self, model: EmbeddingModel, *, device: str = "auto", batch_size: int = 64) -> None:
        if batch_size < 1:
            raise InputError(f"batch_size must be at least 1, not {batch_size}")
        self.device = torch.device(choose_device(device))
        # Channels last: the layout in which convolutions are fastest, on CPU and GPU alike.
        self.model = model.eval().to(self.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.batch_size = batch_size

    @classmethod
    def load(cls, source: str | Path, *, device: str = "auto", batch_size: int = 64) -> "Retriever":
        """From a run folder, a model folder, or the name of a backbone (its pretrained features)."""
        name = str(source)
        if not is_name(name) and (saved_folder(name) is not None or Path(name).expanduser().is_dir()):
            return cls(load_model(name), device=device, batch_size=batch_size)
        return cls(create_model(name, embedding_dim=None), device=device, batch_size=batch_size)

    @property
    def dim(self) -> int:
        """Width of the vectors."""
        return int(self.model.output_dim)

    def embed(
        self, images: Sequence[ImageSource], *, progress: bool = True, on_bad: str = "refuse"
    ) -> NDArray[np.float32]:
        """Unit vectors (N, D) of N pictures, row i of picture i.

        Args:
            images: paths, encoded bytes, Pillow pictures, or uint8 arrays (H, W[, 3 or 4]); mixed if wanted.
            progress: show a bar on a terminal.
            on_bad: "refuse" raises at the first picture that cannot be decoded, naming it; "skip" leaves a
                row of NaN in its place.
        """
        if on_bad not in BAD_POLICIES:
            raise unknown("policy for bad images", on_bad, BAD_POLICIES)
        if isinstance(images, str | bytes | Path):
            images = [images]
        vectors = np.full((len(images), self.dim), np.nan, dtype=np.float32)
        with progress_bar("embedding", len(images) if progress else None) as advance:
            for start, views in self._batches(images, on_bad):
                good = [i for i, view in enumerate(views) if view is not None]
                if good:
                    rows = [start + i for i in good]
                    vectors[rows] = self._forward(torch.stack([view for view in views if view is not None]))
                advance(len(views))
        return vectors

    def _forward(self, images: Tensor) -> NDArray[np.float32]:
        with torch.inference_mode():
            images = channels_last(images.to(self.device, non_blocking=True))
            vectors: NDArray[np.float32] = self.model(images).cpu().numpy()
        return vectors

    def _view(self, source: ImageSource, on_bad: str) -> Tensor | None:
        p = self.model.preprocessing
        try:
            return evaluation_view(read_image(source, channels=p.channels, shrink_to=p.resize), p)
        except BadImageError:
            if on_bad == "refuse":
                raise
            return None

    def _batches(
        self, images: Sequence[ImageSource], on_bad: str
    ) -> Iterator[tuple[int, list[Tensor | None]]]:
        """(first row, views) of batch after batch; threads decode the next ones while the network works."""
        workers = min(8, os.cpu_count() or 1, len(images))
        views = map_in_threads(
            lambda source: self._view(source, on_bad), images, workers=workers, ahead=2 * self.batch_size
        )
        with closing(views):  # an interrupted caller does not leave threads decoding
            for start in range(0, len(images), self.batch_size):
                yield start, list(islice(views, self.batch_size))


def embed_files(
    retriever: Callable[[], Retriever], images: Sequence[str | Path], output: Path, *, on_bad: str = "refuse"
) -> tuple[tuple[int, int], list[Path]]:
    """Vectors (N, D) of all pictures under some folders and files, as `output`.npy with their paths as .txt.

    Args:
        retriever: called once the pictures are found and the output can be written, so that a wrong path is
            refused before a model is loaded.

    Returns:
        The shape of what was written, and the pictures left out under `on_bad="skip"`.
    """
    if output.suffix != ".npy":
        raise InputError(f"the output should end in .npy, not {output.name!r}")
    if not output.resolve().parent.is_dir():
        raise InputError(f"no folder {output.resolve().parent} to write {output.name} into")
    found = [file for source in images for file in find_images(source)]
    files = [file for file in found if is_text(str(file))]
    if len(files) < len(found) and on_bad == "refuse":
        nameless = next(file for file in found if not is_text(str(file)))
        raise InputError(f"{nameless}: the name is not UTF-8: rename the file, or leave it out (skip)")
    vectors = retriever().embed(files, on_bad=on_bad)
    good = ~np.isnan(vectors[:, 0])
    kept = vectors[good]
    paths = "".join(f"{file}\n" for file, fine in zip(files, good, strict=True) if fine)

    def write_vectors(file: Path) -> None:
        with file.open("wb") as handle:  # np.save given a path would put .npy behind the temporary name
            np.save(handle, kept)

    write_atomically(output, write_vectors)
    write_atomically(output.with_suffix(".txt"), paths)
    written = {file for file, fine in zip(files, good, strict=True) if fine}
    return (len(kept), kept.shape[1]), [file for file in found if file not in written]
