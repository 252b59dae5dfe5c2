"""Learning rates are chosen on validation classes, by one procedure for every method."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from forerank.paper import runs, tuning
from forerank.paper.study import RESULT, Condition, Run, Study


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[Run]:
    """Runs "end" at once; their validation figure is a known function of rate, b and proxies' rate."""
    done: list[Run] = []

    def train_missing(wanted: list[Run], **options: object) -> list[str]:
        for run in wanted:
            o, b = run.recipe.optimiser, float(run.recipe.loss.options.get("b", 2))
            score = 1 / (1 + abs(o.lr - 0.009)) - abs(b - 4) / 100 - abs((o.loss_lr or 0.9) - 0.9) / 100
            run.folder.mkdir(parents=True)
            values = {"metrics": {"recall@1": 0.9}, "seconds": 1, "broke": False, "validation": score}
            (run.folder / RESULT).write_text(json.dumps(values))
            done.append(run)
        return []

    monkeypatch.setattr(runs, "train_missing", train_missing)
    return done


def test_the_list_is_continued_until_the_best_lies_inside(invented: Study, trained: list[Run]) -> None:
    study, failed = tuning.tune(invented, ["O", "Ib", "ProxyNCA"])
    assert not failed
    # Offered 0.0003, 0.001, 0.003; the best is 0.009, beyond the end.
    assert study.chosen["O"] == ("optimiser.lr=0.009",)
    assert study.chosen["Ib"] == ("optimiser.lr=0.009", "loss.options.b=4")
    assert study.chosen["ProxyNCA"] == ("optimiser.lr=0.009", "optimiser.loss_lr=0.9")
    rates = {
        method: {run.recipe.optimiser.lr for run in trained if run.title.startswith(f"{method},")}
        for method in ("O", "ProxyNCA")
    }
    assert rates["O"] == rates["ProxyNCA"] == {0.0003, 0.001, 0.003, 0.009, 0.027}
    assert {run.recipe.seed for run in trained} == {tuning.SEED}
    assert tuning.SEED not in study.seeds_of(Condition("O"))


def test_choices_are_kept_with_their_settings(invented: Study, trained: list[Run]) -> None:
    study, _ = tuning.tune(invented, ["O"])
    count = len(trained)
    assert tuning.with_choices(invented).chosen == study.chosen
    again, _ = tuning.tune(study, ["O", "Ds"])
    assert set(again.chosen) == {"O", "Ds"}
    assert [run.recipe.loss.name for run in trained[count:]] == ["PNP-Ds"] * 5
    assert tuning.with_choices(replace(invented, values=("schedule.steps=7",))).chosen == {}
    shown = tuning.choices_table(study).to_markdown()
    assert "lr=0.009" in shown
    assert "lr=0.0003: 97.14" in shown  # everything that was tried, with its figure


def test_a_value_that_fails_is_not_chosen(invented: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    def train_missing(wanted: list[Run], **options: object) -> list[str]:
        for run in wanted:
            if run.recipe.optimiser.lr < 0.002:
                run.folder.mkdir(parents=True)
                values = {"metrics": {}, "seconds": 1, "broke": False, "validation": run.recipe.optimiser.lr}
                (run.folder / RESULT).write_text(json.dumps(values))
        return []

    monkeypatch.setattr(runs, "train_missing", train_missing)
    study, failed = tuning.tune(invented, ["O"])
    assert study.chosen["O"] == ("optimiser.lr=0.001",)
    assert len(failed) == 1


def test_without_validation_classes_nothing_is_chosen(tmp_path: Path) -> None:
    assert tuning.can_tune(Study())
    assert not tuning.can_tune(Study(values=("data.validation=0",)))
    assert not tuning.can_tune(Study("sop"))  # the paper's own settings there
