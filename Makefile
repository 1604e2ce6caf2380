# Run README.md's test command first: it creates the environment.
PYTHON ?= .venv/bin/python

.PHONY: lint quick test test-all full coverage docs generate client bench run
lint:
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m mypy
	$(PYTHON) -m tests.lint

# Tests without Spark and servers.
quick:
	$(PYTHON) -m pytest -n 2 -m quick tests/service tests/workers tests/sql tests/golden tests/architecture tests/docs --ignore tests/service/api --ignore tests/service/cli

# All tests except the slow tier.
test:
	$(PYTHON) -m pytest -n 2 --dist loadfile --no-loadscope-reorder

# All tests.
test-all: test quick
	$(PYTHON) -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m "slow or property" --hypothesis-profile=random

# All tests with all their parameters, and with the full number of faults and requests of the documentation's tables.
full: export EVENKEEL_TEST_FULL = 1
full: test
	$(PYTHON) -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m "slow or property" --hypothesis-profile=random

# Branch coverage of all tests, including the processes that they start.
coverage:
	$(PYTHON) -m pytest -n 2 --dist loadfile --no-loadscope-reorder --cov --cov-report=
	$(PYTHON) -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m slow --cov --cov-append

# The documentation, in build/site. A broken link is an error.
docs:
	$(PYTHON) -m mkdocs build --strict

# The documents and tables that are generated from the code.
generate:
	$(PYTHON) -m service.cli openapi -o openapi.yaml
	$(PYTHON) -m docs.tables --write
	$(PYTHON) -m docs.rules --write

# The wheel of the Python client, in dist.
client:
	$(PYTHON) -m pip wheel --no-deps --wheel-dir dist service/client

# Some minutes; docs/explanation/benchmarks.md has the other benchmarks.
bench:
	$(PYTHON) tests/benchmarks/planning.py --joins 5,10,20
	$(PYTHON) tests/benchmarks/job_latency.py

# A service on this machine, until Ctrl-C.
run:
	$(PYTHON) -m service.cli up
