# make generate   set up this machine and generate text (ARGS="MODEL --prompt TEXT"; without a model: the embedded one)
# make test       lint, then the tests, with a share of the seeds and steps
# make test-all   all seeds and steps
# make demo-model train the embedded model again, examine it, put it in place (an hour or two; faster with a C++ compiler)
# make lint       style, types and floors
# make format     let ruff rewrite what it can

PYTHON ?= python3
WORKERS ?= 2
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
PINS := constraints/test.txt
CODE := src tests tools
INSTALL := $(BIN)/python -m pip install --disable-pip-version-check --quiet --constraint $(PINS)
# One thread a worker: two workers with two threads each would only wait for one another.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses $(WORKERS) --dist worksteal

.PHONY: generate test test-all demo-model lint format clean

generate: $(VENV)/.installed
	@$(BIN)/chairlift generate $(ARGS)

test: lint
	$(PYTEST)

test-all: lint
	CHAIRLIFT_FULL=1 $(PYTEST) --override-ini timeout=7200 --durations 20

demo-model: $(VENV)/.installed-test
	PYTHONPATH=tools $(BIN)/python -m demo_model build/demo-model --into src/chairlift/demo $(ARGS)

lint: $(VENV)/.installed-test
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

format: $(VENV)/.installed-test
	$(BIN)/ruff check --fix $(CODE)
	$(BIN)/ruff format $(CODE)

# What is installed hangs on these two files alone: the package itself is editable.
$(VENV)/.installed: pyproject.toml $(PINS) | $(VENV)/.made
	@echo "installing Chairlift into $(VENV)"
	@$(INSTALL) --editable .
	@touch $@

$(VENV)/.installed-test: pyproject.toml $(PINS) | $(VENV)/.made
	@echo "installing Chairlift and what its tests need into $(VENV)"
	@$(INSTALL) --editable '.[test]'
	@touch $(VENV)/.installed $@

$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("Chairlift needs Python 3.11 or newer; this one is " + sys.version.split()[0])'
	@$(PYTHON) -m venv $(VENV)
	@touch $@

clean:
	rm -rf $(VENV) .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache build dist
