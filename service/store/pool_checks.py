"""Looks whether a pooled connection to PostgreSQL is still there before it is used.

A round trip for every use would be the dearest part of a poll. A server that ended a connection has said so: its last
words, or the end of the stream, wait to be read, which costs no round trip. One that vanished without a word is found
by asking, of connections that have rested a while.
"""

from __future__ import annotations

import select
from collections.abc import Callable
from time import monotonic
from typing import Any

from sqlalchemy import Engine, event
from sqlalchemy.exc import InvalidatePoolError

RESTED_SECONDS = 1.0
"""A connection that was used more lately is not asked."""

_RESTS_SINCE = "evenkeel_rests_since"


def check_before_use(engine: Engine, clock: Callable[[], float] = monotonic) -> None:
    """No transaction on the engine, which is one to PostgreSQL, begins with a connection known to be broken: it and all
    that were opened before are opened anew. `clock` gives seconds."""

    def rest(_connection: Any, record: Any) -> None:
        record.info[_RESTS_SINCE] = clock()

    def check(connection: Any, record: Any, _fairy: Any) -> None:
        rests_since = record.info.get(_RESTS_SINCE)
        if rests_since is None:
            return  # just opened
        if clock() - rests_since <= RESTED_SECONDS and not _has_something_to_say(connection):
            return
        if not _answers(engine, connection):
            raise InvalidatePoolError

    event.listen(engine, "checkin", rest)
    event.listen(engine, "checkout", check)


def _has_something_to_say(connection: Any) -> bool:
    """Whether anything came that nobody asked for: as a rule the news that the server ends the connection."""
    if connection.closed:
        return True
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    return bool(poll.poll(0))


def _answers(engine: Engine, connection: Any) -> bool:
    try:
        engine.dialect.do_ping(connection)
    except engine.dialect.loaded_dbapi.Error:
        # Whatever it was: a new connection tells what it is about, in the words of whoever asked for one.
        return False
    return True
