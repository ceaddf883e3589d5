# PYTHON creates .venv; any Python >= 3.11 works.
PYTHON ?= $(shell for python in python3 python3.13 python3.12 python3.11; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$python && break; done)
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
# Test processes.
JOBS ?= 2
ARGS ?=
# Frameworks to compare with, each in its own environment; JAX_EXTRA=[cuda12] for an accelerator.
PEERS ?= rejax sbx
BENCH := .bench
JAX_EXTRA ?=

.DEFAULT_GOAL := help
.PHONY: help install train test test-slow test-exhaustive test-suites test-learning coverage soak bench bench-peers bench-accelerator check docs format constraints clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 16

$(INSTALLED): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "stoix_like needs Python 3.11 or newer: make install PYTHON=/path/to/python"; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@

install: $(INSTALLED) ## create the development environment, .venv

train: $(INSTALLED) ## train PPO on CartPole-v1; ARGS="env=gymnax/acrobot arch.seed=1" for something else
	$(BIN)/stoix-like train $(ARGS)

test: $(INSTALLED) ## run the quick tests
	$(BIN)/pytest -n $(JOBS) --dist loadscope -m 'not learning and not slow and not exhaustive and not suites' $(ARGS)

test-slow: $(INSTALLED) ## run the tests that take long, or start many processes
	$(BIN)/pytest -n $(JOBS) --dist loadscope -m slow $(ARGS)

test-exhaustive: $(INSTALLED) ## run for every system what the slow tests run for one of a kind
	$(BIN)/pytest -n $(JOBS) -m exhaustive $(ARGS)

test-suites: $(INSTALLED) ## run the tests of every environment of the suites, tens of minutes
	$(BIN)/pytest -n $(JOBS) -m suites $(ARGS)

test-learning: $(INSTALLED) ## run the training runs that must reach a return
	$(BIN)/pytest -n $(JOBS) -m learning $(ARGS)

coverage: $(INSTALLED) ## measure the coverage of the quick tests; the report goes to htmlcov/
	$(BIN)/pytest -n $(JOBS) --dist loadscope -m 'not learning and not slow and not exhaustive and not suites' --cov --cov-report=term:skip-covered \
		--cov-report=html $(ARGS)

soak: $(INSTALLED) ## kill, starve, damage and fuzz tiny runs for ten minutes; ARGS="--minutes 60 --seed 1" for more
	$(BIN)/python scripts/soak.py $(ARGS)

bench: $(INSTALLED) ## measure speed, in minutes; ARGS="ppo_small --repeats 9" selects scenarios
	$(BIN)/python scripts/benchmark.py $(ARGS)

bench-peers: $(INSTALLED) $(PEERS:%=$(BENCH)/%/.installed) ## measure speed compared with rejax and sbx, on the same jax
	$(BIN)/python scripts/benchmark.py --peers $(BENCH) $(ARGS)

bench-accelerator: $(INSTALLED) $(BENCH)/rejax/.installed ## measure speed on an accelerator, and write its section of docs/benchmarks.md
	$(BIN)/pip install --quiet --constraint constraints.txt "jax$(JAX_EXTRA)"
	$(BIN)/python scripts/benchmark.py accelerator --repeats 3 --peers $(BENCH) --into docs/benchmarks.md $(ARGS)

$(BENCH)/rejax/.installed: PACKAGES = rejax==0.1.3 gymnax==0.0.9
$(BENCH)/sbx/.installed: PACKAGES = sbx-rl
$(BENCH)/%/.installed: | $(INSTALLED)
	$(BIN)/python -m venv $(@D)
	$(@D)/bin/pip install --quiet $(PACKAGES) "jax$(JAX_EXTRA)==$$($(BIN)/python -c 'import jax; print(jax.__version__)')"
	@touch $@

check: $(INSTALLED) ## format, lint and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

docs: $(INSTALLED) ## execute the tutorial, and build the documentation into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

format: $(INSTALLED) ## format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

constraints: ## update the pinned versions, for all platforms and Python versions
	$(BIN)/pip install --quiet uv
	$(BIN)/uv pip compile pyproject.toml --universal --all-extras --python-version 3.11 --upgrade \
		--no-header --no-annotate --quiet --output-file constraints.txt

clean: ## remove the environment and everything built
	rm -rf $(VENV) $(BENCH) build dist site *.egg-info .jax_cache .mypy_cache .pytest_cache .ruff_cache htmlcov .coverage
