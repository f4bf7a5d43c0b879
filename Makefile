# `make demo` and `make test` do all the setup on a fresh machine; later calls start immediately.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test lint format docs browser clean

demo: $(VENV)/.base
	$(BIN)/unseen demo

# Three processes on two cores: tests of Flower's processes mostly wait.
test: $(VENV)/.dev browser
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 3 --dist worksteal

lint: $(VENV)/.dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

format: $(VENV)/.dev
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

# The documentation as a site in site/; a link that leads nowhere is an error.
docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.base: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing into $(VENV) (a minute or two, once) ..."
	$(PIP) -e .
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing with test tools into $(VENV) (a few minutes, once) ..."
	$(PIP) -e ".[dev]"
	@touch $@ $(VENV)/.base

$(VENV)/.docs: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing with the tools of the site into $(VENV) (a minute or two, once) ..."
	$(PIP) -e ".[docs]"
	@touch $@ $(VENV)/.base

# The tests of the report page use Debian's Chromium; where it cannot be installed they are skipped, with the reason.
browser:
	@command -v chromium >/dev/null && command -v chromedriver >/dev/null || { \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    echo "Installing Chromium for the tests of the report page ..."; \
	    (apt-get update -qq && apt-get install -y -qq chromium chromium-driver) >/dev/null 2>&1 \
	      || echo "Chromium could not be installed: its tests will be skipped"; \
	  else echo "Chromium is missing and cannot be installed without root: its tests will be skipped"; fi; }

clean:
	rm -rf $(VENV) demo runs site .pytest_cache .mypy_cache .ruff_cache
