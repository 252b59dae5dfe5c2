"""Pictures in, vectors out: a trained or pretrained model in use."""

from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from forerank.console import progress_bar
from forerank.data.decode import BadImageError, ImageSource, bad_image_if_it_fails, read_image
from forerank.data.preprocessing import Views, evaluation_array, views_from_dict
from forerank.data.sources import Picture
from forerank.errors import InputError, check_name
from forerank.models.feature_cache import features_folder, find_features
from forerank.models.inference import Network, cached_network, open_network
from forerank.models.pipeline import compute_vectors
from forerank.models.storage import load_model, saved_folder, saved_spec

if TYPE_CHECKING:
    from forerank.models.embedding import EmbeddingModel

BAD_POLICIES = ("refuse", "skip")
KNOWN_AT_ONCE = 4096  # vectors that are made of kept features in one go: of 1280 features, 20 MB


class Retriever:
    """A model that embeds pictures: files, encoded bytes, Pillow pictures or arrays.

    Args:
        model: from `create_model` or `load_model`; it is put into evaluation mode.
        device: "auto" takes a GPU where there is one; else a torch device such as "cpu" or "cuda:1".
        batch_size: pictures that go through the network at once.
        engine: "torch", "openvino", or "auto": openvino on a processor where it is installed.
        precision: "fp32", or "bf16" where the processor has it: faster, and the vectors change a little.

    >>> import numpy as np
    >>> from forerank.models import create_model
    >>> retriever = Retriever(create_model("glyphnet", embedding_dim=8))
    >>> retriever.embed([np.zeros((32, 32), np.uint8), np.full((40, 60, 3), 255, np.uint8)]).shape
    (2, 8)
    """

    def __init__(
        self,
        model: "EmbeddingModel",
        *,
        device: str = "auto",
        batch_size: int = 64,
        engine: str = "auto",
        precision: str = "fp32",
    ) -> None:
        import torch

        from forerank.machine import choose_device

        if batch_size < 1:
            raise InputError(f"batch_size must be at least 1, not {batch_size}")
        self.device = choose_device(device)
        # Channels last: the layout in which convolutions are fastest, on CPU and GPU alike.
        self.model = model.eval().to(self.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.preprocessing: Views = model.preprocessing
        self.dim = int(model.output_dim)
        self.batch_size, self.engine, self.precision = batch_size, engine, precision

    @classmethod
    def load(
        cls,
        source: str | Path,
        *,
        device: str = "auto",
        batch_size: int = 64,
        engine: str = "auto",
        precision: str = "fp32",
    ) -> "Retriever":
        """From a run folder, a model folder, or the name of a backbone (its pretrained features)."""
        from forerank.models.backbones import is_name
        from forerank.models.embedding import create_model

        name = str(source)
        saved = not is_name(name) and (saved_folder(name) is not None or Path(name).expanduser().is_dir())
        model = load_model(name) if saved else create_model(name, embedding_dim=None)
        return cls(model, device=device, batch_size=batch_size, engine=engine, precision=precision)

    @cached_property
    def identity(self) -> str:
        """What tells this model from others: see `forerank.models.identity`."""
        from forerank.models.identity import model_identity

        return model_identity(self.model)

    @cached_property
    def network(self) -> Network:
        """The network as its engine runs it, opened when the first picture is embedded."""
        shape = self.preprocessing.shape
        chosen = {"engine": self.engine, "precision": self.precision, "device": self.device}
        return open_network(self.model, shape, self.identity, **chosen)

    def known_vectors(self, files: Sequence[Path]) -> Iterator[tuple[list[int], NDArray[np.float32]]]:
        """Positions in `files` and vectors (n, D), block by block.

        Of the images whose features training has computed and kept; the other positions do not come.
        """
        import torch

        from forerank.models.pooling import join_features

        engine, precision = self.network.engine, self.network.precision
        singles = self.model.single_models()
        known = [find_features(features_folder(single, engine, precision), files) for single in singles]
        positions = [position for position in known[0] if all(position in other for other in known)]
        for start in range(0, len(positions), KNOWN_AT_ONCE):
            block = positions[start : start + KNOWN_AT_ONCE]
            features = [torch.stack([of_one[position] for position in block]) for of_one in known]
            together = features[0] if len(features) == 1 else join_features(features)
            with torch.inference_mode():
                vectors = self.model.embed_features(together.to(self.device))
            yield block, vectors.cpu().numpy()

    def embed(
        self, images: Sequence["ImageSource | Picture"], *, progress: bool = True, on_bad: str = "refuse"
    ) -> NDArray[np.float32]:
        """Unit vectors (N, D) of N pictures, row i of picture i.

        Args:
            images: paths, encoded bytes, Pillow pictures, or uint8 arrays (H, W[, 3 or 4]); mixed if wanted.
            progress: show a bar on a terminal.
            on_bad: "refuse" raises at the first picture that cannot be decoded, naming it; "skip" leaves a
                row of NaN in its place.
        """
        return _embed(
            self.network,
            self.preprocessing,
            self.dim,
            images,
            self.batch_size,
            progress=progress,
            on_bad=on_bad,
        )


class ConvertedRetriever:
    """A saved model whose converted network is in the cache: embeds as a `Retriever` does, without torch."""

    def __init__(self, network: Network, preprocessing: Views, dim: int, identity: str) -> None:
        self.network, self.preprocessing, self.dim = network, preprocessing, dim
        self.identity = identity

    @classmethod
    def find(cls, folder: Path, identity: str, dim: int, precision: str) -> "ConvertedRetriever | None":
        """The model of a folder by its identity, or None where its network was not converted here."""
        network = cached_network(identity, precision)
        if network is None:
            return None
        return cls(network, views_from_dict(saved_spec(folder)["preprocessing"]), dim, identity)

    def embed(
        self, images: Sequence["ImageSource | Picture"], *, progress: bool = True, on_bad: str = "refuse"
    ) -> NDArray[np.float32]:
        """Unit vectors (N, D) of N pictures, as `Retriever.embed` gives them."""
        return _embed(
            self.network, self.preprocessing, self.dim, images, 64, progress=progress, on_bad=on_bad
        )


def _embed(
    network: Network,
    preprocessing: Views,
    dim: int,
    images: Sequence["ImageSource | Picture"],
    batch_size: int,
    *,
    progress: bool,
    on_bad: str,
) -> NDArray[np.float32]:
    check_name("policy for bad images", on_bad, BAD_POLICIES)
    if isinstance(images, str | bytes | Path):
        images = [images]

    def read(source: "ImageSource | Picture") -> NDArray[np.float32] | None:
        p = preprocessing
        try:
            if isinstance(source, Picture):
                return read_named(source)
            return evaluation_array(read_image(source, channels=p.channels, shrink_to=p.resize), p)
        except BadImageError:
            if on_bad == "refuse":
                raise
            return None

    def read_named(picture: Picture) -> NDArray[np.float32] | None:
        """Errors of bytes do not know where the bytes come from; the picture does."""
        with bad_image_if_it_fails(picture.name, "cannot be read"):
            data = picture.read()
        try:
            return read(data)
        except BadImageError as error:
            raise BadImageError(picture.name, error.reason) from None

    vectors = np.full((len(images), dim), np.nan, dtype=np.float32)
    with progress_bar("embedding", len(images) if progress else None) as advance:
        for rows, computed, taken in compute_vectors(read, images, network, batch_size=batch_size):
            vectors[rows] = computed
            advance(taken)
    return vectors
