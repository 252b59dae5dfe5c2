"""Views of a picture: against the same steps done one after the other."""

from random import Random

import numpy as np
import pytest
import torch
from PIL import Image

from forerank.data import Preprocessing, evaluation_view, training_view
from forerank.data.preprocessing import IMAGENET_MEAN, IMAGENET_STD, random_area
from forerank.errors import InputError


def photo(width: int, height: int) -> Image.Image:
    """Smooth, coloured, different at every place."""
    x, y = np.meshgrid(np.linspace(0, 1, width), np.linspace(0, 1, height))
    planes = [np.sin(9 * x) * np.cos(7 * y), x, y]
    return Image.fromarray(np.stack([(127 + 120 * p).clip(0, 255) for p in planes], -1).astype(np.uint8))


def naive_evaluation(image: Image.Image, p: Preprocessing) -> torch.Tensor:
    """Resize, centre crop, to tensor, normalise, as torchvision's documentation words them."""
    if p.squash:
        image = image.resize((p.resize, p.resize), Image.Resampling.BILINEAR)
    else:
        short = min(image.size)
        image = image.resize(
            tuple(p.resize if s == short else int(p.resize * s / short) for s in image.size),
            Image.Resampling.BILINEAR,
        )
    left, top = round((image.width - p.size) / 2), round((image.height - p.size) / 2)
    image = image.crop((left, top, left + p.size, top + p.size))
    tensor = torch.from_numpy(np.array(image)).permute(2, 0, 1).float() / 255
    return (tensor - torch.tensor(p.mean)[:, None, None]) / torch.tensor(p.std)[:, None, None]


@pytest.mark.parametrize("squash", [True, False])
@pytest.mark.parametrize("size", [(500, 375), (375, 500), (300, 300), (90, 61), (256, 256)])
def test_the_evaluation_view_equals_the_plain_steps(size: tuple[int, int], squash: bool) -> None:
    p = Preprocessing(squash=squash)
    ours, plain = evaluation_view(photo(*size), p), naive_evaluation(photo(*size), p)
    assert ours.shape == (3, 224, 224)
    assert ours.dtype == torch.float32
    # Cropping through the resampling box rounds differently by at most a grey value or two.
    assert (ours - plain).abs().max() * 255 * max(IMAGENET_STD) < 2.01
    assert (ours - plain).abs().mean() * 255 * max(IMAGENET_STD) < 0.2


def test_normalisation_by_hand() -> None:
    p = Preprocessing(size=2, resize=2)
    view = evaluation_view(Image.new("RGB", (2, 2), (255, 0, 51)), p)
    expected = [(v / 255 - m) / s for v, m, s in zip((255, 0, 51), IMAGENET_MEAN, IMAGENET_STD, strict=True)]
    assert torch.allclose(view[:, 0, 0], torch.tensor(expected), atol=1e-6)
    lite = Preprocessing(size=2, resize=2, mean=(127 / 255,) * 3, std=(128 / 255,) * 3)
    view = evaluation_view(Image.new("RGB", (2, 2), (255, 0, 127)), lite)
    assert torch.allclose(view[:, 0, 0], torch.tensor([1.0, -127 / 128, 0.0]), atol=1e-6)


@pytest.mark.parametrize("squash", [True, False])
def test_the_papers_training_view_is_a_crop_of_the_resized_picture(squash: bool) -> None:
    p = Preprocessing(size=24, resize=32, squash=squash, mean=(0, 0, 0), std=(1 / 255,) * 3, flip=0.0)
    image = photo(80, 64)
    resized = np.asarray(image.resize(p.resized(80, 64), Image.Resampling.BILINEAR)).astype(int)
    places = set()
    for draw in range(60):
        view = training_view(image, p, Random(draw)).numpy().transpose(1, 2, 0)
        distance, place = min(
            (np.abs(resized[y : y + 24, x : x + 24] - view).max(), (x, y))
            for y in range(resized.shape[0] - 23)
            for x in range(resized.shape[1] - 23)
        )
        assert distance <= 2
        places.add(place)
    assert len(places) > 25  # spread over the possible places
    assert max(x for x, _ in places) >= resized.shape[1] - 24 - 1
    assert min(y for _, y in places) == 0


def test_flip_mirrors_with_its_probability() -> None:
    p = Preprocessing(size=16, resize=16, flip=0.5)
    image = photo(16, 16)
    plain = evaluation_view(image, p)
    mirrored = [bool((training_view(image, p, Random(i)) == plain.flip(2)).all()) for i in range(400)]
    assert 150 < sum(mirrored) < 250
    never = Preprocessing(size=16, resize=16, flip=0.0)
    assert all((training_view(image, never, Random(i)) == plain).all() for i in range(50))


def test_the_official_crop_stays_within_its_bounds() -> None:
    rng = Random(0)
    shares = []
    for _ in range(500):
        left, top, right, bottom = random_area(400, 300, rng)
        assert 0 <= left < right <= 400
        assert 0 <= top < bottom <= 300
        shares.append((right - left) * (bottom - top) / 120_000)
        assert 0.72 < (right - left) / (bottom - top) < 1.38
    assert 0.07 < min(shares) < 0.12
    assert max(shares) > 0.9
    assert random_area(1000, 10, rng)[2:] != (
        1000,
        10,
    )  # too long for any allowed aspect: cut from the centre
    view = training_view(photo(400, 300), Preprocessing(crop="official"), rng)
    assert view.shape == (3, 224, 224)


def test_round_trip_and_refusals() -> None:
    p = Preprocessing(
        size=32, resize=36, channels=1, mean=(0.5,), std=(0.5,), squash=False, crop="official", flip=0.1
    )
    assert Preprocessing.from_dict(p.to_dict()) == p
    for bad, said in (
        ({"interpolation": "bicubik"}, "did you mean 'bicubic'"),
        ({"crop": "centre"}, "unknown crop"),
        ({"size": 300}, "at most resize"),
        ({"channels": 4}, "channels"),
        ({"mean": (0.5,)}, "one per channel"),
        ({"std": (0, 0, 0)}, "positive"),
        ({"flip": 2}, "probability"),
    ):
        with pytest.raises(InputError, match=said):
            Preprocessing(**bad)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="did you mean 'resize'"):
        Preprocessing.from_dict({"resise": 3})


def test_colours_and_erasing_change_training_views_only_and_repeatably() -> None:
    pixels = np.random.default_rng(0).integers(0, 255, (40, 40, 3), dtype=np.uint8)
    image, plain = Image.fromarray(pixels), Preprocessing(size=32, resize=32, flip=0.0)
    before = training_view(image, plain, Random(1))
    erased = training_view(image, plain.with_training_view("paper", erase=1.0), Random(1))
    gone = (erased != before).any(dim=0)
    assert 0.01 < gone.float().mean() < 0.36
    assert (erased[:, gone] == 0).all()
    jittered = plain.with_training_view("paper", colour=0.3)
    views = [training_view(image, jittered, Random(seed)) for seed in (1, 1, 2)]
    assert torch.equal(views[0], views[1])
    assert not torch.equal(views[0], views[2])
    assert not torch.equal(views[0], before)
    assert torch.equal(evaluation_view(image, jittered), evaluation_view(image, plain))
    assert plain.to_dict().keys() == Preprocessing().to_dict().keys() - {"colour", "erase"}
    assert Preprocessing.from_dict(jittered.to_dict()) == jittered
    for wrong in ({"colour": 1.0}, {"erase": 1.5}):
        with pytest.raises(InputError, match="must be"):
            Preprocessing(**wrong)
