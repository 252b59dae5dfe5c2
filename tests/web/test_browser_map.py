"""The map in a real browser: zoom, pan, lasso, the query on it, keys, a phone, and 100,000 points."""

import shutil

import numpy as np
import pytest

from forerank.search import Index

from .conftest import get

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def mapped(shop, retriever, tmp_path_factory):
    """A copy of the index of shapes with columns, with a map."""
    pytest.importorskip("umap")
    from forerank.search.map import make_map

    address = tmp_path_factory.mktemp("mapped") / "index"
    shutil.copytree(shop.engine.address, address)
    index = Index.open(address, model=retriever)
    make_map(index)
    return index


@pytest.fixture(scope="module")
def map_site(mapped, serving):
    with serving(mapped, title="Shapes") as address:
        yield address


# How many pixels of the canvas are not empty.
PIXELS = (
    "(() => { const c = document.getElementById('map-canvas');"
    " const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;"
    " let n = 0; for (let i = 3; i < d.length; i += 4) n += d[i] > 0; return n; })()"
)


def painted(page):
    """Wait until the map is read and drawn; how many pixels of the canvas are not empty."""
    page.wait_for_function(
        "() => document.getElementById('map-canvas')?.dataset.milliseconds"
        " && document.getElementById('map-status').textContent !== 'Reading the map…'"
    )
    # What was to be drawn by now is drawn before the second of the next frames.
    frame = "new Promise(requestAnimationFrame)"
    return page.evaluate(f"async () => {{ await {frame}; await {frame}; return {PIXELS}; }}")


def test_the_map_and_a_lasso(open_page, map_site, mapped):
    from forerank.search.map import read_map

    page = open_page(map_site)
    page.click("#to-map")
    assert painted(page) > 80
    assert page.url.endswith("?view=map")
    # A lasso around the left half chooses exactly the images that lie there.
    made = read_map(mapped)
    page.check("#map-lasso")
    page.locator("#map-canvas").scroll_into_view_if_needed()
    box = page.locator("#map-canvas").bounding_box()
    middle = box["x"] + box["width"] / 2
    # Not from its very corner, which is round.
    top, low, left = box["y"] + 2, box["y"] + box["height"] - 3, box["x"] + 40
    page.mouse.move(left, top)
    page.mouse.down()
    for x, y in ((middle, top), (middle, low), (left, low)):
        page.mouse.move(x, y, steps=4)
    page.mouse.up()
    page.wait_for_selector(".tile")
    left = set(made.ids[made.positions[:, 0] < 0.5].tolist())
    edge = set(made.ids[np.abs(made.positions[:, 0] - 0.5) < 0.005].tolist())
    said = int(page.inner_text("#map-status").split()[0])
    assert abs(said - len(left)) <= len(edge)
    shown_ids = {int(item.get_attribute("data-id")) for item in page.locator(".tile").all()}
    assert 0 < len(shown_ids) <= said
    assert shown_ids <= left | edge
    page.click("#map-none")
    page.wait_for_function("() => document.querySelectorAll('.tile').length === 0")


def test_zoom_pan_and_a_click_search(open_page, map_site, mapped):
    from forerank.search.map import read_map

    page = open_page(f"{map_site}/?view=map")
    before = painted(page)
    page.locator("#map-canvas").scroll_into_view_if_needed()
    box = page.locator("#map-canvas").bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    hovered = painted(page)
    page.mouse.wheel(0, -600)
    page.wait_for_function(f"hovered => {PIXELS} !== hovered", arg=hovered)
    page.get_by_role("button", name="Whole map").click()
    page.wait_for_function(f"before => {PIXELS} === before", arg=before)
    # Image 12 lies where the stored map says; a click there searches with it.
    made = read_map(mapped)
    x, y = made.positions[made.ids.tolist().index(12)].tolist()
    size = 0.94 * min(box["width"], box["height"])
    page.mouse.click(
        box["x"] + box["width"] / 2 + (x - 0.5) * size, box["y"] + box["height"] / 2 + (y - 0.5) * size
    )
    page.wait_for_function("() => /like=\\d+/.test(location.search)")
    clicked = int(page.url.rpartition("like=")[2])
    near = made.positions[made.ids.tolist().index(clicked)]
    assert np.linalg.norm(near - (x, y)) < 0.02


def test_filters_hold_on_the_map(open_page, map_site, photograph):
    page = open_page(f"{map_site}/?view=map")
    painted(page)
    page.select_option("#add-filter", "category")
    page.fill("#value", "star")
    page.press("#value", "Enter")
    status = page.locator("#map-status")
    status.get_by_text("20 of 80 images fit the filters").wait_for()
    page.fill("#filter", "BLUE")
    status.get_by_text("5 of 80 images fit the filters").wait_for()
    page.locator("#map-canvas").focus()
    page.keyboard.press("Enter")  # lists what is in view, and only what the filters accept
    page.wait_for_selector(".tile")
    assert status.inner_text().startswith("5 images chosen")
    assert {item.inner_text() for item in page.locator(".tile .name").all()} == {"blue star"}
    photograph(page, "search-map-filters")
    page.reload()
    page.locator("#map-status").get_by_text("5 of 80 images fit the filters").wait_for()
    page.get_by_role("button", name="Remove the filter category").click()
    page.fill("#filter", "")
    page.wait_for_function(
        "() => document.getElementById('map-status').textContent.startsWith('Near points')"
    )


def test_the_colours_are_named_and_a_click_shows_one_label(open_page, map_site):
    page = open_page(f"{map_site}/?view=map")
    painted(page)
    legend = page.locator(".map-legend")
    legend.get_by_text("and 4 more in view").wait_for()  # 12 of 16 labels
    first = legend.get_by_role("button").first
    name = first.inner_text().removesuffix(" (5)")
    dot = first.locator("i").evaluate("dot => getComputedStyle(dot).backgroundColor")
    red, green, blue = (int(part) for part in dot.removeprefix("rgb(").removesuffix(")").split(", "))
    inked = page.evaluate(
        "([r, g, b]) => { const c = document.getElementById('map-canvas');"
        " const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;"
        " let n = 0; for (let i = 0; i < d.length; i += 4) n += d[i] === r && d[i+1] === g && d[i+2] === b;"
        " return n; }",
        [red, green, blue],
    )
    assert inked > 10  # that colour is on the map
    first.focus()
    page.keyboard.press("Enter")
    page.locator("#map-status").get_by_text("5 of 80 images fit the filters").wait_for()
    assert page.inner_text("#chips").startswith(f"label: {name}")
    page.wait_for_function("() => document.querySelectorAll('.map-legend button').length === 1")
    assert page.evaluate("document.activeElement.dataset.label") == name  # the focus is kept
    page.keyboard.press("Enter")
    page.wait_for_function("() => !location.search.includes('where')")


def test_a_filter_on_a_column_that_does_not_exist_is_one_sentence_on_the_map(open_page, map_site):
    page = open_page(f"{map_site}/?view=map&where=colour=red", expect_errors=True)
    page.wait_for_selector("#error:not([hidden])")
    assert "colour" in page.inner_text("#error")
    assert painted(page) > 80  # the map itself is there


def test_the_query_is_found_on_the_map(open_page, map_site, picture, photograph):
    page = open_page(map_site)
    page.set_input_files(
        "#file", {"name": "a.jpg", "mimeType": "image/jpeg", "buffer": picture("blue", "star")}
    )
    page.wait_for_selector(".tile .rank")
    page.click("#tab-map")
    painted(page)
    assert page.inner_text("#map-status").startswith("The red ring shows where the query stands")
    red = page.evaluate(
        "() => { const c = document.getElementById('map-canvas');"
        " const d = c.getContext('2d').getImageData(c.width / 2 - 16, c.height / 2 - 16, 32, 32).data;"
        " let n = 0; for (let i = 0; i < d.length; i += 4) n += d[i] === 194 && d[i + 1] === 64; return n; }"
    )
    assert red > 20  # in the middle, where it was brought
    page.locator("#map-canvas").scroll_into_view_if_needed()
    photograph(page, "search-map-query")
    page.reload()
    page.wait_for_function("() => document.getElementById('map-status')?.textContent.startsWith('The red')")


def test_keys_are_enough_for_the_map(open_page, map_site):
    page = open_page(f"{map_site}/?view=map")
    painted(page)
    before = page.evaluate("document.getElementById('map-canvas').toDataURL()")
    page.locator("#map-canvas").focus()
    page.keyboard.press("+")
    page.keyboard.press("ArrowRight")
    page.wait_for_function(
        "before => document.getElementById('map-canvas').toDataURL() !== before", arg=before
    )
    page.keyboard.press("0")
    page.keyboard.press("Enter")
    page.wait_for_selector(".tile")
    assert page.inner_text("#map-status").startswith("80 images chosen")
    page.keyboard.press("Escape")
    page.wait_for_function("() => !location.search")


def test_the_map_on_a_phone(open_page, map_site):
    page = open_page(
        f"{map_site}/?view=map", viewport={"width": 390, "height": 780}, has_touch=True, is_mobile=True
    )
    assert painted(page) > 80
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    box = page.locator("#map-canvas").bounding_box()
    page.touchscreen.tap(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)


def test_a_map_that_is_made_again_is_taken_up(shapes_index, retriever, serving, tmp_path, client_of):
    pytest.importorskip("umap")
    from forerank.search.map import make_map

    shutil.copytree(shapes_index, tmp_path / "index")
    index = Index.open(tmp_path / "index", model=retriever)
    with serving(index) as site:
        assert client_of(site, "/api/map").status_code == 404
        make_map(index)
        assert client_of(site, "/api/index").json()["map"]
        first = client_of(site, "/api/map/points").content
        make_map(index, seed=1)
        assert client_of(site, "/api/map/points").content != first


def test_an_index_without_a_map_says_nothing_of_one(open_page, site, client_of):
    page = open_page(site)
    page.wait_for_selector(".tile")
    assert page.is_hidden("#to-map")
    assert client_of(site, "/api/map").status_code == 404


@pytest.fixture
def client_of():
    return lambda site, path: get(f"{site}{path}")


def test_a_hundred_thousand_points_are_drawn(open_page, serving, tmp_path, shapes):
    """The server's part is read from a stored map; the browser draws every point of it."""
    import io

    from forerank.search import Row, open_engine

    count = 100_000
    rng = np.random.default_rng(0)
    engine = open_engine(tmp_path / "large")
    rows = [Row(f"{i}.jpg", f"label {i % 500}", f"{i:032x}", 1, 1) for i in range(count)]
    with engine.update(2, "m") as update:
        update.put(rows, rng.normal(size=(count, 2)).astype(np.float32))
        update.complete(rows, {"model": {"fingerprint": "m"}, "root": str(shapes), "labelled": True}, None)
    packed = io.BytesIO()
    np.savez(
        packed,
        contents=np.array([row.content for row in rows], "S32"),
        positions=rng.random((count, 2), dtype=np.float32),
        model=np.array("m"),
    )
    (tmp_path / "large" / "map.npz").write_bytes(packed.getvalue())
    with serving(Index(open_engine(tmp_path / "large"))) as site:
        page = open_page(f"{site}/?view=map", expect_errors=True)  # its pictures do not exist
        assert painted(page) > 100_000
        box = page.locator("#map-canvas").bounding_box()
        page.mouse.move(box["x"] + 300, box["y"] + 200)
        times = []
        for _ in range(8):
            seen = page.evaluate("document.getElementById('map-canvas').toDataURL()")
            page.mouse.wheel(0, -120)
            page.wait_for_function(
                "seen => document.getElementById('map-canvas').toDataURL() !== seen", arg=seen
            )
            times.append(float(page.locator("#map-canvas").get_attribute("data-milliseconds")))
        print(f"100,000 points: {sorted(times)[len(times) // 2]} ms for a frame (median of {times})")
        page.locator("#map-canvas").focus()
        page.keyboard.press("Enter")
        page.wait_for_selector(".tile")
        page.close()
