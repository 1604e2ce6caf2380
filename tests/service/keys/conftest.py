"""A database of either kind with a clock that a test sets."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from service.store.session import Database


class Now:
    """Milliseconds by the database's clock."""

    def __init__(self) -> None:
        self.ms = 1_700_000_000_000


@pytest.fixture
def now() -> Now:
    return Now()


@pytest.fixture
def database(database_url: str, now: Now) -> Iterator[Database]:
    with closing(Database(database_url, clock=lambda _: now.ms)) as database:
        yield database
