"""Small trees of exactly the official layouts, with real (tiny) images."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

Write = Callable[[Path, int], None]


def write_image(file: Path, seed: int) -> None:
    """A small picture that differs with the seed."""
    file.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (12, 16, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(file)


@pytest.fixture
def image() -> Write:
    return write_image


@pytest.fixture
def class_folder(tmp_path: Path) -> Path:
    """Six classes of three images."""
    for i in range(18):
        write_image(tmp_path / "things" / f"class{i // 3}" / f"{i}.png", i)
    return tmp_path / "things"
