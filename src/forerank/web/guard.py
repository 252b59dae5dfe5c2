"""What every request and answer goes through: known host names, and headers that shut the page off."""

from typing import Any

# Scripts, styles and pictures from here only; no other page may show it in a frame; figures use style=.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; style-src-attr 'unsafe-inline'; "
    "img-src 'self' blob: data:; connect-src 'self'; form-action 'none'; base-uri 'none'; "
    "frame-ancestors 'none'"
)
HEADERS = [
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
]
LOOPBACK = {"127.0.0.1", "localhost", "::1"}


def host_name(header: bytes) -> str:
    """The name in a Host header, without its port.

    >>> host_name(b"localhost:8000"), host_name(b"[::1]:80"), host_name(b"")
    ('localhost', '::1', '')
    """
    text = header.decode("latin-1").lower()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0]


class Guard:
    """ASGI middleware.

    A page on loopback must not answer to a foreign name: that is how a web site in the same browser could
    read it (DNS rebinding). So while listening on loopback only loopback's names and the address listened on
    are accepted.
    """

    def __init__(self, app: Any, *, only_loopback: bool, host: str = "localhost") -> None:
        self.app, self.only_loopback = app, only_loopback
        self.names = LOOPBACK | {host}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        host = next((value for name, value in scope["headers"] if name == b"host"), b"")
        if self.only_loopback and host_name(host) not in self.names:
            await _refuse(send)
            return

        async def send_guarded(message: Any) -> None:
            if message["type"] == "http.response.start":
                given = {name for name, _ in message["headers"]}
                message["headers"] = [*message["headers"], *[h for h in HEADERS if h[0] not in given]]
            await send(message)

        await self.app(scope, receive, send_guarded)


async def _refuse(send: Any) -> None:
    body = b'{"error":"this page answers only to localhost: start forerank serve with --host to change that"}'
    headers = [*HEADERS, (b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 421, "headers": headers})
    await send({"type": "http.response.body", "body": body})
