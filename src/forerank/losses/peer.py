"""Passing as a loss of pytorch-metric-learning, which it asks of losses, without needing it.

Its `DistributedLossWrapper` requires `isinstance(loss, BaseMetricLossFunction)`. Our losses have the same
call and nothing of that base class, and must not import the package for users who do not have it.
`isinstance` also accepts what an object says in `__class__`; so once that wrapper has been imported, and
only then, our losses say they are both.
"""

import sys
from functools import lru_cache
from typing import Any


class PeerCompatible:
    """Mixin: an instance of the peer's base class too, as far as `isinstance` can tell."""

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        ours: Any = type(self)
        wrapper = sys.modules.get("pytorch_metric_learning.utils.distributed")
        return ours if wrapper is None else _both(ours, wrapper.BaseMetricLossFunction)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        # Pickled and copied as what it is; the default would trip over the answer above.
        return _blank, (type(self),), self.__dict__


@lru_cache
def _both(ours: Any, theirs: Any) -> type:
    return type(ours.__name__, (ours, theirs), {"__module__": ours.__module__})


def _blank(kind: type) -> Any:
    return object.__new__(kind)
