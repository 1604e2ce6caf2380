"""Empty databases that are migrated already, one a test: copies of one that was migrated once a test run."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from service.store.migrate import upgrade
from service.store.session import Database
from tests.support.servers import PostgresServer

SQLITE = "sqlite"
POSTGRESQL = "postgresql"

_TEMPLATE = "migrated_template"


class SqliteDatabases:
    """Copies of a migrated file."""

    def __init__(self, directory: Path) -> None:
        self._template = directory / "template.db"
        _migrate(f"sqlite:///{self._template}")

    @contextmanager
    def new(self, directory: Path) -> Iterator[str]:
        """The URL of a new one, which is `state/evenkeel.db` below `directory`: where the default settings of a state
        directory `state` look for it."""
        path = directory / "state" / "evenkeel.db"
        path.parent.mkdir(exist_ok=True)
        shutil.copyfile(self._template, path)
        yield f"sqlite:///{path}"


class PostgresDatabases:
    """Clones of a migrated database of a server."""

    def __init__(self, server: PostgresServer) -> None:
        self._server = server
        self._numbers = itertools.count(1)
        _migrate(server.create_database(_TEMPLATE))

    @contextmanager
    def new(self) -> Iterator[str]:
        """The URL of a new one; dropped afterwards, whoever still uses it."""
        name = f"test_{next(self._numbers)}"
        url = self._server.create_database(name, _TEMPLATE)
        try:
            yield url
        finally:
            self._server.drop_database(name)


def _migrate(url: str) -> None:
    with closing(Database(url)) as database:
        upgrade(database)
