"""Listen: an index on a port, until interrupted."""

import contextlib
import ipaddress
import socket
import threading

import numpy as np

from forerank.console import say
from forerank.errors import InputError
from forerank.report import derivative
from forerank.search.index import Index
from forerank.web.uploads import Limits

__all__ = ["Limits", "is_loopback", "serve_index"]


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address.

    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _warm_up(index: Index) -> None:
    """Load the model and the losses before a visitor needs them; an error is reported when it matters."""
    with contextlib.suppress(Exception):
        index.retriever.embed([np.zeros((32, 32), np.uint8)], progress=False)
        derivative()


def serve_index(
    index: Index,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    title: str | None = None,
    limits: Limits | None = None,
) -> None:
    """Serve the page of an index until interrupted."""
    import uvicorn

    from forerank.web.app import create_app

    only_loopback = is_loopback(host)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen(512)  # from here on a visitor waits instead of being turned away
    except OSError as error:
        raise InputError(f"cannot listen on {host}:{port}: {error.strerror}. Try another --port.") from error
    port = listening.getsockname()[1]
    app = create_app(index, title=title, limits=limits, only_loopback=only_loopback, host=host)
    if not only_loopback:
        say(f"everybody who can reach {host} can search {len(index):,} images: there is no password")
    shown = f"[{host}]" if ":" in host else host
    say(f"{len(index):,} images at http://{shown}:{port} (API: http://{shown}:{port}/docs), Ctrl-C to stop")
    threading.Thread(target=_warm_up, args=(app.state.index,), daemon=True).start()
    server = uvicorn.Server(
        uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            server_header=False,
            h11_max_incomplete_event_size=64_000,
        )
    )
    with contextlib.suppress(KeyboardInterrupt):  # the way to end it
        server.run(sockets=[listening])
