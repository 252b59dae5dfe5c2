"""A small data set with files on disk and names that try to break out of the page."""

from typing import NamedTuple

import numpy as np
import pytest
from PIL import Image

from forerank.data import Table
from forerank.metrics import Evaluation, evaluate

HOSTILE = [
    '<script>alert("x")</script>',
    '"><img src=x onerror=alert(1)>',
    "a & b",
    "'; --",
    "größe",
    "plain",
]


class Run(NamedTuple):
    table: Table
    before: np.ndarray
    after: np.ndarray
    evaluations: dict[str, Evaluation]


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Six classes of eight noisy pictures; pixels before, pixels pulled towards their class after."""
    folder = tmp_path_factory.mktemp("images")
    generator = np.random.default_rng(7)
    patterns = generator.integers(0, 256, size=(6, 4, 4, 3))
    paths, labels, pixels = [], [], []
    for code, pattern in enumerate(patterns):
        for number in range(8):
            noisy = np.clip(pattern + generator.normal(0, 150, pattern.shape), 0, 255).astype(np.uint8)
            name = f"{code}_{number} <b>.png"
            Image.fromarray(noisy).resize((48, 48)).save(folder / name)
            paths.append(name)
            labels.append(HOSTILE[code])
            pixels.append(noisy.ravel().astype(np.float32))
    table = Table(paths, labels, ["test"] * len(paths), root=folder, name="<i>six</i>")
    before = np.stack(pixels)
    before -= before.mean(axis=0)
    centres = generator.normal(size=(6, before.shape[1])).astype(np.float32) * 40
    after = before + centres[table.label_ids]
    evaluations = {
        name: evaluate(vectors, table.label, ks=(1, 2, 4), nmi=False, per_query=True, bootstrap=200)
        for name, vectors in (("zero-shot", before), ("trained", after))
    }
    return Run(table, before, after, evaluations)
