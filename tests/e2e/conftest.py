"""One running service for all end-to-end tests that leave it as it was."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.service import Service, running_service
from tests.support.tables import write_endless, write_orders


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service with the tables of `tests.support.tables` in its data root."""
    with running_service(tmp_path_factory.mktemp("service")) as running:
        write_orders(running.data)
        write_endless(running.data)
        yield running
