"""`forerank evaluate` on files."""

import json

import numpy as np
import pytest

from forerank import evaluate
from forerank.cli import run
from forerank.errors import InputError
from forerank.metrics import repeated_gallery


@pytest.fixture
def files(tmp_path):
    generator = np.random.default_rng(0)
    labels = np.repeat(np.arange(30), 5)
    vectors = (generator.normal(size=(30, 12))[labels] + generator.normal(size=(150, 12))).astype(np.float32)
    np.save(tmp_path / "e.npy", vectors)
    flags = np.arange(150) % 3 == 0
    lines = [
        f"class {label},{int(f)},{int(not f)},{i % 4}"
        for i, (label, f) in enumerate(zip(labels, flags, strict=True))
    ]
    (tmp_path / "split.csv").write_text("label,is_query,is_gallery,sequence\n" + "\n".join(lines))
    (tmp_path / "l.csv").write_text("label\n" + "\n".join(f"class {label}" for label in labels))
    (tmp_path / "l.txt").write_text("\n".join(f"{label} " for label in labels))
    return tmp_path, vectors, labels, flags


def command(folder, labels, *options):
    return ["evaluate", "--embeddings", str(folder / "e.npy"), "--labels", str(folder / labels), *options]


def figures(capsys):
    return json.loads(capsys.readouterr().out)["metrics"]


def test_all_against_all(files, capsys):
    folder, vectors, labels, _ = files
    base = ["evaluate", "--embeddings", str(folder / "e.npy"), "--json", "--labels"]
    assert run([*base, str(folder / "l.csv"), "--ks", "1", "--ks", "2"]) == 0
    printed = figures(capsys)
    expected = evaluate(vectors, [f"class {label}" for label in labels], ks=(1, 2))
    assert printed == dict(expected)
    assert run([*base, str(folder / "l.txt"), "--no-nmi"]) == 0
    assert figures(capsys)["map"] == expected["map"]


def test_query_gallery_and_sequence(files, capsys):
    folder, vectors, labels, flags = files
    base = command(folder, "split.csv", "--json")
    assert run([*base, "--no-nmi"]) == 0
    assert figures(capsys) == dict(evaluate(vectors, labels, queries=flags, gallery=~flags, nmi=False))
    assert run([*base, "--no-nmi", "--ignore-sequence"]) == 0
    sequence = np.arange(150) % 4
    assert (
        figures(capsys)["map"]
        == evaluate(vectors, labels, queries=flags, gallery=~flags, ignore=sequence, nmi=False)["map"]
    )


def test_repeats(files, capsys):
    folder, vectors, labels, _ = files
    base = ["evaluate", "--embeddings", str(folder / "e.npy"), "--repeats", "3", "--json", "--labels"]
    assert run([*base, str(folder / "l.txt"), "--no-nmi"]) == 0
    names = [str(label) for label in labels]
    assert figures(capsys) == dict(repeated_gallery(vectors, names, repeats=3))
    assert run([*base, str(folder / "split.csv")]) == 2
    assert "--repeats draws its own galleries" in capsys.readouterr().err


def test_one_class_is_valid_json(files, capsys):
    folder = files[0]
    (folder / "one.txt").write_text("only\n" * 150)
    arguments = ["--embeddings", str(folder / "e.npy"), "--labels", str(folder / "one.txt"), "--json"]
    assert run(["evaluate", *arguments]) == 0
    assert "dists@inter" not in figures(capsys)


def test_labels_of_a_numpy_file(files, capsys):
    folder, vectors, labels, _ = files
    np.save(folder / "l.npy", labels)
    arguments = ["--embeddings", str(folder / "e.npy"), "--labels", str(folder / "l.npy"), "--json"]
    assert run(["evaluate", *arguments]) == 0
    assert figures(capsys) == dict(evaluate(vectors, labels))


def test_table_and_plots(files, capsys):
    folder = files[0]
    arguments = ["--embeddings", str(folder / "e.npy"), "--labels", str(folder / "l.csv")]
    assert run(["evaluate", *arguments, "--plots", str(folder / "plots")]) == 0
    out = capsys.readouterr()
    assert out.out.startswith("metric")
    assert "wrote" in out.err
    for name in ("recall", "similarities", "ranks"):
        data = (folder / "plots" / f"{name}.png").read_bytes()
        assert data.startswith(b"\x89PNG")
        assert len(data) > 5000


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "name a run folder, or give --embeddings"),
        (["--embeddings", "e.npy"], "--embeddings needs --labels"),
        (["--embeddings", "none.npy", "--labels", "l.csv"], "there is no file none.npy"),
        (["--embeddings", "l.csv", "--labels", "l.csv"], "l.csv is not a .npy matrix"),
        (["--embeddings", "e.npy", "--labels", "none.csv"], "there is no file none.csv"),
        (["--embeddings", "e.npy", "--labels", "short.csv"], "150 embeddings but 2 labels"),
        (["--embeddings", "e.npy", "--labels", "columns.csv"], "no column 'label'"),
        (["--embeddings", "e.npy", "--labels", "ragged.csv"], "line 4: 1 values for 2 columns"),
        (["--embeddings", "e.npy", "--labels", "flag.csv"], "line 4: is_query is"),
        (["--embeddings", "e.npy", "--labels", "none.txt"], "line 3: the label is empty"),
        (["--embeddings", "e.npy", "--labels", "no_query.csv"], "no row has a 1 in the column is_query"),
        (["--embeddings", "e.npy", "--labels", "heading.csv"], "if the first, 'class', is a heading"),
        (["--embeddings", "e.npy", "--labels", "latin.csv"], "latin.csv is not text in UTF-8"),
        (["--embeddings", "e.npy", "--labels", "objects.npy"], "objects.npy is not a .npy list of labels"),
        (["--embeddings", "e.npy", "--labels", "text.npy"], "text.npy is not a .npy list of labels"),
        (["--embeddings", "e.npy", "--labels", "l.csv", "--seed", "-1"], "seed must be a whole number"),
        (["--embeddings", "e.npy", "--labels", "l.csv", "--memory", "-5"], "--memory is a number of MiB"),
        (["--embeddings", "e.npy", "--labels", "l.csv", "--plots", "e.npy"], "--plots takes a folder"),
        (["--embeddings", "e.npy", "--labels", "l.csv", "--split", "test"], "--split goes with a run"),
        (["--embeddings", "e.npy", "--labels", "l.csv", "--ks", "1", "5"], "'5' was read as a run folder"),
        (["birds", "--labels", "l.csv"], "--labels goes with --embeddings"),
        (["birds", "--repeats", "5"], "--repeats goes with --embeddings"),
        (["birds", "--ignore-sequence"], "--ignore-sequence goes with --embeddings"),
        (["birds", "--plots", "plots"], "--plots goes with --embeddings"),
        (["birds", "--ks", "3"], "birds is not a run folder"),
        (["--embeddings", "e.npy", "--labels", "l.csv", "--ks", "150"], "recall@150 cannot be measured here"),
        (["--embeddings", "e.npy", "--labels", "l.csv", "--ignore-sequence"], "needs a column 'sequence'"),
        (["--embeddings", "nan.npy", "--labels", "l.csv"], "hold NaN or infinity, the first is row 7"),
    ],
)
def test_bad_input(files, arguments, sentence, capsys, monkeypatch):
    folder, vectors, *_ = files
    monkeypatch.chdir(folder)
    vectors[7, 0] = np.nan
    np.save("nan.npy", vectors)
    (folder / "short.csv").write_text("label\na\na\n")
    (folder / "columns.csv").write_text("name,kind\na,b\n")
    (folder / "ragged.csv").write_text("label,is_query\na,1\n\nb\n")
    (folder / "flag.csv").write_text("label,is_query\na,1\n\nb,maybe\n")
    (folder / "none.txt").write_text("a\na\n \na\n")
    (folder / "no_query.csv").write_text("label,is_query\na,0\na,0\n")
    (folder / "heading.csv").write_text("class\n" + "a\n" * 150)
    (folder / "latin.csv").write_bytes("label\nM\xf6we\n".encode("latin-1"))
    np.save("objects.npy", np.array(["a", None], dtype=object), allow_pickle=True)
    (folder / "text.npy").write_text("a\nb\n")
    assert run(["evaluate", *arguments]) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert len(error.strip().splitlines()) == 1


def test_a_damaged_matrix_is_refused_whatever_numpy_raises(tmp_path):
    """numpy reads the head of a .npy file with Python's tokenizer, whose errors are of types of their own."""
    from forerank.metrics.files import read_embeddings

    file = tmp_path / "e.npy"
    np.save(file, np.eye(3))
    whole = file.read_bytes()
    for place in range(100):
        for bit in (1, 16, 64):
            content = bytearray(whole)
            content[place] ^= bit
            file.write_bytes(content)
            try:
                read_embeddings(file)
            except InputError as error:
                assert "e.npy" in str(error)  # noqa: PT017


def test_re_ranking_with_query_and_gallery_roles_and_sequences(files, capsys):
    folder, vectors, labels, flags = files
    base = command(folder, "split.csv", "--json")
    options = ["--rerank", "reciprocal:k1=6,k2=2", "--ignore-sequence", "--no-nmi", "--ks", "1"]
    assert run([*base, *options]) == 0
    expected = evaluate(
        vectors, labels, queries=flags, gallery=~flags, ignore=np.arange(150) % 4, nmi=False, ks=(1,),
        rerank="reciprocal:k1=6,k2=2",
    )  # fmt: skip
    assert figures(capsys) == dict(expected)


@pytest.mark.parametrize(
    ("kind", "message"),
    [("auto", "needs a run with validation classes"), ("averging", "did you mean 'averaging'")],
)
def test_a_re_ranking_that_cannot_be_is_refused(files, capsys, kind, message):
    folder = files[0]
    base = command(folder, "l.csv")
    assert run([*base, "--rerank", kind]) == 2
    assert message in capsys.readouterr().err
