"""An installation for tests of backups."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from service.store.session import Database


@dataclass(frozen=True)
class Installation:
    """A database and its directory of results."""

    database: Database
    results: Path
    tools: Path | None
    """The directory of `pg_dump`; None for SQLite."""
