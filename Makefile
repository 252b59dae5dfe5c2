# Two commands matter: `make demo` and `make test`. Both set up their own environment in .venv.
PYTHON ?= python3
# More arguments for pip, for example a proxy or an index of your own.
PIP_FLAGS ?=
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet $(PIP_FLAGS) --constraint constraints.txt

.PHONY: demo test test-long test-all lint format bench screenshots docs serve-docs sbom audit clean help
help: ## show this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

.venv/bin/python:
	$(PYTHON) -m venv .venv

# torch is named alone and first, so that pip takes the pinned CPU build and nothing newer.
.venv/user.stamp: pyproject.toml constraints.txt | .venv/bin/python
	@echo "Setting up .venv (once; a minute or two) ..."
	@$(PIP) torch
	@$(PIP) --editable '.[app]'
	@touch $@

.venv/dev.stamp: .venv/user.stamp
	@echo "Adding the development tools to .venv (once; a minute or two) ..."
	@$(PIP) --editable '.[dev]'
	@touch $@

demo: .venv/user.stamp ## train on the embedded glyphs, measure before and after, write report.html
	@$(BIN)/forerank demo
	@echo "First, so that this shell finds forerank: source .venv/bin/activate"

# tests/rooms.py says how long it takes and runs two rooms at a time.
test: .venv/dev.stamp ## run the tests: every promise once
	@rm -f .coverage .coverage.*
	@$(BIN)/python tests/rooms.py
	@$(BIN)/coverage combine --quiet --keep && $(BIN)/coverage report --skip-covered | tail -n 1

test-long: .venv/dev.stamp ## what is long by nature: campaigns, real Milvus, the wheel, the site, benchmarks, memory
	@$(BIN)/python tests/rooms.py --long
	@$(BIN)/coverage combine --quiet --keep && $(BIN)/coverage report --skip-covered

test-all: test test-long ## both

lint: .venv/dev.stamp ## ruff, mypy --strict, the layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: .venv/dev.stamp ## let ruff put the code in order
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Those that need no data and no server of yours; docs/performance.md lists all.
BENCHMARKS := loss evaluate evaluate_memory kmeans training pipeline embedding models search first_search map table streamed_index
bench: .venv/dev.stamp ## the benchmarks that need no data of yours, one after the other
	@for name in $(BENCHMARKS); do echo "== $$name"; $(BIN)/python benchmarks/$$name.py || exit 1; done

screenshots: .venv/dev.stamp ## take the pictures of docs/images again, in the browser tests (about five minutes)
	FORERANK_SCREENSHOTS=1 $(BIN)/python -m pytest -q -m browser tests/web tests/report tests/end_to_end/test_installed.py

docs: .venv/dev.stamp ## build the documentation into site/; a broken link or docstring is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict # --quiet would switch the strictness off
	@echo "site/index.html"

sbom: .venv/dev.stamp ## write a software bill of materials of the environment to sbom.json (CycloneDX)
	$(BIN)/cyclonedx-py environment --pyproject pyproject.toml --mc-type library --output-reproducible -o sbom.json .venv/bin/python

audit: .venv/dev.stamp ## compare the installed packages with the known weaknesses (needs the network)
	$(BIN)/pip-audit --strict --skip-editable

clean: ## remove the environment and everything built
	rm -rf .venv site sbom.json dist build .mypy_cache .ruff_cache .pytest_cache .coverage .coverage.*
