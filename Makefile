# Two commands for a fresh clone: `make demo` and `make test`. Each makes .venv once.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test lint types clean

.venv/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

demo: .venv/.ready
	$(BIN)/sift demo

test: .venv/.ready
	$(BIN)/python -m pytest -n 2

lint: .venv/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/.ready
	$(BIN)/mypy

clean:
	rm -rf .venv build dist .pytest_cache .ruff_cache .mypy_cache
