# `make quickstart` and `make test` need only Python 3.11 or newer, pip and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

# The tests that compile little: what a developer runs between two edits.
FAST := tests/test_package.py tests/bayes tests/images tests/data/sources tests/data/loading/test_order.py \
  tests/data/test_dataset.py tests/data/test_registry.py tests/checkpoints tests/evaluation/metrics \
  tests/methods/test_schedules.py tests/methods/test_teacher.py tests/training/test_config.py \
  tests/training/test_build.py tests/training/test_run_directory.py tests/training/test_metrics_log.py \
  tests/cli/test_flags.py tests/planner/test_hlo.py tests/report/test_aggregate.py tests/report/test_formatting.py

.PHONY: help quickstart test test-fast lint benchmark docs clean
help:
	@echo "make quickstart   train on embedded images, measure, compare, and write a page to look at"
	@echo "make test         lint, type check and every test"
	@echo "make test-fast    lint, type check and the tests that take no long compilation, in two minutes"
	@echo "make benchmark    BYOV over BYOL: step time, compile time, memory; draws over forward passes"
	@echo "make docs         build the documentation into site/"
	@echo "make clean        remove the environment and the caches"

quickstart: $(VENV)/.runtime
	$(BIN)/python -m experiments.quickstart

test: lint
	$(BIN)/python -m pytest -n auto --maxprocesses=4 --dist loadfile

test-fast: lint
	$(BIN)/python -m pytest -n auto --maxprocesses=4 --dist loadfile -m "not slow" -q --durations=0 $(FAST)

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
