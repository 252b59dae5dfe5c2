"""The real server of a small index, in a process of its own on 127.0.0.1."""

import io
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil
from PIL import Image

from campaigns.pictures import draw_stripes

SECRET = b"this text lies outside of the image root"


@dataclass
class Server:
    """A running `forerank serve`, and what it has logged."""

    port: int
    process: "subprocess.Popen[bytes]"
    rows: int
    log: list[str] = field(default_factory=list)

    @property
    def site(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.port}"

    def memory(self) -> int:
        """Bytes of the server and of its decoders."""
        whole = psutil.Process(self.process.pid)
        return sum(_memory(process) for process in (whole, *whole.children(recursive=True)))

    def search(self, picture: bytes) -> int:
        """The status of a search with a picture."""
        return httpx.post(f"{self.site}/api/search", content=picture, timeout=900).status_code


def _memory(process: Any) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.NoSuchProcess:
        return 0


def picture_bytes(side: int = 32, kind: str = "PNG") -> bytes:
    """A picture to search with."""
    out = io.BytesIO()
    Image.linear_gradient("L").resize((side, side)).convert("RGB").save(out, kind)
    return out.getvalue()


@contextmanager
def serving(folder: Path) -> Iterator[Server]:
    """Index drawn pictures, one of which is a link to a file outside of their folder, and serve them."""
    from forerank.models import create_model, save_model

    images = draw_stripes(folder / "images" / "stripes")
    (folder / "outside.txt").write_bytes(SECRET)
    (folder / "outside.png").write_bytes(picture_bytes())
    (images / "class_00" / "link.png").symlink_to(folder / "outside.png")
    save_model(create_model("glyphnet", embedding_dim=16, pooling="gem", pretrained=False), folder / "model")
    forerank = [sys.executable, "-m", "forerank"]
    subprocess.run(
        [*forerank, "index", str(folder / "model"), str(images), "-o", str(folder / "index")],
        check=True, capture_output=True, timeout=900,
    )  # fmt: skip
    process = subprocess.Popen(
        [*forerank, "serve", str(folder / "index"), "--port", "0"],
        stderr=subprocess.PIPE, env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    try:
        assert process.stderr is not None
        told = process.stderr.readline().decode()
        server = Server(int(told.split("127.0.0.1:")[1].split()[0]), process, int(told.split()[0]))
        stderr = process.stderr
        reader = threading.Thread(
            target=lambda: server.log.extend(line.decode(errors="replace") for line in stderr), daemon=True
        )
        reader.start()
        # The first search starts the decoder, which may take longer than is allowed on a busy machine.
        if not any(server.search(picture_bytes()) == 200 for _ in range(5)):
            raise RuntimeError("an ordinary picture cannot be searched for")
        yield server
        process.send_signal(signal.SIGINT)
        process.wait(60)
        reader.join(5)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
