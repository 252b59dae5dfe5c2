"""Queries of one filter that arrive while a search is running are answered together by the next one.

One pass over the vectors for fifty visitors costs little more than one pass for one.
"""

import threading
from dataclasses import dataclass

import numpy as np

from forerank.search.engine import EVERYTHING, Filter, RowNeighbours, Vectors
from forerank.search.index import Find


@dataclass(eq=False)
class _Ticket:
    queries: Vectors  # (q, D)
    k: int
    where: Filter
    answer: RowNeighbours | None = None
    error: Exception | None = None


class SharedSearch:
    """Call it like an engine's `search`, from any number of threads.

    >>> def search(queries, k, where):
    ...     order = np.argsort(-queries, axis=1)[:, :k]
    ...     return RowNeighbours(order, np.take_along_axis(queries, order, axis=1))
    >>> SharedSearch(search)(np.array([[0.1, 0.9, 0.5]], np.float32), 2).ids.tolist()
    [[1, 2]]
    """

    def __init__(self, search: Find, most: int = 64) -> None:
        self._search, self._most = search, most
        self._waiting: list[_Ticket] = []
        self._line = threading.Lock()
        self._running = threading.Lock()

    def __call__(self, queries: Vectors, k: int, where: Filter = EVERYTHING) -> RowNeighbours:
        ticket = _Ticket(queries, k, where)
        with self._line:
            self._waiting.append(ticket)
        while True:
            with self._running:  # the thread that gets in answers for all that wait
                if ticket.error is not None:
                    raise ticket.error
                if ticket.answer is not None:
                    return ticket.answer
                self._answer_some()

    def _answer_some(self) -> None:
        with self._line:
            where = self._waiting[0].where
            batch = [ticket for ticket in self._waiting if ticket.where == where][: self._most]
            self._waiting = [ticket for ticket in self._waiting if ticket not in batch]
        try:
            nearest = self._search(np.concatenate([t.queries for t in batch]), max(t.k for t in batch), where)
        except Exception as error:
            for ticket in batch:
                ticket.error = error
            return
        start = 0
        for ticket in batch:
            rows = slice(start, start + len(ticket.queries))
            start += len(ticket.queries)
            ticket.answer = RowNeighbours(
                nearest.ids[rows, : ticket.k], nearest.similarities[rows, : ticket.k]
            )
