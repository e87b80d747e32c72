# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
WORKERS ?= 2

.PHONY: demo test setup lint types spelling unit clean

demo: setup
	$(BIN)/maxsep demo

test: lint types spelling unit

setup: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml constraints/cpu.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints/cpu.txt --editable ".[dev]"
	touch $@

lint: setup
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: setup
	$(BIN)/mypy

spelling: setup
	$(BIN)/codespell

unit: setup
	$(BIN)/pytest --numprocesses $(WORKERS) --dist loadfile

clean:
	rm -rf $(VENV) runs demo .pytest_cache .mypy_cache .ruff_cache .hypothesis
