# The commands of this project. `make help` lists them; PYTHON=python3.12 picks an interpreter.

PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python -m
READY := $(VENV)/.installed
DOCS_READY := $(VENV)/.docs-installed
PIP := $(RUN) pip --disable-pip-version-check install -c constraints.txt

.PHONY: help demo test test-anywhere lint format types docs bench results dist clean distclean

help: ## list the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' Makefile

demo: $(READY) ## cluster handwritten digits and compare with baselines
	$(VENV)/bin/drpm cluster digits --compare --out out/demo

test: lint types ## run all checks: lint, format, types, doctests, tests
	$(RUN) pytest

test-anywhere: $(READY) ## run the tests with other instruction sets and under load (an hour)
	$(RUN) tests.anywhere

lint: $(READY) ## check style and formatting
	$(RUN) ruff check .
	$(RUN) ruff format --check .

format: $(READY) ## fix style and formatting
	$(RUN) ruff check --fix .
	$(RUN) ruff format .

types: $(READY) ## check the types in src
	$(RUN) mypy

docs: $(DOCS_READY) ## build the documentation site in out/site, run its tutorials, check its pages
	$(RUN) sphinx -W --keep-going -E -q -j 2 -b html docs out/site
	DRPM_SITE=out/site $(RUN) pytest -q tests/browser/test_site.py

bench: $(READY) ## measure time and memory on this device
	$(RUN) benchmarks

results: $(READY) ## update the tables and figures of the documents from the folder results
	$(RUN) drpm.cli.results_page results docs/results.md README.md

dist: $(READY) ## build wheel and sdist, and try the wheel in an empty environment
	$(RUN) tests.package

clean: ## remove caches, builds and the results of the demo
	rm -rf build dist out docs/drawn src/*.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -path ./$(VENV) -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean ## remove the virtual environment too
	rm -rf $(VENV)

# The virtual environment, made once and brought up to date when a dependency changes.
# setuptools comes first, at its pinned version, so that the package itself is built here and
# not in a second, hidden environment.
$(READY): pyproject.toml constraints.txt
	@$(RUN) pip --version >/dev/null 2>&1 || { \
	  command -v $(PYTHON) >/dev/null || \
	    { echo "drpm needs Python 3.11 or newer, and there is no $(PYTHON) here." >&2; exit 1; }; \
	  $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo "drpm needs Python 3.11 or newer, and $(PYTHON) is" \
	      "$$($(PYTHON) -V 2>&1): name another, as in 'make test PYTHON=python3.12'." >&2; exit 1; }; \
	  $(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
	    { echo "$(PYTHON) cannot make virtual environments:" \
	      "install its venv module (on Debian, 'apt install python3-venv')." >&2; exit 1; }; \
	  $(PYTHON) -m venv --clear $(VENV); }
	$(PIP) setuptools
	$(PIP) --no-build-isolation -e '.[dev]'
	@touch $@

# The tools of the documentation site, which only `make docs` needs.
$(DOCS_READY): $(READY)
	$(PIP) --no-build-isolation -e '.[docs]'
	@touch $@
