"""What tests of several rooms share."""

import importlib
import os
import shutil
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import hypothesis
import pytest

from forerank.machine import WITHOUT_AMX, bf16_fault
from waiting import LIMIT

# Collecting would import them a second time, under another name.
collect_ignore = ["pretend_device.py", "waiting.py"]

# A shell that starts the tests in the background has them ignore Ctrl-C, and what they start as well.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# On a busy machine it takes long to make an example.
too_slow = [hypothesis.HealthCheck.too_slow]
hypothesis.settings.register_profile("patient", hypothesis.settings(), suppress_health_check=too_slow)
hypothesis.settings.load_profile("patient")


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
        launched = playwright.chromium.launch(
            executable_path=chromium, args=["--no-sandbox"], timeout=1000 * LIMIT
        )
        for name in ("new_context", "new_page"):
            setattr(launched, name, _patient(getattr(launched, name)))
        yield launched
        launched.close()


def _patient(make: Callable[..., Any]) -> Callable[..., Any]:
    """Makes pages that wait as long as any other test; Playwright's own limit is 30 seconds."""

    def made(**options: Any) -> Any:
        opened = make(**options)
        opened.set_default_timeout(1000 * LIMIT)
        return opened

    return made


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port of this machine where nobody answers: it is held, and nobody listens."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


@pytest.fixture
def torchrun_address() -> Iterator[str]:
    """HOST:PORT at which several calls of torchrun meet.

    The store that the first of them would make lives here: a free port that is looked up and given to them
    can be taken by somebody else before they use it.
    """
    from torch.distributed import TCPStore

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    yield f"127.0.0.1:{store.port}"
    del store


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
