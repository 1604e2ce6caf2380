"""Why the database cannot be used, in one line, and what to do about it."""

from __future__ import annotations

from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from service.store.faults import sqlstate
from service.store.migrate import SchemaMismatchError
from service.store.urls import DatabaseUrlError

WORTH_TELLING = (SQLAlchemyError, OSError, SchemaMismatchError, DatabaseUrlError)
"""What opening and asking a database may raise for reasons that its user can do something about."""

_URL = "EVENKEEL_DATABASE_URL"
_NOT_POSTGRESQL = f"What listens there seems not to be PostgreSQL: correct host and port in {_URL}."
_ADVICE: tuple[tuple[tuple[str, ...], str], ...] = (
    (
        ("password authentication failed", "no password supplied", 'role "'),
        f"Correct user and password in {_URL} (special characters as %XX), or EVENKEEL_DATABASE_PASSWORD.",
    ),
    (("pg_hba.conf",), "Let the server admit this user from this machine: its pg_hba.conf has no line for that."),
    (("does not exist",), f"Create the database (CREATE DATABASE …), or correct its name in {_URL}."),
    (("connection refused",), f"Start PostgreSQL, or correct host and port in {_URL}."),
    (("invalid response", "expected authentication request", "unsupported protocol"), _NOT_POSTGRESQL),
    (
        ("timeout expired", "server closed the connection"),
        f"Is it PostgreSQL that listens there, and does it take connections? Look at it, or correct {_URL}.",
    ),
    (("resolve host", "translate host name", "name or service"), f"Correct the host's name in {_URL}."),
    (
        ("too many clients", "remaining connection slots"),
        "Raise max_connections of the server, or run fewer processes.",
    ),
    (("permission denied",), "Make the user the owner of the database, or let it create tables in its schema."),
    (("unable to open database file",), f"Make its directory, writable for this user, or correct {_URL}."),
    (("file is not a database",), f"Move the file away, or correct {_URL}."),
    (("lock timeout",), "Somebody else is at a table for long, such as a backup: try again once that has ended."),
    (("readonly", "read-only"), "Make it writable for this user."),
)
"""What to do, by words of the driver's message; the first that fits."""

_OTHERWISE = f"Check {_URL}, or leave it unset for SQLite in the state directory."


def explain(error: Exception) -> tuple[str, str]:
    """What happened, and what to do about it; nothing where the first says that too."""
    if isinstance(error, SchemaMismatchError):
        return str(error), ""
    if isinstance(error, DatabaseUrlError):
        return str(error), f"Correct {_URL}."
    reason = _first_line(error)
    told = reason.lower()
    advice = next((advice for words, advice in _ADVICE if any(word in told for word in words)), _OTHERWISE)
    return f"the database cannot be used: {reason}", advice


def _first_line(error: Exception) -> str:
    cause = error.orig if isinstance(error, DBAPIError) else None
    lines = str(cause or error).strip().splitlines() or [type(error).__name__]
    state = sqlstate(error) if isinstance(error, DBAPIError) else ""
    return f"{lines[0]} ({state})" if state else lines[0]
