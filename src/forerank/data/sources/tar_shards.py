"""Pictures inside tar archives, as WebDataset lays them out: key.jpg beside key.cls or key.json."""

import json
import os
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from typing import BinaryIO

from forerank.data.decode import image_endings
from forerank.data.image_files import is_hidden
from forerank.data.sources import Picture, open_file, remote
from forerank.errors import InputError


def pictures(shards: Sequence[str]) -> Iterator[Picture]:
    """The pictures of some shards, by name SHARD/MEMBER; only headers and labels are read until a picture is.

    The label of key.jpg is the text of key.cls. The entries of key.json (texts and numbers) are its columns,
    and "label" among them is its label.
    """
    open_file(shards[0]).close()
    return (picture for shard in shards for picture in _members(shard))


def _members(shard: str) -> Iterator[Picture]:
    count, end = 0, 0
    with open_file(shard) as file:
        size = file.seek(0, 2)
        file.seek(0)
        modified = _modified(shard, file)
        key, images, columns = "", list[tarfile.TarInfo](), dict[str, str]()
        try:
            with tarfile.open(fileobj=file, mode="r:") as archive:
                for member in archive:
                    archive.members = []  # type: ignore[attr-defined]  # else every header is kept
                    end = member.offset_data + -(-member.size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE
                    if member.offset_data + member.size > size:
                        raise _cut_off(shard, count)
                    if not member.isfile() or is_hidden(member.name):
                        continue
                    if _key(member.name) != key:  # the files of one key lie together
                        yield from (_picture(shard, image, columns, modified) for image in images)
                        key, images, columns = _key(member.name), [], {}
                    ending = member.name.lower().rpartition(".")[2]
                    if member.name.lower().endswith(image_endings()):
                        count += 1
                        images.append(member)
                    elif ending in ("cls", "json") and (opened := archive.extractfile(member)):
                        columns |= _columns(f"{shard}/{member.name}", ending, opened.read())
                end_of_members = archive.offset
        except tarfile.TarError as error:
            if count:
                raise _cut_off(shard, count) from error
            raise InputError(f"{shard} is not a tar archive ({error}): copy it again.") from error
        if size < end + tarfile.BLOCKSIZE:  # an archive ends with empty blocks
            raise _cut_off(shard, count)
        file.seek(end_of_members)
        if any(file.read(tarfile.BLOCKSIZE)):  # tarfile takes a damaged header for the end, without a word
            raise InputError(f"{shard} is damaged after {count:,} images: copy it again.")
        yield from (_picture(shard, image, columns, modified) for image in images)


def _key(name: str) -> str:
    """What the files of one sample share: the path up to the first dot of the file's name.

    >>> _key("a.b/0001.left.jpg")
    'a.b/0001'
    """
    folder, slash, file = name.rpartition("/")
    return folder + slash + file.partition(".")[0]


def _columns(name: str, ending: str, data: bytes) -> dict[str, str]:
    try:
        text = data.decode()
        if ending == "cls":
            return {"label": text.strip()}
        entries = json.loads(text)
    except ValueError as error:
        raise InputError(f"{name} is not {'text' if ending == 'cls' else 'JSON'} in UTF-8.") from error
    if not isinstance(entries, dict):
        return {}
    return {name: str(value) for name, value in entries.items() if type(value) in (str, int, float)}


def _modified(shard: str, file: BinaryIO) -> int:
    """When a shard was written, in nanoseconds; -1 where its place does not say."""
    return remote.modified(shard) if "://" in shard else os.fstat(file.fileno()).st_mtime_ns


def _picture(shard: str, member: tarfile.TarInfo, columns: Mapping[str, str], modified: int) -> Picture:
    start, size = member.offset_data, member.size

    def read() -> bytes:
        if "://" in shard:
            return remote.read_range(shard, start, size)
        with open_file(shard) as file:
            file.seek(start)
            return file.read(size)

    further = {name: value for name, value in columns.items() if name != "label"}
    return Picture(f"{shard}/{member.name}", read, columns.get("label", ""), further, size, modified)


def _cut_off(shard: str, count: int) -> InputError:
    return InputError(
        f"{shard} is cut off after {count:,} whole images: copy it again and run the same command, "
        "which keeps what is finished."
    )
