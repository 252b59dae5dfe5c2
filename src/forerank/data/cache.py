"""Where Forerank keeps what it can make again, and where it looks for data sets."""

import os
import sys
from pathlib import Path


def cache_folder() -> Path:
    """`$FORERANK_CACHE`, or the platform's place for caches."""
    if os.environ.get("FORERANK_CACHE"):
        return Path(os.environ["FORERANK_CACHE"]).expanduser()
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "forerank"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "forerank"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "forerank"


def data_folder() -> Path:
    """`$FORERANK_DATA`, or the folder `data` in the cache: where data sets are looked for by name."""
    if os.environ.get("FORERANK_DATA"):
        return Path(os.environ["FORERANK_DATA"]).expanduser()
    return cache_folder() / "data"
