"""Reading a long CSV table as `forerank embed` reads it: time, and the peak memory of the process.

python benchmarks/table.py                   10,000,000 rows (a file of 290 MB in the temporary folder)
python benchmarks/table.py --rows 100000
"""

import argparse
import tempfile
import time
from pathlib import Path

from forerank.data.sources import open_pictures
from process_memory import peak_bytes


def main() -> None:
    """Write a table, read it, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=10_000_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="forerank-table-") as folder:
        table = Path(folder) / "table.csv"
        with table.open("w") as lines:
            lines.write("path,label\n")
            lines.writelines(f"images/{i:09d}.jpg,{i // 10}\n" for i in range(options.rows))
        before = peak_bytes() / 2**20
        started = time.perf_counter()
        count = sum(1 for _ in open_pictures(table))
        seconds = time.perf_counter() - started
    peak = peak_bytes() / 2**20
    print(f"{count:,} rows in {seconds:.1f} s, peak memory {peak:.0f} MiB ({before:.0f} MiB before reading)")


if __name__ == "__main__":
    main()
