"""What every request goes through: host names, what a proxy says, headers that isolate the page."""

import ipaddress
from typing import Any

from forerank.web.settings import Settings, is_plain_path

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
    read it (DNS rebinding). So while listening on loopback only loopback's names, the address listened on
    and the names in `settings.hosts` are accepted. The name that a proxy forwards is checked as well as the
    request's own: a web site can write any forwarded name, but not another name of its own.
    """

    def __init__(self, app: Any, *, settings: Settings) -> None:
        self.app, self.settings = app, settings

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        hosts, root = [header(scope, b"host")], self.settings.root_path
        if self._is_proxy(scope):
            forwarded, root = take_forwarded(scope, root)
            hosts += [forwarded] if forwarded else []
        names = self.settings.names
        if names is not None and any(host_name(host) not in names for host in hosts):
            sentence = (
                "this page does not answer to that host name: forerank serve --allow-host NAME adds one"
            )
            await refuse(send, 421, sentence)
            return
        if root and scope["path"] == root:
            # Without the slash the page's relative addresses would lead beside it.
            await answer(send, 308, b"", [(b"location", root.encode() + b"/")])
            return
        if root:
            scope["root_path"] = root
            if not scope["path"].startswith(root + "/"):  # the proxy has taken the prefix away
                scope["path"] = root + scope["path"]
                scope["raw_path"] = root.encode() + (scope.get("raw_path") or b"")

        async def send_guarded(message: Any) -> None:
            if message["type"] == "http.response.start":
                given = {name for name, _ in message["headers"]}
                message["headers"] = [*message["headers"], *[h for h in HEADERS if h[0] not in given]]
            await send(message)

        await self.app(scope, receive, send_guarded)

    def _is_proxy(self, scope: Any) -> bool:
        if not self.settings.proxies or not scope.get("client"):
            return False
        try:
            peer = ipaddress.ip_address(scope["client"][0])
        except ValueError:
            return False
        return any(peer in network for network in self.settings.proxies)


def header(scope: Any, wanted: bytes) -> bytes:
    """The first header of a name, or nothing."""
    return next((value for name, value in scope["headers"] if name == wanted), b"")


def take_forwarded(scope: Any, root: str) -> tuple[bytes, str]:
    """Believe what a proxy says: client and scheme go into the scope; the host and the prefix are returned.

    Of several values the first is the one of the proxy nearest to the visitor.
    """

    def first(name: bytes) -> bytes:
        return header(scope, name).partition(b",")[0].strip()

    client, scheme, host = first(b"x-forwarded-for"), first(b"x-forwarded-proto"), first(b"x-forwarded-host")
    if client:
        scope["client"] = (client.decode("latin-1")[:60], 0)
    if scheme in (b"http", b"https"):
        scope["scheme"] = scheme.decode()
    if host:
        scope["headers"] = [(n, v) for n, v in scope["headers"] if n != b"host"] + [(b"host", host)]
    prefix = first(b"x-forwarded-prefix").decode("latin-1").rstrip("/")
    plain = prefix.startswith("/") and not prefix.startswith("//") and is_plain_path(prefix)
    return host, prefix if plain else root


async def refuse(
    send: Any, status: int, sentence: str, further: list[tuple[bytes, bytes]] | None = None
) -> None:
    """Answer with one sentence of JSON; it may hold no quotation marks."""
    body = f'{{"error":"{sentence}"}}'.encode()
    await answer(send, status, body, [(b"content-type", b"application/json"), *(further or [])])


async def answer(send: Any, status: int, body: bytes, headers: list[tuple[bytes, bytes]]) -> None:
    """A whole answer, with the headers of every answer."""
    given = {name for name, _ in headers}
    headers = [*headers, *[h for h in HEADERS if h[0] not in given]]
    headers.append((b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
