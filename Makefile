# Needs the environment that README.md's test command makes.
PYTHON ?= .venv/bin/python

.PHONY: lint quick coverage
lint:
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m mypy
	$(PYTHON) -m tests.lint

quick:
	$(PYTHON) -m pytest -n 2 -m quick tests/service tests/workers tests/sql tests/golden tests/architecture --ignore tests/service/api --ignore tests/service/cli

# Measures which branches the tests of all tiers take, also in the processes that they start.
coverage:
	$(PYTHON) -m pytest -n 2 --dist loadfile --no-loadscope-reorder --cov --cov-report=
	$(PYTHON) -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m slow --cov --cov-append
