"""Fetch and unpack archives: resumable, checked, never over something that is there."""

import hashlib
import shutil
import tarfile
import time
import urllib.error
import urllib.request
import zipfile
from pathlib import Path

from forerank.console import progress_bar, say
from forerank.data.data_set import Archive
from forerank.data.registry import DATA_SETS
from forerank.errors import ForerankError, InputError, look_up
from forerank.files import temporary_folder

CHUNK = 1 << 20
TRIES = 5
TIMEOUT = 60.0  # seconds without a byte


class DownloadError(ForerankError):
    """The server, the connection or the disk failed; what has arrived is kept for the next try."""


def download_data_set(name: str, to: Path, *, keep_archive: bool = False) -> Path:
    """Download a data set of the registry and unpack it into the new folder `to`.

    Returns:
        `to`, ready for `open_table(name, to)`.
    """
    entry = look_up("data set", name, DATA_SETS)
    if not entry.archives:
        raise InputError(
            f"{name} cannot be downloaded without asking its makers; see: forerank data show {name}"
        )
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise InputError(f"{to} exists already and will not be overwritten: choose another folder with --to")
    for archive in entry.archives:
        file = to.parent / archive.name
        if not file.exists():
            download(archive.url, file, md5=archive.md5, size=archive.size)
        else:
            say(f"using {file}, which is there already")
            verify_archive(file, archive)
        unpack(file, to)
        if not keep_archive:
            file.unlink()
    return to


def download(
    url: str, file: Path, *, md5: str | None = None, size: int | None = None, tries: int = TRIES
) -> None:
    """Fetch a URL to a new file.

    What has arrived is kept in FILE.part; after a broken line, or in the next run, the rest is asked for. The
    file gets its name only when its size and checksum are right.

    Args:
        md5: expected checksum; None checks the size that the server announces alone.
        size: expected size in bytes.
        tries: attempts that bring nothing new before giving up.
    """
    if file.exists():
        raise InputError(f"{file} exists already and will not be overwritten")
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_name(file.name + ".part")
    # Our own loop rather than tenacity: an attempt that brought new bytes starts the count of failures anew.
    failures = 0
    while True:
        before = part.stat().st_size if part.exists() else 0
        try:
            total = _fetch_rest(url, part, before)
            break
        except urllib.error.HTTPError as error:
            if error.code < 500 and error.code != 429:
                raise DownloadError(f"{url} answered {error.code} {error.reason}") from None
            reason = f"{error.code} {error.reason}"
        except (OSError, EOFError) as error:
            reason = str(error)
        arrived = part.stat().st_size if part.exists() else 0
        failures = 0 if arrived > before else failures + 1
        if failures >= tries:
            raise DownloadError(
                f"{url} broke off {tries} times in a row ({reason}); {arrived:,} bytes are kept in {part}, "
                "the same command continues from there"
            )
        say(f"{url} broke off at {arrived:,} bytes ({reason}): trying again")
        time.sleep(min(30.0, 0.5 * 2**failures) if failures else 0.0)
    verify_archive(part, Archive(url, md5, size or total))
    part.rename(file)


def _fetch_rest(url: str, part: Path, have: int) -> int | None:
    """Append what is missing to `part`; the total size as the server announces it."""
    request = urllib.request.Request(url, headers={"User-Agent": "forerank", "Range": f"bytes={have}-"})
    if not have:
        request.remove_header("Range")
    try:
        answer = urllib.request.urlopen(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code != 416:  # "nothing from there on": all of it had arrived
            raise
        return have
    with answer:
        partial = getattr(answer, "status", None) == 206
        if have and not partial:
            say(f"{url} cannot resume: starting again")
            have = 0
        length = answer.headers.get("Content-Length")
        total = None if length is None else have + int(length)
        with (
            part.open("ab" if have else "wb") as out,
            progress_bar(f"fetching {part.stem}", total) as advance,
        ):
            advance(have)
            while chunk := answer.read(CHUNK):
                out.write(chunk)
                have += len(chunk)
                advance(len(chunk))
    if total is not None and have < total:
        raise EOFError(f"{total - have:,} bytes missing")
    return total


def verify_archive(file: Path, archive: Archive) -> None:
    """Compare size and checksum with what they must be; a wrong .part file is removed."""
    size = file.stat().st_size
    wrong = archive.size is not None and size != archive.size
    reason = f"has {size:,} bytes where {archive.size:,} were expected" if wrong else ""
    if not wrong and archive.md5 is not None:
        digest = hashlib.md5(usedforsecurity=False)
        with file.open("rb") as content:
            while chunk := content.read(CHUNK):
                digest.update(chunk)
        wrong = digest.hexdigest() != archive.md5
        reason = f"has the checksum {digest.hexdigest()} where {archive.md5} was expected"
    elif not wrong:
        say(f"no checksum of {archive.name} is published: only its size was compared")
    if wrong:
        if file.suffix == ".part":
            file.unlink()
        raise DownloadError(f"{file} {reason}")


def _extract(tar: tarfile.TarFile, to: Path) -> None:
    """Files and folders only, none outside `to`; tarfile itself sees to that from Python 3.11.4 on."""
    for member in tar:
        target = (to / member.name).resolve()
        if not target.is_relative_to(to.resolve()):
            raise tarfile.TarError(f"{member.name!r} would be outside the destination")
        if member.isdir():
            target.mkdir(parents=True, exist_ok=True)
        elif (content := tar.extractfile(member) if member.isfile() else None) is not None:
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("wb") as file:
                shutil.copyfileobj(content, file, CHUNK)


def unpack(file: Path, to: Path) -> None:
    """Unpack a .zip or .tar archive into the folder `to`; whole or not at all, and never outside it."""
    with temporary_folder(to) as temporary:
        say(f"unpacking {file.name} into {to}")
        try:
            if zipfile.is_zipfile(file):
                with zipfile.ZipFile(file) as archive:
                    archive.extractall(temporary)  # zipfile itself drops "..", absolute paths, drive letters
            elif tarfile.is_tarfile(file):
                with tarfile.open(file) as tar:
                    _extract(tar, temporary)
            else:
                raise InputError(f"{file} is neither a zip nor a tar archive")
        except (tarfile.TarError, zipfile.BadZipFile, EOFError) as error:
            raise DownloadError(f"{file} is damaged: {error}") from error
        if not to.exists():
            temporary.rename(to)
            return
        for item in sorted(temporary.iterdir()):
            if (to / item.name).exists():
                raise InputError(f"{to / item.name} exists already and will not be overwritten")
        for item in sorted(temporary.iterdir()):
            item.rename(to / item.name)
