# Two commands for a newcomer: `make train` and `make test`. Both set up what they need first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CONFIG ?=
SEED ?= 0
ARGS ?=

.PHONY: help setup train test lint typecheck lock bench clean

help:
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

setup: $(VENV)/.complete  ## create .venv with the locked dependencies; does nothing when that is done

# The stamp is written last: an installation that broke half way is done again.
$(VENV)/.complete: requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Tandem needs Python 3.11 or newer: make PYTHON=/path/to/python3.11 ..."; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	$(BIN)/python -m pip check
	touch $@

train: setup  ## run the main job: make train [SEED=1] [CONFIG=file.toml] [ARGS="key=value ..."]
	$(BIN)/tandem train $(CONFIG) seed=$(SEED) $(ARGS)

test: setup  ## run every test
	$(BIN)/python -m pytest $(ARGS)

lint: setup  ## ruff, import-linter, pyright
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/pyright

bench: setup  ## the three benchmarks
	$(BIN)/tandem bench env
	$(BIN)/tandem bench rollout
	$(BIN)/tandem bench learner

lock:  ## resolve the dependencies anew, in an environment of its own, into requirements.lock
	rm -rf $(VENV)-lock
	$(PYTHON) -m venv $(VENV)-lock
	$(VENV)-lock/bin/python -m pip install --quiet --editable '.[dev]'
	{ echo "# Written by 'make lock' from pyproject.toml; every package that Tandem's core and its tests install."; \
	  $(VENV)-lock/bin/python -m pip freeze --exclude-editable | sed 's/+cpu$$//'; } > requirements.lock
	rm -rf $(VENV)-lock

clean:
	rm -rf $(VENV) $(VENV)-lock dist .pytest_cache .ruff_cache .hypothesis
