"""How an index is served: who may ask, under which names, and what a request may cost."""

import hashlib
import hmac
import ipaddress
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from forerank.errors import InputError
from forerank.web.uploads import Limits

SHORTEST_TOKEN = 16
LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
IPNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True)
class Settings:
    """What the server was told.

    Attributes:
        title: what the page calls itself; None: the name of the index.
        limits: what a request may cost.
        host: address that is listened on.
        only_loopback: whether only this machine can reach it.
        token: what a visitor has to know; None: everybody may ask.
        hosts: further names under which the server is reached, for example that of a proxy.
        proxies: addresses whose X-Forwarded-* headers are believed.
        root_path: path below which a proxy shows the page, for example "/search".
        adding: whether images may be added through the API; that needs a token.
    """

    title: str | None = None
    limits: Limits = field(default_factory=Limits)
    host: str = "localhost"
    only_loopback: bool = True
    token: str | None = None
    hosts: tuple[str, ...] = ()
    proxies: tuple[IPNetwork, ...] = ()
    root_path: str = ""
    adding: bool = False

    def __post_init__(self) -> None:
        if self.adding and self.token is None:
            raise InputError("adding images needs a token: give --token-file, or set FORERANK_TOKEN.")

    @property
    def names(self) -> frozenset[str] | None:
        """Host names that are answered; None: every name."""
        if not (self.only_loopback or self.hosts):
            return None
        return LOOPBACK | {self.host.lower()} | {name.lower() for name in self.hosts}

    @cached_property
    def cookie(self) -> tuple[str, str]:
        """Name and value of the cookie that stands for the token. The token cannot be read from it.

        Cookies of one host are shared by all its ports, so servers with other tokens need other names.
        """
        value = hmac.new((self.token or "").encode(), b"forerank cookie", hashlib.sha256).hexdigest()
        return f"forerank_{value[:8]}", value[8:]


def read_token(file: Path | None) -> str | None:
    """The token from a file, or from FORERANK_TOKEN; None where neither is given."""
    if file is None:
        text, place = os.environ.get("FORERANK_TOKEN"), "FORERANK_TOKEN"
        if text is None:
            return None
    else:
        place = str(file)
        try:
            text = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"--token-file {file} cannot be read: {error}") from error
    token = text.strip()
    if len(token) < SHORTEST_TOKEN or not (token.isascii() and token.isprintable()) or " " in token:
        raise InputError(
            f"the token in {place} must be at least {SHORTEST_TOKEN} ASCII characters without spaces: "
            "make one with: python -c 'import secrets; print(secrets.token_urlsafe())'"
        )
    return token


def parse_proxies(addresses: Sequence[str]) -> tuple[IPNetwork, ...]:
    """Addresses or networks of proxies.

    >>> [str(network) for network in parse_proxies(["127.0.0.1", "10.0.0.0/8"])]
    ['127.0.0.1/32', '10.0.0.0/8']
    """
    try:
        return tuple(ipaddress.ip_network(address) for address in addresses)
    except ValueError as error:
        raise InputError(f"--proxy is an address or a network such as 10.0.0.0/8: {error}") from error


def parse_root_path(text: str) -> str:
    """A path such as "/search", without a slash at its end; "" stands for none.

    >>> parse_root_path("search/"), parse_root_path("/")
    ('/search', '')
    """
    path = text.strip("/")
    if not path:
        return ""
    if any(part in ("", ".", "..") for part in path.split("/")) or not is_plain_path(path):
        raise InputError(
            f"--root-path is a path such as /search, of letters, digits and - _ . ~, not {text!r}"
        )
    return "/" + path


def is_plain_path(path: str) -> bool:
    """Whether a path needs no escaping, so that it can stand in a header."""
    return path.isascii() and all(letter.isalnum() or letter in "-_.~/" for letter in path)
