"""The map of a large collection: time and memory of `forerank map`, frames per second in the browser.

    python benchmarks/map.py                       100,000 x 512
    python benchmarks/map.py --count 5000 --dim 64

Vectors are clusters of 500 classes, as those of a catalogue. The frames are those of Chromium without
a graphics card while a pointer moves over the map.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from forerank.console import format_table, say
from forerank.search import Row, open_engine
from process_memory import run_and_watch

CLASSES = 500
SECONDS = 4.0  # of each movement in the browser


def build(folder: Path, count: int, dim: int) -> None:
    """An index of `count` unit vectors in clusters; no image file stands behind them."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(CLASSES, dim)).astype(np.float32)
    labels = rng.integers(CLASSES, size=count)
    rows = [
        Row(f"{i:07d}.jpg", f"class {c}", f"{i:032x}", 1, 1, columns={"category": f"{c % 12}"})
        for i, c in enumerate(labels.tolist())
    ]
    with open_engine(folder).update(dim, "benchmark", False) as update:
        for start in range(0, count, 8192):
            part = labels[start : start + 8192]
            vectors = centres[part] + 0.8 * rng.normal(size=(len(part), dim)).astype(np.float32)
            vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
            update.put(rows[start : start + 8192], vectors)
        meta = {"model": {"fingerprint": "benchmark"}, "root": ".", "labelled": True, "columns": ["category"]}
        update.complete(rows, meta, None)


def lay_out(folder: Path) -> dict[str, float]:
    """Seconds and largest memory in MB of `forerank map`."""
    started = time.perf_counter()
    peak = run_and_watch([sys.executable, "-m", "forerank", "map", str(folder)])
    return {"seconds": time.perf_counter() - started, "MB": peak / 1e6}


# Times between frames while the page is used; a page that does nothing has one every 16.7 ms.
RECORD = """() => { window.frames = []; let last = performance.now(); window.recording = true;
  const next = (now) => {
    window.frames.push(now - last); last = now; if (window.recording) requestAnimationFrame(next); };
  requestAnimationFrame((now) => { last = now; requestAnimationFrame(next); }); }"""


def frames(folder: Path) -> list[list[Any]]:
    """Frames of each movement: median and 99th percentile of the time between two, frames per second."""
    from playwright.sync_api import sync_playwright

    code = (
        "import sys; from forerank.search.index import Index; from forerank.web.serving import serve_index\n"
        "serve_index(Index.open(sys.argv[1]), port=0)"
    )
    server = subprocess.Popen([sys.executable, "-c", code, str(folder)], stderr=subprocess.PIPE, text=True)
    try:
        assert server.stderr is not None
        site = "http://127.0.0.1:" + server.stderr.readline().split("http://127.0.0.1:")[1].split()[0]
        with sync_playwright() as playwright:
            chromium = shutil.which("chromium") or shutil.which("google-chrome")
            browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            page = browser.new_page(viewport={"width": 1180, "height": 900})
            began = time.perf_counter()
            page.goto(f"{site}/?view=map")
            page.wait_for_selector("#map-canvas[data-milliseconds]", timeout=120_000)
            lines = [["map is there after", f"{1000 * (time.perf_counter() - began):.0f}", "", ""]]
            frame = page.locator("#map-canvas").bounding_box()
            assert frame is not None
            x, y = frame["x"] + frame["width"] / 2, frame["y"] + frame["height"] / 2

            def circle(radius: float) -> None:
                end, angle = time.perf_counter() + SECONDS, 0.0
                while time.perf_counter() < end:
                    angle += 0.1
                    page.mouse.move(x + radius * np.cos(angle), y + radius * np.sin(angle))

            def drag(radius: float = 120) -> None:
                page.mouse.move(x + radius, y)
                page.mouse.down()
                circle(radius)
                page.mouse.up()

            def wheel() -> None:
                page.mouse.move(x, y)
                end, turns = time.perf_counter() + SECONDS, 0
                while time.perf_counter() < end:
                    page.mouse.wheel(0, -60 if turns // 30 % 2 == 0 else 60)
                    turns += 1

            def lasso() -> None:
                page.keyboard.down("Shift")
                drag(200)
                page.keyboard.up("Shift")

            moves = {"at rest": lambda: page.wait_for_timeout(1000 * SECONDS), "point": lambda: circle(200),
                     "drag": drag, "zoom": wheel, "lasso": lasso}  # fmt: skip
            for name, move in moves.items():
                page.evaluate(RECORD)
                move()
                times = np.array(page.evaluate("() => { window.recording = false; return window.frames; }"))
                p50, p99 = np.percentile(times, [50, 99])
                lines.append([name, f"{p50:.1f}", f"{p99:.1f}", f"{1000 * len(times) / times.sum():.0f}"])
            lines.append(
                ["drawing all points", page.get_attribute("#map-canvas", "data-milliseconds"), "", ""]
            )
            browser.close()
        return lines
    finally:
        server.terminate()
        server.wait()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument(
        "--folder", type=Path, help="build the index here and keep it; one that has a map is used again"
    )
    parser.add_argument("--json", type=Path, help="also write the numbers here")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="forerank-map-") as temporary:
        folder = options.folder or Path(temporary) / "index"
        layout = {}
        if not folder.exists():
            build(folder, options.count, options.dim)
        file = open_engine(folder).map_file()
        assert file is not None
        if not file.exists():
            layout = lay_out(folder)
            say(f"forerank map: {layout['seconds']:.0f} s, at most {layout['MB']:.0f} MB of memory")
        lines = frames(folder)
        print(format_table([f"{options.count:,} points", "p50 ms", "p99 ms", "frames/s"], lines))
    if options.json:
        options.json.write_text(json.dumps({"layout": layout, "frames": lines}, indent=2) + "\n")


if __name__ == "__main__":
    main()
