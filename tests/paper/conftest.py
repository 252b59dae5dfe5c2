"""A data set small enough to train on in a second, and a study of it."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from forerank.data import open_table
from forerank.paper.study import RESULT, Condition, Study


@pytest.fixture(scope="session")
def few_glyphs(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """Recipe values that point every run at 26 glyphs, batches of 16 and three steps."""
    table = open_table("glyphs")
    chosen = np.concatenate(
        [np.unique(table.label[table.split == part])[:n] for part, n in (("train", 16), ("test", 10))]
    )
    small = table.where(np.isin(table.label, chosen))
    file = tmp_path_factory.mktemp("few") / "few.csv"
    small.write_csv(file)
    return (
        f"data.source={file}",
        f"data.root={small.root}",
        "data.validation=0",
        "model.backbone=glyphnet",  # from nothing, not from the common start
        "model.pretrained=false",
        "batch.batch_size=16",
        "batch.images_per_class=4",
        "schedule.steps=3",
        "evaluation.every=3",
        "evaluation.ks=[1,10]",
    )


@pytest.fixture
def invented(tmp_path: Path) -> Study:
    """A study whose runs were never trained: tests write what they measured."""
    return Study("glyphs", 3, 3, tmp_path, tmp_path / "training")


@pytest.fixture
def write_results() -> Callable[..., None]:
    """Puts a metric of each seed where a trained run would have left it."""

    def write(
        study: Study, condition: Condition, metric: str, values: list[float], broke: bool = False
    ) -> None:
        for seed, value in enumerate(values):
            folder = study.run(condition, seed).folder
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / RESULT
            kept = (
                json.loads(path.read_text())
                if path.exists()
                else {"metrics": {}, "seconds": 1.0, "broke": broke, "validation": 0.5}
            )
            kept["metrics"][metric] = value
            kept["broke"] |= broke
            path.write_text(json.dumps(kept))

    return write
