"""Who may ask, under which name and path, and what operators see."""

import json
import re

import pytest

from forerank.cli import run
from forerank.errors import InputError
from forerank.web.settings import Settings, parse_proxies, read_token

from .conftest import get, head, patient_client, post, serve_command

TOKEN = "a-token-that-nobody-can-guess"
BEARER = {"authorization": f"Bearer {TOKEN}"}


@pytest.fixture(scope="module")
def closed(index, serving):
    """A server that needs a token."""
    with serving(index, title="Shapes", token=TOKEN) as address:
        yield address


@pytest.mark.parametrize(
    "path", ["/api/index", "/images/0", "/metrics", "/openapi.json", "/nowhere", "/api/search?like=1"]
)
def test_nothing_is_told_without_the_token(closed, path):
    for headers in (
        {},
        {"authorization": "Bearer wrong"},
        {"authorization": TOKEN},
        {"cookie": "forerank=1"},
    ):
        answer = get(closed + path, headers=headers)
        assert answer.status_code == 401
        assert "needs a token" in answer.json()["error"]
        assert answer.headers["www-authenticate"] == "Bearer"
    assert get(closed + path, headers=BEARER).status_code == (404 if path == "/nowhere" else 200)


def test_the_sign_of_life_needs_no_token_and_tells_nothing(closed):
    assert get(f"{closed}/healthz").json() == {"status": "ok"}
    assert get(f"{closed}/static/page.css").status_code == 200


def test_the_page_asks_once_and_keeps_a_cookie_that_scripts_cannot_read(closed):
    with patient_client(base_url=closed) as browser:
        asked = browser.get("/?like=3")
        assert asked.status_code == 401
        assert 'name="token"' in asked.text
        wrong = browser.post("/?like=3", data={"token": "wrong"})
        assert wrong.status_code == 401
        assert "not the token" in wrong.text
        right = browser.post("/?like=3", data={"token": TOKEN})
        assert (right.status_code, right.headers["location"]) == (303, "/?like=3")
        cookie = right.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=Strict" in cookie
        assert "Secure" not in cookie  # this one came by plain HTTP
        assert TOKEN not in cookie
        assert browser.get("/").status_code == 200
        assert browser.get("/api/index").json()["images"] == 80
        foreign = browser.post("/api/search", content=b"x", headers={"sec-fetch-site": "same-site"})
        assert foreign.status_code == 403  # another port of this machine
        assert browser.post("/", data={"token": "x" * 10_000}).status_code != 200


@pytest.mark.browser
def test_the_form_in_a_browser_leads_to_the_search_that_was_asked_for(closed, open_page, picture, photograph):
    page = open_page(f"{closed}/?like=3", expect_errors=True)  # the form comes with status 401
    assert page.evaluate("document.activeElement.name") == "token"
    photograph(page, "serving-token")
    page.keyboard.type("a wrong token")
    page.keyboard.press("Enter")
    page.wait_for_selector("[role=alert]")
    assert page.inner_text("[role=alert]") == "This is not the token of this server."
    assert page.locator(".tile").count() == 0
    page.fill("[name=token]", TOKEN)
    page.get_by_role("button", name="Continue").click()
    page.wait_for_selector(".tile .rank")
    assert page.url == f"{closed}/?like=3"
    assert TOKEN not in page.evaluate("document.cookie + document.documentElement.outerHTML")
    page.set_input_files("#file", {"name": "a.jpg", "mimeType": "image/jpeg", "buffer": picture()})
    page.wait_for_url("**/?like=u*")
    page.wait_for_selector(".tile .rank")
    page.reload()  # the cookie is enough from now on
    page.wait_for_selector(".tile .rank")
    stranger = open_page(closed, expect_errors=True)
    assert stranger.locator("[name=token]").count() == 1


def test_servers_with_different_tokens_have_different_cookies():
    assert Settings(token=TOKEN).cookie[0] != Settings(token=TOKEN + "2").cookie[0]


def test_a_token_comes_from_a_file_or_the_environment(tmp_path, monkeypatch, capsys, shapes_index):
    file = tmp_path / "token.txt"
    file.write_text(TOKEN + "\n")
    assert read_token(file) == TOKEN
    monkeypatch.setenv("FORERANK_TOKEN", TOKEN + "2")
    assert (read_token(None), read_token(file)) == (TOKEN + "2", TOKEN)
    monkeypatch.setenv("FORERANK_TOKEN", "short")
    with pytest.raises(InputError, match="at least 16"):
        read_token(None)
    assert run(["serve", str(shapes_index), "--token-file", str(tmp_path / "none")]) == 2
    assert "cannot be read" in capsys.readouterr().err
    monkeypatch.delenv("FORERANK_TOKEN")
    assert run(["serve", str(shapes_index), "--allow-adding", "--port", "0"]) == 2
    assert "adding images needs a token" in capsys.readouterr().err


@pytest.mark.parametrize(
    "path", ["/", "/docs", "/healthz", "/api/index", "/images/3", "/metrics", "/static/page.css"]
)
def test_head_is_get_without_the_body(site, path):
    only_head, whole = head(site + path), get(site + path)
    assert (only_head.status_code, only_head.content) == (whole.status_code, b"")
    assert only_head.headers["content-type"] == whole.headers["content-type"]
    if path not in ("/metrics", "/static/page.css"):
        assert only_head.headers["content-length"] == whole.headers["content-length"]


def test_head_of_what_only_takes_posts_is_refused(site):
    assert head(f"{site}/api/uploads").status_code == 405


@pytest.mark.parametrize("stripped", [True, False])
def test_it_works_below_a_path_whether_the_proxy_takes_it_away_or_not(index, serving, stripped):
    with serving(index, root_path="/shop/search", token=TOKEN) as address:
        base = address if stripped else address + "/shop/search"
        with patient_client(headers=BEARER) as client:
            page = client.get(base + "/")
            # Every address in the page is relative, so it leads to where the visitor is.
            links = re.findall(r'(?:href|src)="([^"#]*)"', page.text)
            assert links
            assert not any(link.startswith("/") for link in links)
            for link in links:
                assert client.get(f"{base}/{link.removeprefix('./')}").status_code == 200, link
            assert client.get(f"{base}/api/rows/3/search?where=label%3Dred%20star").status_code == 200
            assert client.get(f"{base}/images/3").status_code == 200
        signed = post(base + "/", data={"token": TOKEN})
        assert signed.headers["location"] == "/shop/search/"
        assert "Path=/shop/search;" in signed.headers["set-cookie"]
        if not stripped:
            assert get(address + "/shop/search").headers["location"] == "/shop/search/"


def test_a_proxy_is_believed_only_when_told(index, serving):
    forwarded = {
        "x-forwarded-host": "shop.example",
        "x-forwarded-proto": "https",
        "x-forwarded-prefix": "/find",
        "x-forwarded-for": "192.0.2.7",
    }
    with serving(index, token=TOKEN) as plain:
        answer = post(plain, data={"token": TOKEN}, headers=forwarded)
        assert answer.headers["location"] == "/"
        assert "Secure" not in answer.headers["set-cookie"]
    with serving(index, token=TOKEN, hosts=("shop.example",), proxies=parse_proxies(["127.0.0.1"])) as site:
        answer = post(site, data={"token": TOKEN}, headers=forwarded)
        assert answer.headers["location"] == "/find/"
        assert answer.headers["set-cookie"].endswith("; Secure")
        for headers in (
            {**forwarded, "x-forwarded-host": "evil.example"},  # the proxy serves another name
            {**forwarded, "host": "evil.example"},  # a web site that pretends to be a proxy (DNS rebinding)
            {"host": "evil.example"},
        ):
            assert get(f"{site}/healthz", headers=headers).status_code == 421
        assert get(f"{site}/healthz", headers={"host": "shop.example"}).status_code == 200
        odd = {**forwarded, "x-forwarded-prefix": "//evil.example"}
        assert post(site, data={"token": TOKEN}, headers=odd).headers["location"] == "/"
    elsewhere = parse_proxies(["10.0.0.0/8"])
    with serving(index, hosts=("shop.example",), proxies=elsewhere) as site:
        assert get(f"{site}/healthz", headers={"x-forwarded-host": "evil.example"}).status_code == 200


def test_bad_options_are_refused_with_a_sentence(shapes_index, capsys):
    for option, words in (
        (["--proxy", "nonsense"], "--proxy is an address"),
        (["--root-path", "/a b"], "--root-path is a path"),
        (["--log-format", "jsno"], "did you mean 'json'"),
    ):
        assert run(["serve", str(shapes_index), "--port", "0", *option]) == 2
        assert words in capsys.readouterr().err


def test_requests_are_counted_by_route_and_not_by_path(index, serving, picture):
    with serving(index) as site:
        for i in range(3):
            get(f"{site}/images/{i}")
        get(f"{site}/tried/{1}")
        post(f"{site}/api/search", content=picture())
        text = get(f"{site}/metrics").text
    assert 'forerank_requests_total{method="GET",route="/images/{number}",status="200"} 3.0' in text
    assert 'forerank_requests_total{method="GET",route="other",status="404"} 1.0' in text
    assert 'forerank_request_seconds_count{route="/api/search"} 1.0' in text
    assert "forerank_rows 80.0" in text
    assert "forerank_uploads_in_progress 0.0" in text
    assert "tried" not in text


def test_the_log_is_one_line_of_json_per_request(shapes_index):
    with serve_command(shapes_index, "--log-format", "json") as process:
        begun = json.loads(process.stderr.readline())
        assert begun["level"] == "info"
        site = begun["message"].split()[3]
        get(f"{site}/api/gallery?text=blue")
        line = json.loads(process.stderr.readline())
        assert (line["method"], line["path"], line["status"]) == ("GET", "/api/gallery", 200)
        assert line["client"] == "127.0.0.1"
        assert line["bytes"] > 1000
        assert "blue" not in json.dumps(line)
