"""PostgreSQL ends statements that take too long, and cannot where it is itself stalled: its processes hang in a disk, a
virtual machine is paused. Its kernel still takes what is sent, so no option of TCP tells. Here connections give up."""

from __future__ import annotations

from collections.abc import Generator
from time import monotonic
from typing import Any, TypeVar

import psycopg
from sqlalchemy import Engine, event, text
from sqlalchemy.engine import Connection

T = TypeVar("T")


class BoundedConnection(psycopg.Connection[Any]):
    """Closes itself where an answer takes more than `seconds`, None for no limit; what waited for that gets an
    OperationalError."""

    seconds: float | None = None

    def wait(self, gen: Generator[Any, Any, T], *args: Any, **options: Any) -> T:
        """As psycopg's own, through which go all statements, commits and pings."""
        if self.seconds is None:
            return super().wait(gen, *args, **options)
        return super().wait(self._bounded(gen, self.seconds), *args, **options)

    def _bounded(self, gen: Generator[Any, Any, T], seconds: float) -> Generator[Any, Any, T]:
        deadline = monotonic() + seconds
        try:
            wanted = next(gen)
            while True:
                # Several times a second nothing is ready.
                ready = yield wanted
                if not ready and monotonic() >= deadline:
                    self.pgconn.finish()
                    raise psycopg.OperationalError(f"the server gave no answer for {seconds:g} s")
                wanted = gen.send(ready)
        except StopIteration as end:
            result: T = end.value
            return result


def bound(engine: Engine, seconds: float) -> None:
    """Lets no answer to a connection of the engine, which is one to PostgreSQL, take more than `seconds`."""

    def connect(_dialect: Any, _record: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> BoundedConnection:
        connection = BoundedConnection.connect(*arguments, **options)
        connection.seconds = seconds
        return connection

    def limit_again(connection: BoundedConnection | None, _record: Any) -> None:
        if connection is not None:
            connection.seconds = seconds

    event.listen(engine, "do_connect", connect)
    event.listen(engine, "checkin", limit_again)


def take_any_time(connection: Connection) -> None:
    """No statement of this transaction, on PostgreSQL, has a limit of time, neither there nor here."""
    connection.execute(text("SET LOCAL statement_timeout = 0"))
    raw = connection.connection.dbapi_connection
    if isinstance(raw, BoundedConnection):
        raw.seconds = None
