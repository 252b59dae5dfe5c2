"""Training within a time: trials on validation classes, the winner as a run, resumed where it stopped."""

import json
import re
import signal
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch
from safetensors.torch import save_file

from forerank.cli import run as forerank
from forerank.errors import InputError, MissingExtraError, install_command
from forerank.metrics import METRICS, Metric, evaluate
from forerank.models import create_model, load_model
from forerank.training import budget, candidates, clock, load_recipe, loop, train, train_within, tuning
from forerank.training.assemble import Assembly, build_model
from forerank.training.clock import Clock
from forerank.training.recipe import Recipe, assigned_keys, override
from forerank.training.trials import first_trials, open_search, run_trial, search_space, trials_of
from waiting import LIMIT, wait_until

from .conftest import QUICK, Start

FEW = ["steps=6", "every=2", "nmi=false"]
# Enough for the network to become much better than it was.
LEARNS = [*QUICK, "seed=1", "lr=3e-3", "steps=60", "every=30", "schedule.kind=cosine"]


# One feature for each channel instead of one for each place: whitening many features takes long.
NARROW = ["pooling=gem", "embedding_dim=0", "batch_size=16"]


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Searches that end by number and not by the clock, so that a slow machine does the same."""
    monkeypatch.setattr(budget, "MOST_TRIALS", 4)
    monkeypatch.setattr(budget, "FEWEST_STEPS", 4)
    monkeypatch.setattr(tuning, "MOST_STEPS", 20)


def test_what_the_user_gave_is_not_varied() -> None:
    recipe = override(Recipe(), ["mode=head"])
    assert "loss.name" in search_space(recipe, frozenset())
    space = search_space(recipe, assigned_keys(["loss=PNP-Ds", "lr=1e-3"]))
    assert not {"loss.name", "optimiser.lr"} & set(space)
    assert "data.erase" in search_space(override(Recipe(), ["mode=full"]), frozenset())
    rows = first_trials(recipe, search_space(recipe, frozenset()))
    assert rows[0]["loss.name"] == recipe.loss.name


def test_a_clock_counts_earlier_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(clock, "time", SimpleNamespace(monotonic=lambda: now))
    begun = Clock(tmp_path, 10, spent=300.0, began=now)
    assert begun.left() == 300
    now = 1020.0
    assert begun.left() == 280
    begun.save()
    again = Clock.open(tmp_path, None)
    assert again.minutes == 10
    assert again.spent == 320
    for wrong in (0, -5, float("nan"), 1e7):
        for folder in (tmp_path, tmp_path / "new"):
            with pytest.raises(InputError, match=r"above 0 and at most 1,000,000, not"):
                Clock.open(folder, wrong)


def test_without_optuna_nothing_is_computed(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "optuna"]:
        monkeypatch.delitem(sys.modules, name)

    class Hidden:
        """Finds no Optuna, as if it were not installed."""

        @staticmethod
        def find_spec(name: str, *_: object) -> None:
            if name.partition(".")[0] == "optuna":
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(sys, "meta_path", [Hidden, *sys.meta_path])
    with pytest.raises(MissingExtraError, match=re.escape(install_command("budget"))):
        train_within(load_recipe(images, [*QUICK, *FEW]), tmp_path / "run", 60)
    assert not (tmp_path / "run").exists()


def test_a_search_in_its_journal_goes_on_and_marks_what_was_cut_short(tmp_path: Path) -> None:
    journal = tmp_path / "trials.journal"
    study = open_search(journal, 0, 2)
    study.tell(study.ask(), 0.5)
    study.ask()  # killed in the middle
    again = trials_of(open_search(journal, 0, 2))
    assert [(trial.figure, trial.ended) for trial in again] == [(0.5, "complete"), (None, "failed")]


@pytest.mark.long  # the tests below search and train with fewer trials
@pytest.mark.usefixtures("few")
def test_a_small_network_is_searched_with_all_its_weights(images: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    recipe = load_recipe(images, LEARNS)
    results = train_within(recipe, run, 60, fixed=frozenset({"loss.name"})).results
    trials = trials_of(open_search(run / "search" / "trials.journal", 0, 2))
    assert len(trials) == 4
    assert all("loss.name" not in trial.values for trial in trials)
    best = max(trial.figure for trial in trials if trial.ended == "complete")
    # The winner, trained again as a run, reaches what it reached as a trial.
    assert results["validation"]["best"] == pytest.approx(best)
    page = (run / "report.html").read_text(encoding="utf-8")
    assert "4 trainings were compared" in page
    assert "on the test classes, which chose nothing, it is" in page
    assert "luck" not in page
    assert json.loads((run / "refit" / "results.json").read_text())["test"] == {}
    assert train_within(recipe, run, 60).results == results  # finished: nothing is done again


def test_when_the_time_is_over_the_training_on_all_classes_is_left_to_the_next_start(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(budget, "MOST_TRIALS", 1)
    run = tmp_path / "run"
    recipe = load_recipe(images, LEARNS)
    with monkeypatch.context() as patch:
        patch.setattr(Clock, "left", lambda *_: 0.0)
        results = train_within(recipe, run, 60).results
    assert results["best_step"] > 0
    assert "the time is over" in capsys.readouterr().err
    assert not (run / "refit").exists()
    assert train_within(recipe, run, 60).results == results
    assert (run / "refit" / "best" / "model.safetensors").exists()


def test_without_time_for_a_step_there_is_nothing_to_train_on_all_classes(
    images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    command = ["train", str(images), *QUICK, *FEW, "--minutes", "0.001", "--run", str(run)]
    for _ in range(2):
        assert forerank(command) == 0
        told = capsys.readouterr()
        assert "kept: untrained" in told.out
        assert f"no step of training was taken; the model to ship is the untrained one: {run}" in told.err
        assert "all classes" not in told.err
    assert not (run / "refit").exists()


def test_sigterm_in_the_search_saves_the_time_and_says_how_to_go_on(
    images: Path, tmp_path: Path, start: Start
) -> None:
    run = tmp_path / "run"
    endless = ["steps=100000", "every=100000"]
    child = start(["train", images, *QUICK, *endless, "--minutes", 600, "--run", run])

    def spent() -> float:
        return float(json.loads((run / "budget.json").read_text())["spent"])

    journal = run / "search" / "trials.journal"
    wait_until(lambda: _trial_begun(journal), "the first trial begins", child)
    seconds = psutil.Process(child.pid).cpu_times
    begun = seconds().user
    wait_until(lambda: seconds().user > begun + 1, "it trains, and writes nothing to the journal", child)
    before = spent()
    child.send_signal(signal.SIGTERM)
    _, told = child.communicate(timeout=LIMIT)
    assert child.returncode == 128 + signal.SIGTERM, told
    assert told.splitlines()[-1] == f"forerank: stopped while preparing; resume with: forerank train {run}"
    assert spent() > before


def _trial_begun(journal: Path) -> bool:
    """Whether a trial has its values, by the journal that another process writes."""
    from optuna import get_all_study_summaries, load_study
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    if not journal.exists():
        return False
    storage = JournalStorage(JournalFileBackend(str(journal)))
    names = [study.study_name for study in get_all_study_summaries(storage)]
    studies = [load_study(study_name=name, storage=storage) for name in names]
    return any(trial.params for study in studies for trial in study.trials)


def test_the_training_on_all_classes_can_be_left_out(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget, "MOST_TRIALS", 1)
    run = tmp_path / "run"
    recipe = load_recipe(images, LEARNS)
    results = train_within(recipe, run, 60, refitted=False).results
    assert train_within(recipe, run, 60).results == results
    assert forerank(["train", str(run)]) == 0  # the run remembers it
    assert not (run / "refit").exists()
    assert forerank(["train", str(run), "--refit"]) == 0
    assert (run / "refit" / "best" / "model.safetensors").exists()


@pytest.mark.usefixtures("few")
def test_heads_are_compared_and_then_all_weights_start_from_the_best(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(budget, "STEPS_FOR_VIEWS", 18)
    train(load_recipe(images, [*QUICK, "steps=10"]), tmp_path / "given")
    recipe = load_recipe(
        images, [f"backbone={tmp_path / 'given'}", "embedding_dim=0", "batch_size=16", *FEW, "mode=auto"]
    )
    run = tmp_path / "run"

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(budget, "train", killed)
        with pytest.raises(KeyboardInterrupt):
            train_within(recipe, run, 60)
    done = trials_of(open_search(run / "search" / "trials.journal", 0, 2))
    results = train_within(recipe, run).results
    # No trial is done again.
    assert trials_of(open_search(run / "search" / "trials.journal", 0, 2)) == done
    told = capsys.readouterr().err
    for views in ("as they are", "colours and erasing", "stronger crop"):
        assert told.count(f"training views, {views}: ") == 1
    decided = json.loads((run / "search" / "tuning.json").read_text())
    best = max(trial.figure for trial in done if trial.ended == "complete")
    # All weights of the network are kept only if heads on it are better on the classes that choose.
    tuned = load_recipe(run / "recipe.yaml").model.backbone == str((run / "search" / "backbone").resolve())
    assert tuned is (decided["figure"] > best)
    assert results["validation"]["best"] == pytest.approx(max(decided["figure"], best))
    assert next(iter(results["test"])) == ("zero-shot" if tuned else "given")
    assert ("tuned backbone" in results["test"]) is tuned
    assert (run / "search" / "tuned_on_all" / "best").exists() is tuned
    assert "trained" in results["test"]
    assert (run / "refit" / "best" / "model.safetensors").exists()


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of weights, so that a small network counts as a pretrained one; they have learned nothing."""
    file = tmp_path_factory.mktemp("weights") / "glyphnet.safetensors"
    save_file(create_model("glyphnet", embedding_dim=None, seed=3).backbone.state_dict(), file)
    return file


def test_a_tuned_backbone_that_is_better_is_taken_and_trained_again_on_all_classes(
    images: Path, weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("MOST_TRIALS", 1), ("REPEATED_TRIALS", 1), ("FEWEST_STEPS", 4)):
        monkeypatch.setattr(budget, name, value)
    monkeypatch.setattr(tuning, "MOST_STEPS", 40)
    run = tmp_path / "run"
    folder = str((run / "search" / "backbone").resolve())

    def in_favour_of_tuning(a: Assembly, *rest: Any) -> tuple[float, int, int, bool]:
        best, *more = run_trial(a, *rest)
        return (best + (a.recipe.model.backbone == folder), *more)

    monkeypatch.setattr(budget, "run_trial", in_favour_of_tuning)
    # A rate at which the network learns something in forty steps, and nothing of its start mixed in.
    given = ["optimiser.lr=3e-3", "optimiser.blend=1", "model.frozen=0"]
    values = [f"backbone=glyphnet@{weights}", *NARROW, *FEW, *given]
    results = train_within(load_recipe(images, values), run, 60, fixed=assigned_keys(given)).results
    assert list(results["test"])[:2] == ["zero-shot", "tuned backbone"]
    assert results["test"]["zero-shot"]["map@r"] != results["test"]["tuned backbone"]["map@r"]
    assert load_recipe(run / "recipe.yaml").model.backbone == folder
    again = json.loads((run / "search" / "tuned_on_all" / "results.json").read_text())
    tuned = json.loads((run / "search" / "tuned" / "results.json").read_text())
    assert again["steps"] == tuned["best_step"] > 0
    # The model to ship stands on the network that learned from all classes, the measured one does not.
    networks = [
        load_model(run / place).backbone.state_dict()
        for place in ("refit", "search/tuned_on_all", "best", "search/tuned")
    ]
    name = next(iter(networks[0]))
    ship, of_all, measured, of_some = (network[name] for network in networks)
    assert torch.equal(ship, of_all)
    assert torch.equal(measured, of_some)
    assert not torch.equal(ship, measured)


def test_further_backbones_join_and_validation_chooses_how_many(
    images: Path,
    weights: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    single, further = f"glyphnet@{weights}", "glyphnet@48px"
    monkeypatch.setattr(candidates, "SINGLE", single)
    # The second is there only if a package is; the third never is.
    monkeypatch.setattr(candidates, "FURTHER", {further: "json", "glyphnet@64px": "no_such_package"})
    recipe = load_recipe(images, [f"backbone={single}", *NARROW, *FEW])

    def opened(fixed: frozenset[str] = frozenset()) -> Any:
        return budget._Search.open(recipe, tmp_path / "run", Clock(tmp_path / "run", 60), fixed)

    with monkeypatch.context() as patch:
        patch.setattr(budget, "FEATURES_SHARE", 0.0)
        assert list(opened().candidates.inputs) == [single]
        assert f"{further} is left out: its features would take about" in capsys.readouterr().err
    assert list(opened(frozenset({"model.backbone"})).candidates.inputs) == [single]
    search = opened()
    assert list(search.candidates.inputs) == [single, f"{single}+{further}"]
    figures = {}
    for backbone, parts in search.candidates.inputs.items():
        rows, labels = parts["validation"].data.features, parts["validation"].table.label
        figures[backbone] = evaluate(rows, labels, ks=[1], nmi=False)["map@r"]
    assert len(set(figures.values())) == 2
    assert search.base.model.backbone == max(figures, key=figures.__getitem__)


@pytest.mark.usefixtures("few")
def test_a_mode_and_views_that_the_user_gave_stay(images: Path, weights: Path, tmp_path: Path) -> None:
    values = [f"backbone=glyphnet@{weights}", *NARROW, *FEW]
    clock = Clock(tmp_path / "run", 60)
    for given, tunes in (["mode=auto"], True), (["mode=head"], False):
        recipe = load_recipe(images, [*values, *given])
        search = budget._Search.open(recipe, tmp_path / "run", clock, assigned_keys(given))
        search._end_of_trials()
        assert (search.tuning is not None) is tunes
    assert budget.views_to_compare(frozenset({"data.crop"})).keys() == {"as they are", "colours and erasing"}
    assert budget.views_to_compare(frozenset({"data.erase"})).keys() == {"as they are", "stronger crop"}


def test_a_metric_for_which_lower_is_better_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = Metric("first rank", "its mean", lambda ranks: ranks.first, unit="rank", better="lower")
    monkeypatch.setitem(METRICS, "mean_first_rank", entry)
    recipe = load_recipe("glyphs", ["choose_by=mean_first_rank"])
    with pytest.raises(InputError, match="for which higher is better, unlike mean_first_rank"):
        train_within(recipe, tmp_path / "run", 1)
    assert not (tmp_path / "run").exists()


def test_several_processes_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(InputError, match="without torchrun"):
        train_within(Recipe(), tmp_path / "run", 1)


def test_a_tuned_network_is_put_back_beside_the_others(images: Path, tmp_path: Path) -> None:
    steps = ["steps=5", "data.validation=0"]  # the last step is the model, better or not
    train(load_recipe(images, [*QUICK, *steps]), tmp_path / "tuned", tested=False)
    both = load_recipe(images, [*QUICK, "mode=head", "backbone=glyphnet+glyphnet@48px", "embedding_dim=0"])
    tuning.put_beside(both, tmp_path / "tuned", tmp_path / "both")
    first, second = load_model(tmp_path / "both").single_models()
    tuned, before = load_model(tmp_path / "tuned"), build_model(both).single_models()
    view = torch.rand(2, 1, 32, 32)
    with torch.no_grad():
        assert torch.equal(first.features(view), tuned.features(view))
        assert not torch.equal(first.features(view), before[0].features(view))
        assert torch.equal(second.features(view), before[1].features(view))
    # A head is trained on it as on any backbone.
    on_both = override(both, [f"backbone={tmp_path / 'both'}", "pretrained=true", "pooling=auto", "steps=2"])
    on_both = override(on_both, ["evaluation.report=false"])
    assert "trained" in train(on_both, tmp_path / "run").results["test"]


def test_the_first_of_several_networks_is_tuned_and_what_the_user_gave_stays() -> None:
    recipe = override(Recipe(), ["mode=head", "backbone=glyphnet+glyphnet@48px", "batch_size=64", "lr=3e-3"])
    full = tuning.tuning_recipe(recipe, frozenset({"optimiser.lr"}))
    assert (full.model.backbone, full.mode, full.evaluation.report) == ("glyphnet", "full", False)
    assert (full.optimiser.lr, full.optimiser.blend, full.batch.batch_size) == (3e-3, 0.5, 64)


def test_a_search_goes_on_after_a_stop_when_the_winner_has_just_begun(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget, "MOST_TRIALS", 1)
    run, flags = tmp_path / "run", ["--minutes", "60", "--no-refit"]
    command = ["train", str(images), *QUICK, *FEW, "--run", str(run), *flags]

    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(loop, "measure_before", stopped)
        assert forerank(command) != 0
    assert load_recipe(run / "recipe.yaml").batch.batch_size is not None
    assert not (run / "best").exists()
    assert forerank(["train", str(run)]) == 0  # the recipe there is that of the winner by now
    assert forerank(command) == 0


@pytest.fixture(scope="module")
def searched(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished search that took no time; nothing is trained in it."""
    run = tmp_path_factory.mktemp("searched") / "run"
    train_within(load_recipe(images, [*QUICK, *FEW]), run, 0.001, fixed=assigned_keys([*QUICK, *FEW]))
    return run


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ([*QUICK, *FEW, "seed=1"], "(seed is 0 there, 1 here): give another --run"),
        ([*QUICK, *FEW, "loss=PNP-Dq"], "(loss.name is chosen by the search there, left alone here)"),
    ],
)
def test_a_search_with_other_values_is_refused(
    images: Path, searched: Path, values: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert forerank(["train", str(images), *values, "--minutes", "1", "--run", str(searched)]) == 2
    assert f"{searched} is a run of another recipe {sentence}" in capsys.readouterr().err


def test_a_search_of_other_images_is_refused_and_the_same_command_is_not(
    images: Path, searched: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "others").mkdir()
    within = ["--minutes", "1", "--run", str(searched)]
    assert forerank(["train", str(tmp_path / "others"), *QUICK, *FEW, *within]) == 2
    assert "is a run of another recipe (name is stripes there, others here" in capsys.readouterr().err
    assert forerank(["train", str(images), *QUICK, *FEW, *within]) == 0
    assert "is finished and not done again" in capsys.readouterr().err
    assert forerank(["train", str(images), *QUICK, *FEW, f"run={searched}", "--minutes", "1"]) == 0
    assert "is finished and not done again" in capsys.readouterr().err
    assert forerank(["train", str(searched)]) == 0
    for wrong in ("-5", "nan", "1e7"):
        assert forerank(["train", str(searched), f"--minutes={wrong}"]) == 2
        assert "--minutes must be above 0 and at most 1,000,000" in capsys.readouterr().err


def test_minutes_are_refused_for_a_run_without_a_search(
    images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    train(load_recipe(images, [*QUICK, "steps=2", "report=false"]), run)
    for source in (run, images):
        assert forerank(["train", str(source), "--minutes", "1", "--run", str(run)]) == 2
        assert f"{run} was trained without --minutes, so it has no search" in capsys.readouterr().err
    assert not (run / "search").exists()
    assert not (run / "refit").exists()
