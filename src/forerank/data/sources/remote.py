"""Pictures at addresses that fsspec opens: s3://BUCKET/FOLDER (with the extra `s3`), https://..., others."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import Any, BinaryIO, cast

from forerank.data.decode import image_endings
from forerank.data.image_files import is_hidden
from forerank.data.sources import Picture
from forerank.errors import ForerankError, InputError, require

AHEAD = 8 * 2**20  # bytes that are read at once from a table, or from a shard to find its pictures


@contextmanager
def _reaching(address: str) -> Iterator[None]:
    """Say in a sentence what is wrong; file systems raise errors of many types (no bucket, no keys, ...)."""
    try:
        yield
    except ForerankError:
        raise
    except Exception as error:
        said = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(f"cannot open {address}: {said}") from error


def pictures(address: str) -> Iterator[Picture]:
    """The pictures of a folder, a table, a tar shard or a single file at an address."""
    with _reaching(address):
        return _pictures(address)


def _pictures(address: str) -> Iterator[Picture]:
    from forerank.data.sources import csv_rows, tar_shards

    system, path = _system(address)
    if address.lower().endswith(".csv"):
        return csv_rows.pictures(address)
    if address.lower().endswith(".tar"):
        return tar_shards.pictures([address])
    if system.isfile(path):
        return iter([picture(address)])
    about = system.find(path, detail=True)
    names = sorted(name for name in about if not is_hidden(name.removeprefix(path)))
    images = [name for name in names if name.lower().endswith(image_endings())]
    shards = [system.unstrip_protocol(name) for name in names if name.lower().endswith(".tar")]
    if shards and not images:  # an archive beside images is not a shard
        return tar_shards.pictures(shards)
    if not images:
        raise InputError(f"there are no image files at {address}.")
    return (_listed(system, path, name, about[name]) for name in images)


def _listed(system: Any, folder: str, name: str, about: dict[str, Any]) -> Picture:
    """A picture of a folder; the sub-folder that it lies in is its label."""
    label = name.rpartition("/")[0].removeprefix(folder).strip("/")
    size = int(about.get("size") or -1)
    return Picture(system.unstrip_protocol(name), _reader(system, name), label, {}, size, _time(about))


def picture(address: str, label: str = "", columns: Mapping[str, str] | None = None) -> Picture:
    """The picture at one address."""
    return Picture(address, lambda: _reader(*_system(address))(), label, columns or {})


def folder_of(address: str) -> str:
    """The folder that an address names or lies in, as the names of its pictures begin."""
    with _reaching(address):
        system, path = _system(address)
        is_folder = not address.lower().endswith((".csv", ".tar")) and not system.isfile(path)
    return str(system.unstrip_protocol(path if is_folder else path.rpartition("/")[0]))


def modified(address: str) -> int:
    """When the file at an address was written, in nanoseconds; -1 where its server does not say."""
    with _reaching(address):
        system, path = _system(address)
        return _time(system.info(path))


def _time(about: dict[str, Any]) -> int:
    stated = next((about[name] for name in ("LastModified", "mtime", "created") if about.get(name)), None)
    if isinstance(stated, datetime):
        stated = stated.timestamp()
    return int(stated * 1e9) if isinstance(stated, int | float) else -1


def open_address(address: str) -> BinaryIO:
    """Open an address for reading; it can seek."""
    with _reaching(address):
        system, path = _system(address)
        return cast(BinaryIO, system.open(path, "rb", block_size=AHEAD))


def read_range(address: str, start: int, size: int) -> bytes:
    """Some bytes of the file at an address, and no others: an open file would read ahead."""
    system, path = _system(address)
    return cast(bytes, system.cat_file(path, start=start, end=start + size))


def _reader(system: Any, path: str) -> Any:
    return lambda: system.cat_file(path)


def _system(address: str) -> tuple[Any, str]:
    """The file system of an address, and the path there."""
    fsspec = require("fsspec")
    scheme = address.partition("://")[0]
    if scheme in ("s3", "s3a"):
        require("s3fs")
    with _reaching(address):
        system, path = fsspec.core.url_to_fs(address)
    return system, str(path)
