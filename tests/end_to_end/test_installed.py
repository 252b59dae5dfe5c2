"""What the README and the tutorial tell people to type, in an environment that has only the wheel.

With `make screenshots` the pictures of the tutorial are taken as well.
"""

import re
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image

from waiting import LIMIT

# Needs a new environment; tests/test_documents.py and the rooms run the same commands.
pytestmark = pytest.mark.long
ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
TUTORIAL = (ROOT / "docs" / "tutorial.md").read_text()
# Commands of the README that this test leaves out, and why.
LEFT_OUT = {
    "make demo": "installs everything again and trains for minutes",
    "source .venv/bin/activate": "is what the variables of this test do",
    "make test": "is what runs this test",
    "forerank paper run variants-sop --on glyphs": "trains for many minutes",
    "forerank paper run comparison-sop --data sop=PATH --dry-run": "needs a data set that cannot be shipped",
}


def commands(text: str) -> list[str]:
    """The commands of the console blocks of a page, without their comments."""
    blocks = re.findall(r"^```console\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return [
        line.split("  #")[0].strip()
        for block in blocks
        for line in re.findall(r"^\$ (.*)", block, re.MULTILINE)
    ]


def first_python_block(text: str) -> str:
    block = re.search(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert block
    return block[1]


def draw_classes(folder: Path) -> None:
    """Ten classes of six images: patches of one colour pattern with noise."""
    random = np.random.default_rng(0)
    for number in range(10):
        pattern = np.kron(random.integers(0, 255, (4, 4, 3)), np.ones((16, 16, 1)))
        (folder / f"pattern_{number}").mkdir(parents=True)
        for i in range(6):
            noisy = np.clip(pattern + random.normal(0, 60, pattern.shape), 0, 255).astype(np.uint8)
            Image.fromarray(noisy).save(folder / f"pattern_{number}" / f"{i}.png")


def test_the_wheel_is_what_runs(run: Any, environment: Path, tmp_path: Path) -> None:
    where = run("python -c 'import forerank; print(forerank.__file__)'").stdout
    assert Path(where).is_relative_to(environment.parent)
    (tmp_path / "block.py").write_text(first_python_block(README))
    assert "recall@1" in run("python block.py").stdout.lower()


def test_the_commands_of_the_readme(run: Any, serve: Any, tmp_path: Path) -> None:
    draw_classes(tmp_path / "my_images")
    listed = commands(README)
    assert set(LEFT_OUT) <= set(listed)
    for command in listed:
        if command in LEFT_OUT:
            continue
        if "serve" in command:
            assert "Find it again" in httpx.get(serve(command), timeout=LIMIT).text
        else:
            run(command)
    assert (tmp_path / "runs/my_images/report.html").is_file()
    assert (tmp_path / "runs/paper/glyphs/figures/penalties.png").is_file()


@pytest.mark.browser
def test_the_tutorial(run: Any, serve: Any, browser: Any, tmp_path: Path, photograph: Any) -> None:
    (tmp_path / "letters.py").write_text(first_python_block(TUTORIAL))
    run("python letters.py")
    page = browser.new_page(viewport={"width": 1180, "height": 800})
    for command in [line for line in commands(TUTORIAL) if "letters" in line]:
        if "serve" not in command:
            print(command, run(command).stdout, sep="\n")
            continue
        page.goto(serve(command))
        page.locator(".tile img").nth(20).click()
        page.wait_for_selector("text=nearest, similarity")
        photograph(page, "tutorial-search")
    page.goto((tmp_path / "runs/letters/report.html").as_uri())
    assert "Recall@1" in page.inner_text("body")
    photograph(page, "tutorial-report")
    page.close()
