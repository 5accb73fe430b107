# Two commands for a fresh clone: `make demo` and `make test`. Each makes .venv once.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test docs fuzz chaos lowest lint types clean

.venv/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

demo: .venv/.ready
	$(BIN)/sift demo

test: .venv/.ready
	$(BIN)/python -m pytest -n 2

# Generated cases by the hundred thousand; goes on where it was stopped. A few hundred of each kind run in
# `make test`.
fuzz: .venv/.ready
	$(BIN)/python -W ignore -m tests.fuzz --examples 100000 --out $(or $(OUT),.fuzz) $(if $(SEED),--seed $(SEED))

# Runs killed, files damaged and writes failed by the hundred; goes on where it was stopped. A part is in
# `make test`.
chaos: .venv/.ready
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.chaos --out $(or $(OUT),.chaos) $(if $(SEED),--seed $(SEED))
	$(BIN)/python -m tests.report.fuzz --out $(or $(OUT),.chaos) $(if $(CASES),--cases $(CASES))

# The integrations with the lowest versions that pyproject.toml declares.
lowest:
	$(PYTHON) -m venv .venv-lowest
	.venv-lowest/bin/pip install --quiet -c constraints-lowest.txt -e '.[dev]'
	.venv-lowest/bin/python -m pytest -n 2 tests/integrations tests/test_examples.py

# The documentation site, into site/: strict about links, anchors and arguments; nothing is fetched.
docs: .venv/.ready
	$(BIN)/python tools/draw_map.py --check
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

lint: .venv/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/.ready
	$(BIN)/mypy

clean:
	rm -rf .venv .venv-lowest build dist site .pytest_cache .ruff_cache .mypy_cache
