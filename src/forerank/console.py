"""What a person sees while something runs: progress bars in terminals and notebooks, plain tables."""

import importlib.util
import json
import re
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence, Sized
from contextlib import contextmanager
from typing import Any, TypeVar

T = TypeVar("T")

# A figure as tables show it: 12, 87.3, +1.2, 1,024, 5e-4, 3.1 ± 0.2, 99%, 1.3x, or a dash for none.
_NUMBER = re.compile(r"[-+−]?\d[-+−±–\d.,/()\[\] %xe×]*|[-–—]?")


def say(message: str = "") -> None:
    """A line for the person, on standard error, so that standard output stays clean for results."""
    sys.stderr.write(f"{message}\n")  # in one piece: several processes may write at once
    sys.stderr.flush()


@contextmanager
def say_if_slow(message: str, after: float = 1.0) -> Iterator[None]:
    """Say what the wait is for, if what happens inside takes longer than this many seconds."""
    timer = threading.Timer(after, say, [message])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def print_json(value: Any) -> None:
    """One JSON document on standard output, for machines."""
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
    # A file's name that is not UTF-8 becomes an escape of JSON, which reads back as the same name.
    print(text.encode("utf-8", "backslashreplace").decode())


def percent(share: float, *, digits: int = 1, signed: bool = False, mark: bool = True) -> str:
    """A share of one in percent, with a true minus sign.

    >>> percent(0.8126), percent(-0.01, digits=2, signed=True, mark=False)
    ('81.3%', '−1.00')
    """
    text = f"{100 * share:{'+' if signed else ''}.{digits}f}{'%' if mark else ''}"
    return text.replace("-", "−")


def is_text(name: str) -> bool:
    """Whether a file's name can be written down: Linux also allows names that are not UTF-8.

    >>> is_text("naïve.jpg"), is_text(b"\\xff.jpg".decode("utf-8", "surrogateescape"))
    (True, False)
    """
    return name.isascii() or name.encode("utf-8", "ignore").decode() == name


def progress(items: Iterable[T], title: str, total: int | None = None) -> Iterator[T]:
    """Iterate with a progress bar on a terminal or in a notebook, silently elsewhere.

    >>> list(progress([1, 2, 3], "counting"))
    [1, 2, 3]
    """
    if total is None and isinstance(items, Sized):
        total = len(items)
    with progress_bar(title, total) as advance:
        for item in items:
            yield item
            advance(1)


def in_notebook() -> bool:
    """Whether this runs in a notebook that can show a moving bar, for which rich needs ipywidgets.

    >>> in_notebook()
    False
    """
    if "ipykernel" not in sys.modules or importlib.util.find_spec("ipywidgets") is None:
        return False
    from rich.console import Console

    return Console().is_jupyter


@contextmanager
def progress_bar(title: str, total: int | None) -> Iterator[Any]:
    """A bar advanced by hand: ``with progress_bar("embedding", n) as advance: advance(64)``.

    ``advance(steps, note="loss 0.31")`` also shows a short note beside the bar.
    """
    if not sys.stderr.isatty() and not in_notebook():
        yield lambda steps=1, note="": None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task(title, total=total, note="")

        def advance(steps: int = 1, note: str | None = None) -> None:
            bars.update(task, advance=steps)
            if note is not None:
                bars.update(task, note=note)

        yield advance


def format_table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A plain table, columns of numbers to the right; no colour, safe in any terminal and log.

    >>> print(format_table(["set", "R@1", "note"], [["before", "60.1", "pixels"], ["after", "7.3", "-"]]))
    set      R@1  note
    ------  ----  ------
    before  60.1  pixels
    after    7.3  -
    >>> print(format_table(["label", "images"], [["001.Albatross", "60"], ["2.Auk", "9"]]))
    label          images
    -------------  ------
    001.Albatross      60
    2.Auk               9
    """
    cells = [[str(c) for c in header], *[[str(c) for c in row] for row in rows]]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    numeric = [all(_NUMBER.fullmatch(row[i]) for row in cells[1:]) for i in range(len(header))]

    def line(row: Sequence[str]) -> str:
        padded = (
            c.rjust(w) if right else c.ljust(w) for c, w, right in zip(row, widths, numeric, strict=True)
        )
        return "  ".join(padded).rstrip()

    return "\n".join([line(cells[0]), "  ".join("-" * w for w in widths), *[line(row) for row in cells[1:]]])
