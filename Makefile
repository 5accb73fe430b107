# Two commands for a fresh clone: `make demo` and `make test`. Each makes .venv once.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test lowest lint types clean

.venv/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

demo: .venv/.ready
	$(BIN)/sift demo

test: .venv/.ready
	$(BIN)/python -m pytest -n 2

# The integrations with the lowest versions that pyproject.toml declares.
lowest:
	$(PYTHON) -m venv .venv-lowest
	.venv-lowest/bin/pip install --quiet -c constraints-lowest.txt -e '.[dev]'
	.venv-lowest/bin/python -m pytest -n 2 tests/integrations tests/test_examples.py

lint: .venv/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/.ready
	$(BIN)/mypy

clean:
	rm -rf .venv .venv-lowest build dist .pytest_cache .ruff_cache .mypy_cache
