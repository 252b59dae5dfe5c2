"""Methods: which settings they bring, which they refuse, and what a short run of them does."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from forerank.cli import run as command
from forerank.data import Table
from forerank.training import load_recipe, train
from forerank.training.methods import METHODS
from forerank.training.methods.divide_and_conquer import DivideAndConquer
from forerank.training.methods.histogram import HistogramOverlap
from forerank.training.methods.method import Objective
from forerank.training.prepare import complete_recipe
from forerank.training.recipe import override

from .conftest import QUICK


def table(classes: int, each: int) -> Table:
    names = [f"{c}/{i}" for c in range(classes) for i in range(each)]
    return Table(names, [name.split("/")[0] for name in names], ["train"] * len(names), root=Path())


def test_renewals_come_every_so_many_epochs_from_the_first_step_on() -> None:
    objective = Objective()
    assert objective.renewals(10, 100) == []
    objective.renew_epochs = 3
    assert objective.renewals(10, 100) == [0, 30, 60, 90]
    assert objective.renewals(10, 25) == [0]


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        (
            400,
            [*range(0, 380, 20), 380],
        ),  # the paper: 200 epochs, the whole vector from 190
        (30, [0, 20, 29]),  # a short run ends with the whole vector too
        (5, [0]),  # too short for a twentieth
    ],
)
def test_divide_and_conquer_ends_with_the_whole_vector_in_a_run_of_any_length(
    steps: int, expected: list[int]
) -> None:
    objective = DivideAndConquer(torch.zeros(4, dtype=torch.int64), 2, 10, whole_from=0.95, margin=0.2)
    assert objective.renewals(2, steps) == expected
    from_the_start = DivideAndConquer(torch.zeros(4, dtype=torch.int64), 2, 10, whole_from=0.0, margin=0.2)
    assert from_the_start.renewals(2, steps) == [0]


def test_a_short_run_of_divide_and_conquer_is_divided_first_and_whole_at_its_end(
    images: Path, tmp_path: Path
) -> None:
    values = [*QUICK, "method=divide-and-conquer", "method.clusters=4", "method.renew_epochs=50",
              "report=false", "steps=8", "every=4", "method.whole_from=0.7"]  # fmt: skip
    for stop, whole in ((4, False), (8, True)):
        run = tmp_path / str(stop)
        train(load_recipe(images, [*values, f"schedule.stop={stop}"]), run)
        state = load_file(run / "last" / "state.safetensors")
        assert bool(state["objective.whole"]) is whole
        assert set(np.unique(state["objective.cluster"])) == {0, 1, 2, 3}


def test_the_overlap_of_histograms_is_that_of_pytorch_metric_learning_and_of_the_paper() -> None:
    """The peer's loss and gradient; with many bins, the share of pairs of pairs in the wrong order."""
    losses = pytest.importorskip("pytorch_metric_learning.losses")
    generator = torch.Generator().manual_seed(0)
    raw = torch.randn(24, 6, generator=generator).requires_grad_()
    vectors = torch.nn.functional.normalize(raw)  # the peer normalises too, which is part of its gradient
    labels = torch.arange(6).repeat_interleave(4)
    ours = HistogramOverlap(100).loss(vectors, labels, labels)
    theirs = losses.HistogramLoss(n_bins=100)(vectors, labels)
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-4)
    gradients = [torch.autograd.grad(value, raw, retain_graph=True)[0] for value in (ours, theirs)]
    torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-5)
    similarity = (vectors @ vectors.T).detach()
    same = labels[:, None] == labels
    apart = ~torch.eye(24, dtype=torch.bool)
    wrong = (similarity[~same][:, None] > similarity[same & apart][None, :]).float().mean()
    assert HistogramOverlap(20_000).loss(vectors, labels, labels).item() == pytest.approx(
        float(wrong), abs=2e-3
    )
    alone = HistogramOverlap(10).loss(vectors, torch.zeros(24, dtype=torch.int64), labels)
    assert alone.item() == 0  # no negatives
    assert torch.isfinite(torch.autograd.grad(alone, raw)[0]).all()


@pytest.mark.parametrize("key", [key for key, method in METHODS.items() if not method.published])
def test_settings_that_are_not_known_are_refused(
    images: Path, tmp_path: Path, key: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    values = [*QUICK, f"method={key}", "method.settings=published"]
    assert command(["train", str(images), *values, "--run", str(run)]) == 2
    assert f"the training settings of the paper of {key} are not known here" in capsys.readouterr().err
    assert not run.exists()


@pytest.mark.parametrize(("values", "sentence"), [
    (["method=histogram", "method.bins=0"], "histogram needs at least 1 bin"),
    (["method=divide-and-conquer", "method.clusters=1"], "needs at least 2 clusters, not 1"),
    (["method=mic", "method.clusters=1"], "mic with 1 clusters needs at least 2 clusters"),
    (["method=dcml-mdw", "method.parts=1"], "dcml-mdw needs at least 2 parts and 1 compositor"),
    (["method=dcml-mdw", "embedding_dim=null"], "dcml-mdw cuts the embedding into 4 parts"),
    (["method=softtriple", "method.scale=-1"], "method.scale must be 0 or more, not -1"),
    (["method=softtriple", "method.gamma=0"], "method.gamma must be above 0, not 0"),
    (["method=rankmi", "method.inner_steps=0"], "method.inner_steps must be above 0, not 0"),
    (["method=triplet", "batch_size=400"], "a batch of 100 classes needs as many"),
], ids=lambda v: ",".join(v) if isinstance(v, list) else "")  # fmt: skip
def test_options_and_data_that_cannot_work_are_refused_in_one_sentence(
    images: Path, tmp_path: Path, values: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(["train", str(images), *QUICK, *values, "--run", str(tmp_path / "run")]) == 2
    said = capsys.readouterr().err.strip()
    assert sentence in said
    assert "\n" not in said


@pytest.mark.parametrize("key", [key for key, method in METHODS.items() if method.published])
def test_published_settings_make_a_complete_recipe(key: str) -> None:
    recipe = load_recipe("sop", [f"method={key}", "method.settings=published"])
    complete = complete_recipe(recipe, table(1100, 4), 1, "cpu")
    assert complete.method.options.keys() == METHODS[key].options.keys()
    assert complete.method.name == key


def test_roadmap_as_its_authors_published_it() -> None:
    recipe = load_recipe("sop", ["variant=roadmap"])
    o, s = recipe.optimiser, recipe.schedule
    assert (o.lr, o.head_lr, o.weight_decay) == (1e-5, 2e-5, 1e-4)
    assert (s.kind, s.milestones, s.gamma, s.epochs) == ("steps", (30, 70), 0.3, 100)
    assert (recipe.batch.batch_size, recipe.model.image_size, recipe.data.crop) == (128, 256, "official")
    assert recipe.loss.name == "ROADMAP"


def test_recall_at_k_as_its_authors_published_it_for_sop() -> None:
    recipe = load_recipe("sop", ["variant=recall_at_k"])
    b, o, s = recipe.batch, recipe.optimiser, recipe.schedule
    assert (b.batch_size, b.micro_batch, b.images_per_class) == (4000, 200, 4)
    assert (o.algorithm, o.lr, o.weight_decay) == ("adam", 2e-4, 4e-4)
    assert (s.kind, s.milestones, s.gamma, s.epochs) == ("steps", (25, 50), 0.3, 55)
    assert (recipe.model.pooling, recipe.model.layer_norm, recipe.data.crop) == ("gem", True, "official")
    assert recipe.loss.options == {"mixup": True, "rank_temperature": [1, 2, 4, 8, 16]}


@pytest.mark.parametrize("mode", ["head", "full"])
@pytest.mark.parametrize("key", METHODS)
def test_every_method_fits_the_recipe_for_birds(key: str, mode: str) -> None:
    """CUB's recipe blends weights, which batch norm that is trained does not allow."""
    recipe = override(load_recipe("cub"), [f"mode={mode}", f"method={key}"])
    complete = complete_recipe(recipe, table(90, 58), 1, "cpu")
    assert complete.optimiser.blend == (None if key == "proxynca++" else 0.5)
