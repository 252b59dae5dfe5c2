"""Rows as records of Milvus, and how many of them go into one request."""

from typing import Any

from forerank.search.rows import Row

FIELDS = ["id", "path", "label", "content", "size", "modified", "columns"]
# Searches see what this process has stored, and what others stored a moment ago: to see all that was
# acknowledged anywhere ("Strong"), each search would wait for the clock of the server, 0.2 s or more.
SESSION = {"consistency_level": "Session"}
BATCH_ROWS = 16_000  # rows in one request for rows: a consistent read costs a fixed 0.2 s or more
BATCH_BYTES = 8 * 2**20  # of vectors in one request; Milvus takes 64 MB


def rows_of_bytes(dim: int) -> int:
    """How many rows with their vectors go into one request."""
    return min(BATCH_ROWS, max(1, BATCH_BYTES // (4 * max(dim, 1))))


def row_of(record: dict[str, Any]) -> Row:
    """The row that a record with the fields `FIELDS` holds."""
    return Row(
        record["path"],
        record["label"],
        record["content"],
        record["size"],
        record["modified"],
        int(record["id"]),
        record["columns"],
    )
