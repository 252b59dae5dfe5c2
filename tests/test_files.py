"""A file is the old one or the new one, whatever happens while it is written."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from forerank.errors import ForerankError
from forerank.files import (
    DamagedFileError,
    checksum_metadata,
    json_with_checksum,
    load_tensors,
    read_json_with_checksum,
    temporary_folder,
    write_atomically,
)

KILLED = """
import os, signal, sys
from pathlib import Path
from forerank.files import write_atomically

def fill(file):
    file.write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)

write_atomically(Path(sys.argv[1]), fill)
"""


def test_a_kill_leaves_the_old_file(tmp_path: Path) -> None:
    file = tmp_path / "state.json"
    write_atomically(file, "old")
    killed = subprocess.run([sys.executable, "-c", KILLED, str(file)], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert file.read_text() == "old"


def test_an_interrupted_write_leaves_nothing_behind(tmp_path: Path) -> None:
    def interrupted(file: Path) -> None:
        file.write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_atomically(tmp_path / "state.json", interrupted)
    assert list(tmp_path.iterdir()) == []


def test_what_the_system_refuses_is_one_sentence_and_still_an_os_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(
        ForerankError, match=r"^cannot write .*file/a\.txt: (Not a directory|File exists)$"
    ) as error:
        write_atomically(tmp_path / "file" / "a.txt", "new")
    assert isinstance(error.value, OSError)
    assert error.value.strerror in ("Not a directory", "File exists")


def test_text_bytes_and_names_that_are_not_utf8_arrive_as_they_are(tmp_path: Path) -> None:
    name = os.fsdecode(b"\xff.jpg")
    write_atomically(tmp_path / "deep" / "text", f"naïve\r\n{name}")
    assert (tmp_path / "deep" / "text").read_bytes() == "naïve\r\n".encode() + b"\xff.jpg"
    write_atomically(tmp_path / "bytes", b"\x00\r\n")
    assert (tmp_path / "bytes").read_bytes() == b"\x00\r\n"


def test_threads_that_write_the_same_file_do_not_meet(tmp_path: Path) -> None:
    texts = [str(i) * 10_000 for i in range(8)]
    threads = [
        threading.Thread(target=lambda t=t: [write_atomically(tmp_path / "a", t) for _ in range(20)])
        for t in texts
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (tmp_path / "a").read_text() in texts
    assert os.listdir(tmp_path) == ["a"]  # noqa: PTH208


def test_a_folder_that_was_not_renamed_is_removed(tmp_path: Path) -> None:
    with temporary_folder(tmp_path / "whole") as folder:
        (folder / "half").write_text("half")
    assert list(tmp_path.iterdir()) == []


def test_tensors_that_changed_are_refused_wherever_a_bit_flips(tmp_path: Path) -> None:
    """Every bit of a small file, its header included: refused, or exactly what was written."""
    import torch
    from safetensors.torch import save_file

    tensors = {
        "a": torch.arange(6.0).view(2, 3),
        "b": torch.tensor(7, dtype=torch.int64),
        "c": torch.zeros(0),
    }
    file = tmp_path / "t.safetensors"
    save_file(tensors, file, checksum_metadata(tensors, {"about": "this"}))
    loaded, metadata = load_tensors(file)
    assert metadata == {"about": "this"}
    assert all(torch.equal(loaded[name], tensors[name]) for name in tensors)
    whole, refused = file.read_bytes(), 0
    for place in range(len(whole)):
        content = bytearray(whole)
        content[place] ^= 1 << place % 8
        file.write_bytes(content)
        try:
            loaded, metadata = load_tensors(file)
        except DamagedFileError as error:
            assert str(file) in str(error)  # noqa: PT017
            refused += 1
        else:
            assert metadata == {"about": "this"}
            assert {name: t.tolist() for name, t in loaded.items()} == {
                n: t.tolist() for n, t in tensors.items()
            }
    assert refused > 0.9 * len(whole)
    for length in range(0, len(whole), 7):
        file.write_bytes(whole[:length])
        with pytest.raises(DamagedFileError):
            load_tensors(file)


def test_tensors_without_a_checksum_are_refused(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import save_file

    save_file({"a": torch.zeros(2)}, tmp_path / "t.safetensors")
    with pytest.raises(DamagedFileError, match="it has no checksum"):
        load_tensors(tmp_path / "t.safetensors")


def test_json_that_changed_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "state.json"
    values = {"step": 30, "best": 0.1, "nested": {"1": [1, 2]}, "none": None, "text": "ü"}
    whole = json_with_checksum(values).encode()
    file.write_bytes(whole)
    assert read_json_with_checksum(file) == values
    for place in range(len(whole)):
        content = bytearray(whole)
        content[place] ^= 1 << place % 8
        file.write_bytes(content)
        try:
            assert read_json_with_checksum(file) == values
        except DamagedFileError as error:
            assert str(file) in str(error)  # noqa: PT017
