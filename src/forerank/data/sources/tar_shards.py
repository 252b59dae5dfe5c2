"""Pictures inside tar archives, as WebDataset lays them out: key.jpg beside key.cls or key.json."""

import tarfile
from collections.abc import Iterator, Sequence

from forerank.data.decode import image_endings
from forerank.data.sources import Picture, open_file
from forerank.errors import InputError


def pictures(shards: Sequence[str]) -> Iterator[Picture]:
    """The pictures of some shards, by name SHARD/MEMBER; only headers are read until a picture is."""
    open_file(shards[0]).close()
    return (picture for shard in shards for picture in _members(shard))


def _members(shard: str) -> Iterator[Picture]:
    count, end = 0, 0
    with open_file(shard) as file:
        size = file.seek(0, 2)
        file.seek(0)
        try:
            with tarfile.open(fileobj=file, mode="r:") as archive:
                for member in archive:
                    archive.members = []  # type: ignore[attr-defined]  # else every header is kept
                    end = member.offset_data + -(-member.size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE
                    if member.offset_data + member.size > size:
                        raise _cut_off(shard, count)
                    if member.isfile() and member.name.lower().endswith(image_endings()):
                        count += 1
                        yield _picture(shard, member.name, member.offset_data, member.size)
        except tarfile.TarError as error:
            if count:
                raise _cut_off(shard, count) from error
            raise InputError(f"{shard} is not a tar archive ({error}): copy it again.") from error
        if size < end + tarfile.BLOCKSIZE:  # an archive ends with empty blocks
            raise _cut_off(shard, count)


def _picture(shard: str, name: str, start: int, size: int) -> Picture:
    def read() -> bytes:
        with open_file(shard) as file:
            file.seek(start)
            return file.read(size)

    return Picture(f"{shard}/{name}", read)


def _cut_off(shard: str, count: int) -> InputError:
    return InputError(
        f"{shard} is cut off after {count:,} whole images: copy it again and run the same command, "
        "which keeps what is finished."
    )
