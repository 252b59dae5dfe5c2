"""forerank data: list, show, check, download, export."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter

from forerank.console import format_table, print_json, say
from forerank.errors import InputError, look_up

app = App(
    name="data",
    help="Data sets: list them, show one, check every image, download, export.",
    help_epilogue="Examples: forerank data check ./my_images    forerank data show sop",
)

Option = Annotated[
    Sequence[str],
    Parameter(name="--option", negative=(), help="KEY=VALUE for the reader, for instance test=small."),
]
Root = Annotated[
    Path | None,
    Parameter(help="The folder of a named set; for a CSV file, the folder that its paths start from."),
]
Json = Annotated[bool, Parameter(negative=(), help="Print JSON.")]


def parse_options(pairs: Sequence[str]) -> dict[str, Any]:
    """KEY=VALUE words as keyword arguments: numbers, true and false are converted.

    >>> parse_options(["test=small", "merged=3", "noise=0.2", "boxes=true"])
    {'test': 'small', 'merged': 3, 'noise': 0.2, 'boxes': True}
    """
    import yaml

    values: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not key or not equals:
            raise InputError(f"--option takes KEY=VALUE, not {pair!r}")
        values[key] = yaml.safe_load(value)
    return values


@app.command(name="list")
def list_sets(*, json: Json = False) -> None:
    """List the data sets that are known by name."""
    from forerank.data.registry import DATA_SETS

    if json:
        print_json(
            [{"name": name, "title": entry.title, "home": entry.home} for name, entry in DATA_SETS.items()]
        )
        return
    rows = []
    for name, entry in DATA_SETS.items():
        counts = next(iter(entry.published_counts({}).values()), {})
        get = "drawn on this machine" if name == "glyphs" else "download" if entry.archives else "on request"
        images, classes = (sum(c[i] for c in counts.values()) for i in (0, 1))
        rows.append([name, f"{images:,}", f"{classes:,}", get, entry.title])
    print(format_table(["name", "images", "classes", "how to get it", "what"], rows))
    say("\nYou can also use a folder with one sub-folder per class, or a CSV file with path and label.")


@app.command
def show(name: str, *, json: Json = False) -> None:
    """Show what a named data set is, how it is split, and the exact steps to get it."""
    from forerank.data.cache import data_folder
    from forerank.data.registry import DATA_SETS

    entry = look_up("data set", name, DATA_SETS)
    published = entry.published_counts({})
    if json:
        archives = [{"url": a.url, "md5": a.md5, "bytes": a.size} for a in entry.archives]
        print_json(
            {"name": name, "title": entry.title, "home": entry.home, "published": published, "ks": entry.ks,
             "archives": archives, "steps": entry.steps, "options": dict(entry.options)}
        )  # fmt: skip
        return
    print(f"{entry.title}\n{entry.home}\n")
    rows = [
        [source, split, f"{images:,}", f"{classes:,}"]
        for source, counts in published.items()
        for split, (images, classes) in counts.items()
    ]
    print(format_table(["counts by", "split", "images", "classes"], rows))
    print(f"\nrecall at {', '.join(map(str, entry.ks))}")
    for key, meaning in entry.options.items():
        print(f"option {key}: {meaning}")
    print("\nhow to get it")
    for archive in entry.archives:
        check = f"md5 {archive.md5}" if archive.md5 else "no published checksum"
        print(f"- forerank data download {name}    ({archive.url}, {check})")
    for step in entry.steps:
        print(f"- {step}")
    if name != "glyphs":
        print(f"- forerank looks for it in {data_folder() / name}; or give its folder with --root")


@app.command
def check(
    source: str, *, root: Root = None, option: Option = (), pixels: bool = False, json: Json = False
) -> None:
    """Look at every image and compare with what the table says; nothing is changed.

    Exit code 0: no problems; 1: missing or broken files, the same picture in train and test or under two
    labels, a file listed twice.

    Args:
        source: A name of `forerank data list`, a folder, or a CSV file.
        pixels: Decode every image too, and compare pictures by their pixels.
    """
    from forerank.data.check import check_table
    from forerank.data.open import open_table, source_name
    from forerank.data.registry import DATA_SETS

    options = parse_options(option)
    table = open_table(source, root, **options)
    name = source_name(source)
    check = check_table(table, DATA_SETS[name].published_counts(options) if name else None, pixels=pixels)
    if json:
        print_json(check.to_dict())
    else:
        print(check)
    if check.problems:
        sys.exit(1)


@app.command
def download(name: str, *, to: Path | None = None, keep_archive: bool = False) -> None:
    """Download a data set that has a public address, check it, unpack it into a new folder.

    An interrupted download continues where it stopped. Nothing that exists is overwritten.

    Args:
        to: The folder to create; by default the one where `forerank` looks for the set.
        keep_archive: Keep the archive after unpacking.
    """
    from forerank.data.cache import data_folder
    from forerank.data.download import download_data_set

    print(download_data_set(name, to or data_folder() / name, keep_archive=keep_archive))


@app.command
def export(source: str, file: Path, *, root: Root = None, option: Option = (), oml: bool = False) -> None:
    """Write a data set's table as CSV (path, label, split, is_query, is_gallery, ...).

    Args:
        source: A name of `forerank data list`, a folder, or a CSV file.
        file: The CSV to write; an existing file is not overwritten.
        oml: Write exactly the format that open-metric-learning expects.
    """
    from forerank.data.open import open_table

    if file.exists():
        raise InputError(f"{file} exists already and will not be overwritten")
    table = open_table(source, root, **parse_options(option))
    table.write_csv(file, oml=oml)
    say(f"wrote {len(table):,} rows; their paths start from {table.root}")
