"""A connection to Milvus: made when it is first needed, and requests that are repeated while it is away."""

import logging
import os
import re
import time
from collections import Counter
from collections.abc import Callable
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

from forerank.console import say
from forerank.errors import ForerankError, InputError, require

T = TypeVar("T")
FULL_DISK = ("no space left", "disk quota exceeded", "diskquotaexhausted", "force deny writing reasons")
ATTEMPTS = 7  # to reach a server: waits of 0.25, 0.5, ... 8 s, a quarter of a minute in all
PATIENT_ATTEMPTS = 13  # of a server that was reached before: it may be starting again, two minutes in all
LONGEST_WAIT = 16.0  # seconds
OLDEST = (2, 3)  # the first Milvus that replaces rows by their id
INFIX_LIKE = (2, 4)  # the first Milvus that finds a text inside another
# Their logs repeat every error that we turn into a sentence, with a traceback.
LOUD = (
    "pymilvus",
    "pymilvus.decorators",
    "pymilvus.orm.iterator",
    "pymilvus.client",
    "milvus_lite",
    "grpc._server",
)


class Connection:
    """A client of the server at a URL, or of the one that Milvus Lite runs in this process for a file."""

    def __init__(self, place: str, address: str) -> None:
        self._place, self._address = place, address
        self._remote = "://" in place
        self._client: Any = None

    @property
    def client(self) -> Any:
        """The pymilvus client."""
        if self._client is None:
            pymilvus = require("pymilvus")
            if not self._remote:
                require("milvus_lite")
                Path(self._place).parent.mkdir(parents=True, exist_ok=True)
            for name in LOUD:
                logging.getLogger(name).setLevel(logging.CRITICAL)
            token = os.environ.get("MILVUS_TOKEN", "")
            self._client = repeat(
                lambda: pymilvus.MilvusClient(self._place, token=token, timeout=10), f"reach {self._address}"
            )
            if self.version < OLDEST:
                self.close()
                raise InputError(
                    f"the server of {self._address} is Milvus {'.'.join(map(str, self.version))}: "
                    f"Forerank needs {'.'.join(map(str, OLDEST))} or newer: upgrade it or give another one."
                )
            if not self._remote:
                _in_use[self._place] += 1
        return self._client

    @cached_property
    def version(self) -> tuple[int, ...]:
        """The first two numbers of the version of the Milvus behind this address."""
        stated = str(self.call("get_server_version"))
        numbers = re.match(r"v?(\d+)\.(\d+)", stated)  # Milvus Lite says milvus_lite-3.2.2, and has it all
        return tuple(map(int, numbers.groups())) if numbers else INFIX_LIKE

    def call(self, method: str, *arguments: Any, **options: Any) -> Any:
        """One request, repeated while the server is away."""
        client, what = self.client, f"{method} at {self._address}"
        request = partial(getattr(client, method), *arguments, **options)
        try:
            return repeat(request, what, PATIENT_ATTEMPTS)
        except ForerankError as error:
            # A server that was started again has its collections on disk, not in memory.
            if not any(sign in str(error) for sign in ("released", "not loaded")):
                raise
            repeat(partial(client.load_collection, arguments[0]), what, PATIENT_ATTEMPTS)
            return repeat(request, what, PATIENT_ATTEMPTS)

    def close(self) -> None:
        """Close the connection to the server."""
        if self._client is not None:
            self._client.close()
            self._client = None
            if not self._remote:
                _release(self._place)


def repeat(call: Callable[[], T], what: str, attempts: int | None = None) -> T:
    """Call until it succeeds, waiting longer each time, as long as the fault is one that passes.

    Our own loop: tenacity would declare the same waits in as many lines, and the rest (the sentence before
    each wait, errors in our words) is most of this function.
    """
    pymilvus = require("pymilvus")
    grpc = require("grpc")

    wait, attempts = 0.25, attempts or ATTEMPTS
    for attempt in range(1, attempts + 1):
        try:
            return call()
        except (pymilvus.MilvusException, grpc.RpcError, ConnectionError) as error:
            if "open local milvus failed" in str(error).lower():
                raise InputError(
                    f"cannot {what}: the file is damaged or another process has it open."
                ) from error
            if any(sign in str(error).lower() for sign in FULL_DISK):
                raise ForerankError(
                    f"cannot {what}: the disk of the server is full; what was acknowledged is kept: "
                    "free some space there and run the same command again."
                ) from error
            if attempt == attempts or not _passes(error):
                raise ForerankError(f"cannot {what}: {_sentence(error)}") from error
            say(f"cannot {what} ({_sentence(error)}); trying again in {wait:g} s")
            time.sleep(wait)
            wait = min(2 * wait, LONGEST_WAIT)
    raise AssertionError("unreachable")


def _passes(error: Exception) -> bool:
    """Whether a fault is of the kind that goes away: the server is starting, busy, or being replaced."""
    text = str(error).lower()
    signs = (
        *("unavailable", "fail connecting", "timeout", "deadline", "rate limit", "not ready", "connection"),
        # of a server that was started again and has not found all its parts yet
        *("channel not", "node not", "no available", "not fully loaded", "unserviceable", "not healthy"),
    )
    return isinstance(error, ConnectionError) or any(sign in text for sign in signs)


def _sentence(error: Exception) -> str:
    return str(getattr(error, "message", "") or error).strip().splitlines()[0][:200]


# Local file -> how many engines of this process have it open.
_in_use: Counter[str] = Counter()


def _release(place: str) -> None:
    """Let other processes open a local Milvus file: its server lives in this process until told to stop."""
    _in_use[place] -= 1
    if _in_use[place] > 0:
        return
    try:
        from milvus_lite.server_manager import server_manager_instance
    except ImportError:
        return
    server_manager_instance.release_server(place)
