"""Tests that migrations declare which older versions can still use the schema (expand and contract).

A revision that only adds lists the previous revision, and those that it listed, in `compatible_revisions`. A revision
that removes or changes something lists fewer: processes of the missing versions must be stopped before it is applied.
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
    # A row of an older version has no value for the column.
    re.compile(r"ALTER TABLE \S+ ADD COLUMN (?!.*\bNOT NULL\b)(?!.*\b(UNIQUE|CHECK|REFERENCES)\b)"),
    re.compile(r"ALTER TABLE \S+ ADD COLUMN (?=.*\bDEFAULT\b)(?=.*\bNOT NULL\b)(?!.*\b(UNIQUE|CHECK|REFERENCES)\b)"),
    re.compile(r"INSERT INTO compatible_revisions\b"),
    re.compile(r"DELETE FROM compatible_revisions\b"),
)


def statements(script: Script) -> Iterator[str]:
    """Yields the statements that the revision sends to PostgreSQL, each on one line."""
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
    """Whether code of an older version still works after these statements."""
    new = {match["table"] for text in found if (match := EXPANDS[0].match(text)) is not None}
    return all(
        any(pattern.match(text) for pattern in EXPANDS)
        # Constraints of a new table do not affect older code.
        or any(re.match(rf"(CREATE UNIQUE INDEX \S+ ON|ALTER TABLE|INSERT INTO) {table}\b", text) for table in new)
        for text in found
    )


@pytest.fixture(scope="module")
def compatible(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """The compatible older revisions that a database stores at each revision."""
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
def test_revision_lists_compatible_revisions(script: Script, compatible: dict[str, set[str]]) -> None:
    before = script.down_revision
    assert before is None or isinstance(before, str), "revisions must form one sequence"
    if before is None:
        assert compatible[script.revision] == set()
        return
    # 0002 introduced the table of compatible revisions; code of 0001 refuses every newer revision.
    reachable = (compatible[before] | {before}) - {"0001"}
    if only_adds(list(statements(script))):
        assert compatible[script.revision] == reachable, (
            "a revision that only adds must stay compatible with the previous ones"
        )
    else:
        assert compatible[script.revision] < reachable, (
            "a revision that removes something must list fewer and name them in its docstring"
        )


@pytest.mark.parametrize("script", REVISIONS, ids=lambda script: script.revision)
def test_revision_is_documented_and_reversible(script: Script) -> None:
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
def test_statements_that_only_add(statement: str) -> None:
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
def test_statements_that_remove_or_change(statement: str) -> None:
    assert not only_adds(["CREATE TABLE other (id INTEGER)", statement])


def test_new_table_may_have_constraints() -> None:
    assert only_adds(
        [
            "CREATE TABLE a (id INTEGER)",
            "CREATE UNIQUE INDEX ix_a ON a (id)",
            "ALTER TABLE a ADD CONSTRAINT ck_a CHECK (id > 0)",
            "INSERT INTO a (id) VALUES (1)",
        ]
    )
