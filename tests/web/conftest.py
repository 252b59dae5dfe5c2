"""An index of drawn shapes, and a real server for it on loopback."""

import math
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from waiting import LIMIT, wait_until

# A busy machine needs longer than the five seconds that httpx waits by default.
get, post, head, patient_client = (
    partial(ask, timeout=LIMIT) for ask in (httpx.get, httpx.post, httpx.head, httpx.Client)
)
COLOURS = {"red": "#c8423a", "blue": "#3566c4", "green": "#2f8f5b", "yellow": "#e0a526"}
SHAPES = {"triangle": 3, "square": 4, "star": 5, "circle": 0}


def draw(colour: str, shape: str, seed: int, side: int = 160) -> Any:
    """One coloured shape, turned and moved a little, on a pale ground."""
    from PIL import Image, ImageDraw

    rng = np.random.default_rng([seed, sum(map(ord, colour + shape))])
    ground = tuple(int(v) for v in rng.integers(205, 250, 3))
    image = Image.new("RGB", (2 * side, 2 * side), ground)
    pen = ImageDraw.Draw(image)
    x, y = (side + rng.integers(-30, 30, 2)).tolist()
    radius, turn = rng.uniform(85, 120), rng.uniform(0, 2 * math.pi)
    if shape == "circle":
        pen.ellipse((x - radius, y - radius, x + radius, y + radius), fill=COLOURS[colour])
    else:
        corners = SHAPES[shape] * (2 if shape == "star" else 1)
        points = []
        for i in range(corners):
            reach = radius * (0.45 if shape == "star" and i % 2 else 1)
            angle = turn + 2 * math.pi * i / corners
            points.append((x + reach * math.cos(angle), y + reach * math.sin(angle)))
        pen.polygon(points, fill=COLOURS[colour])
    return image.resize((side, side), Image.Resampling.LANCZOS)


@pytest.fixture(scope="session")
def retriever() -> Any:
    """A real pretrained model, small enough for a test."""
    from forerank.models import Retriever

    return Retriever.load("efficientnet-lite0")


@pytest.fixture(scope="session")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """80 pictures in 16 class folders."""
    folder = tmp_path_factory.mktemp("shapes")
    for colour in COLOURS:
        for shape in SHAPES:
            (folder / f"{colour} {shape}").mkdir()
            for i in range(5):
                draw(colour, shape, i).save(folder / f"{colour} {shape}" / f"{i}.jpg", quality=92)
    return folder


@pytest.fixture(scope="session")
def shapes_index(shapes: Path, retriever: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Their index."""
    from forerank.search import build_index

    address = tmp_path_factory.mktemp("indexes") / "shapes"
    build_index(retriever, shapes, address)
    return address


@pytest.fixture(scope="session")
def index(shapes_index: Path, retriever: Any) -> Any:
    """The index, open."""
    from forerank.search import Index

    return Index.open(shapes_index, model=retriever)


@pytest.fixture(scope="session")
def shop(shapes: Path, retriever: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The shapes from a CSV with a category, a price and an address."""
    from forerank.search import Index, build_index

    folder = tmp_path_factory.mktemp("shop")
    lines = [
        f"{file},{file.parent.name},{file.parent.name.split()[1]},{i % 7},https://shop.example/{i}"
        for i, file in enumerate(sorted(shapes.rglob("*.jpg")))
    ]
    (folder / "shop.csv").write_text("\n".join(["path,label,category,price,url", *lines]) + "\n")
    build_index(retriever, folder / "shop.csv", folder / "index")
    return Index.open(folder / "index", model=retriever)


@pytest.fixture(scope="session")
def picture() -> Callable[..., bytes]:
    """The bytes of a drawn shape that is not in the index."""
    import io

    def drawn(colour: str = "red", shape: str = "star", seed: int = 77, kind: str = "JPEG") -> bytes:
        out = io.BytesIO()
        draw(colour, shape, seed).save(out, kind)
        return out.getvalue()

    return drawn


@contextmanager
def serve_app(app: Any) -> Iterator[str]:
    """Serve an application on loopback; gives its address."""
    import uvicorn

    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    config = uvicorn.Config(app, log_level="critical", server_header=False, proxy_headers=False)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    wait_until(lambda: server.started or not thread.is_alive(), "the server listens")
    yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    server.should_exit = True
    thread.join(LIMIT)
    assert not thread.is_alive(), "the server does not end"


@contextmanager
def serve_command(index: Path, *options: str) -> Iterator["subprocess.Popen[str]"]:
    """`forerank serve` as a process, which is ended afterwards."""
    command = [sys.executable, "-m", "forerank", "serve", str(index), "--port", "0", *options]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def _serving(index: Any, **options: Any) -> AbstractContextManager[str]:
    from forerank.web.app import create_app

    return serve_app(options.pop("make", create_app)(index, **options))


@pytest.fixture(scope="session")
def serving() -> Callable[..., Any]:
    """Serve an index: ``with serving(index) as address``."""
    return _serving


@pytest.fixture(scope="session")
def site(index: Any) -> Iterator[str]:
    """The address of a running server of the index."""
    with _serving(index, title="Shapes") as address:
        yield address


@pytest.fixture
def open_page(browser):
    """Open an address; whatever it asks of another host, or complains of, fails the test."""
    contexts, complaints = [], []

    def opened(address, expect_errors=False, **options):
        context = browser.new_context(**{"viewport": {"width": 1180, "height": 800}, **options})
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: complaints.append(str(error)))
        host = address.split("/")[2]
        page.on(
            "request",
            lambda request: (
                complaints.append(request.url)
                if request.url.startswith("http") and request.url.split("/")[2] != host
                else None
            ),
        )
        if not expect_errors:
            page.on(
                "console",
                lambda message: complaints.append(message.text) if message.type == "error" else None,
            )
        page.goto(address)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert complaints == []


@pytest.fixture(scope="session")
def shown():
    return _shown


def _shown(page):
    """Wait until the pictures in the window are there."""
    page.wait_for_function(
        "() => [...document.querySelectorAll('.tile img')]"
        ".filter(i => i.getBoundingClientRect().top < innerHeight)"
        ".every(i => i.complete && i.naturalWidth > 0) && document.querySelectorAll('.tile').length > 0"
    )
