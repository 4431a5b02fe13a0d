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
.PHONY: help demo test test-slow check kills bench ui up down

help: ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /: /'

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14) and "Python 3.11, 3.12 or 3.13 is needed; try: make PYTHON=python3.11")'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip --version > /dev/null 2>&1 || $(BIN)/python -m ensurepip # repairs an environment whose creation was interrupted
	$(BIN)/python -m pip install --quiet --no-compile --requirement constraints.txt
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable . # the command lineage
	$(BIN)/python -m compileall -qq -j 0 .venv/lib || true # on all processors; some packages contain .py files that do not compile
	touch $(READY)

demo: $(READY) ## run the demo study; print the table and the report's path
	$(BIN)/lineage run --jobs 2

test: $(READY) ## run the tests except the slow ones; ARGS="-k parity" is passed to pytest
	$(BIN)/python -m pytest -q -m "not slow" -n 2 --dist loadfile --no-loadscope-reorder $(ARGS)

test-slow: $(READY) ## run the tests that take minutes
	$(BIN)/python -m pytest -q -m slow $(ARGS)

check: $(READY) ## check lint, format and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

kills: $(READY) ## kill processes of a small study at random and compare its results, 40 minutes; ARGS="--kills 5 --seed 2"
	TOKENIZERS_PARALLELISM=false $(BIN)/python -m tests.helpers.kills $(ARGS)

.venv/bench-ready: $(READY) benchmarks/requirements.txt
	$(BIN)/python -m pip install --quiet --no-deps --requirement benchmarks/requirements.txt
	touch $@

bench: .venv/bench-ready ## compare our speed with other libraries, about ten minutes; ARGS="bert --rounds 20" is passed on
	TOKENIZERS_PARALLELISM=false RAYON_NUM_THREADS=1 $(BIN)/python -W ignore -m benchmarks.speed $(ARGS)

ui: $(READY) ## serve MLflow and Prefect on loopback
	$(BIN)/lineage ui

up: $(READY) ## start a Prefect server, its pools and deployments, and a worker for each pool, on loopback
	$(BIN)/lineage up

down: $(READY) ## stop everything that `up` and `ui` started
	$(BIN)/lineage down
