# Set-up and daily commands. `make demo` and `make test` work on a fresh clone with Python 3.11+, git and make:
# everything is installed into .venv, pinned by requirements.txt, and a second run starts at once.
SHELL := /bin/bash
.DEFAULT_GOAL := help

# A usable interpreter: the default one if it will do, else a newer one. `make PYTHON=… demo` names one.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys, ensurepip, venv; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null \
	&& { echo $$p; break; }; done)
UV_VERSION := 0.13.8
PIP_AUDIT_VERSION := 2.10.1
CYCLONEDX_VERSION := 7.2.1

VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
# The lock is complete, so nothing is left to resolve. pip could not: it takes no hash for a dependency with an extra.
UV_INSTALL := $(BIN)/uv pip install --quiet --system-certs --python $(BIN)/python --no-deps
PIP_INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check --no-deps
NODE_TORCH := $(VENV)/.node-torch
TEST_TORCH := $(VENV)/.test-torch

# Without bytecode each of the demo's processes would compile Airflow again, which takes longer than running it.
unexport PYTHONDONTWRITEBYTECODE
# `make test` leaves out what is not installed, and names it; .ci/run sets this to nothing, and goes without nothing.
ALLOW_MISSING ?= all
export ALLOW_MISSING TORCH_INDEX
# The services come first: one of them may be Python's venv module, which the environment needs.
.NOTPARALLEL:

.PHONY: help install images demo services services-slow test test-slow declarations reference docs figures schema wording lint lock audit sbom clean

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' Makefile | expand -t 16
	@echo '  make demo ARGS="--exit --seed 7" runs unattended; make test ARGS="tests/muster_demo -k table" runs some tests'

install: $(INSTALLED) ## the pinned environment in .venv

images: $(INSTALLED) ## renew the README's pictures from the mails of the last `make demo` (needs Chromium)
	@$(BIN)/python -m tests.docs.images $(ARGS)

demo: $(NODE_TORCH) ## the main job: a small fleet goes through its qualification; Ctrl-C ends it
	@$(BIN)/python -m muster_demo $(ARGS)

services:
	@tests/support/services.sh install

services-slow:
	@tests/support/services.sh install slow

# Much of the suite waits for servers that it starts: more processes than cores share it, a file at a time, the slow files
# first. With four, blocks and whole Airflows that begin at once keep two cores so busy that what is measured is no rate.
PROCESSES ?= 3
PYTEST := $(BIN)/python -m pytest --dist loadfile --no-loadscope-reorder
test: services $(TEST_TORCH) ## the tests of every room; as root on Debian it installs the services that they need
	@$(PYTEST) -n $(PROCESSES) -m "not slow" $(ARGS)

test-slow: services-slow $(TEST_TORCH) ## the unattended demo, Celery with failures, cluster chaos, containers, many seeds
	@FLEET_SHOTS="$${FLEET_SHOTS:-$(CURDIR)/.fleet-shots}" TIMES_EXAMPLES=3 $(PYTEST) \
		-n $(PROCESSES) -m "slow or many_examples" $(ARGS)

declarations: $(INSTALLED) ## renew validators/skus/probes.json from the probes' own declarations
	@$(BIN)/python -m muster_node probes --json | $(BIN)/python -m muster_criteria.sku_files.declarations

reference: $(INSTALLED) ## renew docs/reference from the code: commands, settings, metrics, read API, probes, rules
	@$(BIN)/python -m tests.docs.reference

docs: $(INSTALLED) ## the documentation as a site in site/, with a search, without internet
	@$(BIN)/mkdocs build --strict --quiet
	@echo "site/index.html; the search needs a web server: python3 -m http.server --directory site"

figures: $(INSTALLED) ## render docs/benchmarks.md and its lab book from the stored measurements (tests/bench/figures)
	@$(BIN)/python -m tests.bench.page

schema: $(INSTALLED) ## renew the tables of 1.0.0 and records of a fleet under it; not after its release
	@$(BIN)/python -m tests.muster.store.database.schema

wording: $(TEST_TORCH) ## renew the snapshots of messages, one a room (tests/*/__snapshots__)
	@$(BIN)/python -m pytest -q -k test_wording --snapshot-update

lint: $(INSTALLED) ## ruff, mypy, and the direction of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# The second file is what a controller in production installs: without the demo and the tools of development.
COMPILE := $(BIN)/uv pip compile pyproject.toml --universal --generate-hashes --no-emit-index-url --no-header --quiet
lock: $(INSTALLED) ## pin what pyproject.toml asks for, by version and hash
	$(COMPILE) --all-extras --group dev --output-file requirements.txt
	$(COMPILE) --extra celery --extra kubernetes --group build --constraint requirements.txt --output-file requirements-controller.txt

audit: $(INSTALLED) ## known vulnerabilities of what is pinned; fails if a package cannot be looked up
	$(BIN)/uv tool run pip-audit==$(PIP_AUDIT_VERSION) --requirement requirements.txt --disable-pip --strict

sbom: $(INSTALLED) ## what a controller in production installs, as CycloneDX 1.6 with hashes, in sbom.json
	$(BIN)/uv tool run --from cyclonedx-bom==$(CYCLONEDX_VERSION) cyclonedx-py requirements requirements-controller.txt \
		--pyproject pyproject.toml --output-reproducible --output-file sbom.json

clean: ## remove what was installed and generated
	rm -rf $(VENV) site sbom.json .demo .mypy_cache .ruff_cache .pytest_cache .hypothesis *.egg-info

# uv installs in seconds what takes pip minutes, but pip alone does it too.
$(INSTALLED): requirements.txt pyproject.toml
	@test -n "$(PYTHON)" || { echo "Muster needs Python 3.11, 3.12 or 3.13 with its venv module (Debian: python3-venv): \
	install one, or name it with make PYTHON=/path/to/python3" >&2; exit 1; }
	@echo "Installing the pinned environment into $(VENV) (about 500 MB, once)"
	@test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV)
	@$(BIN)/uv --version 2>/dev/null | grep -qF "uv $(UV_VERSION)" \
		|| $(BIN)/pip install -qqq --disable-pip-version-check uv==$(UV_VERSION) \
		|| echo "uv $(UV_VERSION) is not available here"
	@$(UV_INSTALL) --require-hashes -r requirements.txt \
		|| { echo "Installing with pip instead of uv, which takes longer"; $(PIP_INSTALL) --require-hashes -r requirements.txt; }
	@$(UV_INSTALL) --no-build-isolation -e . || $(PIP_INSTALL) --no-build-isolation -e .
	@touch $@

# PyTorch is the node's, not the controller's: any interpreter here that has it will do for the demo's nodes.
$(NODE_TORCH): $(INSTALLED)
	@$(BIN)/python -m muster_demo.pytorch
	@touch $@

# The tests run probes in their own process, so they need it in this environment.
$(TEST_TORCH): $(INSTALLED)
	@$(BIN)/python -m muster_demo.pytorch --here
	@touch $@
