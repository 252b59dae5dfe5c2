"""The page: whole, self-contained, harmless, true, and at ease in a real browser."""

import math
import os
import re
import signal
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from forerank.data import Table
from forerank.errors import InputError
from forerank.metrics import evaluate
from forerank.report import CheckpointChoice, write_report
from waiting import wait_until

HISTORY = [
    *({"step": step, "loss": math.exp(-step / 200)} for step in range(600)),
    *({"step": step, "validation": {"recall@1": 1 - math.exp(-step / 200)}} for step in range(0, 600, 100)),
]


def write(run, path: Path, **changes) -> str:
    arguments = {
        "title": "Run <1> & co",
        "evaluations": run.evaluations,
        "table": run.table,
        "embeddings": run.after,
        "history": HISTORY,
        "recipe": {"loss": {"name": "Dq", "options": {"alpha": 4}}, "data": "</pre><script>1</script>"},
        "versions": {"torch": "2.13.0", "path": Path("x")},
        "notes": ["training did <not> help"],
    }
    return write_report(path, **{**arguments, **changes}).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def page(run, tmp_path_factory: pytest.TempPathFactory) -> str:
    return write(run, tmp_path_factory.mktemp("page") / "new folder" / "report.html")


class Elements(HTMLParser):
    """Every element with its attributes, and whether all that open also close."""

    VOID = ("meta", "link", "img", "br", "wbr", "input")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_every_element_closes_and_nothing_is_fetched_or_run(page):
    elements = Elements(page)
    assert elements.open == []
    for tag, attributes in elements.found:
        assert tag not in ("script", "iframe", "object", "embed", "base", "form", "b1")
        for name, value in attributes.items():
            assert not name.startswith("on"), f"{tag} has {name}"
            if name in ("src", "href", "srcset", "action", "data", "poster"):
                assert value.startswith(("data:", "#")), f"{tag} {name}={value[:60]}"
    assert not re.search(r"https?://", page)
    assert "@import" not in page
    assert "url(" not in page


def test_labels_paths_and_notes_are_shown_as_text(run, page):
    assert not [name for name in run.table.classes if set(name) & set("<>\"'") and name in page]
    assert "&lt;script&gt;alert(&quot;x&quot;)&lt;/script&gt;" in page
    assert "<h1>Run &lt;1&gt; &amp; co</h1>" in page
    assert "Training did &lt;not&gt; help" in page
    assert "&lt;i&gt;six&lt;/i&gt;: 48 images of 6 classes" in page
    assert "0_0 &lt;b&gt;.png" in page


def test_the_headline_is_the_evaluations_own_numbers(run, page):
    before, after = (e["recall@1"] for e in run.evaluations.values())
    assert after > before
    low, high = run.evaluations["trained"].intervals["recall@1"]
    text = re.sub(r"<[^>]*>", " ", page[page.index('class="headline card"') : page.index("</section>")])
    for number in (before, after, low, high):
        assert f"{100 * number:.1f}" in text
    assert f"+{100 * (after - before):.1f} points" in text


def test_the_interval_of_the_difference_is_that_of_resampled_classes(run, page):
    hits = [e.per_query.first_rank == 1 for e in run.evaluations.values()]
    change = hits[1].astype(float) - hits[0]
    classes = run.table.label_ids
    generator = np.random.default_rng(5)
    drawn = []
    for _ in range(4000):
        rows = np.concatenate([np.flatnonzero(classes == c) for c in generator.integers(6, size=6)])
        drawn.append(change[rows].mean())
    shown = re.search(r"95% interval ([+−][\d.]+) to ([+−][\d.]+)", page)
    interval = [float(end.replace("−", "-")) / 100 for end in shown.groups()]
    np.testing.assert_allclose(interval, np.quantile(drawn, [0.025, 0.975]), atol=0.03)


def test_the_hardest_query_leads(run, tmp_path):
    page = write(
        run,
        tmp_path / "r.html",
        embeddings=run.before,
        evaluations={"zero-shot": run.evaluations["zero-shot"]},
    )
    figures = run.evaluations["zero-shot"].per_query
    worst = int(figures.first_rank.max()) - 1
    hard = page[page.index('id="hard"') : page.index('id="easy"')]
    first = re.search(r'class="facts">(\d+) wrong images? before the first right one', hard)
    assert int(first.group(1)) == worst
    shown = [int(n) for n in re.findall(r'class="facts">(\d+) wrong', hard)]
    assert shown == sorted(figures.first_rank - 1, reverse=True)[: len(shown)]


def test_frames_tell_right_from_wrong_without_colour(page):
    hard = page[page.index('id="hard"') : page.index('id="easy"')]
    right, wrong = hard.count('<li class="good">'), hard.count('<li class="bad">')
    assert hard.count("✓") == right
    assert hard.count("✕") == wrong > 0
    images = [a for tag, a in Elements(page).found if tag == "img"]
    assert images
    assert all(image["alt"] for image in images)


def test_one_evaluation_or_none_at_all_still_makes_a_page(run, tmp_path):
    alone = write(
        run, tmp_path / "a.html", evaluations={"zero-shot": run.evaluations["zero-shot"]}, history=[]
    )
    assert "difference" not in alone[alone.index("<body>") : alone.index('id="similarity"')]
    numbers_only = write_report(tmp_path / "b.html", title="x", evaluations=run.evaluations).read_text()
    assert 'id="hard"' not in numbers_only
    assert 'id="metrics"' in numbers_only
    empty = write_report(tmp_path / "c.html", title="x", evaluations={})
    assert Elements(empty.read_text()).open == []


@pytest.mark.parametrize(
    ("loss", "shown"),
    [
        ({"name": "PNP-Ib", "options": {"b": 3}}, "PNP-Ib (b 3)"),
        ({"name": "Ds", "options": {}}, "PNP-Ds"),
        ("smooth-ap", "Smooth-AP"),
        ({"name": "pml:FastAPLoss"}, None),
    ],
)
def test_the_penalties_are_those_of_the_runs_own_loss(run, tmp_path, loss, shown):
    page = write(run, tmp_path / "r.html", embeddings=run.before, recipe={"loss": loss})
    assert ('id="penalties"' in page) == (shown is not None)
    assert shown is None or f"One query as the loss {shown} sees it." in page


def test_test_figures_are_not_drawn_as_a_curve(run, tmp_path):
    history = [{"step": s, "validation": {"recall@1": 0.1 * s}} for s in range(3)] + [
        {"step": 2, "test": {"recall@1": 1}}
    ]
    page = write(run, tmp_path / "r.html", history=history)
    training = page[page.index('id="training"') : page.index('id="similarity"')]
    assert training.count("<polyline") == 1


def test_the_figure_that_chooses_is_drawn_and_the_kept_step_marked(run, tmp_path):
    values = {10: 0.4, 20: 1.0, 30: 0.9}
    history = [{"step": s, "validation": {"recall@1": 0.5, "map@r": v}} for s, v in values.items()]
    page = write(run, tmp_path / "r.html", history=history, choice=CheckpointChoice("map@r", 20, before=0.3))
    training = page[page.index('id="training"') : page.index('id="similarity"')]
    chart = training[training.index("mAP@R, by which the checkpoint is chosen") :].split("</figure>")[0]
    (points,) = re.findall(r'<polyline class="line s1" points="([^"]*)"', chart)
    places = [point.split(",") for point in points.split()]
    assert len(places) == 4  # the model from before training stands at step 0
    assert float(places[2][1]) == 12.0  # 100 is the top of the axis, not somewhere below it
    (mark,) = re.findall(r'<line class="best" x1="([\d.]+)"', chart)
    assert mark == places[2][0]
    assert "kept: step 20, 100.0" in chart
    shown = [float(t) for t in re.findall(r'text-anchor="end">([\d.]+)</text>', chart)]
    assert 0 <= min(shown) < max(shown) <= 100
    assert "Validation recall" in training


def test_missing_pictures_leave_the_rest_standing(run, tmp_path):
    paths = run.table.path.copy()
    paths[::2] = "gone.png"
    (tmp_path / "broken.png").write_bytes(b"not a picture")
    paths[1] = str(tmp_path / "broken.png")
    page = write(run, tmp_path / "r.html", table=run.table.with_columns(path=paths))
    assert "gone.png" in page
    assert Elements(page).open == []


def test_large_photographs_stay_within_the_budget(tmp_path):
    generator = np.random.default_rng(0)
    for row in range(40):
        noise = generator.integers(0, 256, size=(500, 700, 3), dtype=np.uint8)  # nothing compresses worse
        Image.fromarray(noise).save(tmp_path / f"{row}.jpg", quality=95)
    table = Table(
        [f"{row}.jpg" for row in range(40)], [f"{row % 8}" for row in range(40)], ["test"] * 40, tmp_path
    )
    vectors = generator.normal(size=(40, 8))
    whole = write_report(tmp_path / "a.html", title="x", evaluations={}, table=table, embeddings=vectors)
    assert whole.stat().st_size < 5_000_000
    tight = write_report(
        tmp_path / "b.html",
        title="x",
        evaluations={},
        table=table,
        embeddings=vectors,
        thumbnail_bytes=200_000,
    )
    assert "data:image/jpeg" in tight.read_text()
    assert tight.stat().st_size < 400_000


def test_only_queries_ask_and_only_the_gallery_is_found(run, tmp_path):
    asks = np.arange(48) % 8 < 2
    table = run.table.with_columns(
        is_query=asks, is_gallery=~asks, path=np.array([f"row{i}." for i in range(48)])
    )
    page = write(run, tmp_path / "r.html", table=table, evaluations={})
    hard = page[page.index('id="hard"') : page.index('id="confused"')]
    queries = {
        int(n) for n in re.findall(r'class="asks"><div class="picture"><span class="none">row(\d+)\.', hard)
    }
    answers = {
        int(n)
        for n in re.findall(r'class="(?:good|bad)"><div class="picture"><span class="none">row(\d+)\.', hard)
    }
    assert queries
    assert queries <= set(np.flatnonzero(asks))
    assert answers <= set(np.flatnonzero(~asks))


def test_pairs_of_one_camera_are_left_out_as_the_evaluation_does(run, tmp_path):
    """Two cameras: an image finds its own class only in the other one."""
    camera = np.array([f"camera {i % 2}" for i in range(48)])
    table = run.table.with_columns(sequence=camera, path=np.array([f"row{i}." for i in range(48)]))
    measured = evaluate(
        run.before, table.label, ks=(1, 2), nmi=False, per_query=True, bootstrap=0, ignore=camera
    )
    page = write(
        run, tmp_path / "r.html", table=table, embeddings=run.before, evaluations={"zero-shot": measured}
    )
    hard = page[page.index('id="hard"') : page.index('id="confused"')]
    cards = hard.split('<article class="query card">')[1:]
    shown = [int(n) for n in re.findall(r'class="facts">(\d+) wrong', page[: page.index('id="easy"')])]
    assert shown == sorted(measured.per_query.first_rank - 1, reverse=True)[: len(shown)]
    assert cards
    for card in cards:
        asks, *answers = (int(n) for n in re.findall(r'class="none">row(\d+)\.', card))
        twins = (table.label_ids == table.label_ids[asks]) & (camera == camera[asks])
        assert not set(answers) & set(np.flatnonzero(twins))


def test_bad_input_is_refused_in_a_sentence(run, tmp_path):
    with pytest.raises(InputError, match="needs labels"):
        write_report(tmp_path / "r.html", title="x", evaluations={}, embeddings=run.after)
    with pytest.raises(InputError, match="48 embeddings and 3 labels"):
        write_report(tmp_path / "r.html", title="x", evaluations={}, embeddings=run.after, labels=[1, 2, 3])
    assert list(tmp_path.iterdir()) == []


WRITER = """
import sys
import numpy as np
from pathlib import Path
from forerank.report import write_report
vectors = np.random.default_rng(0).normal(size=(60, 4))
print("ready", flush=True)
for number in range(10**6):
    write_report(Path(sys.argv[1]), title=f"page {number}", evaluations={}, embeddings=vectors,
                 labels=np.arange(60) % 6, notes=["long " * 200_000])
"""


def test_killed_while_writing_the_file_is_whole_or_absent(tmp_path):
    file = tmp_path / "report.html"
    process = subprocess.Popen([sys.executable, "-c", WRITER, str(file)], stdout=subprocess.PIPE)
    try:
        assert process.stdout.readline() == b"ready\n"
        wait_until(file.exists, "the first page is written", process)
        # Stop it again and again in the midst of its work: at each stop a reader must find a whole page.
        for _ in range(20):
            wait_until(
                lambda: len(list(tmp_path.iterdir())) > 1, "a page is being written", process, pause=0.001
            )
            os.kill(process.pid, signal.SIGSTOP)
            assert file.read_text(encoding="utf-8").endswith("</html>\n")
            os.kill(process.pid, signal.SIGCONT)
    finally:
        process.kill()
        process.wait()
    assert file.read_text(encoding="utf-8").endswith("</html>\n")


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
def test_in_a_browser_it_is_quiet_asks_nothing_and_fits(run, browser, tmp_path, width, scheme):
    write(run, tmp_path / "report.html")
    context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
    said, asked = [], []
    tab = context.new_page()
    tab.on("console", lambda message: said.append(message.text))
    tab.on("pageerror", lambda error: said.append(str(error)))
    tab.on("dialog", lambda dialog: (said.append("a script ran"), dialog.dismiss()))
    tab.on("request", lambda request: asked.append(request.url))
    tab.goto((tmp_path / "report.html").as_uri())
    assert said == []
    assert [url[:60] for url in asked if not url.startswith(("file:", "data:"))] == []
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    # Every picture decodes, and every section has something in it.
    assert tab.evaluate("[...document.images].every(i => i.complete && i.naturalWidth > 0)")
    assert tab.evaluate("document.images.length") > 20
    assert tab.evaluate("[...document.querySelectorAll('section')].every(s => s.offsetHeight > 60)")
    colour = tab.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", colour))) < 200) == (scheme == "dark")
    context.close()


@pytest.mark.browser
@pytest.mark.parametrize("width", [360, 700, 1000, 1180])
def test_before_and_after_are_not_covered_by_the_difference(run, browser, tmp_path, width):
    file = write_report(tmp_path / "r.html", title="Two", evaluations=run.evaluations)
    page = browser.new_page(viewport={"width": width, "height": 800})
    page.goto(file.as_uri())
    for row in page.locator("#metrics tbody tr").all():
        *_, after, difference = [cell.bounding_box() for cell in row.locator("td").all()]
        assert after["x"] + after["width"] <= difference["x"] + 1
    page.close()


@pytest.mark.browser
@pytest.mark.parametrize("width", [360, 700, 1180])
def test_the_difference_is_in_sight_at_every_width(run, browser, tmp_path, width):
    """Five models side by side are wider than a phone; the last column still stands inside the window."""
    several = dict.fromkeys(("untrained", "pixels", "third", "fourth"), run.evaluations["zero-shot"])
    evaluations = {**several, "trained": run.evaluations["trained"]}
    file = write_report(tmp_path / "r.html", title="Many", evaluations=evaluations)
    page = browser.new_page(viewport={"width": width, "height": 800})
    page.goto(file.as_uri())
    for cell in page.locator("#metrics .difference").all():
        box = cell.bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= width
    # Nothing lies over it: what a click would hit there is the cell itself.
    cell = page.locator("#metrics td.difference").first
    assert cell.evaluate(
        "e => { e.scrollIntoView({block: 'center', behavior: 'instant'});"
        " const c = e.getBoundingClientRect();"
        " return e.contains(document.elementFromPoint(c.x + c.width / 2, c.y + c.height / 2)); }"
    )
    page.close()


@pytest.mark.browser
def test_pictures_have_their_file_names_and_open_by_click_and_key(run, browser, tmp_path):
    file = write_report(
        tmp_path / "r.html",
        title="Pictures",
        evaluations=run.evaluations,
        table=run.table,
        embeddings=run.after,
    )
    page = browser.new_page(viewport={"width": 900, "height": 700})
    page.goto(file.as_uri())
    first = page.locator(".ranked .picture").first
    first.scroll_into_view_if_needed()
    assert first.bounding_box()["width"] >= 130
    query = first.locator("xpath=..").locator(".file").inner_text()
    assert query in run.table.path.tolist()
    image = first.locator("img")
    small = image.bounding_box()["width"]
    first.locator("input").click()
    assert image.bounding_box()["width"] == 900
    page.mouse.click(450, 650)  # anywhere closes it
    assert image.bounding_box()["width"] == small
    first.locator("input").focus()
    page.keyboard.press(" ")
    assert image.bounding_box()["height"] == 700
    page.keyboard.press(" ")
    assert image.bounding_box()["width"] == small
    page.close()
