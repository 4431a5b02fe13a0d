# Each target sets up what it needs. `make help` lists them.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/ready
export PREFECT_SERVER_ANALYTICS_ENABLED := false
export DO_NOT_TRACK := true
export MLFLOW_DISABLE_TELEMETRY := true
export DVC_NO_ANALYTICS := 1
export OMP_NUM_THREADS ?= 1

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow check bench ui up down

help: ## what there is
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /: /'

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14) and "Python 3.11, 3.12 or 3.13 is needed; try: make PYTHON=python3.11")'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip --version > /dev/null 2>&1 || $(BIN)/python -m ensurepip # an environment that was half made
	$(BIN)/python -m pip install --quiet --no-compile --requirement constraints.txt
	$(BIN)/python -m compileall -qq -j 0 .venv/lib || true # on all processors; some packages hold files that are no Python
	touch $(READY)

demo: $(READY) ## the whole pipeline on the embedded default; prints the table and where the report is
	$(BIN)/python -m flows.pipeline --local --jobs 2

test: $(READY) ## the tests without the slow ones; ARGS="-k parity" is passed on
	$(BIN)/python -m pytest -q -m "not slow" -n 2 --dist loadfile --no-loadscope-reorder $(ARGS)

test-slow: $(READY) ## the tests that take minutes
	$(BIN)/python -m pytest -q -m slow $(ARGS)

check: $(READY) ## lint, format, types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

.venv/bench-ready: $(READY) benchmarks/requirements.txt
	$(BIN)/python -m pip install --quiet --no-deps --requirement benchmarks/requirements.txt
	touch $@

bench: .venv/bench-ready ## our speed beside what a user would pick instead, about ten minutes; ARGS="bert --rounds 20" is passed on
	TOKENIZERS_PARALLELISM=false RAYON_NUM_THREADS=1 $(BIN)/python -W ignore -m benchmarks.speed $(ARGS)

ui: $(READY) ## MLflow and Prefect on loopback
	$(BIN)/python -m flows.servers ui

up: $(READY) ## a Prefect server, the pools, the deployments and a worker a pool, on loopback
	$(BIN)/python -m flows.servers up

down: $(READY) ## end all that `up` and `ui` started
	$(BIN)/python -m flows.servers down
