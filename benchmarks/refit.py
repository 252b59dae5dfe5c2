"""What training once more on all classes brings, on classes that neither model has seen.

    python benchmarks/refit.py run cub=PATH_TO_CUB flowers=FOLDER groceries=FOLDER
    python benchmarks/refit.py page

A refitted model has no class left to be measured on. Here half of the classes of a data set are set aside
first; the other half is the user's catalogue, on which `forerank train CATALOGUE nmi=false --refit` runs.
Then the pretrained network, the measured model and the refitted model search the set-aside classes. `run`
does this for several random halves and writes NAME.json into docs/measurements/refit; `page` writes the table
in docs/training.md from these files.
"""

import argparse
import csv
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from forerank.console import say
from forerank.data import Table, open_table
from forerank.metrics import evaluate
from forerank.models import Retriever, keep_freed_memory
from page_parts import replace_part

DOCS = Path(__file__).parent.parent / "docs"
RESULTS, PAGE = DOCS / "measurements" / "refit", DOCS / "training.md"


def halves(table: Table, seed: int) -> tuple[Table, Table]:
    """The catalogue of a user, and the set-aside classes."""
    classes = np.unique(table.label)
    aside = np.random.default_rng(seed).permutation(classes)[: len(classes) // 2]
    hidden = np.isin(table.label, aside)
    return table.where(~hidden), table.where(hidden)


def write_catalogue(table: Table, file: Path) -> None:
    """A CSV without splits, so that training makes its own."""
    with file.open("w", newline="", encoding="utf-8") as out:
        writer = csv.writer(out)
        writer.writerow(["path", "label"])
        writer.writerows(zip(map(str, table.files), table.label, strict=True))


def search_among(table: Table, model: str | Path) -> dict[str, float]:
    """Recall@1 and mAP@R of a model; features that an earlier training has kept are not computed again."""
    retriever = Retriever.load(model, device="cpu")
    vectors = np.empty((len(table), retriever.dim), np.float32)
    new = np.ones(len(table), bool)
    for positions, found in retriever.known_vectors(table.files):
        vectors[positions] = found
        new[positions] = False
    left = np.flatnonzero(new)
    if len(left):
        vectors[left] = retriever.embed([table.files[i] for i in left])
    figures = evaluate(vectors, table.label_ids, ks=[1], nmi=False)
    return {key: float(figures[key]) for key in ("recall@1", "map@r")}


def measure_half(name: str, table: Table, seed: int, work: Path) -> dict[str, Any]:
    """Train on a random half of the classes, refit, and search the other half."""
    catalogue, aside = halves(table, seed)
    run = work / f"{name}-{seed}"
    work.mkdir(parents=True, exist_ok=True)
    file = work / f"{name}-{seed}.csv"
    write_catalogue(catalogue, file)
    command = [sys.executable, "-m", "forerank", "train", str(file), "nmi=false", "--refit"]
    done = subprocess.run(
        [*command, "--run", str(run), "--json"], check=True, stdout=subprocess.PIPE, text=True
    )
    results = json.loads(done.stdout)
    backbone = json.loads((run / "best" / "model.json").read_text(encoding="utf-8"))["backbone"]
    refitted = (run / "refit").is_dir()  # not where training did not help
    return {
        "seed": seed,
        "classes": len(np.unique(catalogue.label)),
        "aside": len(np.unique(aside.label)),
        "images aside": len(aside),
        "kept": results["kept"],
        "pretrained": search_among(aside, backbone),
        "measured": search_among(aside, run / "best"),
        "refitted": search_among(aside, run / "refit") if refitted else None,
    }


def page_text(measured: Sequence[dict[str, Any]]) -> str:
    """The table in Markdown."""
    columns = [
        "data",
        "classes: catalogue, set aside",
        "pretrained",
        "measured model",
        "refitted",
        "gain by refit",
    ]
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for one in measured:
        rows = [row for row in one["halves"] if row["refitted"]]

        def column(model: str, figure: str, rows: list[dict[str, Any]] = rows) -> list[float]:
            return [100 * row[model][figure] for row in rows]

        cells = [
            f"{statistics.mean(column(model, 'recall@1')):.1f}, {statistics.mean(column(model, 'map@r')):.1f}"
            for model in ("pretrained", "measured", "refitted")
        ]
        gains = []
        for figure in ("recall@1", "map@r"):
            pairs = zip(column("refitted", figure), column("measured", figure), strict=True)
            gained = [refitted - before for refitted, before in pairs]
            gains.append(f"{statistics.mean(gained):+.1f} ({min(gained):+.1f} to {max(gained):+.1f})")
        counts = f"{rows[0]['classes']}, {rows[0]['aside']}"
        lines.append(f"| {one['data']} | {counts} | {' | '.join(cells)} | {', '.join(gains)} |")
    return "\n".join(lines) + "\n"


def page_with_table(page: str) -> str:
    """The page with its part written anew."""
    measured = [json.loads(file.read_text(encoding="utf-8")) for file in sorted(RESULTS.glob("*.json"))]
    return replace_part(page, "refit.py", page_text(measured))


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, or write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["run", "page"])
    parser.add_argument("data", nargs="*", help="NAME=FOLDER")
    parser.add_argument("--halves", type=int, default=3, help="how many random halves of the classes")
    parser.add_argument("--work", type=Path, default=Path("runs/refit"), help="for run folders")
    options = parser.parse_args(arguments)
    if options.what == "page":
        PAGE.write_text(page_with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
        return
    keep_freed_memory()
    RESULTS.mkdir(parents=True, exist_ok=True)
    for text in options.data:
        name, _, source = text.partition("=")
        table = open_table(source)
        found = []
        for seed in range(options.halves):
            say(f"{name}, half {seed + 1} of {options.halves}")
            found.append(measure_half(name, table, seed, options.work))
        command = "forerank train CATALOGUE nmi=false --refit"
        result = {"data": name, "command": command, "halves": found, "processor_cores": os.cpu_count()}
        (RESULTS / f"{name}.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
