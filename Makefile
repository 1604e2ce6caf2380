# Needs the environment that README.md's test command makes.
PYTHON ?= .venv/bin/python

.PHONY: lint quick
lint:
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m mypy
	$(PYTHON) -m tests.lint

quick:
	$(PYTHON) -m pytest -n 2 -m quick tests/service tests/workers tests/sql tests/golden tests/architecture --ignore tests/service/api --ignore tests/service/cli
