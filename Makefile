# PYTHON creates .venv: a version that pyproject.toml names.
IN_RANGE := -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))'
PYTHON ?= $(shell for python in python3 python3.13 python3.12 python3.11; do \
	$$python $(IN_RANGE) 2>/dev/null && echo $$python && break; done)
VENV := .venv
BIN := $(VENV)/bin
CORE := $(VENV)/.core
INSTALLED := $(VENV)/.installed
# With its bytecode, also where the environment keeps none: the tests are compiled once, not in every run and process.
PYTEST := env -u PYTHONDONTWRITEBYTECODE $(BIN)/pytest
# Test processes.
JOBS ?= 2
ARGS ?=
PART ?=
SLOW_rest := not learn and not suites and not clusters
# Frameworks to compare with, each in its own environment; JAX_EXTRA=[cuda12] for an accelerator.
PEERS ?= rejax sbx
BENCH := .bench
JAX_EXTRA ?=

.DEFAULT_GOAL := help
.PHONY: help train install test test-slow smoke check format docs soak speedrun bench bench-peers bench-accelerator bench-aot constraints clean

help: ## list the targets
	@awk -F':.*## ' '/^[a-z-]+:.*## / { printf "%-18s%s\n", $$1, $$2 }' $(MAKEFILE_LIST)

$(CORE): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" && $(PYTHON) $(IN_RANGE) || \
		{ echo "stoix_like needs Python 3.11, 3.12 or 3.13: make install PYTHON=/path/to/python"; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet --constraint constraints.txt --editable .
	@touch $@

$(INSTALLED): $(CORE)
	@echo "installing every extra into $(VENV): 3.8 GB on the disk, some minutes"
	$(BIN)/pip install --constraint constraints.txt --editable '.[dev]'
	$(BIN)/pip install --quiet --no-deps kinetix-env==3.0.2
	@touch $@

train: $(CORE) ## train PPO on CartPole-v1; ARGS="env=gymnax/acrobot arch.seed=1" for something else
	$(BIN)/stoix-like train $(ARGS)

install: $(INSTALLED) ## create the development environment, .venv, with all extras

test: $(INSTALLED) ## run the quick tests; ARGS=tests/utils for some, ARGS=--cov for their coverage
	$(PYTEST) -n $(JOBS) --dist loadscope -m 'not slow' $(ARGS)

test-slow: $(INSTALLED) ## run the other tests, hours; PART=learn, suites or clusters for those alone, PART=rest for all others
	$(PYTEST) -n $(JOBS) --dist loadscope --durations=10 -m "slow$(if $(PART), and $(or $(SLOW_$(PART)),$(PART)))" $(ARGS)

smoke: $(INSTALLED) ## two updates of every system on every kind of environment, in a quarter of an hour; ARGS="--systems sac/ff_sac"
	$(BIN)/python scripts/smoke --jobs $(JOBS) $(ARGS)

check: $(INSTALLED) ## format, lint and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(INSTALLED) ## format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(INSTALLED) ## execute the tutorial, and build the documentation into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

soak: $(INSTALLED) ## kill, starve, damage and fuzz tiny runs and sweeps for ten minutes; ARGS="--minutes 60 --seed 1" for more
	$(BIN)/python scripts/soak $(ARGS)

speedrun: $(INSTALLED) ## train three tasks to a return, and print the seconds it took; ARGS="--seeds 3"
	$(BIN)/python scripts/speedrun.py $(ARGS)

bench: $(INSTALLED) ## measure speed, in minutes; ARGS="ppo_small --repeats 9" selects scenarios
	$(BIN)/python scripts/benchmark $(ARGS)

bench-peers: $(INSTALLED) $(PEERS:%=$(BENCH)/%/.installed) ## measure speed compared with rejax and sbx, on the same jax
	$(BIN)/python scripts/benchmark --peers $(BENCH) $(ARGS)

bench-accelerator: $(INSTALLED) $(BENCH)/rejax/.installed ## measure speed on an accelerator, and write its section of docs/benchmarks.md
	$(BIN)/pip install --quiet --constraint constraints.txt "jax$(JAX_EXTRA)"
	$(BIN)/python scripts/benchmark accelerator --repeats 3 --peers $(BENCH) --into docs/benchmarks.md $(ARGS)

bench-aot: $(INSTALLED) $(BENCH)/rejax/.installed $(BENCH)/aot/.installed ## count kernels on accelerators that are not in the machine, compared with rejax; ARGS=--check with the recorded counts
	PYTHONPATH=$(CURDIR)/$(BENCH)/aot $(BIN)/python scripts/benchmark/kernels.py --peers $(BENCH) --into docs/benchmarks.md $(ARGS)

$(BENCH)/aot/.installed: | $(INSTALLED)
	$(BIN)/pip install --quiet --no-deps --constraint constraints.txt --target $(@D) \
		jax-cuda12-pjrt jax-cuda12-plugin nvidia-cuda-nvcc-cu12 libtpu
	@touch $@

$(BENCH)/rejax/.installed: PACKAGES = rejax==0.1.3 gymnax==0.0.9
$(BENCH)/sbx/.installed: PACKAGES = sbx-rl
$(BENCH)/%/.installed: | $(INSTALLED)
	$(BIN)/python -m venv $(@D)
	$(@D)/bin/pip install --quiet $(PACKAGES) "jax$(JAX_EXTRA)==$$($(BIN)/python -c 'import jax; print(jax.__version__)')"
	@touch $@

constraints: ## update the pinned versions, for all platforms and Python versions
	$(BIN)/pip install --quiet uv
	$(BIN)/uv pip compile pyproject.toml --universal --all-extras --python-version 3.11 --upgrade \
		--no-header --no-annotate --quiet --output-file constraints.txt

clean: ## remove the environment and everything built
	rm -rf $(VENV) $(BENCH) build dist site *.egg-info .jax_cache .mypy_cache .pytest_cache .ruff_cache htmlcov .coverage
