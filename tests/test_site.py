"""The built documentation as a reader meets it: opened from disk, in a real browser, without a network."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import forerank

# The whole site is built; tests/test_documents.py runs the code of the pages and looks for what they name.
pytestmark = pytest.mark.long
ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `make docs` builds it: a broken link or an unreadable docstring is an error."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    opened = browser.new_page()
    yield opened
    opened.close()


def test_every_public_name_is_in_the_api_reference(site: Path) -> None:
    folder = Path(forerank.__file__).parent
    public = {
        p.parent.name: re.search(r"__all__ = \[(.*?)\]", p.read_text(), re.DOTALL)
        for p in folder.glob("*/__init__.py")
    }
    names = [
        (package, name)
        for package, listed in public.items()
        if listed
        for name in re.findall(r'"(\w+)"', listed[1])
    ]
    assert len(names) > 50
    missing = []
    for package, name in names:
        html = (site / "api" / f"{package}.html").read_text()
        # A function that is named as its module stands one level deeper.
        entries = (f'id="forerank.{package}.{name}"', f'id="forerank.{package}.{name}.{name}"')
        if not any(entry in html for entry in entries):
            missing.append(f"forerank.{package}.{name}")
    assert missing == [], (
        "a name needs a docstring and, where names are loaded on first use, an import under TYPE_CHECKING"
    )


@pytest.mark.browser
def test_nothing_is_loaded_from_outside(site: Path, page: Any) -> None:
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    pages = sorted(site.rglob("*.html"))
    for file in pages:
        page.goto(file.as_uri())
    assert len(requests) > len(pages) > 15
    assert [url for url in requests if not url.startswith(("file://", "data:"))] == []


@pytest.mark.browser
def test_search_works_from_disk(site: Path, page: Any) -> None:
    page.goto((site / "index.html").as_uri())
    page.click(".md-search__input")
    page.keyboard.type("backward_in_chunks")
    page.wait_for_selector(".md-search-result__item a[href*='training.html']")


@pytest.mark.browser
def test_a_copied_console_block_has_commands_only(site: Path, page: Any) -> None:
    page.goto((site / "search.html").as_uri())
    page.evaluate("document.body.insertAdjacentHTML('afterbegin', '<textarea id=pasted></textarea>')")
    blocks = page.locator(".language-console")
    pasted = []
    for i in range(blocks.count()):
        blocks.nth(i).hover()
        blocks.nth(i).locator("[data-clipboard-target]").click()
        page.fill("#pasted", "")
        page.focus("#pasted")
        page.keyboard.press("Control+V")
        pasted.append(page.input_value("#pasted"))
    written = re.findall(
        r"^```console\n(.*?)^```", (ROOT / "docs/search.md").read_text(), re.MULTILINE | re.DOTALL
    )
    assert any(line and not line.startswith("$ ") for block in written for line in block.splitlines())
    commands = ["\n".join(re.findall(r"^\$ (.*)", block, re.MULTILINE)) for block in written]
    assert pasted == commands
