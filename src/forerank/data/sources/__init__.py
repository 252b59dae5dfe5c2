"""Pictures from anywhere, one after the other: no list of all of them is held.

A source is a folder, an image, a CSV table with a column `path`, tar shards (WebDataset layout), or any of
these at an address that fsspec opens, such as s3://BUCKET/FOLDER. One file per kind of source.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from forerank.data.decode import image_endings
from forerank.data.image_files import find_images, is_hidden
from forerank.errors import InputError


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture that is read when it is needed: `read` gives a path, or the bytes of the file."""

    name: str
    read: Callable[[], Path | bytes]
    label: str = ""  # empty where it is not known
    columns: Mapping[str, str] = field(default_factory=dict, hash=False)  # what else is known of it
    size: int = -1  # bytes, and nanoseconds since 1970; -1 where it is not known without opening it
    modified: int = -1


def open_pictures(source: str | Path) -> Iterator[Picture]:
    """The pictures of a source in a fixed order; a source that does not exist is refused at once.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> (folder / "a.jpg").write_bytes(b"")
    0
    >>> [Path(picture.name).name for picture in open_pictures(folder)]
    ['a.jpg']
    """
    from forerank.data.sources import csv_rows, remote, tar_shards

    if "://" in str(source):
        return remote.pictures(str(source))
    place = Path(source).expanduser()
    if place.suffix.lower() == ".tar" and place.is_file():
        return tar_shards.pictures([str(place)])
    if place.suffix.lower() == ".csv" and place.is_file():
        return csv_rows.pictures(str(place))
    if is_folder_of_shards(place):
        return tar_shards.pictures(sorted(map(str, _shards(place))))
    return (local_picture(str(file)) for file in find_images(place))


def is_stream(source: str | Path) -> bool:
    """Whether a source is read as a stream only: shards, or an address.

    >>> is_stream("s3://shop/photos"), is_stream("photos")
    (True, False)
    """
    if "://" in str(source):
        return True
    place = Path(source).expanduser()
    return is_folder_of_shards(place) or (place.suffix.lower() == ".tar" and place.is_file())


def is_folder_of_shards(place: Path) -> bool:
    """Whether a folder holds tar archives, and neither folders nor images nor tables beside them."""
    if not (place.is_dir() and _shards(place)):
        return False
    others = (".csv", *image_endings())
    return not any(
        not is_hidden(file.name) and (file.is_dir() or file.name.lower().endswith(others))
        for file in place.iterdir()
    )


def _shards(folder: Path) -> list[Path]:
    return [file for file in folder.glob("*.tar") if not is_hidden(file.name)]


def read_again(place: str) -> bytes:
    """The bytes of a picture by the name that `open_pictures` gave it."""
    from forerank.data.sources import remote, tar_shards

    shard, inside, _ = place.partition(".tar/")
    if inside:
        member = next((p for p in tar_shards.pictures([shard + ".tar"]) if p.name == place), None)
        if member is None:
            raise InputError(f"{place} is not there any more: index the images again.")
        picture = member
    else:
        picture = remote.picture(place) if "://" in place else local_picture(place)
    try:
        data = picture.read()
        return data if isinstance(data, bytes) else data.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read {place}: {error.strerror or error}") from error


def local_picture(file: str, label: str = "", columns: Mapping[str, str] | None = None) -> Picture:
    """A picture of the local file system."""
    return Picture(file, lambda: Path(file), label, columns or {})


def open_file(place: str) -> BinaryIO:
    """Open a local file or an address for reading; it can seek."""
    from forerank.data.sources import remote

    try:
        return remote.open_address(place) if "://" in place else Path(place).open("rb")
    except OSError as error:
        raise InputError(f"cannot open {place}: {error.strerror or error}") from error


def beside(place: str, path: str) -> str:
    """A path as a table means it: an address, an absolute path, or beginning at the folder of the table.

    >>> beside("s3://shop/table.csv", "shoes/1.jpg"), beside("/data/table.csv", "s3://shop/1.jpg")
    ('s3://shop/shoes/1.jpg', 's3://shop/1.jpg')
    """
    if "://" in path or os.path.isabs(path):  # noqa: PTH117 - ten million Paths take a minute
        return path
    if "://" in place:
        return f"{place.rpartition('/')[0]}/{path}"
    return os.path.join(os.path.dirname(place), path)  # noqa: PTH118, PTH120
