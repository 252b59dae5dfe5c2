"""Files that appear whole (a temporary name, flushed, renamed) and carry a checksum of what was written."""

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any

from forerank.errors import ForerankError, InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

CHECKSUM = "checksum"


class DamagedFileError(InputError):
    """A file that is not what was written: cut short, or some of its bytes have changed."""

    def __init__(self, file: Path, reason: object = "its content does not fit its checksum") -> None:
        super().__init__(f"{file} is damaged ({' '.join(str(reason).split())})")


class WriteError(ForerankError, OSError):
    """The system refused to write a file; `strerror` is its reason, and an older file is untouched."""

    def __init__(self, file: Path, error: OSError) -> None:
        OSError.__init__(self, error.errno, error.strerror or str(error), str(file))
        self.kept = file.exists()

    def __str__(self) -> str:
        kept = "; the file that was there is untouched" if self.kept else ""
        return f"cannot write {self.filename}: {self.strerror}{kept}"


def write_atomically(file: Path, content: str | bytes | Callable[[Path], object]) -> None:
    """Put new content in place of `file` in one step.

    Whatever interrupts this (a kill, a full disk, a power cut), `file` is afterwards the old one or the new
    one, whole.

    Args:
        file: its folder is made where it does not exist.
        content: text (written as UTF-8), bytes, or a function that fills the file at the path it is given.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_atomically(Path(folder) / "a.txt", "new")
    ...     (Path(folder) / "a.txt").read_text(), len(list(Path(folder).iterdir()))
    ('new', 1)
    """
    temporary = _temporary_name(file)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        if callable(content):
            content(temporary)
        else:
            # A file name that is not UTF-8 keeps its bytes when it is written into a text.
            temporary.write_bytes(
                content.encode("utf-8", "surrogateescape") if isinstance(content, str) else content
            )
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        temporary.replace(file)
        sync_folder(file.parent)
    except OSError as error:
        raise WriteError(file, error) from error
    finally:
        with suppress(OSError):  # renamed, never made, or on a disk that is gone
            temporary.unlink()


def write_vectors(file: Path, shape: tuple[int, int], blocks: "Iterable[NDArray[Any]]") -> None:
    """Write blocks (n, D), which together have `shape` (N, D), atomically as one .npy file of float32.

    Only one block is held in memory at a time.

    >>> import tempfile; import numpy as np
    >>> file = Path(tempfile.mkdtemp()) / "v.npy"
    >>> write_vectors(file, (2, 2), [np.array([[1.0, 2.0]]), np.array([[3.0, 4.0]])])
    >>> np.load(file).tolist()
    [[1.0, 2.0], [3.0, 4.0]]
    """
    import numpy as np

    def write(temporary: Path) -> None:
        with temporary.open("wb") as out:
            header = {"descr": "<f4", "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(out, header)
            for block in blocks:
                out.write(np.ascontiguousarray(block, "<f4").tobytes())

    write_atomically(file, write)


@contextmanager
def temporary_folder(target: Path) -> Iterator[Path]:
    """A new folder beside `target`, to be filled and then renamed to it; what is not renamed is removed.

    >>> import tempfile
    >>> place = Path(tempfile.mkdtemp())
    >>> with temporary_folder(place / "whole") as folder:
    ...     _ = (folder / "a.txt").write_text("content")
    ...     _ = folder.rename(place / "whole")
    >>> [file.name for file in place.rglob("*")]
    ['whole', 'a.txt']
    """
    temporary = _temporary_name(target)
    temporary.mkdir(parents=True)
    try:
        yield temporary
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def only_writer(lock: Path, place: object) -> Iterator[None]:
    """Hold the only right to write to `place`; it goes with the process, so a killed one blocks no other.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, only_writer(Path(folder) / "LOCK", "the index"):
    ...     with only_writer(Path(folder) / "LOCK", "the index"):
    ...         pass
    Traceback (most recent call last):
    forerank.errors.InputError: another process is writing to the index: wait until it is done.
    """
    lock.parent.mkdir(parents=True, exist_ok=True)
    if os.name == "nt":  # Windows has no such locks
        yield
        return
    import fcntl

    with lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise InputError(f"another process is writing to {place}: wait until it is done.") from error
        yield


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on the disk, so that a rename survives a power cut."""
    if os.name == "nt":  # Windows cannot open a folder
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # file systems that do not sync folders
            raise
    finally:
        os.close(descriptor)


def sync_tree(folder: Path) -> None:
    """Wait until every file beneath a folder, and every name, is on the disk."""
    for place, _, names in os.walk(folder):
        for name in names:
            with (Path(place) / name).open("rb") as file:
                os.fsync(file.fileno())
        sync_folder(Path(place))


def file_checksum(file: Path) -> str:
    """The checksum of a whole file, read in parts: BLAKE2b of 16 bytes, about a second per gigabyte.

    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile() as empty:
    ...     file_checksum(Path(empty.name))
    'cae66941d9efbd404e4d88758ea67670'
    """
    with file.open("rb") as content:
        return hashlib.file_digest(content, _digest).hexdigest()


def json_with_checksum(values: Mapping[str, Any], indent: int | None = 2) -> str:
    """Values as JSON text with one more key, the checksum of the others; for `read_json_with_checksum`."""
    return json.dumps({**values, CHECKSUM: checksum_of_values(values)}, indent=indent) + "\n"


def read_json_with_checksum(file: Path) -> dict[str, Any]:
    """What `json_with_checksum` gave; anything else raises `DamagedFileError`.

    >>> import tempfile
    >>> place = Path(tempfile.mkdtemp()) / "a.json"
    >>> write_atomically(place, json_with_checksum({"step": 10}))
    >>> read_json_with_checksum(place)
    {'step': 10}
    >>> _ = place.write_text(place.read_text().replace("10", "90"))
    >>> read_json_with_checksum(place)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    forerank.files.DamagedFileError: ...a.json is damaged (its content does not fit its checksum)
    """
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise DamagedFileError(file, error) from error
    if not isinstance(values, dict) or values.pop(CHECKSUM, None) != checksum_of_values(values):
        raise DamagedFileError(file)
    return values


def checksum_of_values(values: Mapping[str, Any]) -> str:
    """The checksum of what JSON keeps of some values."""
    as_read = json.loads(json.dumps(values))  # keys become texts and tuples lists
    return _digest(json.dumps(as_read, sort_keys=True).encode()).hexdigest()


def checksum_metadata(
    tensors: "Mapping[str, Tensor]", metadata: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The metadata of a safetensors file with one more key, the checksum of tensors and metadata."""
    metadata = dict(metadata or {})
    return {**metadata, CHECKSUM: _checksum_of_tensors(tensors, metadata)}


def load_tensors(file: Path) -> "tuple[dict[str, Tensor], dict[str, str]]":
    """Tensors and metadata of a safetensors file that was saved with `checksum_metadata`.

    Raises:
        DamagedFileError: cut short, changed, or written without a checksum.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="pt") as content:
            metadata = content.metadata() or {}
            tensors = {name: content.get_tensor(name) for name in content.keys()}  # noqa: SIM118
    except FileNotFoundError:
        raise
    except (SafetensorError, OSError, ValueError, KeyError, RuntimeError, OverflowError) as error:
        raise DamagedFileError(file, error) from error
    expected = metadata.pop(CHECKSUM, None)
    if expected is None:
        raise DamagedFileError(file, "it has no checksum: another program or an older version wrote it")
    if expected != _checksum_of_tensors(tensors, metadata):
        raise DamagedFileError(file)
    return tensors, metadata


def _checksum_of_tensors(tensors: "Mapping[str, Tensor]", metadata: Mapping[str, str]) -> str:
    import torch

    digest = _digest(json.dumps(metadata, sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _digest(content: bytes = b"") -> "hashlib.blake2b":
    return hashlib.blake2b(content, digest_size=16)


def _temporary_name(target: Path) -> Path:
    # Random, because several threads or machines may write the same file at the same time.
    return target.with_name(f".writing-{target.name}-{token_hex(4)}")
