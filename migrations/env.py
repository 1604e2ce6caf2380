"""Runs migrations on the connection of `service.store.migrate`. There is no alembic.ini."""

from __future__ import annotations

from alembic import context
from sqlalchemy.engine import Connection

from service.store.tables import Base


def run() -> None:
    """Applies the revisions that Alembic selects, on the caller's connection and in its transaction."""
    connection = context.config.attributes["connection"]
    if not isinstance(connection, Connection):
        raise TypeError("run migrations with service.store.migrate, which opens the connection")
    context.configure(
        connection=connection,
        target_metadata=Base.metadata,
        compare_type=True,
        compare_server_default=True,
        # SQLite cannot alter most columns and constraints in place: tables are copied.
        render_as_batch=connection.dialect.name == "sqlite",
        transactional_ddl=True,
    )
    context.run_migrations()


run()
