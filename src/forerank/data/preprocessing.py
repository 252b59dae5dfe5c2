"""What is done to a picture before a network sees it: resize, crop, flip, normalise."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from random import Random
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageEnhance

from forerank.errors import InputError, check_name

if TYPE_CHECKING:  # a search from the shell prepares its picture without waiting for torch
    import torch

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
INTERPOLATIONS = {
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
    "nearest": Image.Resampling.NEAREST,
}
CROPS = ("paper", "official")


@dataclass(frozen=True)
class Preprocessing:
    """How a model wants its pictures; every model carries one.

    Args:
        size: side of the square that the network sees.
        resize: side before cropping.
        mean, std: of each channel, for pixel values between 0 and 1.
        channels: 3 for colour, 1 for grey.
        squash: True resizes to `resize` x `resize` as the paper does; False keeps the aspect and makes
            the shorter side `resize`.
        interpolation: "bilinear", "bicubic", "lanczos" or "nearest".
        crop: the training view. "paper" resizes, then cuts `size` at a random place; "official" is the
            authors' code: 8% to 100% of the area at an aspect of 3/4 to 4/3, resized to `size`.
        flip: probability that the training view is mirrored.
        colour: brightness, contrast and saturation of the training view are each multiplied by a random
            number between 1 - colour and 1 + colour.
        erase: probability that a random rectangle of the training view is made grey (Zhong et al., 2020).

    >>> Preprocessing(size=32, resize=36, channels=1, mean=(0.5,), std=(0.5,), flip=0.0).size
    32
    """

    size: int = 224
    resize: int = 256
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD
    channels: int = 3
    squash: bool = True
    interpolation: str = "bilinear"
    crop: str = "paper"
    flip: float = 0.5
    colour: float = 0.0
    erase: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "mean", tuple(float(m) for m in self.mean))
        object.__setattr__(self, "std", tuple(float(s) for s in self.std))
        if self.channels not in (1, 3):
            raise InputError(f"channels must be 1 (grey) or 3 (colour), not {self.channels}")
        if len(self.mean) != self.channels or len(self.std) != self.channels:
            raise InputError(f"mean and std need {self.channels} numbers, one per channel")
        if min(self.std) <= 0:
            raise InputError(f"std must be positive, not {self.std}")
        if not 1 <= self.size <= self.resize:
            raise InputError(f"size ({self.size}) must be at least 1 and at most resize ({self.resize})")
        check_name("interpolation", self.interpolation, INTERPOLATIONS)
        check_name("crop", self.crop, CROPS)
        if not 0 <= self.flip <= 1:
            raise InputError(f"flip must be a probability, not {self.flip}")
        if not 0 <= self.colour < 1:
            raise InputError(f"colour must be at least 0 and below 1, not {self.colour}")
        if not 0 <= self.erase <= 1:
            raise InputError(f"erase must be a probability, not {self.erase}")

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON or YAML.

        >>> Preprocessing.from_dict(Preprocessing().to_dict()) == Preprocessing()
        True
        """
        values = {**asdict(self), "mean": list(self.mean), "std": list(self.std)}
        # What is off is not told: models and features from before these values keep their identity.
        return {key: value for key, value in values.items() if key not in ("colour", "erase") or value}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Preprocessing":
        """The inverse of `to_dict`; unknown keys are refused by name."""
        valid = [f.name for f in fields(cls)]
        for key in values:
            check_name("preprocessing key", key, valid)
        return cls(**values)

    def at_size(self, size: int) -> "Preprocessing":
        """The same views at another size, the margin around the crop kept in proportion.

        >>> Preprocessing(size=224, resize=256).at_size(112).resize
        128
        """
        return replace(self, size=size, resize=round(self.resize * size / self.size))

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one view: (channels, size, size)."""
        return self.channels, self.size, self.size

    def with_training_view(self, crop: str, colour: float = 0.0, erase: float = 0.0) -> "Preprocessing":
        """The same with another training view: crop "paper" or "official", colours, erasing."""
        return replace(self, crop=crop, colour=colour, erase=erase)

    def resized(self, width: int, height: int) -> tuple[int, int]:
        """Width and height after the resize step.

        >>> Preprocessing().resized(500, 250), Preprocessing(squash=False).resized(500, 250)
        ((256, 256), (512, 256))
        """
        if self.squash:
            return self.resize, self.resize
        if width <= height:
            return self.resize, int(self.resize * height / width)
        return int(self.resize * width / height), self.resize


@dataclass(frozen=True)
class SeveralViews:
    """What several networks want of one picture: a view for each, with its own size and normalisation.

    As a tensor it is one row of numbers, the views one after the other, so that a batch of pictures is one
    tensor (N, L) whatever the number of networks.

    >>> import torch
    >>> both = SeveralViews((Preprocessing(size=8, resize=9), Preprocessing(size=4, resize=5)))
    >>> both.shape, [tuple(view.shape) for view in both.split(torch.zeros(2, 240))]
    ((240,), [(2, 3, 8, 8), (2, 3, 4, 4)])
    """

    parts: tuple[Preprocessing, ...]

    def __post_init__(self) -> None:
        if len({part.channels for part in self.parts}) != 1:
            raise InputError("backbones side by side must all take colour images or all grey ones")

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one picture: (L,), L = the values of all views."""
        return (sum(math.prod(part.shape) for part in self.parts),)

    @property
    def channels(self) -> int:
        """3 for colour, 1 for grey."""
        return self.parts[0].channels

    @property
    def resize(self) -> int:
        """The largest side before cropping: what a picture must be decoded for."""
        return max(part.resize for part in self.parts)

    @property
    def crop(self) -> str:
        """The training view, the same for all."""
        return self.parts[0].crop

    def split(self, images: "torch.Tensor") -> "list[torch.Tensor]":
        """Pictures (N, L) as one batch (N, channels, size, size) for each network."""
        import torch

        lengths = [math.prod(part.shape) for part in self.parts]
        pieces = torch.split(images, lengths, dim=1)
        return [piece.reshape(-1, *part.shape) for piece, part in zip(pieces, self.parts, strict=True)]

    def at_size(self, size: int) -> "SeveralViews":
        """The same views, all at one other size."""
        return SeveralViews(tuple(part.at_size(size) for part in self.parts))

    def with_training_view(self, crop: str, colour: float = 0.0, erase: float = 0.0) -> "SeveralViews":
        """The same with another training view."""
        return SeveralViews(tuple(part.with_training_view(crop, colour, erase) for part in self.parts))

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON or YAML."""
        return {"parts": [part.to_dict() for part in self.parts]}


Views: TypeAlias = Preprocessing | SeveralViews


def views_from_dict(values: Mapping[str, Any]) -> Views:
    """What `to_dict` of a `Preprocessing` or of `SeveralViews` was made from.

    >>> both = SeveralViews((Preprocessing(), Preprocessing()))
    >>> views_from_dict(both.to_dict()) == both
    True
    """
    if set(values) == {"parts"}:
        return SeveralViews(tuple(Preprocessing.from_dict(part) for part in values["parts"]))
    return Preprocessing.from_dict(values)


def evaluation_view(image: Image.Image, preprocessing: Views) -> "torch.Tensor":
    """The deterministic view: resize, cut the centre, normalise.

    Returns:
        (channels, size, size) float32, or (L,) of several views.

    >>> evaluation_view(Image.new("RGB", (50, 40)), Preprocessing(size=8, resize=10)).shape
    torch.Size([3, 8, 8])
    """
    import torch

    return torch.from_numpy(evaluation_array(image, preprocessing))


def evaluation_array(image: Image.Image, preprocessing: Views) -> NDArray[np.float32]:
    """The same as an array, for callers that do not load torch.

    >>> evaluation_array(Image.new("RGB", (50, 40)), Preprocessing(size=8, resize=10)).shape
    (3, 8, 8)
    """
    if isinstance(preprocessing, SeveralViews):
        return np.concatenate([evaluation_array(image, part).ravel() for part in preprocessing.parts])
    p = preprocessing
    wide, high = p.resized(*image.size)
    return normalise(_cut(image, p, wide, high, *_central_corner(wide, high, p)), p)


def training_view(image: Image.Image, preprocessing: Views, rng: Random) -> "torch.Tensor":
    """A random view: crop by `preprocessing.crop`, maybe mirrored, normalised.

    Returns:
        (channels, size, size) float32, or (L,) of several views.

    >>> p = Preprocessing(size=8, resize=10)
    >>> a, b = (training_view(Image.new("RGB", (50, 40)), p, Random(0)) for _ in range(2))
    >>> bool((a == b).all())
    True
    """
    import torch

    if isinstance(preprocessing, SeveralViews):
        return torch.cat([training_view(image, part, rng).flatten() for part in preprocessing.parts])
    p = preprocessing
    if p.crop == "official":
        box = random_area(*image.size, rng)
        # Integer box, then one resampling: what cropping first and resizing afterwards would give.
        view = image.crop(box).resize((p.size, p.size), INTERPOLATIONS[p.interpolation])
    else:
        wide, high = p.resized(*image.size)
        view = _cut(image, p, wide, high, *_random_corner(wide, high, p, rng))
    mirror = rng.random() < p.flip
    if p.colour:
        view = _other_colours(view, p.colour, rng)
    planes = normalise(view, p, mirror=mirror)
    if p.erase and rng.random() < p.erase:
        # A third of the area at most; zero is the mean colour once a view is normalised.
        left, top, right, bottom = random_area(p.size, p.size, rng, smallest=0.02, largest=0.33)
        planes[:, top:bottom, left:right] = 0
    return torch.from_numpy(planes)


def _other_colours(image: Image.Image, colour: float, rng: Random) -> Image.Image:
    """Brightness, contrast and (of a colour picture) saturation changed at random."""
    kinds = [ImageEnhance.Brightness, ImageEnhance.Contrast]
    for kind in [*kinds, ImageEnhance.Color] if image.mode == "RGB" else kinds:
        image = kind(image).enhance(rng.uniform(1 - colour, 1 + colour))
    return image


def _central_corner(wide: int, high: int, p: Preprocessing) -> tuple[int, int]:
    return round((wide - p.size) / 2), round((high - p.size) / 2)


def _random_corner(wide: int, high: int, p: Preprocessing, rng: Random) -> tuple[int, int]:
    return rng.randrange(wide - p.size + 1), rng.randrange(high - p.size + 1)


def cuts_without_resizing(shape: tuple[int, ...], p: Preprocessing) -> bool:
    """Whether every view of a picture of this shape (H, W) is a part of its pixels as they are.

    >>> cuts_without_resizing((36, 36), Preprocessing(size=32, resize=36))
    True
    """
    high, wide = shape
    return p.crop == "paper" and not (p.colour or p.erase) and p.resized(wide, high) == (wide, high)


def resized_once(image: Image.Image, preprocessing: Views) -> Image.Image:
    """What may be kept in memory instead of a picture: resized, if every view begins with the same resizing.

    >>> same = Preprocessing(size=8, resize=8)
    >>> resized_once(Image.new("L", (32, 32)), same).size
    (8, 8)
    >>> resized_once(Image.new("L", (32, 32)), replace(same, crop="official")).size
    (32, 32)
    """
    p = preprocessing
    if isinstance(p, SeveralViews) or p.crop != "paper" or p.resized(*image.size) != (p.size, p.size):
        return image
    return _cut(image, p, p.size, p.size, 0, 0)


def cut_pixels(pixels: NDArray[np.uint8], p: Preprocessing, rng: Random | None) -> NDArray[np.uint8]:
    """The part of pixels (H, W, C) that `training_view`, or without `rng` `evaluation_view`, would take."""
    high, wide = pixels.shape[:2]
    left, top = _central_corner(wide, high, p) if rng is None else _random_corner(wide, high, p, rng)
    view = pixels[top : top + p.size, left : left + p.size]
    return view[:, ::-1] if rng is not None and rng.random() < p.flip else view


def _cut(image: Image.Image, p: Preprocessing, wide: int, high: int, left: int, top: int) -> Image.Image:
    """Resize to (wide, high) and cut `size` x `size` at (left, top), computing only the part that is kept."""
    if image.size == (wide, high):
        return (
            image
            if (wide, high) == (p.size, p.size)
            else image.crop((left, top, left + p.size, top + p.size))
        )
    x, y = image.width / wide, image.height / high
    # Rounding may put the far edge a hair outside the picture, which Pillow refuses.
    box = (left * x, top * y, min((left + p.size) * x, image.width), min((top + p.size) * y, image.height))
    return image.resize((p.size, p.size), INTERPOLATIONS[p.interpolation], box=box)


def random_area(
    width: int, height: int, rng: Random, *, smallest: float = 0.08, largest: float = 1.0
) -> tuple[int, int, int, int]:
    """A random part of 8% to 100% of the area with an aspect of 3/4 to 4/3 (RandomResizedCrop's rule).

    >>> random_area(100, 80, Random(0))
    (6, 0, 95, 77)
    """
    for _ in range(10):
        area = width * height * rng.uniform(smallest, largest)
        aspect = math.exp(rng.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            left, top = rng.randrange(width - w + 1), rng.randrange(height - h + 1)
            return left, top, left + w, top + h
    # The picture is too long or too tall for the wanted aspects: the largest centred part within them.
    w, h = min(width, round(height * 4 / 3)), min(height, round(width * 4 / 3))
    left, top = (width - w) // 2, (height - h) // 2
    return left, top, left + w, top + h


def normalise(image: Image.Image, preprocessing: Preprocessing, mirror: bool = False) -> NDArray[np.float32]:
    """A picture of 8 bits -> (C, H, W) float32 with mean and std taken off."""
    pixels = np.asarray(image)
    if pixels.ndim == 2:
        pixels = pixels[:, :, None]
    return normalise_pixels(pixels[:, ::-1] if mirror else pixels, preprocessing)


def normalise_pixels(pixels: NDArray[np.uint8], p: Preprocessing) -> NDArray[np.float32]:
    """Pixels (..., H, W, C) of 8 bits -> (..., C, H, W) float32 with mean and std taken off."""
    # To CHW while still one byte per value: a quarter of the memory traffic of doing it in float.
    planes = np.array(np.moveaxis(pixels, -1, -3), order="C").astype(np.float32)
    planes *= np.array([1 / (255 * std) for std in p.std], np.float32)[:, None, None]
    planes -= np.array([m / s for m, s in zip(p.mean, p.std, strict=True)], np.float32)[:, None, None]
    return planes
