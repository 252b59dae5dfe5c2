"""Every Python block of the documents runs, in order, in an empty folder; every file they name exists."""

import importlib
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from forerank.paper.claims import write_claims
from forerank.paper.pipeline import open_study

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", [p for p in PAGES if BLOCK.search(p.read_text())], ids=lambda p: p.name)
def test_python_blocks_run(page: Path, tmp_path: Path) -> None:
    script = tmp_path / "blocks.py"
    script.write_text("\n".join(BLOCK.findall(page.read_text())))
    done = subprocess.run([sys.executable, script.name], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_pictures_and_files_that_a_page_names_exist(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())
    assert [t for t in targets if not (page.parent / t).exists()] == []


def test_the_install_page_names_every_extra() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    listed = re.findall(r"^\| `(\w+)` \|", (ROOT / "docs" / "install.md").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(set(extras) - {"docs", "dev"})


@pytest.mark.parametrize("script", ["quality", "refit"])
def test_the_table_of_a_benchmark_is_the_one_of_its_measurements(
    script: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    benchmark = importlib.import_module(script)
    page = benchmark.PAGE.read_text(encoding="utf-8")
    assert benchmark.page_with_table(page) == page, f"run: python benchmarks/{script}.py page"


@pytest.mark.parametrize(("on", "page"), [("cub", "claims-cub.md"), ("glyphs", "claims.md")])
def test_the_claims_page_is_the_one_of_its_measurements(on: str, page: str, tmp_path: Path) -> None:
    study = open_study([], on=on, out=tmp_path, kept=ROOT / f"docs/measurements/paper/claims-{on}.json")
    write_claims(study)
    written, kept = (tmp_path / "claims.md").read_text(), (ROOT / "docs" / page).read_text()
    assert written == kept, f"run: forerank paper claims --on {on} --kept ... --to docs/{page}"


def test_the_verdicts_beside_the_first_ones_are_those_of_the_pages() -> None:
    row = re.compile(r"^\| (.+?) \| .+? \| ([a-z ]+) \|", re.MULTILINE)
    pages = [dict(row.findall((ROOT / "docs" / page).read_text())) for page in ("claims.md", "claims-cub.md")]
    table = (ROOT / "docs" / "paper.md").read_text().partition("### Against the first measurement")[2]
    table = table.partition("\n## ")[0].partition("|---|")[2]
    rows = re.findall(r"^\| (.+?) \| [^|]+ \| ([a-z ]+) \| ([a-z ]+) \| [^|]+ \|$", table, re.MULTILINE)
    assert len(rows) > 25
    for claim, *shown in rows:
        assert shown == [page.get(claim, "not asked") for page in pages], claim
