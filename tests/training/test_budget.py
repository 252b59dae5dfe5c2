"""Training within a time: trials on validation classes, the winner as a run, resumed where it stopped."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from forerank.errors import InputError
from forerank.metrics import METRICS, Metric
from forerank.models import load_model
from forerank.training import budget, load_recipe, train, train_within, tuning
from forerank.training.assemble import build_model
from forerank.training.clock import Clock
from forerank.training.recipe import Recipe, assigned_keys, override
from forerank.training.trials import first_trials, open_search, search_space, trials_of

from .conftest import QUICK

FEW = ["steps=6", "every=2", "nmi=false"]


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


def test_a_clock_counts_earlier_starts(tmp_path: Path) -> None:
    clock = Clock(tmp_path, 10, spent=300.0)
    assert 299 < clock.left() <= 300
    clock.save()
    again = Clock.open(tmp_path, None)
    assert again.minutes == 10
    assert again.spent >= 300
    with pytest.raises(InputError, match="above 0"):
        Clock.open(tmp_path / "new", 0)


def test_a_search_in_its_journal_goes_on_and_marks_what_was_cut_short(tmp_path: Path) -> None:
    journal = tmp_path / "trials.journal"
    study = open_search(journal, 0, 2)
    study.tell(study.ask(), 0.5)
    study.ask()  # killed in the middle
    again = trials_of(open_search(journal, 0, 2))
    assert [(trial.figure, trial.ended) for trial in again] == [(0.5, "complete"), (None, "failed")]


@pytest.mark.usefixtures("few")
def test_a_small_network_is_searched_with_all_its_weights(images: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    recipe = load_recipe(images, [*QUICK, *FEW])
    results = train_within(recipe, run, 60, fixed=frozenset({"loss.name"})).results
    trials = trials_of(open_search(run / "search" / "trials.journal", 0, 2))
    assert len(trials) == 4
    assert all("loss.name" not in trial.values for trial in trials)
    best = max(trial.figure for trial in trials if trial.ended == "complete")
    # The winner, trained again as a run, reaches what it reached as a trial.
    assert results["validation"]["best"] == pytest.approx(best)
    page = (run / "report.html").read_text(encoding="utf-8")
    assert "4 trainings were compared" in page
    assert "luck of the choice" in page
    assert json.loads((run / "refit" / "results.json").read_text())["test"] == {}
    assert train_within(recipe, run, 60).results == results  # finished: nothing is done again


def test_when_the_time_is_over_the_training_on_all_classes_is_left_to_the_next_start(
    images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    recipe = load_recipe(images, [*QUICK, *FEW])
    results = train_within(recipe, run, 0.001).results
    assert "trained" in results["test"]
    assert "the time is over" in capsys.readouterr().err
    assert not (run / "refit").exists()
    assert train_within(recipe, run, 0.001).results == results
    assert (run / "refit" / "best" / "model.safetensors").exists()


def test_sigterm_in_the_search_saves_the_time_and_says_how_to_go_on(images: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    command = [sys.executable, "-m", "forerank", "train", str(images), *QUICK, "steps=100000"]
    child = subprocess.Popen(
        [*command, "--minutes", "5", "--run", str(run)],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    journal = run / "search" / "trials.journal"
    deadline = time.monotonic() + 120
    while not journal.exists() and time.monotonic() < deadline:
        time.sleep(0.2)
    time.sleep(2)  # inside the first trial
    child.send_signal(signal.SIGTERM)
    _, told = child.communicate(timeout=60)
    assert child.returncode == 128 + signal.SIGTERM
    assert told.splitlines()[-1] == f"forerank: stopped while preparing; resume with: forerank train {run}"
    assert json.loads((run / "budget.json").read_text())["spent"] > 1


@pytest.mark.usefixtures("few")
def test_the_training_on_all_classes_can_be_left_out(images: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    recipe = load_recipe(images, [*QUICK, *FEW])
    results = train_within(recipe, run, 60, refitted=False).results
    assert train_within(recipe, run, 60, refitted=False).results == results
    assert not (run / "refit").exists()


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
