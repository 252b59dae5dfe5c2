"""One load at a time into a Milvus collection: a writer leaves a row that says so, and renews it.

Milvus has no locks. A writer first stores its own claim and then reads all of them, so of two that begin at
the same moment at least one sees the other. A claim counts no longer when its process is gone from this
machine or has given it up, or when nobody has renewed it for a minute.
"""

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from secrets import randbelow
from typing import Any

from forerank.errors import ForerankError, InputError
from forerank.search.rows import LARGEST_ID

RENEW_SECONDS = 15.0
STALE_SECONDS = 60.0
FIRST_ID = 2  # row 1 of the collection is the meta data
# Claims of this process in force. One that could not be deleted, because the server was away, is not here.
_held: set[int] = set()


@contextmanager
def claimed(call: Callable[..., Any], collection: str, address: str) -> Iterator[None]:
    """Hold the only right to write to `address`; `collection` is where its claims are kept."""
    me = FIRST_ID + randbelow(LARGEST_ID - FIRST_ID)
    here = {"host": socket.gethostname(), "process": os.getpid()}

    def renew() -> None:
        body = json.dumps({**here, "renewed": time.time()})
        call("upsert", collection, [{"id": me, "body": body, "vector": [1.0, 0.0]}])

    def keep_renewing() -> None:
        while not done.wait(RENEW_SECONDS):
            with suppress(Exception):  # the server is away: the load itself says so
                renew()

    _held.add(me)
    away = False
    done = threading.Event()
    renewing = threading.Thread(target=keep_renewing, daemon=True)
    try:
        renew()
        records = call(
            "query", collection, filter=f"id >= {FIRST_ID} and id != {me}", output_fields=["id", "body"]
        )
        for record in records:
            other = json.loads(record["body"])
            if _is_alive(record["id"], other):
                raise InputError(
                    f"another load is writing to {address} (process {other['process']} on {other['host']}): "
                    f"wait until it is done; if it was killed, wait {STALE_SECONDS:.0f} seconds."
                )
            call("delete", collection, ids=[record["id"]])
        renewing.start()
        yield
    except ForerankError as error:
        if not isinstance(error, InputError):
            away = True  # and was waited for: the claim ends with this process, or by its age
        raise
    finally:
        _held.discard(me)
        done.set()
        if renewing.is_alive():
            renewing.join(timeout=RENEW_SECONDS if away else None)
        if not away:
            with suppress(Exception):
                call("delete", collection, ids=[me])


def _is_alive(number: int, claim: dict[str, Any]) -> bool:
    if claim["host"] == socket.gethostname():
        if claim["process"] == os.getpid() and number not in _held:
            return False
        try:
            os.kill(claim["process"], 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass  # it is there, and belongs to another user
    return bool(time.time() - claim["renewed"] < STALE_SECONDS)
