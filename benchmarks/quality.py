"""How good models become on several data sets: zero-shot, default, best, and within a time.

    python benchmarks/quality.py run cub=PATH_TO_CUB flowers=FOLDER groceries=FOLDER glyphs=glyphs
    python benchmarks/quality.py run cub=PATH_TO_CUB --cells minutes-20 minutes-60
    python benchmarks/quality.py page

`run` starts one `forerank train` for each data set and cell and writes NAME.CELL.json into
docs/measurements/quality. A cell that is measured already is left out, an interrupted one goes on where it
stopped. The first cell and a search within a time begin with an empty cache, so that their features count;
the other cells share one cache. `page` writes the table in docs/training.md from these files.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from forerank.console import say
from page_parts import replace_part

DOCS = Path(__file__).parent.parent / "docs"
RESULTS, PAGE = DOCS / "measurements" / "quality", DOCS / "training.md"
# Cell -> what stands behind `forerank train DATA`.
CELLS = {
    "first": [],
    "default": ["nmi=false", "--refit"],
    "best": ["nmi=false", "quality=best", "--refit"],
    "minutes-20": ["nmi=false", "--minutes", "20"],
    "minutes-60": ["nmi=false", "--minutes", "60"],
}


def measure_cell(name: str, source: str, cell: str, work: Path) -> dict[str, Any]:
    """Run the command of a cell and collect what it says."""
    run = work / f"{name}.{cell}"
    own_cache = cell == "first" or cell.startswith("minutes")
    cache = work / (f"cache-{name}.{cell}" if own_cache else "cache")
    command = [sys.executable, "-m", "forerank", "train", source, *CELLS[cell], "--run", str(run), "--json"]
    resumed, began = run.exists(), time.monotonic()
    done = subprocess.run(
        command,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "FORERANK_CACHE": str(cache)},
    )
    seconds = time.monotonic() - began
    results = json.loads(done.stdout)
    kept = ("recall@1", "recall@2", "recall@4", "recall@8", "map@r")
    return {
        "data": name,
        "cell": cell,
        "command": " ".join(["forerank train", name if name == source else name.upper(), *CELLS[cell]]),
        "seconds": round(seconds),
        "interrupted": resumed,  # then these are the seconds of the last start only
        "cache": "empty at the start" if own_cache else "shared by the other cells",
        "test": {row: {key: of[key] for key in kept if key in of} for row, of in results["test"].items()},
        "kept": results["kept"],
        "validation": results["validation"],
        "catalogue": results["catalogue"],
        "words": [text.replace(str(run), "RUN") for text in results["words"]["which"]],
        "chosen": chosen_values(run),
        "classes": {"all": results["catalogue"]["classes"]} if results["catalogue"] else {},
        "refit": refit_sentence(run),
        "versions": {k: v for k, v in results["versions"].items() if k != "platform"},
        "processor_cores": os.cpu_count(),
    }


def refit_sentence(run: Path) -> str | None:
    """What the training on all classes says; None where there was none because training did not help."""
    file = run / "refit" / "results.json"
    return json.loads(file.read_text(encoding="utf-8"))["words"]["sentence"] if file.exists() else None


def chosen_values(run: Path) -> dict[str, Any]:
    """What the run was trained with, in the recipe's words."""
    recipe = yaml.safe_load((run / "recipe.yaml").read_text(encoding="utf-8"))
    model = json.loads((run / "best" / "model.json").read_text(encoding="utf-8"))
    return {
        "backbone": model["backbone"],
        "first network tuned": Path(recipe["model"]["backbone"]).is_absolute(),
        "dimensions": model["embedding_dim"],
        "loss": recipe["loss"]["name"],
        "lr": recipe["optimiser"]["lr"],
        "head_start": recipe["model"]["head_start"],
        "shrinkage": recipe["model"]["shrinkage"],
        "mode": recipe["mode"],
    }


def page_text(measured: Sequence[Mapping[str, Any]]) -> str:
    """The tables in Markdown."""
    columns = [
        "data",
        "command",
        "zero-shot",
        "whitened",
        "final",
        "mAP@R before and after",
        "whole catalogue",
        "minutes (threads)",
        "chosen",
    ]
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for one in measured:
        rows, last = one["test"], one["test"]["trained"]
        before = "pixels" if "pixels" in rows else "zero-shot"  # a network without weights has no zero-shot
        started = f"{100 * rows[before]['recall@1']:.1f}{' (pixels)' if before == 'pixels' else ''}"
        catalogue = one["catalogue"]
        c = one["chosen"]
        tuned = ", the first network trained" if c["first network tuned"] else ""
        what = c["backbone"].replace("efficientnet-", "") + tuned
        taken = "chosen by validation" if c["head_start"] == "auto" else c["head_start"]
        told = f"{what}; {c['loss']}; lr {c['lr']:.2g}; start: {taken}"
        if one["kept"]:
            told = f"{what}; nothing trained was better on validation: {one['kept']} kept"
        whitened = f"{100 * rows['whitened']['recall@1']:.1f}" if "whitened" in rows else "–"
        lines.append(
            f"| {one['data']} | `{one['command']}` | {started} | {whitened} | "
            f"**{100 * last['recall@1']:.1f}** | "
            f"{100 * rows[before]['map@r']:.1f}, {100 * last['map@r']:.1f} | "
            f"{100 * catalogue['recall@1']:.1f} | "
            f"{one['seconds'] / 60:.1f} ({one['versions']['threads']}) | {told} |"
        )
    return "\n".join(lines) + "\n"


def measured_cells() -> list[dict[str, Any]]:
    """All results, by data set and in the order of the cells."""
    results = [json.loads(file.read_text(encoding="utf-8")) for file in sorted(RESULTS.glob("*.json"))]
    order = list(CELLS)
    return sorted(results, key=lambda one: (one["data"], order.index(one["cell"])))


def page_with_table(page: str) -> str:
    """The page with its part written anew."""
    return replace_part(page, "quality.py", page_text(measured_cells()))


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure cells or write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["run", "page"])
    parser.add_argument("data", nargs="*", help="NAME=FOLDER, or NAME=RECIPE")
    parser.add_argument("--cells", nargs="+", choices=list(CELLS), default=["default", "best"])
    parser.add_argument("--work", type=Path, default=Path("runs/quality"), help="for run folders and caches")
    options = parser.parse_args(arguments)
    if options.what == "page":
        PAGE.write_text(page_with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
        return
    RESULTS.mkdir(parents=True, exist_ok=True)
    for text in options.data:
        name, _, source = text.partition("=")
        for cell in options.cells:
            file = RESULTS / f"{name}.{cell}.json"
            if file.exists():
                say(f"{file.name} is measured already")
                continue
            if source == "glyphs" and cell == "best":
                continue  # its recipe has one backbone, which is trained from nothing
            say(f"{name}, {cell}")
            result = measure_cell(name, source, cell, options.work)
            file.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
