"""Targets of the coverage-guided fuzzer: `python -m campaigns.fuzz.NAME CORPUS -runs=N`. See `readers.py`."""
