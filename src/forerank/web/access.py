"""Who may ask: those who know the token. Programs send it with each request, the page asks for it once."""

import hmac
import http.cookies
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from jinja2 import Environment, FileSystemLoader

from forerank.web.guard import POLICY, answer, header, refuse
from forerank.web.settings import Settings

HERE = Path(__file__).parent
PAGES = ("/", "/docs")
COOKIE_SECONDS = 30 * 86_400
LONGEST_FORM = 4096
# The form that asks for the token is the only one.
FORM_POLICY = POLICY.replace("form-action 'none'", "form-action 'self'").encode()


class Access:
    """ASGI middleware behind `Guard`. The sign of life and the package's own files are open to all."""

    def __init__(self, app: Any, *, settings: Settings, title: str) -> None:
        self.app, self.settings, self.title = app, settings, title
        pages = Environment(loader=FileSystemLoader(HERE / "templates"), autoescape=True)
        self._form = pages.get_template("token.html")

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or self.settings.token is None:
            await self.app(scope, receive, send)
            return
        route = scope["path"].removeprefix(scope.get("root_path", ""))
        if route == "/healthz" or route.startswith("/static/") or self._knows_token(scope):
            await self.app(scope, receive, send)
        elif self._has_cookie(scope):
            # Other ports of this host are the same site for a cookie, but not the same origin.
            if scope["method"] == "POST" and header(scope, b"sec-fetch-site") not in (b"", b"same-origin"):
                await refuse(send, 403, "this was sent by another page: send the token instead of the cookie")
                return
            await self.app(scope, receive, send)
        elif route in PAGES and scope["method"] == "POST":
            await self._sign_in(scope, receive, send)
        elif route in PAGES:
            await self._ask(send, "")
        else:
            sentence = "this server needs a token: send it in the header Authorization: Bearer TOKEN"
            await refuse(send, 401, sentence, [(b"www-authenticate", b"Bearer")])

    def _knows_token(self, scope: Any) -> bool:
        kind, _, given = header(scope, b"authorization").partition(b" ")
        return kind.lower() == b"bearer" and self._is_token(given.strip())

    def _is_token(self, given: bytes) -> bool:
        assert self.settings.token is not None
        return hmac.compare_digest(given, self.settings.token.encode())

    def _has_cookie(self, scope: Any) -> bool:
        name, value = self.settings.cookie
        try:
            cookies = http.cookies.SimpleCookie(header(scope, b"cookie").decode("latin-1"))
        except http.cookies.CookieError:
            return False
        return name in cookies and hmac.compare_digest(cookies[name].value.encode(), value.encode())

    async def _ask(self, send: Any, complaint: str) -> None:
        body = self._form.render(title=self.title, complaint=complaint).encode()
        headers = [
            (b"content-type", b"text/html; charset=utf-8"),
            (b"cache-control", b"no-store"),
            (b"content-security-policy", FORM_POLICY),
        ]
        await answer(send, 401, body, headers)

    async def _sign_in(self, scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
            if len(body) > LONGEST_FORM or message["type"] == "http.disconnect":
                await refuse(send, 413, "this is no token", [(b"connection", b"close")])
                return
        given = parse_qs(body.decode("latin-1")).get("token", [""])[0].strip()
        if not self._is_token(given.encode()):
            await self._ask(send, "This is not the token of this server.")
            return
        name, value = self.settings.cookie
        root, query = scope.get("root_path", ""), scope.get("query_string", b"")
        cookie = f"{name}={value}; Path={root or '/'}; Max-Age={COOKIE_SECONDS}; HttpOnly; SameSite=Strict"
        if scope["scheme"] == "https":
            cookie += "; Secure"
        place = scope["path"].encode() + (b"?" + query if query else b"")
        await answer(send, 303, b"", [(b"location", place), (b"set-cookie", cookie.encode())])
