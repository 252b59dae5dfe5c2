"""Model + images -> index -> neighbours. One file per engine."""

from typing import TYPE_CHECKING

from forerank.lazy import import_on_demand

if TYPE_CHECKING:
    from forerank.search.build import build_index
    from forerank.search.build_report import BuildReport
    from forerank.search.calibration import Calibration, calibrate
    from forerank.search.duplicates import find_duplicates
    from forerank.search.engine import Engine, Filter, open_engine
    from forerank.search.index import Hit, Index, Matches
    from forerank.search.label_audit import Audit, audit
    from forerank.search.rows import Row

# Module -> names: an index is opened without loading what builds or audits one.
_MODULES = {
    "label_audit": ["Audit", "audit"],
    "build": ["build_index"],
    "build_report": ["BuildReport"],
    "calibration": ["Calibration", "calibrate"],
    "duplicates": ["find_duplicates"],
    "engine": ["Engine", "Filter", "open_engine"],
    "index": ["Hit", "Index", "Matches"],
    "rows": ["Row"],
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


__getattr__ = import_on_demand(__name__, _MODULES)
