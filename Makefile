# k3ctl: `make demo` for the main job on this machine, `make test` for the tests.
SHELL := /bin/bash
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
LAB    ?= inventories/lab
PYTEST := $(BIN)/python -m pytest
# Root is needed for the lab only. sudo keeps the caller's state folder, so that k3ctl itself can run as the caller.
SUDO   := $(if $(filter 0,$(shell id -u)),,sudo)

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

demo: $(VENV)/.ready ## create the lab (two hosts), take it to a served model, ask it something
	@$(BIN)/python -m k3ctl.commands.demo $(LAB)

test: packages $(VENV)/.ready ## everything: lint, types, unit, lab, Molecule, end to end (needs root for the lab)
	@$(MAKE) --no-print-directory check
	@$(SUDO) env "PATH=$(CURDIR)/$(BIN):$$PATH" CI=$(CI) $(PYTEST) tests/local tests/lab -v --durations=15 -p no:cacheprovider

check: lint types unit ## lint, types and unit tests, under a minute

lint: $(VENV)/.ready ## ruff, yamllint, ansible-lint, shellcheck
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check -q .
	@$(BIN)/yamllint -s .
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/ansible-lint -q --offline
	@if command -v shellcheck >/dev/null; then shellcheck .ci/run .ci/packages $$(git ls-files '*.sh'); fi

types: $(VENV)/.ready ## mypy, strict
	@$(BIN)/mypy

unit: $(VENV)/.ready ## unit tests
	@$(PYTEST) tests/unit -q -n auto

local: $(VENV)/.ready ## tests with real processes on this machine: sshd, the node agent, the hub
	@$(PYTEST) tests/local -q

check-engines: $(VENV)/.ready ## every rendered command line through the engines' own parsers (their environments are made once)
	@$(PYTEST) tests/engines -q

format: $(VENV)/.ready ## rewrite in house style
	@$(BIN)/ruff check -q --fix . ; $(BIN)/ruff format .

schema: $(VENV)/.ready ## regenerate docs/schema/ and docs/reference/
	@$(BIN)/python -m k3ctl.schemas
	@$(BIN)/python -m k3ctl.reference

lock: ## renew requirements.lock from pyproject.toml (needs uv)
	@uv pip compile -q pyproject.toml --extra dev --python-version 3.11 --no-header --no-annotate -o requirements.lock

packages: ## install the Debian packages that the tests need (root)
	@$(SUDO) .ci/packages

setup: $(VENV)/.ready ## make the virtual environment only

$(VENV)/.ready: requirements.lock pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "k3ctl needs Python 3.11 or newer: $(PYTHON) is not there (apt-get install python3 python3-venv)" >&2; exit 2; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "k3ctl needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) -V). Try: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 2; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "k3ctl needs Python's venv module: apt-get install python3-venv" >&2; exit 2; }
	@echo "setting up $(VENV) ..."
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install -q --disable-pip-version-check -r requirements.lock
	@$(BIN)/pip install -q --disable-pip-version-check --no-deps -e .
	@touch $@

clean: ## remove the virtual environment and tool caches (not the lab: k3ctl lab destroy)
	@rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .ansible build dist

.PHONY: help demo test check lint types unit check-engines local format schema lock packages setup clean
