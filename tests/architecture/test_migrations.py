"""Expand, then contract: what a migration does to a schema that processes of the version before still work on.

A revision that only adds names the one before, and those which that one named, in `compatible_revisions`. One that
takes away or changes names fewer: processes of the versions that it leaves out must be gone before it is applied.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from alembic import command
from alembic.migration import MigrationContext
from alembic.operations import Operations
from alembic.script import Script, ScriptDirectory
from sqlalchemy import inspect, select

from service.store.migrate import alembic_config
from service.store.session import Database
from service.store.tables import CompatibleRevisionRow

ROOT = Path(__file__).parents[2]
SCRIPTS = ScriptDirectory(str(ROOT / "migrations"))
REVISIONS = list(SCRIPTS.walk_revisions())[::-1]

EXPANDS = (
    re.compile(r"CREATE TABLE (?P<table>\S+)"),
    re.compile(r"CREATE INDEX \S+ ON \S+"),
    # A row that an older version writes has no value for the column.
    re.compile(r"ALTER TABLE \S+ ADD COLUMN (?!.*\bNOT NULL\b)(?!.*\b(UNIQUE|CHECK|REFERENCES)\b)"),
    re.compile(r"ALTER TABLE \S+ ADD COLUMN (?=.*\bDEFAULT\b)(?=.*\bNOT NULL\b)(?!.*\b(UNIQUE|CHECK|REFERENCES)\b)"),
    re.compile(r"INSERT INTO compatible_revisions\b"),
    re.compile(r"DELETE FROM compatible_revisions\b"),
)


def statements(script: Script) -> Iterator[str]:
    """What the revision would send to PostgreSQL, each on one line."""
    written = io.StringIO()
    context = MigrationContext.configure(
        dialect_name="postgresql", opts={"as_sql": True, "output_buffer": written, "literal_binds": True}
    )
    with Operations.context(context):
        script.module.upgrade()
    for statement in written.getvalue().split(";\n"):
        if statement.strip():
            yield " ".join(statement.split())


def only_adds(found: list[str]) -> bool:
    """Whether code that knows nothing of these statements works on as before."""
    new = {match["table"] for text in found if (match := EXPANDS[0].match(text)) is not None}
    return all(
        any(pattern.match(text) for pattern in EXPANDS)
        # What a new table must fulfil binds nobody who does not know it.
        or any(re.match(rf"(CREATE UNIQUE INDEX \S+ ON|ALTER TABLE|INSERT INTO) {table}\b", text) for table in new)
        for text in found
    )


@pytest.fixture(scope="module")
def compatible(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """Which older revisions a database names that is at each revision."""
    found: dict[str, set[str]] = {}
    path = tmp_path_factory.mktemp("migrations") / "step by step.db"
    with closing(Database(f"sqlite:///{path}")) as database:
        for script in REVISIONS:
            with database.write() as session:
                command.upgrade(alembic_config(session.connection()), script.revision)
            with database.read() as session:
                names: set[str] = set()
                if inspect(session.connection()).has_table(CompatibleRevisionRow.__tablename__):
                    names = set(session.scalars(select(CompatibleRevisionRow.revision)))
                found[script.revision] = names
    return found


@pytest.mark.parametrize("script", REVISIONS, ids=lambda script: script.revision)
def test_a_revision_names_whom_it_leaves_working(script: Script, compatible: dict[str, set[str]]) -> None:
    before = script.down_revision
    assert before is None or isinstance(before, str), "revisions stand in one row"
    if before is None:
        assert compatible[script.revision] == set()
        return
    # What looks for its own name in the table came with 0002; code of 0001 refuses every newer revision.
    reachable = (compatible[before] | {before}) - {"0001"}
    if only_adds(list(statements(script))):
        assert compatible[script.revision] == reachable, "it only adds: whoever worked on the one before still does"
    else:
        assert compatible[script.revision] < reachable, "it takes away: name fewer, and say in its docstring which"


@pytest.mark.parametrize("script", REVISIONS, ids=lambda script: script.revision)
def test_a_revision_says_what_it_does_and_can_be_taken_back(script: Script) -> None:
    assert script.doc
    assert callable(script.module.downgrade)
    assert re.fullmatch(r"\d{4}", script.revision)


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TABLE a (id INTEGER NOT NULL, PRIMARY KEY (id))",
        "CREATE INDEX ix_a_b ON a (b)",
        "ALTER TABLE a ADD COLUMN b VARCHAR(3)",
        "ALTER TABLE a ADD COLUMN b INTEGER DEFAULT '1' NOT NULL",
        "INSERT INTO compatible_revisions (revision) VALUES ('0001')",
    ],
)
def test_what_adds(statement: str) -> None:
    assert only_adds([statement])


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE a ADD COLUMN b INTEGER NOT NULL",
        "ALTER TABLE a ADD COLUMN b INTEGER CHECK (b > 0)",
        "ALTER TABLE a ADD COLUMN b INTEGER REFERENCES c (id)",
        "ALTER TABLE a DROP COLUMN b",
        "ALTER TABLE a ALTER COLUMN b TYPE BIGINT",
        "ALTER TABLE a ALTER COLUMN b SET NOT NULL",
        "ALTER TABLE a RENAME COLUMN b TO c",
        "ALTER TABLE a ADD CONSTRAINT uq_a UNIQUE (b)",
        "CREATE UNIQUE INDEX ix_a ON a (b)",
        "DROP TABLE a",
        "DROP INDEX ix_a",
        "UPDATE a SET b = 1",
        "DELETE FROM a",
    ],
)
def test_what_takes_away_or_changes(statement: str) -> None:
    assert not only_adds(["CREATE TABLE other (id INTEGER)", statement])


def test_a_new_table_may_demand_what_it_likes() -> None:
    assert only_adds(
        [
            "CREATE TABLE a (id INTEGER)",
            "CREATE UNIQUE INDEX ix_a ON a (id)",
            "ALTER TABLE a ADD CONSTRAINT ck_a CHECK (id > 0)",
            "INSERT INTO a (id) VALUES (1)",
        ]
    )
