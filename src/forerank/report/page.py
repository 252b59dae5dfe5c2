"""The report of a run: one HTML file that needs nothing else, light or dark, on a phone or on paper."""

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from forerank.errors import InputError
from forerank.files import write_atomically
from forerank.report.retrieval import retrieval
from forerank.report.shell import html_page
from forerank.report.summary import CheckpointChoice, Section, categories, headline, metrics, training
from forerank.report.thumbnails import MOST_BYTES

if TYPE_CHECKING:
    from forerank.data import Table


def write_report(
    path: Path | str,
    *,
    title: str,
    evaluations: Mapping[str, Any],
    sentence: str = "",
    catalogue: float | None = None,
    table: "Table | None" = None,
    embeddings: ArrayLike | None = None,
    labels: ArrayLike | None = None,
    history: Sequence[Mapping[str, Any]] = (),
    choice: CheckpointChoice | None = None,
    further: Sequence[Section] = (),
    recipe: Mapping[str, Any] | None = None,
    versions: Mapping[str, Any] | None = None,
    notes: Sequence[str] = (),
    queries: int = 8,
    thumbnail_bytes: int = MOST_BYTES,
) -> Path:
    """Write the page; it is whole or absent, whenever the process dies.

    Args:
        path: file to write; missing folders are made.
        title: heading, for instance the name of the run.
        evaluations: name -> Evaluation, the baseline first, the model that counts last.
        sentence: the result in plain words, with which the page begins.
        catalogue: Recall@1 of all images of all classes searched together, shown beside the headline.
        table: the images behind the embeddings, row for row, for pictures and names.
        embeddings: (N, D) vectors of the last evaluation's model.
        labels: (N,) labels; the table's by default.
        history: records of `metrics.jsonl`: a "step" or "epoch", losses, validation figures.
        choice: the figure that chose the checkpoint, and where it was best.
        further: sections behind those of the training.
        recipe: every setting of the run.
        versions: what it ran on.
        notes: sentences that a reader must not miss.
        queries: how many of the hardest queries to show.
        thumbnail_bytes: limit for all pictures together; the rest of the page is about 0.2 MB.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> vectors, names = np.eye(4)[[0, 0, 1, 1]] + 0.1, ["cup", "cup", "pen", "pen"]
        >>> page = write_report(folder / "report.html", title="Two things",
        ...     evaluations={"trained": {"recall@1": 1.0}}, embeddings=vectors, labels=names)
        >>> page.read_text(encoding="utf-8").count("<h1>Two things</h1>")
        1
    """
    vectors, codes = _rows(embeddings, labels, table)
    sections = [headline(evaluations, codes, catalogue), metrics(evaluations), categories(evaluations)]
    sections += [training(history, choice), *further]
    lead = "" if table is None else table.name
    if vectors is not None and codes is not None:
        lead = f"{lead}: " * bool(lead) + f"{len(vectors):,} images of {len(np.unique(codes)):,} classes"
        sections += retrieval(vectors, codes, table, evaluations, recipe or {}, queries, thumbnail_bytes)
    sections.append(_settings(recipe or {}, versions or {}))
    lead = f"{sentence} {lead}".strip()
    text = _page(title, lead, notes, [s for s in sections if s.body])
    write_atomically(Path(path), text)
    return Path(path)


def _rows(
    embeddings: ArrayLike | None, labels: ArrayLike | None, table: "Table | None"
) -> tuple[NDArray[Any] | None, NDArray[Any] | None]:
    """Embeddings and labels as arrays of one length, the labels from the table where none are given."""
    codes = None if labels is None else np.asarray(labels)
    if codes is None and table is not None:
        codes = table.label
    if embeddings is None:
        return None, codes
    vectors = np.asarray(embeddings)
    if codes is None:
        raise InputError("the report needs labels, or a table that has them, beside the embeddings.")
    if len(codes) != len(vectors) or (table is not None and len(table) != len(vectors)):
        rows = f", the table {len(table)} rows" if table is not None else ""
        raise InputError(f"there are {len(vectors)} embeddings and {len(codes)} labels{rows}: give one each.")
    return vectors, codes


def _page(title: str, lead: str, notes: Sequence[str], sections: Sequence[Section]) -> str:
    links = "".join(f'<a href="#{s.anchor}">{escape(s.title)}</a>' for s in sections if s.title)
    body = "".join(
        f'<section id="{s.anchor}">{f"<h2>{escape(s.title)}</h2>" if s.title else ""}{s.body}</section>'
        for s in sections
    )
    return html_page(title, body, lead=lead, links=links, notes=notes)


def _settings(recipe: Mapping[str, Any], versions: Mapping[str, Any]) -> Section:
    import yaml

    parts = []
    for name, values in (("Recipe", recipe), ("Versions", versions)):
        if values:
            text = yaml.safe_dump(_plain(values), sort_keys=False, allow_unicode=True, width=100)
            parts.append(f"<details><summary>{name}</summary><pre>{escape(text)}</pre></details>")
    body = f'<div class="card">{"".join(parts)}</div>' if parts else ""
    return Section("settings", "Recipe and versions", body)


def _plain(value: Any) -> Any:
    """Only what YAML has words for: a path or a number of numpy's must not stop a report."""
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(v) for v in value]
    if isinstance(value, np.generic):
        return value.item()
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)
