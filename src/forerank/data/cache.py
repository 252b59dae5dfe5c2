"""Where Forerank keeps what it can make again, and where it looks for data sets."""

import os
from pathlib import Path

from platformdirs import user_cache_path


def cache_folder() -> Path:
    """`$FORERANK_CACHE`, or the platform's place for caches."""
    return _from_environment("FORERANK_CACHE") or user_cache_path("forerank", appauthor=False)


def data_folder() -> Path:
    """`$FORERANK_DATA`, or the folder `data` in the cache: where data sets are looked for by name."""
    return _from_environment("FORERANK_DATA") or cache_folder() / "data"


def _from_environment(name: str) -> Path | None:
    value = os.environ.get(name)
    return Path(value).expanduser() if value else None
