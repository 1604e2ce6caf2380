"""The generated Python client, and one running service for all that clients do to it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.cli.demo.data import write_tables
from tests.clients.generated import generate_python_client
from tests.support.production import Production, running_production
from tests.support.tables import write_orders

REPORTS = 10_000


@pytest.fixture(scope="session")
def python_client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where the generated package lies; it can be imported meanwhile."""
    project = generate_python_client(tmp_path_factory.mktemp("python-client"))
    sys.path.insert(0, str(project))
    yield project
    sys.path.remove(str(project))


@pytest.fixture(scope="session")
def production(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Production]:
    """An API that asks for keys, and a worker, with the demo's tables and those of `tests.support.tables`."""
    directory = tmp_path_factory.mktemp("clients")
    settings = {"EVENKEEL_API_AUTHENTICATION": "on"}
    with running_production(directory, None, apis=1, workers=1, environment=settings) as running:
        write_tables(running.data, reports=REPORTS)
        write_orders(running.data)
        yield running
