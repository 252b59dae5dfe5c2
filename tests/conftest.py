"""What tests of several rooms share."""

import importlib
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest

from forerank.machine import WITHOUT_AMX, bf16_fault

collect_ignore = ["pretend_device.py"]  # collecting would import it a second time, under another name

# A shell that starts the tests in the background has them ignore Ctrl-C, and what they start as well.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# On a machine whose AMX ends the process, bfloat16 is tested with the processor's other instructions.
if bf16_fault() is not None:
    os.environ.update([WITHOUT_AMX])
    bf16_fault.cache_clear()


# A machine without a browser or an optional package is a user's right; a gate without one would silently test
# less, so there what is missing is an error.
IN_CI = os.environ.get("CI", "").lower() in {"1", "true", "yes"}
if IN_CI:
    pytest.importorskip = lambda modname, *_, **__: importlib.import_module(modname)


def _no_browser(reason: str) -> NoReturn:
    if IN_CI:
        pytest.fail(f"CI must have a browser: {reason}", pytrace=False)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """A real Chromium driven by Playwright (mark the test ``@pytest.mark.browser``)."""
    try:
        from playwright.sync_api import sync_playwright
    except ModuleNotFoundError:
        _no_browser("the package playwright is not installed: pip install playwright")
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        _no_browser("no chromium on the PATH: apt-get install chromium")
    with sync_playwright() as playwright:
        # Root in a container cannot use Chromium's sandbox; the pages under test are our own.
        launched = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.fixture(scope="session")
def photograph() -> Callable[[Any, str], None]:
    """``photograph(page, name)`` takes a picture for docs/images, if asked to by `make screenshots`."""

    def photograph(page: Any, name: str) -> None:
        if os.environ.get("FORERANK_SCREENSHOTS"):
            from PIL import Image

            page.wait_for_load_state("networkidle")
            page.wait_for_timeout(400)  # until colours and frames have stopped changing
            file = Path(__file__).parents[1] / "docs" / "images" / f"{name}.png"
            page.screenshot(path=file)
            with Image.open(file) as taken:
                taken.convert("RGB").quantize(200).save(file, optimize=True)

    return photograph
