"""`forerank evaluate` on files."""

import json

import numpy as np
import pytest

from forerank import evaluate
from forerank.cli import run


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
    (tmp_path / "l.txt").write_text("\n".join(str(label) for label in labels))
    return tmp_path, vectors, labels, flags


def figures(capsys):
    return json.loads(capsys.readouterr().out)["metrics"]


def test_all_against_all(files, capsys):
    folder, vectors, labels, _ = files
    base = ["evaluate", "--embeddings", str(folder / "e.npy"), "--json", "--labels"]
    assert run([*base, str(folder / "l.csv"), "--ks", "1", "--ks", "2"]) == 0
    found = figures(capsys)
    expected = evaluate(vectors, [f"class {label}" for label in labels], ks=(1, 2))
    assert found == dict(expected)
    assert run([*base, str(folder / "l.txt"), "--no-nmi"]) == 0
    assert figures(capsys)["map"] == expected["map"]


def test_query_gallery_and_sequence(files, capsys):
    folder, vectors, labels, flags = files
    base = [
        "evaluate",
        "--embeddings",
        str(folder / "e.npy"),
        "--labels",
        str(folder / "split.csv"),
        "--json",
    ]
    assert run([*base, "--no-nmi"]) == 0
    assert figures(capsys) == dict(evaluate(vectors, labels, queries=flags, gallery=~flags, nmi=False))
    assert run([*base, "--no-nmi", "--ignore-sequence"]) == 0
    sequence = np.arange(150) % 4
    assert (
        figures(capsys)["map"]
        == evaluate(vectors, labels, queries=flags, gallery=~flags, ignore=sequence, nmi=False)["map"]
    )
    assert run([*base, "--repeats", "3"]) == 0
    assert "recall@1" in figures(capsys)


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
        (["--embeddings", "e.npy", "--labels", "ragged.csv"], "line 3: 1 values for 2 columns"),
        (["--embeddings", "e.npy", "--labels", "flag.csv"], "is_query must be 1 or 0"),
        (["--embeddings", "e.npy", "--labels", "l.csv", "--ks", "150"], "recall@150 means nothing"),
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
    (folder / "ragged.csv").write_text("label,is_query\na,1\nb\n")
    (folder / "flag.csv").write_text("label,is_query\na,maybe\n")
    assert run(["evaluate", *arguments]) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert len(error.strip().splitlines()) == 1
