"""Mutated image files: each is decoded or refused by `BadImageError`, within 2 s of processor time and 1 GiB.

A worker process makes and decodes the files, and this process watches it: a codec that crashes or does not
come back is one lost try, and a new worker goes on with the next. Try number i depends on (seed, i) only.
"""

import io
import multiprocessing
import os
import resource
import struct
import time
import zlib
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from campaigns.tally import Tally
from forerank.data.decode import BadImageError, known_formats, read_image
from process_memory import peak_bytes

SECONDS, MEMORY = 2.0, 2**30
NUMBERS = (
    0,
    1,
    2,
    3,
    4,
    8,
    15,
    16,
    127,
    128,
    255,
    256,
    1024,
    8192,
    32767,
    32768,
    65535,
    2**31 - 1,
    2**32 - 1,
)
TIFF_COMPRESSIONS = ("raw", "tiff_lzw", "tiff_adobe_deflate", "packbits", "jpeg", "group4")
# Format -> modes, each with the options it is saved with.
PLAIN: tuple[dict[str, Any], ...] = ({},)
WAYS: dict[str, tuple[tuple[str, ...], tuple[dict[str, Any], ...]]] = {
    "JPEG": (("RGB", "L", "CMYK"), ({}, {"progressive": True}, {"subsampling": 2}, {"exif": b"Exif\0\0"})),
    "PNG": (("RGB", "L", "RGBA", "LA", "P", "1", "I;16"), ({}, {"bits": 2})),
    "WEBP": (("RGB", "RGBA"), ({}, {"lossless": True})),
    "GIF": (("P", "L", "RGB"), ({}, {"interlace": 0}, {"save_all": True, "append_images": 2})),
    "BMP": (("RGB", "L", "1", "P", "RGBA"), PLAIN),
    "DIB": (("RGB", "L"), PLAIN),
    "TIFF": (
        ("RGB", "L", "1", "P", "CMYK", "RGBA", "I;16", "F"),
        tuple({"compression": c} for c in TIFF_COMPRESSIONS),
    ),
    "PPM": (("RGB", "L", "1", "I;16"), PLAIN),
    "JPEG2000": (("RGB", "L", "RGBA"), ({}, {"irreversible": True}, {"tile_size": (16, 16)})),
    "AVIF": (("RGB", "RGBA"), ({"speed": 10}, {"speed": 10, "save_all": True, "append_images": 2})),
    "ICO": (("RGBA", "RGB"), ({"sizes": [(16, 16), (32, 32)]},)),
    "TGA": (("RGB", "L", "RGBA", "P"), ({}, {"compression": "tga_rle"})),
    "MPO": (("RGB",), ({"save_all": True, "append_images": 2},)),
    "HEIF": (("RGB", "RGBA"), PLAIN),
}  # fmt: skip


@cache
def seed_files() -> list[tuple[str, bytes]]:
    """(format, content) of small pictures in every format, mode and option that can be written here.

    Formats that Pillow writes and this project does not read are among them: they have to be refused.
    """
    rng = np.random.default_rng(0)
    found = []
    ours = (*known_formats(), "MPO")  # Pillow opens MPO as JPEG
    for kind in (*ours, *sorted(Image.SAVE.keys() - set(ours))):
        modes, ways = WAYS.get(kind, (("RGB", "L", "1"), PLAIN))
        for mode in modes:
            for way in ways:
                picture = _picture(rng, mode)
                options = dict(way)
                if "append_images" in options:
                    options["append_images"] = [_picture(rng, mode) for _ in range(options["append_images"])]
                out = io.BytesIO()
                try:
                    picture.save(out, kind, **options)
                except (OSError, ValueError, RuntimeError, TypeError, KeyError):  # no such combination
                    continue
                found.append((kind, out.getvalue()))
    return found


def _picture(rng: np.random.Generator, mode: str) -> Image.Image:
    ramp = np.add.outer(np.arange(24), np.arange(32))[:, :, None] * np.array([3, 2, 1])
    pixels = (ramp + rng.integers(0, 40, (24, 32, 3))).astype(np.uint8)
    if mode == "I;16":
        return Image.fromarray(pixels[:, :, 0].astype(np.uint16) * 257)
    return Image.fromarray(pixels).convert(mode)


def mutated(seed: int, number: int) -> tuple[str, bytes]:
    """Format and content of try `number`: one of the seed files after one to three mutations."""
    rng = np.random.default_rng([seed, number])
    files = seed_files()
    kind, content = files[rng.integers(len(files))]
    data = bytearray(content)
    for _ in range(rng.integers(1, 4)):
        MUTATIONS[rng.integers(len(MUTATIONS))](data, rng)
        if not data:
            break
    if kind == "PNG" and rng.random() < 0.7:
        data = _with_right_sums(data)
    return kind, bytes(data)


def _flip(data: bytearray, rng: np.random.Generator) -> None:
    for place in rng.integers(len(data), size=rng.integers(1, 9)):
        data[place] ^= 1 << int(rng.integers(8))


def _truncate(data: bytearray, rng: np.random.Generator) -> None:
    del data[rng.integers(len(data)) :]


def _splice(data: bytearray, rng: np.random.Generator) -> None:
    """Put a piece of another file over or between the bytes of this one."""
    files = seed_files()
    other = files[rng.integers(len(files))][1]
    start = int(rng.integers(len(other)))
    piece = other[start : start + int(rng.integers(1, 200))]
    place = int(rng.integers(len(data)))
    data[place : place + (len(piece) if rng.random() < 0.5 else 0)] = piece


def _edit_header(data: bytearray, rng: np.random.Generator) -> None:
    """Write a number that programs stumble over into the first bytes, where sizes and types stand."""
    order, size = "<>"[rng.integers(2)], int(rng.choice([1, 2, 4]))
    value = NUMBERS[rng.integers(len(NUMBERS))] & (256**size - 1)
    place = int(rng.integers(min(len(data), 200)))
    data[place : place + size] = struct.pack(order + {1: "B", 2: "H", 4: "I"}[size], value)


def _repeat(data: bytearray, rng: np.random.Generator) -> None:
    start = int(rng.integers(len(data)))
    piece = bytes(data[start : start + int(rng.integers(1, 300))])
    data[start:start] = piece * int(rng.integers(1, 20))


def _cut_out(data: bytearray, rng: np.random.Generator) -> None:
    start = int(rng.integers(len(data)))
    del data[start : start + int(rng.integers(1, 60))]


Mutation = Callable[[bytearray, np.random.Generator], None]
MUTATIONS: tuple[Mutation, ...] = (_flip, _truncate, _splice, _edit_header, _edit_header, _repeat, _cut_out)


def _with_right_sums(data: bytearray) -> bytearray:
    """A PNG with the checksums of its chunks made right: most damage would end at the first sum otherwise."""
    place = 8
    while place + 12 <= len(data):
        (length,) = struct.unpack_from(">I", data, place)
        end = place + 8 + length
        if end + 4 > len(data):
            break
        struct.pack_into(">I", data, end, zlib.crc32(data[place + 4 : end]))
        place = end + 4
    return data


def run(tries: int, seed: int, folder: Path, end: float) -> Tally:
    """Let workers decode tries 0 to `tries` - 1 and watch them."""
    tally, start = Tally(), 0
    context = multiprocessing.get_context("fork")
    kinds: Counter[str] = Counter()
    longest = most = 0.0
    seed_files()  # made once, before workers are forked
    while start < tries and time.monotonic() < end:
        place = context.Array("d", 6, lock=False)  # try, began, decoded, refused, longest, memory
        place[0], place[1] = start, -1.0
        receive, send = context.Pipe(duplex=False)
        worker = context.Process(target=_work, args=(start, tries, seed, end, place, send), daemon=True)
        worker.start()
        send.close()
        ended = _watch(worker, place)
        while True:
            try:
                tally.count(False, receive.recv())
            except EOFError:
                break
        kinds["decoded"] += int(place[2])
        kinds["refused"] += int(place[3])
        longest, most = max(longest, place[4]), max(most, place[5])
        start = int(place[0])
        if ended:
            tally.count(False, f"try {start} ({mutated(seed, start)[0]}): {ended}")
            start += 1
    tally.survived = kinds["decoded"] + kinds["refused"]
    tally.figures = {
        **kinds,
        "formats that are read": " ".join(sorted({kind for kind, _ in seed_files()} & WAYS.keys())),
        "formats that are refused": " ".join(sorted({kind for kind, _ in seed_files()} - WAYS.keys())),
        "seed files": len(seed_files()),
        "longest decode, s of processor time": round(longest, 3),
        "most memory of a worker above its start, MiB": round(most / 2**20),
    }
    return tally


def _watch(worker: Any, place: Any) -> str:
    """Wait for the end of a worker; end it if one file takes too long. Why it ended, or "" if it was done."""
    while worker.is_alive():
        worker.join(0.2)
        began = place[1]
        if began >= 0 and worker.is_alive() and _processor_seconds(worker.pid) - began > 2 * SECONDS:
            worker.kill()
            worker.join()
            return f"still being decoded after {2 * SECONDS:g} s of processor time"
    return "" if worker.exitcode == 0 else f"the decoder ended with code {worker.exitcode}"


def _processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _work(start: int, stop: int, seed: int, end: float, place: Any, lost: Any) -> None:
    """Decode tries; `place` always says which one and since when, so that nothing is lost in a crash."""
    resource.setrlimit(resource.RLIMIT_AS, (16 * MEMORY, 16 * MEMORY))
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # codecs talk
    at_start = most = peak_bytes()
    for number in range(start, stop):
        if time.monotonic() > end:
            return
        kind, data = mutated(seed, number)
        shrink_to = 8 if number % 3 == 0 else None
        place[0] = number
        began = place[1] = time.process_time()
        trouble = ""
        try:
            read_image(data, shrink_to=shrink_to)
        except BadImageError:
            result = 3
        except BaseException as error:
            result, trouble = 0, f"{type(error).__name__}: {error}"
        else:
            result = 2
        took, most = time.process_time() - began, max(most, peak_bytes())
        place[1], place[4], place[5] = -1.0, max(place[4], took), max(place[5], most - at_start)
        if took > SECONDS:
            trouble = f"{took:.1f} s of processor time"
        if most - at_start > MEMORY:
            trouble = f"{(most - at_start) / MEMORY:.1f} GiB of memory"
        if not trouble:
            place[result] += 1
            continue
        lost.send(f"try {number} ({kind}): {trouble}")
        if most - at_start > MEMORY:  # the peak never falls: a new worker measures the next
            place[0] = number + 1
            return
    place[0] = stop
