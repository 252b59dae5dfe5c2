"""Where the vector of a content lies: a table of contents and numbers that takes 24 bytes for each."""

from collections.abc import Sequence

import numpy as np

from forerank.search.engine import Ids

FEWEST_RECENT = 65_536


class Positions:
    """Content -> number; of two numbers of one content the later one counts.

    A dictionary takes ten times the memory. Most entries are kept as sorted arrays; new ones wait in a small
    dictionary until there are enough of them to sort the arrays again.

    >>> positions = Positions()
    >>> positions.add(["00" * 16, "ff" * 16], [7, 8])
    >>> "ff" * 16 in positions, positions.find(["ff" * 16, "0f" * 16])
    (True, array([ 8, -1]))
    """

    def __init__(self) -> None:
        self._keys = np.empty(0, "S16")
        self._numbers = np.empty(0, np.int64)
        self._recent: dict[bytes, int] = {}

    def add(self, contents: Sequence[str], numbers: Sequence[int]) -> None:
        """Note the numbers of some contents."""
        self._recent.update(zip(map(bytes.fromhex, contents), numbers, strict=True))
        if len(self._recent) > max(FEWEST_RECENT, len(self._keys) // 4):
            keys = np.concatenate([self._keys, np.array(list(self._recent), "S16")])
            given = np.concatenate([self._numbers, np.array(list(self._recent.values()), np.int64)])
            order = np.argsort(keys, kind="stable")
            self._keys, self._numbers = keys[order], given[order]
            self._recent = {}

    def find(self, contents: Sequence[str]) -> Ids:
        """The numbers (n,) of some contents, -1 where there is none."""
        keys = [bytes.fromhex(content) for content in contents]
        numbers = np.full(len(keys), -1, np.int64)
        if len(self._keys) and keys:
            wanted = np.array(keys, "S16")
            places = np.searchsorted(self._keys, wanted, side="right") - 1
            here = (places >= 0) & (self._keys[places] == wanted)
            numbers[here] = self._numbers[places[here]]
        for i, key in enumerate(keys):
            numbers[i] = self._recent.get(key, numbers[i])
        return numbers

    def __contains__(self, content: str) -> bool:
        return bool(self.find([content])[0] >= 0)

    def contents(self) -> set[str]:
        """All contents, for a small table."""
        keys = [*self._keys.tolist(), *self._recent]
        return {key.ljust(16, b"\0").hex() for key in keys}  # numpy cuts zeros off at the end
