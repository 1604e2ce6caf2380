"""Fixtures: the generated Python client, and a running service for the tests of clients."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from service.cli.demo_data import write_tables
from tests.clients.generated import generate_python_client
from tests.support.production import Production, running_production
from tests.support.tables import write_orders

REPORTS = 10_000

_services = ExitStack()
"""The service of `production`, while it runs."""


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> None:
    """Stops the service after the last test of this folder: an idle one takes processor time from the other tests."""
    if nextitem is None or not nextitem.path.is_relative_to(Path(__file__).parent):
        _services.close()


@pytest.fixture(scope="session")
def python_client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The directory of the generated package, which can be imported during the tests."""
    project = generate_python_client(tmp_path_factory.mktemp("python-client"))
    sys.path.insert(0, str(project))
    yield project
    sys.path.remove(str(project))


@pytest.fixture(scope="session")
def production(tmp_path_factory: pytest.TempPathFactory) -> Production:
    """An API that requires keys, and a worker, with the tables of the demo and of `tests.support.tables`."""
    directory = tmp_path_factory.mktemp("clients")
    settings = {"EVENKEEL_API_AUTHENTICATION": "on"}
    running = _services.enter_context(running_production(directory, None, apis=1, workers=1, environment=settings))
    write_tables(running.data, reports=REPORTS)
    write_orders(running.data)
    return running
