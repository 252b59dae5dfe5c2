"""create_model: unit vectors, pooling, head, frozen batch norm, seeds."""

import pytest
import torch
from torch import nn

from forerank.data import Preprocessing
from forerank.errors import InputError
from forerank.models import GeM, create_model


def pictures(n: int, channels: int = 1, size: int = 32) -> torch.Tensor:
    return torch.randn(n, channels, size, size, generator=torch.Generator().manual_seed(1))


def test_forward_is_head_of_features_and_gives_unit_vectors() -> None:
    model = create_model("glyphnet", embedding_dim=48, layer_norm=True)
    images = pictures(5)
    vectors = model(images)
    assert vectors.shape == (5, 48)
    torch.testing.assert_close(vectors.norm(dim=1), torch.ones(5))
    features = model.features(images)
    assert features.shape == (5, model.feature_dim)
    torch.testing.assert_close(model.embed_features(features), vectors)


def test_gem_by_hand_and_between_average_and_maximum() -> None:
    x = torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]]])
    expected = ((1 + 8 + 27 + 64) / 4) ** (1 / 3)
    assert GeM(3.0)(x).item() == pytest.approx(expected, rel=1e-5)
    assert GeM(1.0)(x).item() == pytest.approx(2.5)
    assert GeM(60.0)(x).item() == pytest.approx(4.0, rel=0.03)
    gem = GeM(3.0).double()
    map_ = torch.rand(2, 3, 2, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) + 0.1
    gem(map_.requires_grad_()).sum().backward()
    assert map_.grad is not None
    assert gem.exponent.grad is not None
    assert gem.exponent.grad.abs() > 0


def test_gem_learns_its_exponent_in_a_model() -> None:
    model = create_model("glyphnet", embedding_dim=8, pooling="gem")
    model(pictures(2))[:, 0].sum().backward()
    assert model.pool is not None
    assert model.pool.exponent.grad is not None


def test_a_new_head_keeps_the_cosines_of_the_features() -> None:
    wide = create_model("efficientnet-lite0", pretrained=False, embedding_dim=512)
    square = create_model("efficientnet-lite0", pretrained=False, embedding_dim=1280)
    bare = create_model("efficientnet-lite0", pretrained=False, embedding_dim=None)
    features = torch.rand(60, 1280, generator=torch.Generator().manual_seed(0)) ** 4
    with torch.no_grad():
        cosines = [(v := model.embed_features(features)) @ v.T for model in (bare, square, wide)]
    torch.testing.assert_close(cosines[0], cosines[1])
    assert (cosines[0] - cosines[2]).abs().max() < 0.15
    assert torch.corrcoef(torch.stack([cosines[0].flatten(), cosines[2].flatten()]))[0, 1] > 0.95


def test_frozen_batch_norm_keeps_its_statistics_and_learns_its_scale() -> None:
    for frozen in (True, False):
        model = create_model("efficientnet-lite0", pretrained=False, freeze_batch_norm=frozen).train()
        norm = model.backbone.stem.norm
        assert isinstance(norm, nn.BatchNorm2d)
        before = norm.running_mean.clone()
        model(pictures(2, 3, 64))[:, 0].sum().backward()
        assert torch.equal(norm.running_mean, before) is frozen
        assert norm.weight.grad is not None
        assert model.training
        assert norm.training is not frozen


def test_without_head_the_vectors_are_the_features_normalised() -> None:
    model = create_model("glyphnet", embedding_dim=None)
    images = pictures(3)
    torch.testing.assert_close(model(images), nn.functional.normalize(model.features(images)))
    assert model.output_dim == model.feature_dim


def test_the_seed_decides_the_weights_and_the_global_generator_is_left_alone() -> None:
    torch.manual_seed(5)
    state = torch.get_rng_state()
    a, b, c = (create_model("glyphnet", seed=seed) for seed in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(x, y) for x, y in zip(a.parameters(), b.parameters(), strict=True))
    assert not torch.equal(next(a.parameters()), next(c.parameters()))


def test_a_vector_does_not_depend_on_its_neighbours_in_the_batch() -> None:
    model = create_model("glyphnet", embedding_dim=16).train()  # even in training mode: no batch statistics
    images = pictures(6)
    torch.testing.assert_close(model(images)[:2], model(images[:2]))


def test_half_precision_gives_unit_vectors_in_single_precision() -> None:
    model = create_model("glyphnet", embedding_dim=16)
    with torch.autocast("cpu", torch.bfloat16):
        vectors = model(pictures(3))
    assert vectors.dtype == torch.float32
    torch.testing.assert_close(vectors.norm(dim=1), torch.ones(3))


def test_preprocessing_can_be_replaced() -> None:
    p = Preprocessing(size=48, resize=48, mean=(0.5,), std=(0.5,), channels=1, flip=0.0)
    model = create_model("glyphnet", preprocessing=p)
    assert model.preprocessing == p
    assert model.spec["preprocessing"]["size"] == 48


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"backbone": "glyfnet"}, "unknown backbone 'glyfnet': did you mean 'glyphnet'"),
        ({"backbone": "glyphnet", "pooling": "Gem"}, "unknown pooling 'Gem': did you mean 'gem'"),
        ({"backbone": "glyphnet", "embedding_dim": 0}, "embedding_dim must be positive"),
        ({"backbone": "./nowhere/run"}, "no model folder ./nowhere/run"),
        ({"backbone": "efficientnet-lite0@nowhere.safetensors"}, "no weights file nowhere.safetensors"),
    ],
)
def test_bad_requests_are_refused_by_name(arguments: dict[str, object], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        create_model(**arguments)  # type: ignore[arg-type]
