"""Conditions become recipes; the same recipe is one run, whoever asks for it."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from forerank.data import Table
from forerank.errors import InputError
from forerank.paper import tables
from forerank.paper.experiments import EXPERIMENTS
from forerank.paper.methods import METHODS, WITHOUT_POSITIVES
from forerank.paper.pipeline import all_names, open_study, runs_needed
from forerank.paper.published import published_table
from forerank.paper.study import Condition, Study, fingerprint
from forerank.paper.sweeps import SWEEPS
from forerank.training.batches import BatchPlan
from forerank.training.methods import check_method
from forerank.training.prepare import complete_recipe
from forerank.training.processes import Processes
from forerank.training.recipe import override


def test_a_condition_is_in_its_recipe() -> None:
    recipe = Study().recipe(Condition("Dq", 224, 8, 3, 0.2, (("alpha", 8.0),)), 5)
    assert (recipe.seed, recipe.batch.batch_size, recipe.batch.images_per_class) == (5, 224, 8)
    assert (recipe.data.merge_classes, recipe.data.noisy_labels) == (3, 0.2)
    assert (recipe.loss.name, recipe.loss.options) == ("PNP-Dq", {"alpha": 8})


def test_the_papers_settings_on_its_own_data() -> None:
    for name, compared in (("sop", 384), ("vehicle_id", 384), ("inaturalist", 224)):
        study = Study(name)
        recipe = study.recipe(Condition("Dq"), 0)
        assert recipe.model.backbone.endswith("resnet50")
        assert (recipe.model.embedding_dim, recipe.model.freeze_batch_norm) == (512, True)
        assert (recipe.optimiser.algorithm, recipe.optimiser.lr, recipe.optimiser.weight_decay) == (
            "adam",
            1e-5,
            4e-4,
        )
        assert (recipe.batch.batch_size, recipe.batch.images_per_class) == (112, 4)
        assert study.setting.compared == compared


def test_fingerprint_sees_what_matters() -> None:
    recipe = Study().recipe(Condition(), 0)
    assert fingerprint(recipe) == fingerprint(replace(recipe, name="another", device="cpu"))
    for change in ("lr=2e-3", "loss.options.alpha=5", "data.noisy_labels=0.1", "steps=81"):
        assert fingerprint(recipe) != fingerprint(override(recipe, [change])), change


def test_runs_are_shared() -> None:
    study = Study(seeds=2, other_seeds=1)
    default = {run.key for run in study.plan([Condition("Dq")])}
    names = ("variants-sop", "variants-vehicle-id", "label-noise", "sweep-alpha", "sweep-p", "robustness-sop")
    for name in names:
        assert default <= {run.key for run in runs_needed([name], study)}, name
    # The same recipe is the same run, however it was asked for.
    assert study.run(SWEEPS["sweep-b"].condition(2), 0).key == study.run(Condition("Ib"), 0).key
    together = runs_needed(all_names(), study)
    apart = sum(len(runs_needed([name], study)) for name in all_names())
    assert len(together) == len({run.key for run in together}) < apart


def test_claims_that_compare_two_losses_have_ten_seeds() -> None:
    study = open_study([])
    for condition in (
        Condition("O"),
        Condition("Smooth-AP", merged=3),
        Condition("FastAP", batch=224),
        Condition(WITHOUT_POSITIVES),
    ):
        assert len(study.seeds_of(condition)) == 10, condition
    for condition in (
        Condition("Histogram"),
        Condition("Dq", images_per_class=8),
        Condition("Dq", all_weights=True),
    ):
        assert len(study.seeds_of(condition)) == 3, condition
    assert len(runs_needed(["retrieval-examples"], study)) == 1


def test_values_that_were_chosen_reach_every_condition_of_the_method() -> None:
    chosen = {"Ib": ("optimiser.lr=0.003", "loss.options.b=4"), "O": ("optimiser.lr=0.0003",)}
    study = Study(chosen=chosen)
    for condition in (
        Condition("Ib"),
        Condition("Ib", merged=3),
        Condition("Ib", noise=0.2),
        Condition("Ib", 224),
    ):
        recipe = study.recipe(condition, 1)
        assert (recipe.optimiser.lr, recipe.loss.options["b"]) == (0.003, 4)
    assert study.recipe(Condition("Ib", options=(("b", 8.0),)), 0).loss.options["b"] == 8
    assert study.recipe(Condition("Dq"), 0).optimiser.lr == 0.001
    assert replace(study, values=("lr=0.5",)).recipe(Condition("Ib"), 0).optimiser.lr == 0.5


@pytest.mark.parametrize(
    ("name", "table"),
    [
        ("sop", "comparison-sop"),
        ("vehicle_id", "comparison-vehicle-id"),
        ("inaturalist", "comparison-inaturalist"),
        ("cars", "comparison-sop"),
        ("inshop", "comparison-sop"),
    ],
)
def test_the_authors_variant_trains_on_all_classes_and_fits_every_method(name: str, table: str) -> None:
    """Every row becomes a complete recipe with batches, also where the data has super categories, as SOP."""
    labels = [f"{i // 4}" for i in range(4 * 400)]
    categories = [f"{i // 400}" for i in range(4 * 400)] if name == "sop" else None
    train = Table(labels, labels, ["train"] * len(labels), root=Path(), category=categories)
    study = Study(name, values=("variant=authors",))
    for condition in tables.rows(table, study).values():
        recipe = complete_recipe(study.recipe(condition, 0), train, 1, "cpu")
        check_method(recipe)  # an option that the loss or the method does not know is refused
        assert (recipe.data.validation, recipe.batch.sampling) == (0, "official")
        assert ("count_self" in recipe.loss.options) == METHODS[condition.method].ours
        keys = BatchPlan(recipe, train, Processes(0, 1, torch.device("cpu"))).keys(0)
        assert len(keys) == recipe.batch.batch_size


def test_all_weights_are_trained_with_the_recipes_rate() -> None:
    study = Study("cub", chosen={"Ib": ("optimiser.lr=0.5", "loss.options.b=4")})
    head, whole = (study.recipe(Condition("Ib", all_weights=flag), 0) for flag in (False, True))
    assert (head.mode, head.optimiser.lr) == ("head", 0.5)
    assert (whole.mode, whole.optimiser.lr, whole.loss.options["b"]) == ("full", 1e-4, 4)


def test_every_method_of_the_paper_is_known_and_every_experiment_named() -> None:
    figures = {
        "ap-surface",
        "penalties",
        "loss-variants",
        "centres",
        "ap-gradients",
        "toy",
        "retrieval-examples",
    }
    sweeps = {"sweep-alpha", "sweep-b", "sweep-p"}
    assert {name for name, about in EXPERIMENTS.items() if about.kind == "figure"} == figures | sweeps
    compared = {row.partition(", batch ")[0] for name in tables.NATIVE for row in published_table(name).rows}
    assert compared - METHODS.keys() == set()
    assert len(compared) == 5 + 14  # the variants of PNP, and what they are compared with
    for name in ("comparison-sop", "comparison-vehicle-id", "comparison-inaturalist"):
        assert runs_needed([name], Study(seeds=1))


def test_bad_requests(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="did you mean 'glyphs'"):
        open_study(["toy"], on="glyph")
    with pytest.raises(InputError, match="NAME=FOLDER"):
        open_study(["toy"], data=["sop"])
    with pytest.raises(InputError, match="there is no folder"):
        open_study(["variants-sop"], data=[f"sop={tmp_path / 'absent'}"])
    with pytest.raises(InputError, match="at least 1"):
        open_study(["toy"], seeds=0)
    with pytest.raises(InputError, match="unknown experiment"):
        open_study(["variants"])
    assert open_study(["comparison-sop"], data=[f"sop={tmp_path}"]).on == "sop"
    (tmp_path / "file").write_text("")
    for out in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(InputError, match="there is a file in its place"):
            open_study(["toy"], out=out)


def test_data_is_used_or_refused(tmp_path: Path) -> None:
    sop, cub = f"sop={tmp_path}", f"cub={tmp_path}"
    for name in ("sweep-b", "retrieval-examples", "toy"):
        assert open_study([name], data=[cub]).on == "cub", name
    with pytest.raises(InputError, match="say with --on"):
        open_study(all_names(), data=[sop, cub])
    assert open_study(all_names(), on="cub", data=[sop, cub]).on == "cub"
    with pytest.raises(InputError, match="sop would not be used"):
        open_study(["sweep-b"], on="glyphs", data=[sop])


def test_merged_classes_of_birds_fill_a_batch() -> None:
    recipe = Study(on="cub").recipe(Condition("Dq", merged=3), 0)
    training_classes = 100 - round(100 * recipe.data.validation)
    assert recipe.batch.batch_size == training_classes // 3 * recipe.batch.images_per_class
    assert Study(on="glyphs").recipe(Condition("Dq", merged=3), 0).batch.batch_size == 112


def test_all_weights_means_every_layer() -> None:
    recipe = Study(on="cub").recipe(Condition("Dq", all_weights=True), 0)
    assert (recipe.mode, recipe.model.frozen) == ("full", 0)
    assert Study(on="cub").recipe(Condition("Dq"), 0).mode == "head"


def test_ap_without_the_positives_before_is_dq_at_alpha_one_with_a_rate_of_its_own() -> None:
    study = Study(chosen={"Dq": ("optimiser.lr=0.003",), WITHOUT_POSITIVES: ("optimiser.lr=0.009",)})
    recipe = study.recipe(Condition(WITHOUT_POSITIVES), 0)
    assert (recipe.loss.name, recipe.loss.options, recipe.optimiser.lr) == ("PNP-Dq", {"alpha": 1}, 0.009)
