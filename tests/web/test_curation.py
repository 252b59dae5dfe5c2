"""The page that corrects labels: its API, its guards, and the page itself in a real browser."""

import http.client
import json
import shutil

import numpy as np
import pytest
from PIL import Image

from forerank.data import open_table
from forerank.search import Index, build_index
from forerank.search.corrections import Corrections
from forerank.search.curation import curate, curate_index
from forerank.web.curation import create_curation_app
from waiting import LIMIT

from .conftest import serve_app


@pytest.fixture(scope="module")
def collected(shapes, retriever, tmp_path_factory):
    """The shapes with two wrong labels, a copy of a training image in the test part, and their vectors."""
    folder = tmp_path_factory.mktemp("collection") / "shapes"
    shutil.copytree(shapes, folder)
    (folder / "red star" / "wrong.jpg").write_bytes((shapes / "blue circle" / "0.jpg").read_bytes())
    (folder / "blue circle" / "0.jpg").unlink()
    (folder / "green square" / "wrong.jpg").write_bytes((shapes / "yellow star" / "1.jpg").read_bytes())
    (folder / "yellow star" / "1.jpg").unlink()
    (folder / "red circle" / "copy.jpg").write_bytes((folder / "red circle" / "2.jpg").read_bytes())
    table = open_table(folder)
    split = ["test" if path.endswith("copy.jpg") else "train" for path in table.path.tolist()]
    table = table.with_columns(split=split)
    return table, retriever.embed(table.files)


@pytest.fixture(scope="module")
def curation(collected):
    return curate(*collected, audited="train")


@pytest.fixture
def open_curation(curation, tmp_path):
    """Serve the collection; the journal and everything written lie in `tmp_path / "out"`."""

    def opened():
        corrections = Corrections(tmp_path / "out" / "corrections.jsonl", curation.table, "m")
        return serve_app(create_curation_app(curation, corrections, tmp_path / "out", "Audit of shapes"))

    return opened


def call(address, method, path, body=None, **headers):
    connection = http.client.HTTPConnection(address.split("/")[2], timeout=LIMIT)
    data = None if body is None else json.dumps(body)
    sent = {"content-type": "application/json", **headers} if body is not None else headers
    connection.request(method, path, data, sent)
    answer = connection.getresponse()
    text = answer.read()
    connection.close()
    return answer.status, json.loads(text) if answer.headers["content-type"] == "application/json" else text


def test_what_is_worth_a_look(curation):
    wrong = {str(curation.table.path[suspect.row]): suspect.suggestion for suspect in curation.suspects}
    assert wrong["red star/wrong.jpg"] == "blue circle"
    # Of its ten nearest four are green stars and three yellow ones, but only four yellow stars are left: the
    # nearest four decide, two of which are yellow stars.
    assert wrong["green square/wrong.jpg"] == "yellow star"
    assert curation.copies[0].leaks
    assert curation.copies[0].identical
    assert sorted(curation.table.path[list(curation.copies[0].rows)]) == [
        "red circle/2.jpg",
        "red circle/copy.jpg",
    ]


def test_decisions_through_the_api(open_curation, curation, tmp_path):
    row = curation.suspects[0].row
    with open_curation() as site:
        status, answer = call(site, "POST", "/api/decide", {"row": row, "action": "change", "label": "new"})
        assert (status, answer["changed"]) == (200, 1)
        # Acknowledged means written: the line is in the file while the server runs.
        assert '"label": "new"' in (tmp_path / "out" / "corrections.jsonl").read_text()
        assert call(site, "POST", "/api/decide", {"row": 0, "action": "remove"})[1]["removed"] == 1
        assert call(site, "POST", "/api/undo", {})[1]["undone"]["row"] == 0
        for body, status, says in (
            ({"row": 10**6, "action": "keep"}, 400, "no image 1000000"),
            ({"row": 0, "action": "chance"}, 400, "did you mean 'change'"),
            ({"row": 0, "action": "change", "label": " "}, 400, "a label is one line of text"),
            ({"row": "x"}, 422, "row"),
        ):
            refused, answer = call(site, "POST", "/api/decide", body)
            assert refused == status
            assert says in answer["error"]
        assert call(site, "GET", "/api/class?label=none&split=train")[0] == 404
        assert call(site, "GET", "/images/99999")[0] == 422
        status, answer = call(site, "POST", "/api/write", {})
        assert status == 200
    written = open_table(tmp_path / "out" / "corrected.csv")
    assert len(written) == len(curation.table)
    assert (written.label == "new").sum() == 1


def test_another_site_cannot_decide(open_curation):
    with open_curation() as site:
        decision = {"row": 0, "action": "remove"}
        assert call(site, "POST", "/api/decide", decision, origin="http://evil.example")[0] == 403
        assert call(site, "POST", "/api/decide", decision, host="evil.example")[0] == 421
        plain = {"content-type": "text/plain"}  # what a form of another site may send without being asked
        assert call(site, "POST", "/api/decide", decision, **plain)[0] == 415
        assert call(site, "GET", "/api/collection")[1]["decisions"] == {}
        assert call(site, "POST", "/api/decide", decision, origin=site)[0] == 200


@pytest.fixture
def open_page(browser):
    """Open an address; what the page complains of or asks of another host fails the test."""
    contexts, complaints = [], []

    def opened(address, labels_expected=True, **options):
        context = browser.new_context(**{"viewport": {"width": 1180, "height": 900}, **options})
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda m: complaints.append(m.text) if m.type == "error" else None)
        page.goto(address)
        if labels_expected:
            page.wait_for_selector("#suspect[data-row]", state="attached")
        return page

    yield opened
    for context in contexts:
        context.close()
    assert complaints == []


@pytest.mark.browser
def test_labels_by_keyboard_then_a_new_browser_goes_on(
    open_page, open_curation, curation, tmp_path, photograph
):
    first, second = curation.suspects[0], curation.suspects[1]
    labels = curation.table.label
    with open_curation() as site:
        page = open_page(site)
        assert "worth a look, about" in page.inner_text("#claim")
        assert "wrong on purpose" in page.inner_text("#basis")
        assert page.inner_text("#suspect-label") == labels[first.row]
        assert page.inner_text("#suspect-suggestion") == first.suggestion
        assert page.locator("#suspect-own img").count() == len(first.own)
        photograph(page, "curation-labels")
        page.keyboard.press("c")
        page.wait_for_function(f"() => document.getElementById('suspect').dataset.row === '{second.row}'")
        page.keyboard.press("ArrowLeft")
        assert page.inner_text("#suspect-decision") == f"Changed to {first.suggestion}"
        page.keyboard.press("u")
        page.wait_for_function("() => document.getElementById('suspect-decision').textContent === ''")
        page.keyboard.press("o")
        page.keyboard.type("purple star")
        page.keyboard.press("Enter")
        page.wait_for_function(f"() => document.getElementById('suspect').dataset.row === '{second.row}'")
        page.keyboard.press("r")
        page.wait_for_function("() => document.getElementById('decided').textContent.startsWith('2 of')")
        page.close()
    with open_curation() as site:  # another browser, another server: the journal has it all
        page = open_page(site)
        assert page.inner_text("#decided").startswith("2 of")
        page.keyboard.press("w")
        page.wait_for_function(
            "() => document.getElementById('written').textContent.includes('corrected.csv')"
        )
        assert "Labels changed: 1. Images removed: 1." in page.inner_text("#totals")
        page.close()
    written = open_table(tmp_path / "out" / "corrected.csv")
    assert len(written) == len(curation.table) - 1
    assert (written.label == "purple star").sum() == 1


@pytest.mark.browser
def test_a_server_that_died_is_said_and_the_decision_is_not_shown(open_page, open_curation, browser):
    with open_curation() as site:
        context = browser.new_context()
        page = context.new_page()
        page.goto(site)
        page.wait_for_selector("#suspect:not([hidden])")
    page.click("#remove")
    page.wait_for_selector("#error:not([hidden])")
    assert "was not kept" in page.inner_text("#error")
    assert page.inner_text("#decided").startswith("0 of")
    context.close()


@pytest.mark.browser
def test_duplicates_are_moved_after_a_dry_run_and_put_back(
    open_page, open_curation, curation, tmp_path, photograph
):
    with open_curation() as site:
        page = open_page(site)
        page.click("#tab-copies")
        group = page.locator("#copy-groups .group").first
        assert "leakage" in group.inner_text()
        photograph(page, "curation-duplicates")
        assert "the same bytes" in group.inner_text()
        copy = group.locator(".tile", has_text="copy.jpg")
        copy.get_by_role("button", name="Remove").click()
        page.wait_for_selector(".tile.gone")
        page.click("#tab-finish")
        photograph(page, "curation-finish")
        page.click("#dry-run")
        page.wait_for_selector("#move:not([hidden])")
        assert "Nothing was moved yet" in page.inner_text("#move-says")
        file = next(f for f in curation.table.files if f.name == "copy.jpg")
        assert file.exists()
        page.click("#move")
        page.wait_for_selector("#restore:not([hidden])")
        assert not file.exists()
        assert [f.name for f in (tmp_path / "out" / "removed").rglob("*.jpg")] == ["copy.jpg"]
        page.click("#restore")
        page.wait_for_function("() => document.getElementById('move-says').textContent.includes('put back')")
        assert file.exists()
        page.close()


@pytest.mark.browser
def test_one_of_many_copies_is_kept_by_one_click(open_page, shapes, retriever, tmp_path):
    folder = tmp_path / "copies"
    for label in ("red star", "blue circle"):
        shutil.copytree(shapes / label, folder / label)
    for name in ("again.jpg", "once more.jpg"):
        shutil.copy(folder / "red star" / "0.jpg", folder / "red star" / name)
    table = open_table(folder)
    made = curate(table, retriever.embed(table.files))
    corrections = Corrections(tmp_path / "out" / "corrections.jsonl", made.table, "m")
    with serve_app(create_curation_app(made, corrections, tmp_path / "out", "Copies")) as site:
        page = open_page(f"{site}/#copies", labels_expected=False)
        group = page.locator("#copy-groups .group", has_text="again.jpg")
        group.locator(".tile", has_text="again.jpg").get_by_text("Keep only this one").click()
        page.wait_for_function("() => document.querySelectorAll('.tile.gone').length === 2")
        assert "again.jpg" not in " ".join(group.locator(".tile.gone").all_inner_texts())
        page.close()


@pytest.mark.browser
def test_unusual_pictures_are_shown_with_their_rule(open_page, shapes, retriever, tmp_path, photograph):
    folder = tmp_path / "unusual"
    shutil.copytree(shapes, folder)
    with Image.open(shapes / "red star" / "0.jpg") as whole:
        whole.resize((24, 24)).save(folder / "red star" / "tiny.jpg")
    with Image.open(shapes / "blue circle" / "1.jpg") as whole:
        whole.point(lambda value: value // 12).save(folder / "blue circle" / "dark.jpg")
    table = open_table(folder)
    made = curate(table, retriever.embed(table.files))
    corrections = Corrections(tmp_path / "out" / "corrections.jsonl", made.table, "m")
    with serve_app(create_curation_app(made, corrections, tmp_path / "out", "Audit of shapes")) as site:
        page = open_page(f"{site}/#issues", labels_expected=False)
        for kind, name in (("tiny", "tiny.jpg"), ("dark", "dark.jpg")):
            group = page.locator("#issue-groups .group", has_text=f"1 {kind}")
            assert "Rule: " in group.inner_text()
            assert group.locator(".tile").inner_text().split("\n")[0].endswith(name)
        photograph(page, "curation-pictures")
        page.close()


@pytest.mark.browser
def test_classes_sort_and_open_their_pictures(open_page, open_curation, curation, photograph):
    with open_curation() as site:
        page = open_page(f"{site}/#classes")
        names = page.locator("#class-table tbody th")
        recalls = [one.recall for one in curation.classes if one.recall is not None]
        assert recalls == sorted(recalls)
        assert names.first.inner_text() == curation.classes[0].label
        page.click("#class-table [data-sort=label]")
        assert names.first.inner_text() == "blue circle"
        page.click("#class-table [data-sort=label]")
        assert names.first.inner_text() == "yellow triangle"
        names.first.get_by_role("button").click()
        page.wait_for_selector("#class-pictures:not([hidden])")
        assert page.locator("#class-shots .tile").count() == 5
        photograph(page, "curation-classes")
        page.locator("#class-shots .shot").first.click()
        page.wait_for_selector("#closer[open]")
        page.wait_for_function("() => document.getElementById('closer-image').naturalWidth > 0")
        page.get_by_role("button", name="Close").click()
        page.wait_for_selector("#closer:not([open])", state="hidden")
        page.close()


@pytest.mark.browser
def test_a_phone(open_page, open_curation):
    with open_curation() as site:
        page = open_page(site, viewport={"width": 390, "height": 780}, has_touch=True, color_scheme="dark")
        for view in ("labels", "copies", "issues", "classes", "finish"):
            page.tap(f"#tab-{view}")
            assert page.evaluate("document.documentElement.scrollWidth") <= 390, view
        page.tap("#tab-labels")
        page.tap("#keep")
        page.wait_for_function("() => document.getElementById('decided').textContent.startsWith('1 of')")
        assert page.locator("#keep").bounding_box()["height"] >= 40
        page.close()


def test_pictures_of_every_row_can_be_shown(open_curation, curation):
    rows = np.linspace(0, len(curation.table) - 1, 5).astype(int)
    with open_curation() as site:
        for row in rows:
            assert call(site, "GET", f"/images/{row}")[1][:2] == b"\xff\xd8"


@pytest.mark.browser
def test_an_index_has_duplicates_and_pictures_but_no_labels(browser, shapes, retriever, tmp_path):
    folder = tmp_path / "loose"
    folder.mkdir()
    for i, file in enumerate(sorted(shapes.rglob("*.jpg"))[:12]):
        shutil.copy(file, folder / f"{i}.jpg")
    shutil.copy(folder / "3.jpg", folder / "copy.jpg")
    build_index(retriever, folder, tmp_path / "index")
    curation = curate_index(Index.open(tmp_path / "index", model=retriever))
    assert [
        sorted(curation.table.path[list(group.rows)]) for group in curation.copies if group.identical
    ] == [["3.jpg", "copy.jpg"]]
    corrections = Corrections(tmp_path / "out" / "corrections.jsonl", curation.table, "m")
    with serve_app(create_curation_app(curation, corrections, tmp_path / "out", "Duplicates")) as site:
        page = browser.new_page()
        page.goto(site)
        page.wait_for_selector("#copies:not([hidden]) .group")
        assert page.is_hidden("#tab-labels")
        page.keyboard.press("1")
        assert page.is_visible("#copies")
        page.focus("#tab-copies")
        page.keyboard.press("ArrowLeft")
        assert page.is_visible("#finish")
        page.close()
