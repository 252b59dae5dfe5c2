"""Ties and duplicates: the same ranks in console, JSON, report, search page, audit, calibration and paper."""

import json
import re

import numpy as np
import pytest

from forerank.cli import run
from forerank.data import Table
from forerank.metrics import evaluate, neighbours
from forerank.paper.run_results import same_origin
from forerank.report import write_report
from forerank.search import Index, Row, open_engine
from forerank.search.calibration import run_trials
from forerank.search.class_figures import class_figures
from forerank.search.label_audit import audit
from forerank.search.vote import count_votes
from forerank.web.penalties import penalties_of

SIZE = 40


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    """Corners of a cube: few different similarities and many copies, under four labels."""
    generator = np.random.default_rng(5)
    corners = np.sign(generator.normal(size=(SIZE, 3))).astype(np.float32)
    octant = (corners > 0) @ [1, 2, 4]
    octant[::5] = generator.integers(8, size=SIZE // 5)  # some labels are wrong
    labels = np.array(list("aabbccdd"))[octant]
    engine = open_engine(str(tmp_path_factory.mktemp("one") / "index"))
    rows = [Row(f"{i:03d}.png", label, f"{i:032x}", 1, 1) for i, label in enumerate(labels.tolist())]
    with engine.update(3, "model") as update:
        update.put(rows, corners / np.sqrt(np.float32(3)))
        update.complete(rows, {"model": {"fingerprint": "model"}, "root": ".", "labelled": True}, None)
    return Index(engine), engine.vectors(range(SIZE)), labels


@pytest.fixture(scope="module")
def expected(case):
    """Rank of the first positive and average precision by sorting: negatives before positives on a tie."""
    _, vectors, labels = case
    unit = vectors.astype(np.float64) / np.linalg.norm(vectors.astype(np.float64), axis=1, keepdims=True)
    first, precision, lists = [], [], []
    for query in range(SIZE):
        cosine = np.round(unit @ unit[query], 9)
        others = [row for row in range(SIZE) if row != query]
        lists.append(sorted(others, key=lambda row: (-cosine[row], labels[row] == labels[query], row)))
        places = np.flatnonzero(labels[lists[-1]] == labels[query]) + 1
        first.append(int(places[0]))
        precision.append(float(np.mean(np.arange(1, len(places) + 1) / places)))
    assert 0 < np.mean(np.array(first) == 1) < 1
    return np.array(first), np.array(precision), np.array(lists)


def test_python(case, expected):
    _, vectors, labels = case
    first, precision, lists = expected
    each = evaluate(vectors, labels, per_query=True, nmi=False, bootstrap=0).per_query
    assert each.first_rank.tolist() == first.tolist()
    np.testing.assert_allclose(each.average_precision, precision, atol=1e-12)
    assert neighbours(vectors, labels, k=SIZE).index.tolist() == lists.tolist()


def test_console_and_json(case, expected, tmp_path, capsys):
    _, vectors, labels = case
    first, precision, _ = expected
    np.save(tmp_path / "e.npy", vectors)
    (tmp_path / "l.csv").write_text("label\n" + "\n".join(labels))
    command = ["evaluate", "--embeddings", str(tmp_path / "e.npy"), "--labels", str(tmp_path / "l.csv")]
    assert run([*command, "--ks", "1", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)["metrics"]
    assert figures["recall@1"] == pytest.approx(np.mean(first == 1), abs=1e-12)
    assert figures["map"] == pytest.approx(precision.mean(), abs=1e-12)
    assert figures["mrr"] == pytest.approx(np.mean(1 / first), abs=1e-12)
    assert run([*command, "--ks", "1"]) == 0
    shown = dict(re.findall(r"^(recall@1|map|mrr) +([\d.]+)%", capsys.readouterr().out, re.MULTILINE))
    assert shown == {name: f"{100 * figures[name]:.2f}" for name in ("recall@1", "map", "mrr")}


def test_report(case, expected, tmp_path):
    _, vectors, labels = case
    first, precision, lists = expected
    page = write_report(
        tmp_path / "r.html", title="ties", evaluations={}, embeddings=vectors, labels=labels, queries=SIZE
    ).read_text()
    hard = page[page.index('id="hard"') : page.index('id="easy"')]
    facts = re.findall(r'class="facts">(\w+) wrong.*?average precision ([\d.]+)', hard)
    wrong = precision < 1  # the others are not hard
    by_hand = sorted(
        (int(rank) - 1, f"{100 * ap:.1f}") for rank, ap in zip(first[wrong], precision[wrong], strict=True)
    )
    assert sorted((0 if before == "nothing" else int(before), ap) for before, ap in facts) == by_hand
    cards = re.findall(r'<ol class="ranked".*?</ol>', hard)
    assert len(cards) == wrong.sum()
    for card in cards:
        query, *rows = map(int, re.findall(r'class="none">row (\d+)<', card))
        # The last place may show the first right image, from further down.
        assert rows[:-1] == lists[query, : len(rows) - 1].tolist()
        assert rows[-1] in (lists[query, len(rows) - 1], lists[query, first[query] - 1])


def test_search_page(case, expected):
    index = case[0]
    for query, row in enumerate(index.engine.rows(range(SIZE))):
        answer = penalties_of(index, row, "O", SIZE)
        assert [place.id for place in answer.ranking] == expected[2][query].tolist()
        assert [place.rank for place in answer.ranking] == list(range(1, SIZE))
        places = np.array([place.rank for place in answer.ranking if place.positive])
        assert places[0] == expected[0][query]
        for place in answer.ranking:  # O charges one for every positive after a negative
            assert place.penalty == (0 if place.positive else (places > place.rank).sum())


def test_audit_and_calibration(case, expected):
    index, vectors, labels = case
    first, _, lists = expected
    table = Table([f"{i}.png" for i in range(SIZE)], labels, ["train"] * SIZE)
    result = audit(vectors, table, k=5)
    assert (result.before_nearest + 1).tolist() == first.tolist()
    assert result.nearest.tolist() == lists[:, :5].tolist()
    assert run_trials(index.engine, None, None).correct.tolist() == (first == 1).tolist()
    worst_first = class_figures(vectors, table)
    assert {one.label: one.recall for one in worst_first} == {
        label: np.mean(first[labels == label] == 1) for label in np.unique(labels)
    }
    # The paper's share of images whose nearest image has the same original class.
    assert same_origin(vectors, np.zeros(SIZE), labels) == np.mean(first == 1)


def test_the_vote_is_that_of_the_lists(case, expected):
    """The label that most of the first five have; of equally frequent ones the label that comes first."""
    _, vectors, labels = case
    winner = []
    for ranked in expected[2]:
        names = labels[ranked[:5]].tolist()
        winner.append(max(names, key=lambda name: (names.count(name), -names.index(name))))
    table = Table([f"{i}.png" for i in range(SIZE)], labels, ["train"] * SIZE)
    assert audit(vectors, table, k=5).suggestion.tolist() == winner
    near = neighbours(vectors, labels, k=5)
    for names, similarities, label in zip(labels[near.index], near.similarity, winner, strict=True):
        assert count_votes(names.tolist(), similarities.tolist(), 5).label == label
