"""Which files beneath a folder are images, and which look like pictures but cannot be read."""

import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from forerank.data.decode import image_endings
from forerank.errors import InputError, install_command

_HEIC = ("HEIC", "they are read after: ")  # and the command that adds what reads them
_VIDEO = ("video", "take single pictures out of them, for instance with ffmpeg")
_RAW = ("camera RAW", "convert them to JPEG or PNG")
_LAYERS = ("layered or drawn", "save them as PNG")
# The same words for one file.
_FOR_ONE = {"they are read": "it is read", "them": "it", "their": "its"}
# Ending -> kind of file, what to do. Other files (text, tables, archives) are passed over without a word.
UNREADABLE = {
    **dict.fromkeys((".heic", ".heif", ".hif"), _HEIC),
    ".pdf": ("PDF", "save their pages as images"),
    **dict.fromkeys((".mp4", ".mov", ".avi", ".mkv", ".webm", ".m4v", ".mpg", ".wmv", ".3gp"), _VIDEO),
    **dict.fromkeys((".cr2", ".cr3", ".nef", ".arw", ".dng", ".orf", ".rw2", ".raf", ".pef", ".srw"), _RAW),
    **dict.fromkeys((".psd", ".xcf", ".svg", ".ai", ".eps"), _LAYERS),
}  # fmt: skip


@dataclass(frozen=True)
class FolderContent:
    """What lies beneath a folder, as sorted paths relative to it with forward slashes."""

    images: list[str]
    unreadable: list[str]  # pictures, pages or films that are left out

    def notes(self) -> tuple[str, ...]:
        """One sentence for every kind of file that was left out: how many, the first, what to do.

        >>> FolderContent(["a/1.jpg"], ["a/2.pdf", "a/3.pdf"]).notes()
        ('2 PDF files were left out (the first is a/2.pdf): save their pages as images',)
        >>> FolderContent(["a/1.jpg"], ["a/2.pdf"]).notes()
        ('1 PDF file was left out (a/2.pdf): save its pages as images',)
        """
        kinds = [UNREADABLE[os.path.splitext(path)[1].lower()] for path in self.unreadable]  # noqa: PTH122
        notes = []
        for (kind, remedy), number in Counter(kinds).items():
            first = self.unreadable[kinds.index((kind, remedy))]
            if number == 1:
                note = f"1 {kind} file was left out ({first}): {_for_one(remedy)}"
            else:
                note = f"{number:,} {kind} files were left out (the first is {first}): {remedy}"
            notes.append(note + install_command("heic") if (kind, remedy) == _HEIC else note)
        return tuple(notes)


def _for_one(remedy: str) -> str:
    for several, one in _FOR_ONE.items():
        remedy = remedy.replace(several, one)
    return remedy


def is_hidden(path: str) -> bool:
    """Whether a path has a part that begins with a dot, or the folder that macOS puts into archives.

    >>> [is_hidden(path) for path in ("./a/b.jpg", "a/._b.jpg", "__MACOSX/b.jpg")]
    [False, True, True]
    """
    return any((part.startswith(".") and part != ".") or part == "__MACOSX" for part in path.split("/"))


def scan_folder(root: Path) -> FolderContent:
    """Look at every file beneath a folder; nothing is opened.

    Links to files and folders are followed, each folder once. Hidden ones are passed over (`is_hidden`).
    """
    endings = image_endings()
    unreadable = tuple(UNREADABLE.keys() - set(endings))
    content = FolderContent([], [])
    seen: set[str] = set()
    for folder, folders, files in os.walk(root, followlinks=True):
        real = os.path.realpath(folder)
        if real in seen:  # a link that leads back
            folders.clear()
            continue
        seen.add(real)
        folders[:] = sorted(name for name in folders if not is_hidden(name))
        relative = Path(folder).relative_to(root).as_posix()
        prefix = "" if relative == "." else f"{relative}/"
        for name in files:
            lower = name.lower()
            if is_hidden(name):
                continue
            if lower.endswith(endings):
                content.images.append(prefix + name)
            elif lower.endswith(unreadable):
                content.unreadable.append(prefix + name)
    content.images.sort()
    content.unreadable.sort()
    return content


def image_files(root: Path) -> list[str]:
    """The images beneath a folder, as sorted relative paths: see `scan_folder`."""
    return scan_folder(root).images


def find_images(source: str | Path) -> list[Path]:
    """The images beneath a folder, sorted, or the single file that was named."""
    place = Path(source).expanduser()
    if place.is_file():
        return [place]
    if not place.is_dir():
        raise InputError(f"there is no file or folder {source}")
    content = scan_folder(place)
    if not content.images:
        raise no_images(place, content)
    return [place / path for path in content.images]


def no_images(root: Path, content: FolderContent) -> InputError:
    """The error for a folder without images, with what was left out and why."""
    known = "" if content.unreadable else f"; known endings: {' '.join(image_endings())}"
    return InputError(
        ". ".join((f"there are no image files in {root} or beneath it{known}", *content.notes()))
    )
