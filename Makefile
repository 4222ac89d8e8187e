# Two commands: `make demo` trains a small model in a minute, `make test` checks everything.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.PHONY: demo test test-fast check format clean
.DEFAULT_GOAL := demo

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[torch,dev]'
	touch $@

demo: $(INSTALLED)
	$(BIN)/conductor run examples/reverse/job.toml

test: check
	$(BIN)/pytest

test-fast: check
	$(BIN)/pytest -m 'not slow and not cluster'

check: $(INSTALLED)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/flake8-async --enable=ASYNC1,ASYNC2,ASYNC9 $$(find protocols conductor backends -name '*.py')
	$(BIN)/basedpyright
	$(BIN)/lint-imports

format: $(INSTALLED)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) runs
