"""Pooled connections: pinged only after they were idle, and not used if the server has ended them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.engine import Engine

from service.store.session import IDLE_SECONDS, check_on_checkout
from tests.support.databases import PostgresDatabases
from tests.support.servers import PostgresServer


class Watch:
    """A clock in seconds that tests set."""

    seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def watch() -> Watch:
    return Watch()


@pytest.fixture
def engine(postgres_databases: PostgresDatabases, watch: Watch) -> Iterator[Engine]:
    """Of one connection."""
    with postgres_databases.new() as url:
        engine = create_engine(url, pool_size=1, max_overflow=0)
        check_on_checkout(engine, watch)
        yield engine
        engine.dispose()


def process(engine: Engine) -> int:
    """Returns the id of the server's process."""
    with engine.connect() as connection:
        return int(connection.execute(text("SELECT pg_backend_pid()")).scalar_one())


def pings(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Every connection that is pinged from now on."""
    asked: list[object] = []
    ping = engine.dialect.do_ping

    def note(connection: object) -> bool:
        asked.append(connection)
        return bool(ping(connection))  # type: ignore[arg-type]

    monkeypatch.setattr(engine.dialect, "do_ping", note)
    return asked


def test_a_recently_used_connection_is_not_pinged(
    engine: Engine, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, asked = process(engine), pings(engine, monkeypatch)
    watch.seconds += IDLE_SECONDS
    assert (process(engine), len(asked)) == (first, 0)
    watch.seconds += 1.001 * IDLE_SECONDS
    assert (process(engine), len(asked)) == (first, 1)


@pytest.mark.parametrize("idle_seconds", [0.0, 10 * IDLE_SECONDS])
def test_a_connection_that_the_server_ended_is_not_used(
    engine: Engine, watch: Watch, postgres: PostgresServer, idle_seconds: float
) -> None:
    first = process(engine)
    postgres.end_connections(engine.url.database or "")
    watch.seconds += idle_seconds
    assert process(engine) != first


def test_a_connection_that_is_in_use_is_left_alone(engine: Engine) -> None:
    with closing(engine.connect()) as connection:
        assert connection.execute(text("SELECT 1")).scalar_one() == 1
        assert connection.execute(text("SELECT 2")).scalar_one() == 2
