"""One suite for every engine, for real: a folder, a Milvus Lite file, servers of Milvus Lite and Milvus."""

from dataclasses import replace

import numpy as np
import pytest

from forerank.errors import InputError
from forerank.search import folder
from forerank.search.engine import Filter, open_engine, unit_vectors

NAMES = [f"class{i % 4}/image{i:03d}.jpg" for i in range(60)]


@pytest.fixture
def engine(address):
    opened = open_engine(address)
    yield opened
    opened.close()


def by_path(engine):
    return {row.path: row for row in engine.all_rows()}


def ids_by_path(engine):
    return {path: row.id for path, row in by_path(engine).items()}


def test_search_is_exact_and_sorted(engine, fill, make_rows, random_vectors):
    vectors = random_vectors(60)
    fill(engine, make_rows(NAMES), vectors)
    queries = random_vectors(20, seed=1)
    nearest = engine.search(queries, 7)
    products = queries @ vectors.T
    expected = np.argsort(-products, axis=1)[:, :7]
    paths = [[row.path for row in engine.rows(ids)] for ids in nearest.ids.tolist()]
    assert paths == [[NAMES[j] for j in line] for line in expected]
    np.testing.assert_allclose(nearest.similarities, np.take_along_axis(products, expected, 1), atol=1e-5)


def test_rows_vectors_and_meta_come_back_as_they_went_in(
    engine, fill, address, make_rows, random_vectors, meta
):
    vectors, rows = random_vectors(60), make_rows(NAMES)
    awkward = 'quote"s/back\\slash/percent%_ ünï.jpg'
    rows[7] = replace(rows[7], path=awkward, label="la\"bel'\\", size=2**40, modified=2**62)
    fill(engine, rows, vectors)
    engine.close()

    again = open_engine(address)
    assert again.count() == 60
    stated = again.meta()
    assert (stated["model"], stated["dim"], stated["count"]) == (meta["model"], 16, 60)
    ids = ids_by_path(again)
    chosen = [ids[rows[i].path] for i in (7, 3, 7)]
    assert [replace(row, id=-1) for row in again.rows(chosen)] == [rows[7], rows[3], rows[7]]
    np.testing.assert_array_equal(again.vectors(chosen), vectors[[7, 3, 7]])
    assert max(ids.values()) < 2**53
    seen = {}
    for part, part_vectors in again.scan(batch=16):
        seen |= {row.path: vector for row, vector in zip(part, part_vectors, strict=True)}
    assert len(seen) == 60
    np.testing.assert_array_equal(seen[awkward], vectors[7])
    again.close()


def test_unknown_ids_are_refused(engine, fill, make_rows, random_vectors):
    fill(engine, make_rows(NAMES[:3]), random_vectors(3))
    for unknown in (2**53 - 1, -5):
        with pytest.raises(KeyError):
            engine.rows([unknown])
        with pytest.raises(KeyError):
            engine.vectors([unknown])


def test_a_second_load_of_the_same_rows_changes_nothing(engine, fill, make_rows, random_vectors):
    vectors, rows = random_vectors(60), make_rows(NAMES)
    fill(engine, rows, vectors)
    before = ids_by_path(engine)
    fill(engine, rows, vectors)
    assert engine.count() == 60
    assert ids_by_path(engine) == before


def test_changed_moved_and_removed_rows(engine, fill, make_rows, random_vectors, meta):
    vectors, rows = random_vectors(60), make_rows(NAMES)
    fill(engine, rows, vectors)
    changed = replace(make_rows([NAMES[0]], salt="other bytes")[0])
    moved = replace(rows[1], path="elsewhere/moved.jpg")  # the same bytes at another place
    relabelled = replace(rows[2], label="relabelled")
    now = [changed, moved, relabelled, *rows[10:]]
    new_vector = random_vectors(1, seed=9)
    with engine.update(16, "model-a") as update:
        contents = {row.content for row in now}
        assert contents - update.stored(contents) == {changed.content}
        update.put([changed], new_vector)
        update.complete(now, meta, None)
    assert engine.count() == len(now) == 53
    catalogue = by_path(engine)
    assert set(catalogue) == {row.path for row in now}
    assert catalogue[NAMES[2]].label == "relabelled"
    np.testing.assert_allclose(engine.vectors([catalogue[NAMES[0]].id]), new_vector, atol=1e-6)
    np.testing.assert_array_equal(engine.vectors([catalogue["elsewhere/moved.jpg"].id]), vectors[1:2])


def test_two_files_of_the_same_bytes_are_two_rows(engine, fill, make_rows, random_vectors):
    row = make_rows(["a/one.jpg"])[0]
    twin = replace(row, path="b/two.jpg", label="b")
    fill(engine, [row, twin], np.repeat(random_vectors(1), 2, axis=0))
    assert engine.count() == 2
    assert {r.label for r in by_path(engine).values()} == {"a", "b"}


def test_pages_walk_through_everything_once(engine, fill, make_rows, random_vectors):
    fill(engine, make_rows(NAMES), random_vectors(60))
    seen, after = [], -1
    while page := engine.page(after=after, limit=17):
        assert len(page) <= 17
        seen += page
        after = page[-1].id
    assert sorted(row.path for row in seen) == sorted(NAMES)
    assert [row.id for row in seen] == sorted(row.id for row in seen)
    assert {row.label for row in engine.page(limit=100, where=Filter(label="class2"))} == {"class2"}
    assert len(engine.page(limit=100, where=Filter(label="class2"))) == 15
    assert {row.path for row in engine.page(limit=100, where=Filter(text="image00"))} == {
        n for n in NAMES if "image00" in n
    }
    assert engine.page(limit=100, where=Filter(text="%")) == []
    assert engine.values("label") == [f"class{i}" for i in range(4)]
    assert engine.values("label", "SS3") == ["class3"]
    assert len(engine.page(limit=100, where=Filter(text="IMAGE00"))) == 10


def test_texts_are_found_in_any_case_and_any_script(engine, fill, make_rows, random_vectors):
    fill(engine, make_rows(["ÄPFEL/1.jpg", "груша/2.jpg", "plain/Ünï.jpg"]), random_vectors(3))
    for text, path in (("äpfel", "ÄPFEL/1.jpg"), ("ГРУША", "груша/2.jpg"), ("üNÏ", "plain/Ünï.jpg")):
        assert [row.path for row in engine.page(where=Filter(text=text))] == [path]
    assert engine.values("label", "äPF") == ["ÄPFEL"]


def test_an_empty_index_answers(engine, fill, random_vectors, meta):
    with engine.update(16, "model-a") as update:
        update.complete([], meta, None)
    assert engine.count() == 0
    assert engine.search(random_vectors(2), 5).ids.shape == (2, 0)
    assert [engine.page(), engine.values("label"), list(engine.scan())] == [[], [], []]


def test_asking_for_more_than_there_is(engine, fill, make_rows, random_vectors):
    fill(engine, make_rows(NAMES[:3]), random_vectors(3))
    assert engine.search(random_vectors(1, seed=4), 50).ids.shape == (1, 3)


def test_meta_can_be_changed(engine, fill, address, make_rows, random_vectors, meta):
    fill(engine, make_rows(NAMES[:3]), random_vectors(3))
    engine.change_meta({"threshold": {"similarity": 0.5}})
    engine.close()
    again = open_engine(address)
    assert again.meta()["threshold"] == {"similarity": 0.5}
    assert (again.meta()["model"], again.count()) == (meta["model"], 3)
    again.close()


def test_what_was_put_survives_when_the_update_is_abandoned(engine, fill, make_rows, random_vectors, meta):
    rows, vectors = make_rows(NAMES), random_vectors(60)
    with engine.update(16, "model-a") as update:
        update.put(rows[:25], vectors[:25])  # and never finished
    with engine.update(16, "model-a") as update:
        assert update.stored({row.content for row in rows}) == {row.content for row in rows[:25]}
        update.put(rows[25:], vectors[25:])
        update.complete(rows, meta, None)
    catalogue = by_path(engine)
    np.testing.assert_array_equal(engine.vectors([catalogue[name].id for name in NAMES]), vectors)


def test_there_is_no_index_before_one_is_built(engine):
    assert engine.meta() is None


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ("http://127.0.0.1:1", "unknown kind of index 'http'"),
        ("mlvus:a.db", "did you mean 'milvus'"),
        ("milvus:", "names no place"),
        ("milvus:somewhere", "ends in .db"),
        ("milvus:a.db#no-hyphen", "letters, digits and underscores"),
    ],
)
def test_addresses_that_make_no_sense(wrong, reason):
    with pytest.raises(InputError, match=reason):
        open_engine(wrong)


def test_vectors_without_direction_are_refused():
    with pytest.raises(InputError, match="vector 1 is zero or not finite"):
        unit_vectors([[1.0, 0.0], [0.0, 0.0]])
    with pytest.raises(InputError, match="3 dimensions but the index has 2"):
        unit_vectors([[1.0, 0.0, 0.0]], dim=2)


def test_filters_choose_rows_in_searches_and_pages(engine, fill, make_rows, random_vectors, monkeypatch):
    """Every engine agrees with `Filter.accepts`, whatever its language and whatever it remembers."""
    monkeypatch.setattr(folder, "KEPT_FILTERS", 3)
    odd = 'na"me with \\ and %'
    rows = [
        replace(row, columns={"category": "ab"[i % 2], "price": str(i % 5), odd: 'va"l\\ue %_'[: 1 + i % 10]})
        for i, row in enumerate(make_rows(NAMES))
    ]
    rows[7] = replace(rows[7], path='quo"te/100%_back\\slash.JPG', columns={})
    vectors, queries = random_vectors(60), random_vectors(3, seed=1)
    fill(engine, rows, vectors)
    filters = [
        Filter(label="class1"),
        Filter(text="IMAGE01"),
        Filter(text="100%"),
        Filter(text="%"),
        Filter(text="_"),
        Filter(text="\\SLASH"),
        Filter(text='O"T'),
        Filter(columns=(("category", "b"),)),
        Filter(label="class3", text="image0", columns=(("category", "b"), ("price", "3"))),
        Filter(columns=((odd, 'va"l\\u'),)),
        Filter(columns=((odd, 'va"l\\ue %_'),)),
        Filter(columns=(("no such column", ""),)),
        Filter(label="' or 1 == 1"),
    ]
    for where in [*filters, *filters[-2:], *filters]:
        accepted = [i for i, row in enumerate(rows) if where.accepts(row)]
        assert {row.path for row in engine.page(limit=100, where=where)} == {rows[i].path for i in accepted}
        nearest = engine.search(queries, 5, where)
        products = queries @ vectors[accepted].T
        expected = np.argsort(-products, axis=1)[:, :5]
        assert nearest.ids.shape == expected.shape
        paths = [[row.path for row in engine.rows(ids)] for ids in nearest.ids.tolist()]
        assert paths == [[rows[accepted[j]].path for j in line] for line in expected]
        np.testing.assert_allclose(nearest.similarities, np.take_along_axis(products, expected, 1), atol=1e-5)
    if isinstance(engine, folder.FolderEngine):
        assert list(engine._open().accepted) == filters[-3:]


def test_a_folder_asks_its_database_once_for_each_of_the_filters_used_last(
    tmp_path, fill, make_rows, random_vectors, monkeypatch
):
    monkeypatch.setattr(folder, "KEPT_FILTERS", 2)
    engine = open_engine(tmp_path / "index")
    fill(engine, make_rows(NAMES), random_vectors(60))
    asked = []
    engine._open().database.set_trace_callback(asked.append)

    def questions(*labels):
        asked.clear()
        for label in labels:
            engine.search(random_vectors(1), 3, Filter(label=label))
        return len(asked)

    assert questions("class0", "class1", "class0", "class1", "class0") == 2
    assert questions("class2") == 1  # class1 was used longer ago than class0 and gives way
    assert questions("class0", "class2") == 0
    assert questions("class1") == 1
    assert [where.label for where in engine._open().accepted] == ["class2", "class1"]
    engine.close()


def test_a_changed_column_is_a_change(engine, fill, make_rows, random_vectors):
    rows, vectors = make_rows(NAMES[:4]), random_vectors(4)
    fill(engine, rows, vectors)
    nine = Filter(columns=(("price", "9"),))
    assert engine.search(vectors[:1], 2, nine).ids.shape == (1, 0)
    fill(engine, [replace(rows[0], columns={"price": "9"}), *rows[1:]], vectors)
    assert engine.search(vectors[:1], 2, nine).ids.shape == (1, 1)
    assert by_path(engine)[NAMES[0]].columns == {"price": "9"}
    assert by_path(engine)[NAMES[1]].columns == {}
    assert [row.path for row in engine.page(where=nine)] == [NAMES[0]]


def test_what_an_engine_says_it_can_do_is_what_it_does(
    engine, address, fill, make_rows, random_vectors, meta, tmp_path
):
    can, rows, vectors = engine.abilities, make_rows(NAMES), random_vectors(60)
    with engine.update(16, "model-a") as update:
        update.put(rows, vectors)
        second = open_engine(address)
        try:
            with second.update(16, "model-a"):
                refused = False
        except InputError:
            refused = True
        assert refused == can.excludes_writers
        update.complete(rows, meta, lambda folder: folder.mkdir())
    second.close()
    assert (sorted(ids_by_path(engine).values()) == list(range(60))) == can.dense_ids
    assert (engine.model_folder() is not None) == can.keeps_model
    if can.approximate:
        fill(engine, rows[:50], vectors[:50], approximate=True)
        assert engine.meta()["approximate"]["recall"] > 0


def test_an_engine_that_chooses_its_own_index_refuses_the_option(address, model_folder, image_folder):
    from forerank.search import build_index

    if open_engine(address).abilities.approximate:
        assert build_index(model_folder, image_folder, address, approximate=True).approximate
    else:
        with pytest.raises(InputError, match="leave out --approximate"):
            build_index(model_folder, image_folder, address, approximate=True)
