# The two commands a newcomer needs are `make demo` and `make test`; both set up what is missing.

PYTHON ?=
DASHBOARD ?= 1
SEED ?= 0
NAME ?= generator
ARGS ?=

# Bytecode is compiled by first use, so it has to be kept.
unexport PYTHONDONTWRITEBYTECODE

# Of these the first that is new enough (3.11 has tomllib): the one asked for, the environment's own, 3.11, others.
PYTHONS = $(PYTHON) .venv/bin/python python3.11 python3.12 python3.13 python3
RUN = .venv/bin

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-gpu lint types docs bench mutants clean

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## */\t/' | awk -F '\t' '{printf "  make %-8s %s\n", $$1, $$2}'

setup:  ## make .venv and install the locked packages (HEADRACE_DEVICE=cpu|cuda forces the lock)
	@for python in $(PYTHONS); do \
	  if $$python -c 'import tomllib' 2>/dev/null; then exec $$python scripts/setup.py; fi; \
	done; echo "[setup] no Python 3.11 or newer: install python3.11, or name one with make setup PYTHON=/path/to/python3.11" >&2; exit 2

demo: setup  ## train the quickstart and show it live (DASHBOARD=0 without the page, SEED=n)
	@$(RUN)/headrace train recipes/quickstart.toml seed=$(SEED) \
	  dashboard.enabled=$(if $(filter 0,$(DASHBOARD)),false,true) $(ARGS)

test: setup  ## lint, types, import fences and the whole test suite
	@scripts/check.sh $(ARGS)

test-gpu: setup  ## what needs NVIDIA GPUs: the tests marked gpu, then speed and memory of the learner
	@OMP_NUM_THREADS=1 $(RUN)/pytest -q -rfEsp -m gpu $(ARGS)
	@if $(RUN)/python -c 'import sys; from headrace.host.hardware import has_gpu; sys.exit(not has_gpu())'; then \
	  $(RUN)/headrace bench gpu --size 0.5b && $(RUN)/headrace bench gpu --size 1.5b --repeats 1; \
	else echo "no GPU that torch can use: the learner is not measured"; fi

lint: setup  ## ruff and import-linter
	@$(RUN)/ruff check . && $(RUN)/ruff format --check . && $(RUN)/lint-imports --no-logo

types: setup  ## mypy
	@$(RUN)/mypy

docs: setup  ## check the links of the documentation and its generated pages
	@$(RUN)/python scripts/docs.py

bench: setup  ## one benchmark: make bench NAME=generator (all names: headrace bench)
	@$(RUN)/headrace bench $(NAME) $(ARGS)

# Names are modules; `make mutants` alone goes on where it was. The same draws every time.
mutants: setup  ## wrong changes of the mathematics that no test notices (ARGS=learner.algorithms.ratios)
	@CI=1 OMP_NUM_THREADS=1 $(RUN)/mutmut run $(addsuffix .*,$(ARGS)) && $(RUN)/mutmut results

clean:  ## remove build products and tool caches; .venv, .cache and runs stay
	@rm -rf build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis mutants
	@find . -path ./.venv -prune -o -name __pycache__ -type d -print0 | xargs -0 rm -rf
