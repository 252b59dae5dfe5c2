"""Decisions are on the disk when they are acknowledged, survive a kill, and never lose an image."""

import json
import os
import signal
import subprocess
import sys

import numpy as np
import pytest

from forerank.data import Table, open_table
from forerank.errors import InputError
from forerank.search.corrections import Corrections


@pytest.fixture
def table(tmp_path):
    (tmp_path / "images").mkdir()
    for i in range(6):
        (tmp_path / "images" / f"{i}.png").write_bytes(b"picture %d" % i)
    return Table(
        [f"{i}.png" for i in range(6)],
        list("aabbcc"),
        ["train"] * 4 + ["test"] * 2,
        root=tmp_path / "images",
        further={"price": [str(i) for i in range(6)]},
    )


def test_decisions_come_back_and_the_table_follows(table, tmp_path):
    file = tmp_path / "run" / "corrections.jsonl"
    corrections = Corrections(file, table, "m")
    corrections.decide(0, "change", " b ")
    corrections.decide(1, "remove")
    corrections.decide(2, "keep")
    corrections.decide(0, "change", "c")
    corrections.decide(3, "remove")
    assert corrections.undo().row == 3
    corrections.close()
    again = Corrections(file, table, "m")
    assert {row: (d.action, d.label) for row, d in again.decisions().items()} == {
        0: ("change", "c"),
        1: ("remove", None),
        2: ("keep", None),
    }
    again.write_csv(tmp_path / "elsewhere" / "corrected.csv")
    written = open_table(tmp_path / "elsewhere" / "corrected.csv")
    assert [file.name for file in written.files] == ["0.png", "2.png", "3.png", "4.png", "5.png"]
    assert all(file.is_file() for file in written.files)
    assert written.label.tolist() == list("cbbcc")
    assert written.split.tolist() == ["train"] * 3 + ["test"] * 2
    assert written.further["price"].tolist() == list("02345")
    # Undo goes on where the last session ended: first the second change of image 0, then its first.
    assert again.undo().label == "c"
    assert again.decisions()[0].label is None or again.decisions()[0].label == "b"


def test_a_process_that_is_killed_loses_nothing_it_acknowledged(table, tmp_path):
    """The child prints a number after each decision and is killed without warning in the middle."""
    table.with_columns(path=[str(f) for f in table.files]).write_csv(tmp_path / "t.csv")
    program = """
import sys
from pathlib import Path
from forerank.data import Table
from forerank.search.corrections import Corrections
corrections = Corrections(Path(sys.argv[1]), Table.read_csv(sys.argv[2]), "m")
for i in range(100000):
    corrections.decide(i % 6, "change", f"label {i}")
    print(i, flush=True)
"""
    file = tmp_path / "corrections.jsonl"
    child = subprocess.Popen(
        [sys.executable, "-c", program, str(file), str(tmp_path / "t.csv")], stdout=subprocess.PIPE, text=True
    )
    acknowledged = -1
    for line in child.stdout:
        acknowledged = int(line)
        if acknowledged == 25:
            os.kill(child.pid, signal.SIGKILL)
            break
    rest = child.stdout.read().split()
    acknowledged = int(rest[-1]) if rest else acknowledged
    child.wait()
    reopened = Corrections(file, Table.read_csv(tmp_path / "t.csv"), "m")
    kept = sum(1 for line in file.read_text().splitlines() if '"action"' in line)
    assert kept >= acknowledged + 1
    assert reopened.decisions()[acknowledged % 6].label is not None


def journal_with_one_decision(table, folder):
    corrections = Corrections(folder / "corrections.jsonl", table, "m")
    corrections.decide(0, "remove")
    corrections.close()
    return folder / "corrections.jsonl"


def test_a_torn_last_line_is_cut_off_and_the_rest_stays(table, tmp_path):
    file = journal_with_one_decision(table, tmp_path)
    whole = file.read_bytes()
    file.write_bytes(whole + b'{"row": 1, "acti')
    again = Corrections(file, table, "m")
    assert list(again.decisions()) == [0]
    again.decide(2, "keep")
    again.close()
    assert list(Corrections(file, table, "m").decisions()) == [0, 2]


def test_corrections_of_another_run_are_refused_and_untouched(table, tmp_path):
    file = journal_with_one_decision(table, tmp_path)
    before = file.read_bytes()
    relabelled = table.with_columns(label=list("abbbcc"))
    for other, model in ((table, "another model"), (relabelled, "m"), (table.where([0, 1]), "m")):
        with pytest.raises(InputError, match="of another run or of other data: nothing was changed"):
            Corrections(file, other, model)
        assert file.read_bytes() == before
    file.write_text("path,label\n")
    with pytest.raises(InputError, match="line 1 is not a line of corrections"):
        Corrections(file, table, "m")
    file.write_bytes(before + json.dumps({"row": 77, "action": "keep"}).encode() + b"\n")
    with pytest.raises(InputError, match="line 3"):
        Corrections(file, table, "m")


def test_a_flipped_bit_never_becomes_another_decision(table, tmp_path):
    corrections = Corrections(tmp_path / "corrections.jsonl", table, "m")
    corrections.decide(0, "change", "a new label")
    decided = corrections.decisions()
    corrections.close()
    whole = corrections.file.read_bytes()
    for place in range(len(whole) - 1):  # without the last line's end it counts as torn
        flipped = bytearray(whole)
        flipped[place] ^= 1 << place % 8
        corrections.file.write_bytes(flipped)
        try:
            again = Corrections(corrections.file, table, "m")
        except InputError:
            continue
        assert again.decisions() == decided, bytes(flipped)
        again.close()


def test_two_at_once_are_refused(table, tmp_path):
    first = Corrections(tmp_path / "c.jsonl", table, "m")
    with pytest.raises(InputError, match="in use by another forerank"):
        Corrections(tmp_path / "c.jsonl", table, "m")
    first.close()
    Corrections(tmp_path / "c.jsonl", table, "m").close()


def test_decisions_that_make_no_sense(table, tmp_path):
    corrections = Corrections(tmp_path / "c.jsonl", table, "m")
    with pytest.raises(InputError, match="did you mean 'remove'"):
        corrections.decide(0, "remov")
    with pytest.raises(InputError, match="no image 6"):
        corrections.decide(6, "keep")
    for label in (None, "", "  ", "x" * 201, "two\nlines"):
        with pytest.raises(InputError, match="a label is one line"):
            corrections.decide(0, "change", label)
    assert corrections.undo() is None
    assert corrections.decisions() == {}


def test_files_move_after_a_dry_run_and_come_back(table, tmp_path):
    corrections = Corrections(tmp_path / "c.jsonl", table, "m")
    contents = {file.name: file.read_bytes() for file in table.files}
    for row in (1, 4):
        corrections.decide(row, "remove")
    removed = tmp_path / "removed"
    plan = corrections.planned_moves(removed)
    assert [move.source.name for move in plan] == ["1.png", "4.png"]
    assert all(file.exists() for file in table.files)
    assert not removed.exists()
    assert corrections.move(removed) == plan
    assert not table.files[1].exists()
    assert {f.name: f.read_bytes() for f in removed.rglob("*.png")} == {
        name: contents[name] for name in ("1.png", "4.png")
    }
    with pytest.raises(InputError, match="put them back first"):
        corrections.undo()
    corrections.close()
    again = Corrections(tmp_path / "c.jsonl", table, "m")
    assert again.planned_moves(removed) == []
    assert again.restore() == 2
    assert {file.name: file.read_bytes() for file in table.files} == contents
    assert again.undo().row == 4


def test_nothing_is_overwritten_and_shared_files_stay(table, tmp_path):
    boxes = np.array([[0, 0, 5, 5], [5, 5, 9, 9]])
    two_objects = Table(["0.png", "0.png"], ["a", "b"], ["train"] * 2, root=table.root, box=boxes)
    corrections = Corrections(tmp_path / "boxes.jsonl", two_objects, "m")
    corrections.decide(0, "remove")
    assert corrections.planned_moves(tmp_path / "removed") == []
    corrections.decide(1, "remove")
    assert len(corrections.planned_moves(tmp_path / "removed")) == 1
    (tmp_path / "removed").mkdir()
    (tmp_path / "removed" / "0.png").write_bytes(b"another picture")
    with pytest.raises(InputError, match="exists already"):
        corrections.move(tmp_path / "removed")
    assert (tmp_path / "removed" / "0.png").read_bytes() == b"another picture"
    assert two_objects.files[0].exists()
