"""Model + images -> index -> neighbours. One file per engine."""

from typing import TYPE_CHECKING

from forerank.lazy import import_on_demand

if TYPE_CHECKING:
    from forerank.search.build import BuildReport, build_index
    from forerank.search.calibration import Calibration, calibrate
    from forerank.search.duplicates import find_duplicates
    from forerank.search.engine import Engine, Filter, open_engine
    from forerank.search.index import Hit, Index, Matches
    from forerank.search.label_audit import Audit, audit
    from forerank.search.rows import Row

# Name -> module: an index is opened without loading what builds or audits one.
_WHERE = {
    "Audit": "label_audit",
    "audit": "label_audit",
    "BuildReport": "build",
    "build_index": "build",
    "Calibration": "calibration",
    "calibrate": "calibration",
    "find_duplicates": "duplicates",
    "Engine": "engine",
    "Filter": "engine",
    "open_engine": "engine",
    "Hit": "index",
    "Index": "index",
    "Matches": "index",
    "Row": "rows",
}

__all__ = [
    "Audit",
    "BuildReport",
    "Calibration",
    "Engine",
    "Filter",
    "Hit",
    "Index",
    "Matches",
    "Row",
    "audit",
    "build_index",
    "calibrate",
    "find_duplicates",
    "open_engine",
]


__getattr__ = import_on_demand(__name__, _WHERE)
