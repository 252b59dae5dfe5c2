"""Searching in a real browser: examples, boxes, filters, the address, the enlarged view, keys and a phone."""

import pytest

from .conftest import serve_app

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def shop_site(shop, serving):
    """The address of a running server of the shop."""
    with serving(shop, title="Shop") as address:
        yield address


def ids(page):
    return [int(item.get_attribute("data-id")) for item in page.locator(".tile").all()]


def answered(page):
    page.wait_for_function(
        "() => document.getElementById('results').getAttribute('aria-busy') === 'false'"
        " && document.querySelector('.tile .rank')"
    )


def send(page, *pictures, into="#file"):
    files = [
        {"name": f"{i}.jpg", "mimeType": "image/jpeg", "buffer": data} for i, data in enumerate(pictures)
    ]
    page.set_input_files(into, files if len(files) > 1 or into == "#file" else files[0])


def test_filters_by_column_hold_for_gallery_and_search(open_page, shop_site, shown, photograph):
    page = open_page(shop_site)
    shown(page)
    page.select_option("#add-filter", "category")
    page.fill("#value", "star")
    page.keyboard.press("Enter")
    page.wait_for_function("() => document.querySelectorAll('.tile').length === 20")
    assert "where=category=star" in page.url
    page.locator(".tile").nth(3).click()
    answered(page)
    assert all("star" in name.inner_text() for name in page.locator(".tile .name").all())
    link = page.locator(".tile .columns a").first
    assert link.get_attribute("href").startswith("https://shop.example/")
    assert "noopener" in link.get_attribute("rel")
    shown(page)
    photograph(page, "search-filters")
    page.reload()
    answered(page)
    assert page.inner_text("#chips").startswith("category: star")
    page.get_by_role("button", name="Remove the filter category").click()
    page.wait_for_function("() => !location.search.includes('where')")
    answered(page)
    assert any("star" not in name.inner_text() for name in page.locator(".tile .name").all())
    wrong = open_page(f"{shop_site}/?where=colour=red", expect_errors=True)
    wrong.wait_for_selector("#error:not([hidden])")
    assert "Unknown column 'colour'" in wrong.inner_text("#error")


def test_a_search_that_fails_leaves_the_gallery_and_no_trace_of_matches(open_page, shop_site):
    page = open_page(f"{shop_site}/?like=uNobodyHasThis", expect_errors=True)
    page.wait_for_selector("#error:not([hidden])")
    assert "choose it again" in page.inner_text("#error")
    page.wait_for_selector("#examples .gone")  # a word instead of a broken picture
    page.wait_for_selector(".tile")
    assert page.locator("#result-bar").is_hidden()
    assert page.locator(".tile .rank").count() == 0


def test_pictures_are_shown_whole(open_page, shop_site, shown):
    page = open_page(shop_site)
    shown(page)
    assert page.locator(".tile img").first.evaluate("e => getComputedStyle(e).objectFit") == "contain"


def test_one_per_class_and_what_is_behind(open_page, shop_site):
    page = open_page(f"{shop_site}/?like=0&k=12")
    answered(page)
    page.check("#one-per-class")
    page.wait_for_function("() => location.search.includes('one_per_class=true')")
    answered(page)
    names = [name.inner_text() for name in page.locator(".tile .name").all()]
    assert len(names) == len(set(names)) == 12
    behind = page.locator(".folded").first
    more = int(behind.inner_text()[1:])
    behind.click()
    assert page.locator(".tile").count() == 12 + more
    assert page.evaluate("document.activeElement.classList.contains('unfolded')")


def test_more_and_less_like_this(open_page, shop_site, shop, photograph, shown):
    import numpy as np

    page = open_page(f"{shop_site}/?like=3")
    answered(page)
    more, less = ids(page)[1], ids(page)[5]
    page.locator(f".tile[data-id='{more}']").get_by_role("button", name="More like this").click()
    page.wait_for_function(f"() => location.search === '?like=3&like={more}'")
    answered(page)
    page.locator(f".tile[data-id='{less}']").focus()
    page.keyboard.press("-")
    page.wait_for_function(f"() => location.search === '?like=3&like={more}&unlike={less}'")
    answered(page)
    vectors = shop.engine.vectors(range(80))
    query = vectors[[3, more]].mean(axis=0) - 0.5 * vectors[less]
    expected = [i for i in np.argsort(-(vectors @ query)).tolist() if i not in (3, more, less)]
    assert ids(page) == expected[:24]
    assert page.locator(".query-picture.like").count() == 2
    assert page.locator(".query-picture.unlike").count() == 1
    shown(page)
    photograph(page, "search-examples")
    page.locator(".query-picture.unlike .off").click()
    page.wait_for_function(f"() => location.search === '?like=3&like={more}'")
    page.go_back()
    page.wait_for_function("() => location.search.includes('unlike')")


def test_several_uploads_survive_a_reload(open_page, shop_site, picture, shop):
    import numpy as np

    page = open_page(shop_site)
    both = picture("red", "star"), picture("blue", "circle")
    send(page, *both)
    page.wait_for_function("() => location.search.split('like=u').length === 3")
    answered(page)
    query = shop.embed(list(both)).mean(axis=0)
    expected = np.argsort(-(shop.engine.vectors(range(80)) @ query))[:24].tolist()
    assert ids(page) == expected
    # Somebody else opens the same address.
    other = open_page(page.url)
    answered(other)
    assert ids(other) == expected
    other.wait_for_function(
        "() => [...document.querySelectorAll('.query-picture img')].every(i => i.complete && i.naturalWidth)"
    )
    gone = open_page(f"{shop_site}/?like=uNobodyKnowsThis", expect_errors=True)
    gone.wait_for_selector("#error:not([hidden])")
    assert "no longer kept" in gone.inner_text("#error")
    gone.wait_for_selector(".tile")


def test_a_box_drawn_on_the_query(open_page, shop_site, shop, picture, photograph, shown):
    import io

    from PIL import Image

    pair = Image.new("RGB", (320, 160))
    pair.paste(Image.open(io.BytesIO(picture("red", "star"))), (0, 0))
    pair.paste(Image.open(io.BytesIO(picture("green", "circle"))), (160, 0))
    out = io.BytesIO()
    pair.save(out, "PNG")
    page = open_page(shop_site)
    send(page, out.getvalue())
    answered(page)
    before = ids(page)
    page.wait_for_function("() => document.querySelector('.query-picture img').naturalWidth === 320")
    area = page.locator(".query-picture").bounding_box()
    middle = area["x"] + area["width"] / 2, area["y"] + area["height"] / 2
    page.mouse.move(middle[0] + 2, area["y"] + 6)  # the right half, from above the picture to below it
    page.mouse.down()
    page.mouse.move(area["x"] + area["width"] - 4, middle[1])
    page.mouse.move(area["x"] + area["width"] - 4, area["y"] + area["height"] - 6)
    page.mouse.up()
    page.wait_for_function("() => location.search.includes('@0.5')")
    answered(page)
    assert ids(page) != before
    assert "green" in page.locator(".tile .name").first.inner_text()
    shown(page)
    photograph(page, "search-box")
    # The keyboard can do it too: the box moves to the left half, Enter searches.
    page.locator(".query-picture").focus()
    for _ in range(12):
        page.keyboard.press("ArrowLeft")
    page.keyboard.press("Enter")
    page.wait_for_function("() => /@0,/.test(location.search)")
    answered(page)
    assert "red" in page.locator(".tile .name").first.inner_text()
    outside = open_page(f"{shop_site}/?like=3@0.5,0,0.8,1", expect_errors=True)
    outside.wait_for_selector("#error:not([hidden])")
    assert "outside the picture" in outside.inner_text("#error")


def test_the_enlarged_view_has_arrows_and_gives_the_focus_back(open_page, shop_site, photograph):
    page = open_page(f"{shop_site}/?like=3")
    answered(page)
    every = ids(page)
    page.locator(".tile").first.focus()
    page.keyboard.press(" ")
    page.wait_for_selector("#closer[open]")
    assert page.inner_text("#closer-place").startswith("1 of 24, similarity 0.")
    page.wait_for_function("() => document.getElementById('closer-image').naturalWidth > 0")
    photograph(page, "search-closer")
    page.keyboard.press("ArrowRight")
    page.click("#closer-next")
    assert page.inner_text("#closer-place").startswith("3 of 24")
    assert f"images/{every[2]}" in page.locator("#closer-image").get_attribute("src")
    assert "price" in page.inner_text("#closer-columns")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("Escape")
    page.wait_for_selector("#closer:not([open])", state="attached")
    assert int(page.evaluate("document.activeElement.dataset.id")) == every[1]


def test_the_keyboard_comes_back_to_where_it_left(open_page, shop_site, shown):
    page = open_page(shop_site)
    shown(page)
    for _ in range(4):
        page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    answered(page)
    # The results took the place of the tile that had the focus: the first of them has it now.
    page.wait_for_function("() => document.activeElement === document.querySelector('.tile')")
    page.go_back()
    page.wait_for_function("() => document.activeElement.dataset.id === '3' && !location.search")


def test_the_camera_of_a_phone(open_page, shop_site, picture):
    page = open_page(shop_site, viewport={"width": 390, "height": 780}, has_touch=True, is_mobile=True)
    page.wait_for_selector("#photograph", state="visible")
    assert page.locator("#camera").get_attribute("capture") == "environment"
    send(page, picture("yellow", "square"), into="#camera")
    answered(page)
    assert "yellow" in page.locator(".tile .name").first.inner_text()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_the_page_works_below_another_path(open_page, shop, picture):
    """Its own addresses are relative: a proxy may serve it anywhere."""
    from starlette.applications import Starlette
    from starlette.routing import Mount

    from forerank.web.app import create_app

    with serve_app(Starlette(routes=[Mount("/shop", app=create_app(shop))])) as site:
        page = open_page(f"{site}/shop/?like=3")
        answered(page)
        page.click("#tab-explain")
        page.wait_for_selector("#figure svg image")
        page.wait_for_function(
            "() => [...document.images].every(i => !i.src || i.loading === 'lazy' || i.complete)"
        )
        page.close()


def test_a_slider_over_the_thresholds(open_page, serving, shapes_index, retriever, tmp_path, photograph):
    """The curve comes from the index; the slider tells what a threshold gives and never promises 100%."""
    import shutil

    from forerank.search import Index

    shutil.copytree(shapes_index, tmp_path / "calibrated")
    index = Index.open(tmp_path / "calibrated", model=retriever)
    curve = [
        {"similarity": 0.95 - i / 100, "precision": 1 - (i / 60) ** 2, "answered": (i + 1) / 40}
        for i in range(40)
    ]
    index.store_threshold(
        {"similarity": 0.75, "precision": 0.9, "low": 0.8, "high": 1.0, "absent": 0.5, "queries": 80}
        | {"classes": 16, "curve": curve}
    )
    with serving(index, title="Shapes") as site:
        page = open_page(f"{site}/?like=3")
        answered(page)
        assert "100" not in page.inner_text("#about")
        page.click("#to-threshold")
        page.wait_for_selector("#threshold-slider")
        assert page.evaluate("document.activeElement.id") == "threshold-slider"
        told = page.inner_text("#threshold-told")
        asked = "of the questions about things in the catalogue get an answer"
        assert told.startswith(f"From similarity 0.750 on, 53% {asked}, and 89% of all answers")
        photograph(page, "search-threshold")
        page.keyboard.press("Home")
        highest = page.inner_text("#threshold-told")
        assert "over 99% of all answers are right" in highest
        assert "100%" not in highest
        faint = page.locator(".tile.faint").count()
        page.keyboard.press("End")
        assert page.locator(".tile.faint").count() < faint
        page.close()
