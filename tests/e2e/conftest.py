"""One running service for all end-to-end tests that leave it as it was, and a browser on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser

from tests.support.browser import Tab, running_browser
from tests.support.production import Servers, running_servers
from tests.support.service import Service, running_service
from tests.support.tables import write_endless, write_orders

_services = ExitStack()
"""The service of `service`, while it runs."""


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> None:
    """Stops the service after the last test of this folder: an idle one takes processor time from the other tests."""
    if nextitem is None or not nextitem.path.is_relative_to(Path(__file__).parent):
        _services.close()


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Service:
    """A service with the tables of `tests.support.tables` in its data root."""
    running = _services.enter_context(running_service(tmp_path_factory.mktemp("service")))
    write_orders(running.data)
    write_endless(running.data)
    return running


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with running_browser() as started:
        yield started


@pytest.fixture
def open_tab(browser: Browser, service: Service) -> Iterator[Callable[..., Tab]]:
    """Opens tabs on the service; each is checked for faults at the end."""
    tabs: list[Tab] = []

    def open_one(**options: Any) -> Tab:
        tabs.append(Tab(browser, service.address, **options))
        return tabs[-1]

    yield open_one
    for tab in tabs:
        try:
            tab.check()
        finally:
            tab.close()


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Servers]:
    """A PostgreSQL and a Redis of the test's own."""
    with running_servers(tmp_path) as running:
        yield running
