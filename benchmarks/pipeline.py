"""Images per second on one core, from file to normalised tensor, against the code people usually write.

    python benchmarks/pipeline.py                     # photographs made up here
    python benchmarks/pipeline.py ./CUB_200_2011      # your own

Every way reads the same files and gives a (3, 224, 224) float32 tensor. They take turns, on one thread, and
the time is that of the processor, so that other work on the machine matters little. `decode only` is the
limit: reading the JPEG and nothing else.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import numpy as np
import torch
from PIL import Image

from forerank.console import format_table
from forerank.data import Preprocessing, evaluation_view, read_image, training_view
from forerank.data.image_files import image_files

MEAN, STD = (
    torch.tensor([0.485, 0.456, 0.406])[:, None, None],
    torch.tensor([0.229, 0.224, 0.225])[:, None, None],
)
EVALUATION, OFFICIAL = Preprocessing(squash=False), Preprocessing(crop="official")


def decode_only(file: Path) -> object:
    """The limit: decode the whole picture."""
    with Image.open(file) as image:
        return image.convert("RGB")


def plain_pillow(file: Path) -> object:
    """Resize, crop, to float, then to CHW: what one writes first."""
    with Image.open(file) as image:
        picture = image.convert("RGB")
    ratio = 256 / min(picture.size)
    picture = picture.resize(
        (round(picture.width * ratio), round(picture.height * ratio)), Image.Resampling.BILINEAR
    )
    left, top = (picture.width - 224) // 2, (picture.height - 224) // 2
    picture = picture.crop((left, top, left + 224, top + 224))
    mean, std = np.float32([0.485, 0.456, 0.406]), np.float32([0.229, 0.224, 0.225])
    pixels = (np.asarray(picture, dtype=np.float32) / 255 - mean) / std
    return torch.from_numpy(pixels.transpose(2, 0, 1).copy())


def torchvision_style(file: Path) -> object:
    """Resize -> CenterCrop -> ToTensor -> Normalize, each step as torchvision does it on Pillow pictures."""
    with Image.open(file) as image:
        picture = image.convert("RGB")
    short = min(picture.size)
    wide, high = (256 if side == short else int(256 * side / short) for side in picture.size)
    picture = picture.resize((wide, high), Image.Resampling.BILINEAR)
    left, top = round((wide - 224) / 2), round((high - 224) / 2)
    picture = picture.crop((left, top, left + 224, top + 224))
    tensor = torch.from_numpy(np.array(picture, copy=True)).permute(2, 0, 1).contiguous()
    return tensor.to(torch.float32).div(255).clone().sub_(MEAN).div_(STD)


def forerank_evaluation(file: Path) -> object:
    """Ours, the evaluation view with the aspect kept."""
    return evaluation_view(read_image(file, shrink_to=256), EVALUATION)


def forerank_training(file: Path) -> object:
    """Ours, the authors' training view."""
    return training_view(read_image(file), OFFICIAL, Random(0))


WAYS: dict[str, Callable[[Path], object]] = {
    "decode only (limit)": decode_only,
    "plain Pillow": plain_pillow,
    "torchvision-style": torchvision_style,
    "forerank, evaluation": forerank_evaluation,
    "forerank, training (official crop)": forerank_training,
}


def make_photographs(folder: Path, number: int, size: tuple[int, int]) -> list[Path]:
    """Smooth pictures with some texture, as JPEG: they decode about as fast as photographs."""
    rng = np.random.default_rng(0)
    files = []
    for i in range(number):
        coarse = Image.fromarray(rng.integers(0, 256, (24, 32, 3), dtype=np.uint8)).resize(
            size, Image.Resampling.BICUBIC
        )
        texture = rng.normal(0, 6, (size[1], size[0], 3))
        pixels = (np.asarray(coarse) + texture).clip(0, 255).astype(np.uint8)
        files.append(folder / f"{size[0]}_{i}.jpg")
        Image.fromarray(pixels).save(files[-1], quality=90)
    return files


def measure(files: list[Path], rounds: int) -> dict[str, float]:
    """Median images per second of each way, taking turns."""
    rates: dict[str, list[float]] = {name: [] for name in WAYS}
    for turn in range(rounds + 1):
        for name, way in WAYS.items():
            begin = time.process_time()
            for file in files:
                way(file)
            if turn:  # the first turn warms the file cache
                rates[name].append(len(files) / (time.process_time() - begin))
    return {name: statistics.median(values) for name, values in rates.items()}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", nargs="?", type=Path, help="a folder of photographs; made up if not given")
    parser.add_argument("--images", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        if options.folder is not None:
            photographs = image_files(options.folder)
            step = max(1, len(photographs) // options.images)
            sets = {
                str(options.folder.name): [
                    options.folder / name for name in photographs[::step][: options.images]
                ]
            }
        else:
            folder = Path(temporary)
            sets = {
                "500 x 375": make_photographs(folder, options.images, (500, 375)),
                "2000 x 1500": make_photographs(folder, max(4, options.images // 10), (2000, 1500)),
            }
        rates = {name: measure(files, options.rounds) for name, files in sets.items()}
    rows = [
        [
            way,
            *(
                f"{rates[name][way]:,.0f} ({rates[name][way] / rates[name]['plain Pillow']:.2f}x)"
                for name in sets
            ),
        ]
        for way in WAYS
    ]
    print(format_table(["images/s on one core (against plain Pillow)", *sets], rows))


if __name__ == "__main__":
    main()
