# Commands run in .venv, which the first target makes with PYTHON. Other environments: .venv-beam has Apache Beam, which
# needs older packages; .venv-peers4 has the older transformers, and TensorFlow; .venv-wheel has the packages of a user;
# .venv-3.12 and .venv-3.13 have the other Pythons, made with python3.12 and python3.13 on the PATH.
PYTHON ?= python3
# For example: make test PYTEST_FLAGS="-k stream" WORKERS=4
PYTEST_FLAGS ?=
WORKERS ?= 2

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help install tools quickstart test test-slow test-production test-peers test-peers4 test-aot test-beam test-wheel test-benchmarks test-ci test-pythons \
  mutants prove lint format bench docs constraints clean

BIN := .venv/bin
PYTEST := $(BIN)/pytest -q
PARALLEL := -n $(WORKERS) --dist worksteal --ignore=tests/peers --ignore=tests/aot --ignore=tests/beam --ignore=tests/wheel
INSTALL := $(BIN)/pip install --quiet --constraint constraints.txt --editable
# A stamp stands for an installation with the extras of its name; it is renewed when the versions change.
VERSIONS := pyproject.toml constraints.txt
SHELL_SCRIPTS := .ci/run $(wildcard launch/*.sh) launch/slurm.sbatch
# `make bench` leaves out benchmarks that need the TPU compiler (COMPILED), and benchmarks that need npm or hours (LONG).
COMPILED := attention kernel_schedule topologies
LONG := domain finetune languages molecules order_toy order_distributions optimizers translation
BENCHMARKS := $(filter-out benchmarks/_% $(patsubst %,benchmarks/%.py,$(COMPILED) $(LONG)),$(wildcard benchmarks/*.py))

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | expand -t 18

install: .venv/quickstart.stamp ## install the package and its example text into .venv

tools: .venv/dev.stamp ## install the development tools as well

.venv/created.stamp:
	$(PYTHON) -m venv .venv
	touch $@

.venv/quickstart.stamp: .venv/created.stamp $(VERSIONS)
	$(INSTALL) '.[quickstart]'
	touch $@

.venv/dev.stamp: .venv/created.stamp $(VERSIONS)
	$(INSTALL) '.[quickstart,dev]'
	touch .venv/quickstart.stamp $@

.venv/docs.stamp: .venv/created.stamp $(VERSIONS)
	$(INSTALL) '.[docs]'
	touch $@

.venv/peers.stamp: .venv/dev.stamp
	$(INSTALL) '.[quickstart,dev,peers]'
	touch $@

.venv/tpu.stamp: .venv/dev.stamp
	$(INSTALL) '.[quickstart,dev,tpu]'
	touch $@

.venv-beam/created.stamp:
	$(PYTHON) -m venv .venv-beam
	touch $@

.venv-beam/beam.stamp: .venv-beam/created.stamp pyproject.toml
	.venv-beam/bin/pip install --quiet --editable '.[quickstart,dev,beam]'
	touch $@

.venv-peers4/created.stamp:
	$(PYTHON) -m venv .venv-peers4
	touch $@

.venv-peers4/peers4.stamp: .venv-peers4/created.stamp pyproject.toml
	.venv-peers4/bin/pip install --quiet --editable '.[quickstart,dev,peers4,tf]'
	touch $@

.venv-3.%/dev.stamp: $(VERSIONS)
	python3.$* -m venv .venv-3.$*
	.venv-3.$*/bin/pip install --quiet --constraint constraints.txt --editable '.[quickstart,dev]'
	touch $@

# Installs the wheel, built from the sdist, and no other files of the checkout.
.venv-wheel/wheel.stamp: .venv/dev.stamp README.md $(shell find xlnet_jax configs -type f -not -name '*.pyc')
	rm -rf .venv-wheel
	$(PYTHON) -m venv .venv-wheel
	$(BIN)/python -m build --outdir .venv-wheel/dist > .venv-wheel/build.log
	.venv-wheel/bin/pip install --quiet --constraint constraints.txt "$$(echo .venv-wheel/dist/*.whl)[quickstart]"
	touch $@

# 0 seconds: nothing had to be installed.
quickstart: ## text in, a pretrained XLNet out, in about five minutes
	@seconds=0; \
	if ! $(MAKE) --no-print-directory --question .venv/quickstart.stamp; then \
	  began=$$(date +%s); \
	  $(MAKE) --no-print-directory .venv/quickstart.stamp; \
	  seconds=$$(( $$(date +%s) - began )); \
	fi; \
	XLNET_INSTALL_SECONDS=$$seconds $(BIN)/xlnet-jax quickstart

test: .venv/dev.stamp ## mathematics, data, and one case for each guarantee
	$(PYTEST) $(PARALLEL) -m "not slow and not prove" $(PYTEST_FLAGS)

# .ci/run runs these targets too. Tests that are compiled as in production are marked `production`; libtpu always has its
# production flags.
test-slow: .venv/dev.stamp ## one row for each kind of damage, several processes, more fuzzing
	$(PYTEST) $(PARALLEL) -m "slow and not production and not prove" $(PYTEST_FLAGS)

test-production: .venv/dev.stamp ## step, meshes, acceptance and kills, with the compiler flags of production
	XLNET_TEST_PRODUCTION=1 $(PYTEST) $(PARALLEL) -m "production and not prove" $(PYTEST_FLAGS)

test-peers: .venv/peers.stamp ## exports and the oracle against transformers and torch
	$(PYTEST) tests/peers -m "not prove" $(PYTEST_FLAGS)

# transformers 4 would choose TensorFlow for its pipelines, and refuses the Keras that comes with TensorFlow.
test-peers4: .venv-peers4/peers4.stamp ## exports and Transformer-XL against transformers 4.57, import from TensorFlow
	USE_TF=0 .venv-peers4/bin/pytest -q $(addprefix tests/peers/test_,$(addsuffix .py,huggingface model_card tensorflow tokenizers transformer_xl)) -m "not prove" $(PYTEST_FLAGS)

test-aot: .venv/tpu.stamp ## compilations for TPUs, with libtpu
	XLNET_TEST_PRODUCTION=1 $(PYTEST) tests/aot -m "not prove" $(PYTEST_FLAGS)

test-beam: .venv-beam/beam.stamp ## prepare on Apache Beam
	.venv-beam/bin/pytest -q tests/beam -m "not prove" $(PYTEST_FLAGS)

test-benchmarks: .venv/peers.stamp ## every script of benchmarks/ in its tiny form
	$(BIN)/python benchmarks/_tiny.py

test-wheel: .venv-wheel/wheel.stamp ## the quick start and the Python of README.md, with the wheel and without the checkout
	$(PYTEST) tests/wheel $(PYTEST_FLAGS)

test-ci: test test-slow test-production test-peers test-peers4 test-aot test-beam test-wheel test-benchmarks ## all of these, as .ci/run does

# These environments have the newest jax, which no longer supports Python 3.11.
test-pythons: .venv-3.12/dev.stamp .venv-3.13/dev.stamp ## `make test` with Python 3.12 and 3.13
	for python in 3.12 3.13; do \
	  .venv-$$python/bin/pytest -q $(PARALLEL) -m "not slow and not prove" $(PYTEST_FLAGS); \
	done

mutants: .venv/dev.stamp ## plant faults in a copy, one at a time, and check that the tests fail
	$(BIN)/python tests/mutants.py

prove: .venv/peers.stamp .venv/tpu.stamp .venv-peers4/peers4.stamp test-pythons ## before a release: mutants, chaos, full matrices, long fuzzing, all Pythons; hours
	$(BIN)/python tests/mutants.py --json
	$(BIN)/python tests/commands/fuzz_commands.py --count 200
	$(PYTEST) $(PARALLEL) -m "prove and not production" $(PYTEST_FLAGS)
	XLNET_TEST_PRODUCTION=1 $(PYTEST) $(PARALLEL) --ignore=tests/test_chaos.py -m "prove and production" $(PYTEST_FLAGS)
	XLNET_TEST_PRODUCTION=1 $(PYTEST) tests/aot tests/peers tests/test_chaos.py -m prove $(PYTEST_FLAGS)
	USE_TF=0 .venv-peers4/bin/pytest -q tests/peers/test_tokenizers.py -m prove $(PYTEST_FLAGS)

lint: .venv/dev.stamp ## ruff, format, types, shell scripts
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/basedpyright
	$(BIN)/shellcheck $(SHELL_SCRIPTS)

format: .venv/dev.stamp ## rewrite the code as lint wants it
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: .venv/peers.stamp ## run every benchmark that needs no TPU compiler; one JSON line each
	@test -n "$(BENCHMARKS)" || { echo "no benchmark found in benchmarks/" >&2; exit 1; }
	for script in $(BENCHMARKS); do $(BIN)/python $$script --json; done

docs: .venv/docs.stamp ## draw the figures, and build the site into site/
	$(BIN)/python docs/figures
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# One resolution for all Python versions; CUDA packages are removed, the header is kept.
constraints: .venv/created.stamp ## write constraints.txt with today's versions
	$(BIN)/pip install --quiet uv
	{ sed -n '/^#/p' constraints.txt; \
	  $(BIN)/uv pip compile pyproject.toml --universal --python-version 3.11 --no-header --no-annotate --quiet \
	    --extra tpu --extra quickstart --extra text --extra chemistry --extra wandb --extra dev --extra docs --extra peers \
	    | sed '/^\(nvidia\|cuda\)-/d; /^triton==/d'; \
	} > constraints.new
	mv constraints.new constraints.txt

clean: ## remove what tools leave behind; environments and runs/ stay
	rm -rf build dist site *.egg-info .pytest_cache .ruff_cache .hypothesis
	find . -path './.venv*' -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +
