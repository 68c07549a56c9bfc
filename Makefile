# `make quickstart` and `make test` need only Python 3.11 or newer, pip and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: help quickstart test lint benchmark docs clean
help:
	@echo "make quickstart   train on embedded images, measure, compare, and write a page to look at"
	@echo "make test         lint, type check and every test"
	@echo "make benchmark    BYOV over BYOL: step time, compile time, memory; draws over forward passes"
	@echo "make docs         build the documentation into site/"
	@echo "make clean        remove the environment and the caches"

quickstart: $(VENV)/.runtime
	$(BIN)/python -m experiments.quickstart

test: lint
	$(BIN)/python -m pytest -n auto --maxprocesses=4 --dist loadfile

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

benchmark: $(VENV)/.runtime
	$(BIN)/python -m benchmarks.step
	$(BIN)/python -m benchmarks.predictive

docs: $(VENV)/.runtime
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[docs]'
	$(BIN)/mkdocs build --strict

# The environment is made when it is missing or when the requirements changed, and not otherwise.
$(VENV)/.runtime: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "byov_jax needs Python 3.11 or newer; name one with: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	@touch $@

$(VENV)/.dev: $(VENV)/.runtime
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis
