"""Which databases a URL may name, and how it is told that it names none. No message repeats any part of a URL that may
be a password."""

from __future__ import annotations

import re

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_DRIVERS = {
    "postgres": "postgresql+psycopg",
    "postgresql": "postgresql+psycopg",
    "postgresql+psycopg": "postgresql+psycopg",
    "sqlite": "sqlite",
    "sqlite+pysqlite": "sqlite",
}
"""What may be given, and what SQLAlchemy is given for it: by itself it would take psycopg 2 for PostgreSQL."""

_EXAMPLES = "Write postgresql://user:password@host:5432/database, or sqlite:////path/to/file.db."

_UNREADABLE = (
    "the database's URL cannot be read: special characters in user and password are written as %XX, and the port is a "
    f"number. {_EXAMPLES}"
)


class DatabaseUrlError(ValueError):
    """A URL that names no database which this code can use; the message says what to write."""


def read_url(url: str) -> URL:
    """The parsed URL, with the driver that this code uses. Raises DatabaseUrlError."""
    scheme = _SCHEME.match(url)
    if scheme is None:
        raise DatabaseUrlError(f"the database's URL has no scheme. {_EXAMPLES}")
    driver = _DRIVERS.get(scheme[1].lower())
    if driver is None:
        raise DatabaseUrlError(
            f"the database's URL begins with {scheme[1]}:, which is neither PostgreSQL (with psycopg) nor SQLite. "
            f"{_EXAMPLES}"
        )
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        raise DatabaseUrlError(_UNREADABLE) from None
    if driver != "sqlite" and not parsed.database:
        raise DatabaseUrlError(f"the database's URL names no database. {_EXAMPLES}")
    return parsed.set(drivername=driver)
