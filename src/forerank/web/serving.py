"""Listen: an index on a port, until interrupted."""

import contextlib
import ipaddress
import socket
import threading
from collections.abc import Callable
from typing import Any

from forerank.console import say
from forerank.errors import InputError, unknown
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


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens; port 0 takes a free one. From here on a visitor waits and is not turned away."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen(512)
    except OSError as error:
        raise InputError(f"cannot listen on {host}:{port}: {error.strerror}. Try another --port.") from error
    return listening


def serve_index(
    index: Index, *, host: str = "127.0.0.1", port: int = 8000, log_format: str = "text", **options: Any
) -> None:
    """Serve the page of an index until interrupted.

    Args:
        index: the index; when it is rebuilt, the newer state is served.
        host: address to listen on.
        port: port to listen on; 0 takes a free one.
        log_format: "text" for warnings only, "json" for a line of JSON per request.
        options: further attributes of `forerank.web.settings.Settings`.
    """
    import uvicorn
    from uvicorn.config import LOGGING_CONFIG

    from forerank.web.observe import LOG, log_as_json
    from forerank.web.reloading import Reloading

    if log_format not in ("text", "json"):
        raise unknown("log format", log_format, ("text", "json"))
    only_loopback = is_loopback(host)
    listening = listen(host, port)
    port = listening.getsockname()[1]
    app = Reloading(index, only_loopback=only_loopback, host=host, **options)
    tell: Callable[[str], object] = say
    if log_format == "json":
        log_as_json()
        tell = LOG.info
    if not only_loopback and options.get("token") is None:
        tell(f"everybody who can reach {host} can search {len(index):,} images: there is no password")
    shown = f"[{host}]" if ":" in host else host
    tell(f"{len(index):,} images at http://{shown}:{port} (API: http://{shown}:{port}/docs), Ctrl-C to stop")
    warming = threading.Thread(target=app.warm_up, daemon=True)
    warming.start()
    server = uvicorn.Server(
        uvicorn.Config(
            app,
            log_config=None if log_format == "json" else LOGGING_CONFIG,
            log_level="warning",
            access_log=False,
            proxy_headers=False,  # what a proxy says is believed by `Guard`, and only when told
            server_header=False,
            # The longest address that the API's bounds allow: 10 conditions of 500 characters, 64 examples of
            # 120, and every character may take 12 bytes. Beyond it the answer is not JSON.
            h11_max_incomplete_event_size=200_000,
            timeout_graceful_shutdown=5,  # Ctrl-C does not wait for clients that never finish
        )
    )
    with contextlib.suppress(KeyboardInterrupt):  # the way to end it
        server.run(sockets=[listening])
    with contextlib.suppress(KeyboardInterrupt):
        warming.join()  # a network that is still being compiled when Python ends would abort the process
