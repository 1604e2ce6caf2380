# Run README.md's test command first: it creates the environment.
PYTHON ?= .venv/bin/python

.PHONY: lint quick full coverage docs
lint:
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m mypy
	$(PYTHON) -m tests.lint

# Tests without Spark and servers.
quick:
	$(PYTHON) -m pytest -n 2 -m quick tests/service tests/workers tests/sql tests/golden tests/architecture tests/docs --ignore tests/service/api --ignore tests/service/cli

# The slow tests, with the full number of faults and requests of the documentation's tables.
full: export EVENKEEL_TEST_FULL = 1
full:
	$(PYTHON) -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m "slow and not property"
	$(PYTHON) -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m property --hypothesis-profile=random

# Branch coverage of all tests, including the processes that they start.
coverage:
	$(PYTHON) -m pytest -n 2 --dist loadfile --no-loadscope-reorder --cov --cov-report=
	$(PYTHON) -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m slow --cov --cov-append

# The documentation, in build/site. A broken link is an error.
docs:
	$(PYTHON) -m mkdocs build --strict
