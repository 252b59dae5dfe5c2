"""A process of its own that decodes pictures sent by strangers: `python -m forerank.web.decoder`.

Each request on the standard input is a line of JSON (how many bytes follow, and how to decode them) and the
encoded picture; each answer on the standard output is a line of JSON and the pixels. It ends with its input.
"""

import importlib.util
import json
import os
import sys
from pathlib import Path
from typing import Any


def main() -> None:
    """Answer requests until the input ends."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints must not stand among the answers
    os.nice(10)  # the page goes first
    decode = _load_decode()
    answers.write(b"ready\n")
    answers.flush()
    while line := sys.stdin.buffer.readline():
        request = json.loads(line)
        data = sys.stdin.buffer.read(request.pop("bytes"))
        try:
            image = decode.read_image(data, **request)
        except decode.BadImageError as error:
            answers.write(json.dumps({"refused": error.reason}).encode() + b"\n")
        else:
            pixels = image.tobytes()
            head = {"mode": image.mode, "size": image.size, "bytes": len(pixels)}
            answers.write(json.dumps(head).encode() + b"\n")
            answers.write(pixels)
            del image, pixels
        answers.flush()


def _load_decode() -> Any:
    """The module `forerank.data.decode`, from its file: its package would import torch, which takes long."""
    file = Path(__file__).parents[1] / "data" / "decode.py"
    spec = importlib.util.spec_from_file_location("forerank_decode", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    main()
