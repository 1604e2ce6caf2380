"""An installation of which tests make backups."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from service.store.session import Database


@dataclass(frozen=True)
class Installation:
    """A database and its results."""

    database: Database
    results: Path
    tools: Path | None
    """Where `pg_dump` is."""
