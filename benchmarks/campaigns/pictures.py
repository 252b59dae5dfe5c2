"""Small pictures that the campaigns train on and index."""

from pathlib import Path

import numpy as np
from PIL import Image


def draw_stripes(folder: Path, classes: int = 12, each: int = 8, side: int = 32) -> Path:
    """Classes of noisy stripes, one sub-folder per class: direction and width tell them apart."""
    rng = np.random.default_rng(0)
    y, x = np.mgrid[:side, :side] / side
    for c in range(classes):
        place = folder / f"class_{c:02d}"
        place.mkdir(parents=True)
        angle, width = np.pi * c / classes, 2 + 5 * ((c * 5) % classes) / classes
        for i in range(each):
            wave = np.sin(2 * np.pi * width * (x * np.cos(angle) + y * np.sin(angle)) + rng.uniform(0, 6.28))
            pixels = 127 + 60 * wave + rng.normal(0, 40, (side, side))
            Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8)).save(place / f"{i}.png")
    return folder


# A run of about a second on these pictures: 12 steps of 4 classes x 4 images.
QUICK = [
    "backbone=glyphnet", "pooling=gem", "pretrained=false", "embedding_dim=16", "batch_size=16",
    "images_per_class=4", "steps=12", "every=4", "save_every=2", "patience=null", "lr=1e-3", "nmi=false",
    "ks=[1,2]", "report=false",
]  # fmt: skip
