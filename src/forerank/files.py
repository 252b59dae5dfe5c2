"""Files and folders that appear whole: written under a temporary name, flushed to the disk, then renamed."""

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex

from forerank.errors import ForerankError


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


def _temporary_name(target: Path) -> Path:
    # Random, because several threads or machines may write the same file at the same time.
    return target.with_name(f".writing-{target.name}-{token_hex(4)}")
