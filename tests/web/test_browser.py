"""The page in a real browser. `make screenshots` also takes the pictures of docs/images."""

import re

import numpy as np
import pytest

from forerank.cli import run as command
from forerank.search import Index, build_index

pytestmark = pytest.mark.browser


def test_the_gallery_and_a_click_through(open_page, site, shown, photograph):
    page = open_page(site)
    shown(page)
    assert "80 images" in page.inner_text("#about")
    photograph(page, "search-gallery")
    page.locator(".tile", has_text="blue star").first.click()
    page.wait_for_selector(".tile .rank")
    answer = page.inner_text("#headline")
    assert re.fullmatch(r"[a-z]+ [a-z]+: [1-7] of the 7 nearest, similarity 0\.\d\d", answer)
    assert page.inner_text("#verdict").startswith("The query is blue star.")
    assert "like=" in page.url
    first = page.locator(".tile").first
    assert "good" in first.get_attribute("class") or "bad" in first.get_attribute("class")
    good = page.locator(".tile.good")
    assert 1 <= good.count() <= 4
    assert good.first.locator(".mark").inner_text() == "✓"
    frame = good.first.locator(".frame").evaluate("e => getComputedStyle(e).borderTopColor")
    assert frame == "rgb(20, 128, 90)"
    shown(page)
    photograph(page, "search-results")
    # Search with the third one, go back, go forward: the address keeps the way.
    third = page.locator(".tile").nth(2).get_attribute("data-id")
    page.locator(".tile").nth(2).get_by_role("button", name="Search with this one").click()
    page.wait_for_function(f"() => location.search === '?like={third}'")
    page.wait_for_selector("#verdict:not([hidden])")
    assert third not in [t.get_attribute("data-id") for t in page.locator(".tile").all()]
    page.go_back()
    page.wait_for_function("text => document.getElementById('headline').textContent === text", arg=answer)
    page.click("#clear")
    page.wait_for_selector("#shuffle:not([hidden])")
    assert page.locator(".tile .rank").count() == 0


def test_an_upload(open_page, site, picture, index):
    page = open_page(site)
    page.set_input_files(
        "#file", {"name": "mine.jpg", "mimeType": "image/jpeg", "buffer": picture("red", "star")}
    )
    page.wait_for_selector(".tile .rank")
    assert page.inner_text("#headline").startswith("red ")
    expected = index.search(picture("red", "star"), 24)
    assert [int(t.get_attribute("data-id")) for t in page.locator(".tile").all()] == [
        hit.id for hit in expected
    ]
    assert page.locator(".tile.good, .tile.bad").count() == 0  # nobody knows its label yet
    page.fill("#known-label", "red star")
    assert page.locator(".tile.good").count() == 5
    assert page.locator(".tile.bad").count() == 19


@pytest.mark.parametrize("way", ["drop", "paste"])
def test_drop_and_paste(open_page, site, picture, way):
    page = open_page(site)
    event = (
        "new DragEvent('drop', { dataTransfer: data, bubbles: true, cancelable: true })"
        if way == "drop"
        else "new ClipboardEvent('paste', { clipboardData: data, bubbles: true, cancelable: true })"
    )
    page.evaluate(
        f"""bytes => {{
            const data = new DataTransfer();
            data.items.add(new File([new Uint8Array(bytes)], "x.png", {{ type: "image/png" }}));
            document.body.dispatchEvent({event});
        }}""",
        list(picture("green", "circle", kind="PNG")),
    )
    page.wait_for_selector(".tile .rank")
    assert "green" in page.locator(".tile .name").first.inner_text()


def test_a_bad_upload_is_told_and_the_page_goes_on(open_page, site, picture, shown):
    page = open_page(site, expect_errors=True)
    page.set_input_files("#file", {"name": "cat.jpg", "mimeType": "image/jpeg", "buffer": b"not a picture"})
    page.wait_for_selector("#error:not([hidden])")
    assert page.inner_text("#error").startswith("This is not a picture that can be read")
    shown(page)
    page.set_input_files("#file", {"name": "ok.jpg", "mimeType": "image/jpeg", "buffer": picture()})
    page.wait_for_selector(".tile .rank")
    assert page.is_hidden("#error")
    missing = open_page(f"{site}/?like=999999", expect_errors=True)
    missing.wait_for_selector("#error:not([hidden])")
    assert "no row 999999" in missing.inner_text("#error")


def test_an_empty_index(open_page, serving, retriever, tmp_path, picture):
    from forerank.search import open_engine

    engine = open_engine(tmp_path / "empty")
    model = {"fingerprint": retriever.identity, "source": "efficientnet-lite0"}
    with engine.update(retriever.dim, model["fingerprint"]) as update:
        update.complete([], {"model": model, "root": str(tmp_path)}, None)
    with serving(Index.open(tmp_path / "empty", model=retriever)) as site:
        page = open_page(site)
        page.wait_for_selector("#empty:not([hidden])")
        assert "This index is empty" in page.inner_text("#empty")
        page.set_input_files("#file", {"name": "a.jpg", "mimeType": "image/jpeg", "buffer": picture()})
        page.wait_for_selector("#verdict:not([hidden])")
        assert "nothing to compare" in page.inner_text("#verdict")
        page.close()  # before its server ends


def test_explain(open_page, site, photograph):
    page = open_page(f"{site}/?like=26")
    page.wait_for_selector(".tile .rank")
    page.click("#tab-explain")
    page.wait_for_selector("#figure svg")
    before = page.inner_html("#figure")
    photograph(page, "search-explain")
    page.select_option("#loss", "PNP-O")
    page.wait_for_function("before => { const now = document.getElementById('figure').innerHTML;"
                           " return now.includes('<svg') && now !== before; }", arg=before)  # fmt: skip
    assert page.locator("#figure image").count() == 15


def test_the_keyboard_is_enough(open_page, site, shown):
    page = open_page(site)
    shown(page)
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    columns = page.evaluate(
        "getComputedStyle(document.getElementById('results')).gridTemplateColumns.split(' ').length"
    )
    assert int(page.evaluate("document.activeElement.dataset.id")) == 1 + columns
    page.keyboard.press(" ")
    assert page.is_visible("#closer")
    page.keyboard.press("Escape")
    assert page.is_hidden("#closer")
    page.keyboard.press("Enter")
    page.wait_for_selector(".tile .rank")
    assert page.url.endswith(f"?like={1 + columns}")
    page.keyboard.press("Escape")
    page.wait_for_selector("#shuffle:not([hidden])")
    page.keyboard.press("/")
    page.keyboard.type("yellow c")
    page.wait_for_function("() => document.querySelectorAll('.tile').length === 5")
    assert {name.inner_text() for name in page.locator(".tile .name").all()} == {"yellow circle"}
    page.fill("#filter", "no such thing")
    page.wait_for_selector("#empty:not([hidden])")


def test_a_phone_in_the_dark(open_page, site, shown, photograph):
    page = open_page(
        f"{site}/?like=26", viewport={"width": 390, "height": 780}, color_scheme="dark", has_touch=True
    )
    page.wait_for_selector(".tile .rank")
    shown(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 27)"
    assert (
        page.locator(".tile").nth(1).bounding_box()["y"] == page.locator(".tile").nth(0).bounding_box()["y"]
    )
    photograph(page, "search-phone")


def test_the_description_of_the_api(open_page, site):
    page = open_page(f"{site}/docs")
    page.wait_for_selector("#operations[aria-busy=false]")
    assert "/api/search" in page.inner_text("#operations")
    assert "similarity" in page.inner_text("#operations")


def test_a_hundred_thousand_images_do_not_choke_it(open_page, serving, tmp_path, shapes, shown):
    """Scrolling through thousands keeps the page small: far blocks are emptied."""
    from forerank.search import Row, open_engine

    files = sorted(path.relative_to(shapes).as_posix() for path in shapes.rglob("*.jpg"))
    engine = open_engine(tmp_path / "large")
    vectors = np.random.default_rng(0).normal(size=(100_000, 8)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    # Many names for few files: links would be slow to make, rows are enough.
    rows = [
        Row(f"{'./' * (i // 80 % 3)}{files[i % 80]}", f"label {i % 5000}", f"{i:032x}", 1, 1)
        for i in range(100_000)
    ]
    with engine.update(8, "m") as update:
        update.put(rows, vectors)
        update.complete(rows, {"model": {"fingerprint": "m"}, "root": str(shapes), "labelled": True}, None)
    with serving(Index(open_engine(tmp_path / "large"))) as site:
        page = open_page(site)
        shown(page)
        assert "100,000 images" in page.inner_text("#about")
        while (blocks := page.locator(".block").count()) < 25:
            page.mouse.wheel(0, 100_000)  # to the end of what is there
            page.wait_for_function("n => document.querySelectorAll('.block').length > n", arg=blocks)
        # 25 blocks have 1,500 tiles: when scrolling has stopped, far ones are emptied.
        page.wait_for_function("() => document.querySelectorAll('.tile').length < 900")
        page.click("#shuffle")
        shown(page)
        page.fill("#filter", "label 4999")
        page.wait_for_function("() => document.querySelectorAll('.tile').length === 20")
        page.locator(".tile").first.click()
        page.wait_for_selector(".tile .rank")
        page.close()


def test_no_match_is_said(open_page, serving, shapes_index, retriever, picture, tmp_path):
    import shutil

    shutil.copytree(shapes_index, tmp_path / "calibrated")
    index = Index.open(tmp_path / "calibrated", model=retriever)
    index.store_threshold({"similarity": 0.9999, "precision": 0.95, "low": 0.9, "high": 1.0})
    with serving(index) as site:
        page = open_page(site)
        page.set_input_files("#file", {"name": "a.jpg", "mimeType": "image/jpeg", "buffer": picture()})
        page.wait_for_selector("#verdict:not([hidden])")
        assert page.inner_text("#headline") == "No match"
        assert "a match is trusted from" in page.inner_text("#verdict")
        assert page.locator(".tile.faint").count() == 24
        page.close()


def test_a_picture_that_is_gone_leaves_a_word(open_page, serving, retriever, tmp_path, picture):
    (tmp_path / "images").mkdir()
    for seed in range(3):
        (tmp_path / "images" / f"{seed}.jpg").write_bytes(picture(seed=seed))
    build_index(retriever, tmp_path / "images", tmp_path / "index")
    (tmp_path / "images" / "1.jpg").unlink()
    with serving(Index.open(tmp_path / "index", model=retriever)) as site:
        page = open_page(site, expect_errors=True)
        page.wait_for_selector(".gone")
        assert page.locator(".gone").count() == 1
        page.close()


@pytest.mark.long  # trains for a minute; the commands and the page are tested one by one
def test_a_trained_run_becomes_a_page_in_two_commands(open_page, serving, tmp_path, shown, photograph):
    """The demo's model, trained shorter: characters that training never saw, found in other typefaces."""
    run, address = tmp_path / "run", tmp_path / "glyphs.index"
    short = ["steps=60", "every=60", "batch_size=128", "lr=2e-3", "report=false", "nmi=false"]
    assert command(["train", "glyphs", *short, "--run", str(run)]) == 0
    assert command(["index", str(run), "glyphs", "--split", "test", "-o", str(address)]) == 0
    assert command(["map", str(address)]) == 0
    with serving(Index.open(address), title="Glyphs") as site:
        page = open_page(site)
        shown(page)
        page.fill("#filter", "U+0077")  # the letter w
        page.wait_for_function(
            "() => [...document.querySelectorAll('.tile .name')].every(n => n.textContent === 'U+0077')"
        )
        letter = page.locator(".tile").first.get_attribute("data-id")
        page.goto(f"{site}/?like={letter}")  # among all characters: a filter would hold for the search too
        page.wait_for_selector(".tile .rank")
        shown(page)
        assert page.locator(".tile.good").count() >= 3  # of 24; by chance 0.05
        photograph(page, "search-glyphs")
        page.goto(f"{site}/?view=map&text=U%2B0077")
        page.locator("#map-status").get_by_text("images fit the filters").wait_for()
        photograph(page, "search-map")
