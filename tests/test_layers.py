"""The import graph falls into the layers of pyproject.toml."""

from pathlib import Path

from importlinter import cli as importlinter_cli


def test_data_walks_one_way(monkeypatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[1])
    assert importlinter_cli.lint_imports(no_cache=True) == importlinter_cli.EXIT_STATUS_SUCCESS
