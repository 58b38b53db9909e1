# tauscope: `make help` lists the verbs. Two are enough to begin with: `make demo` and `make test`.

PYTHON ?= python3
VENV ?= .venv
# Installed before everything else, so that no other package's requirement picks a build for you.
# Any torch that pyproject.toml accepts will do: `make demo TORCH=torch`.
TORCH ?= torch==2.13.0
BIN := $(VENV)/bin
# One thread per process: two processes with two OpenMP threads each on two cores wait for one another.
export OMP_NUM_THREADS ?= 1
export TOKENIZERS_PARALLELISM ?= false
export HF_HUB_OFFLINE ?= 1

.DEFAULT_GOAL := help
.PHONY: help setup setup-dev demo test check format test-slow test-gpu soak bench clean

help: ## Show this list
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-20s %s\n", $$1, $$2}'

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip

$(VENV)/.services: pyproject.toml | $(BIN)/python
	@echo "Installing tauscope with both services into $(VENV) (a few minutes the first time)"
	$(BIN)/python -m pip install --quiet "$(TORCH)"
	$(BIN)/python -m pip install --quiet --editable '.[services]'
	@touch $@

$(VENV)/.dev: $(VENV)/.services
	$(BIN)/python -m pip install --quiet --editable '.[dev,report]'
	@touch $@

setup: $(VENV)/.services ## Install the client and both services into .venv

setup-dev: $(VENV)/.dev ## The same, with what the tests need

demo: $(VENV)/.services ## Start both services with the bundled models, evaluate two drafters, print the table, stop
	$(BIN)/python deploy/demo/demo.py

test: $(VENV)/.dev check ## Style, types, import contracts and the fast tests
	$(BIN)/python -m pytest

check: $(VENV)/.dev ## ruff, mypy and import contracts only
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.dev ## Format the code and sort the imports
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

test-slow: $(VENV)/.dev ## Simulations, trained examples, browser: many minutes
	$(BIN)/python -m pytest -m "slow and not gpu" --timeout 1800

test-gpu: $(VENV)/.dev ## Tests that need a CUDA device
	$(BIN)/python -m pytest -m gpu -W default --timeout 1800

soak: $(VENV)/.dev ## Load and fault tests on loopback, bounded in time
	$(BIN)/python -m pytest -m soak --timeout 1800

bench: $(VENV)/.dev ## Benchmarks: print ratios, assert no times
	$(BIN)/python -m pytest -m bench -s --timeout 1800

clean: ## Remove the environment and caches, not your runs
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist

-include tests/engines/engines.mk
-include tests/deploy/deploy.mk
