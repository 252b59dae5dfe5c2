"""Pictures at addresses that fsspec opens: s3://BUCKET/FOLDER (with the extra `s3`), https://..., others."""

from collections.abc import Iterator
from typing import Any, BinaryIO, cast

from forerank.data.decode import image_endings
from forerank.data.sources import Picture
from forerank.errors import InputError, require


def pictures(address: str) -> Iterator[Picture]:
    """The pictures of a folder, a table, a tar shard or a single file at an address."""
    from forerank.data.sources import csv_rows, tar_shards

    system, path = _system(address)
    if address.lower().endswith(".csv"):
        return csv_rows.pictures(address)
    if address.lower().endswith(".tar"):
        return tar_shards.pictures([address])
    if system.isfile(path):
        return iter([picture(address)])
    names = sorted(system.find(path))
    if shards := [system.unstrip_protocol(name) for name in names if name.lower().endswith(".tar")]:
        return tar_shards.pictures(shards)
    images = [name for name in names if name.lower().endswith(image_endings())]
    if not images:
        raise InputError(f"there are no image files at {address}.")
    return (Picture(system.unstrip_protocol(name), _reader(system, name)) for name in images)


def picture(address: str) -> Picture:
    """The picture at one address."""
    return Picture(address, lambda: _reader(*_system(address))())


def open_address(address: str) -> BinaryIO:
    """Open an address for reading; it can seek."""
    system, path = _system(address)
    return cast(BinaryIO, system.open(path, "rb"))


def _reader(system: Any, path: str) -> Any:
    return lambda: system.cat_file(path)


def _system(address: str) -> tuple[Any, str]:
    """The file system of an address, and the path there."""
    fsspec = require("fsspec")
    scheme = address.partition("://")[0]
    if scheme in ("s3", "s3a"):
        require("s3fs")
    try:
        system, path = fsspec.core.url_to_fs(address)
    except (ValueError, ImportError) as error:
        raise InputError(f"cannot open {address}: {error}") from error
    return system, str(path)
