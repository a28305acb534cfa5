# Every verb makes its own virtual environment in .venv; nothing else need be installed than make and
# Python 3.11 or newer. Another interpreter: make PYTHON=/path/to/python3 test

# Tests, demo and bench start hundreds of interpreters: each would compile the package anew.
unexport PYTHONDONTWRITEBYTECODE

PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
  $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; exit; }; done; echo none)
BIN   := .venv/bin
READY := .venv/.ready
# Two workers: the tests start processes of their own, and more of them only wait for one disk.
WORKERS ?= 2
SEED  ?= 1

.PHONY: help demo test check fmt sim bench invariants docs ci clean

help:
	@echo 'make demo        a real workflow, killed again and again, with nothing lost or done twice'
	@echo 'make test        every test'
	@echo 'make check       format, lint, types, import contracts, house rules'
	@echo 'make fmt         put the code into shape'
	@echo 'make sim SEED=n  replay one simulated world'
	@echo 'make bench       measure, and print the numbers'
	@echo 'make invariants  which invariants a test carries, which come later, which are uncovered'
	@echo 'make docs        check the docs: examples, links, every public name'
	@echo 'make ci          what CI does, in a clean clone of the last commit'
	@echo 'make clean       remove what the other verbs made, .venv too'

$(READY): pyproject.toml
	@test '$(PYTHON)' != none || { echo 'Python 3.11 or newer is needed: make PYTHON=/path/to/python3' >&2; exit 1; }
	@echo 'making .venv with $(PYTHON) ...'
	@$(PYTHON) -m venv .venv || { echo 'no venv: on Debian and Ubuntu, apt install python3-venv' >&2; exit 1; }
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

demo: $(READY)
	@$(BIN)/python -m examples.orders

test: $(READY)
	@$(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal

check: $(READY)
	@$(BIN)/ruff format --check --quiet . || { echo 'not in shape: make fmt' >&2; exit 1; }
	@$(BIN)/ruff check --quiet .
	@$(BIN)/mypy src
	@$(BIN)/lint-imports --no-logo
	@$(BIN)/python -m pytest -q tests/test_tidy.py

fmt: $(READY)
	@$(BIN)/ruff format --quiet .
	@$(BIN)/ruff check --quiet --fix .

sim:
	@echo 'sim: there is no simulator yet. SEED=$(SEED) will name one world: many owners, faults, skewed' >&2
	@echo 'clocks, on a virtual clock (tallystick.testing.world), judged by tests/checker. Nothing was run.' >&2
	@exit 2

bench: $(READY)
	@$(BIN)/python bench/run.py

invariants: $(READY)
	@$(BIN)/python tests/invariants.py

docs: $(READY)
	@$(BIN)/python -m pytest -q tests/test_docs.py tests/test_package.py

# The clone is removed whatever happens; only what is committed is in it.
ci:
	@clone=$$(mktemp -d) && trap 'rm -rf "$$clone"' EXIT && git clone --quiet . "$$clone/tallystick" && \
	  CI=true bash "$$clone/tallystick/.ci/run"

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .coverage .coverage.* build dist
	find src tests bench examples -name __pycache__ -type d -prune -exec rm -rf {} +
