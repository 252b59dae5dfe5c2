"""The numbers the paper prints, from the one file that holds them."""

import json
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from forerank.errors import look_up


@dataclass(frozen=True)
class PublishedTable:
    """One table of the paper: percentages for recall and NMI, cosine distances for dists."""

    number: str
    title: str
    columns: tuple[str, ...]
    rows: dict[str, dict[str, float | None]]


@cache
def _file() -> dict[str, Any]:
    text = (resources.files("forerank.paper") / "published.json").read_text(encoding="utf-8")
    values: dict[str, Any] = json.loads(text)
    return values


def published_table(name: str) -> PublishedTable:
    """A published table by the name of its experiment.

    >>> published_table("variants-sop").rows["Dq"]["R@1"]
    80.1
    """
    tables = _file()["tables"]
    table = look_up("published table", name, tables)
    columns = tuple(table["columns"])
    rows = {method: dict(zip(columns, values, strict=True)) for method, values in table["rows"].items()}
    return PublishedTable(table["number"], table["title"], columns, rows)


def statement(name: str) -> str:
    """What the paper says in words about something it prints no numbers for.

    >>> statement("sweep-b")
    'b = 4 is the best on SOP, b = 1 on VehicleID.'
    """
    return str(_file()["statements"][name]["text"])


def source() -> str:
    """Where the numbers come from, in one line.

    >>> source().startswith("Zhuo Li")
    True
    """
    paper = _file()["source"]
    return f"{paper['authors']}: {paper['title']}. {paper['venue']}. {paper['code']}"
