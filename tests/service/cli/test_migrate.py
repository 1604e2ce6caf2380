"""`evenkeel migrate`, and how commands report a database that they cannot use."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import text
from typer.testing import CliRunner, Result

from service.cli.main import app
from service.store.migrate import SchemaState, head_revision, read_schema
from service.store.session import Database
from tests.support.processes import free_port
from tests.support.servers import PostgresServer, RedisServer

ROOT = Path(__file__).parents[3]
SECRET = "hunter2-s3cret"

Run = Callable[..., Result]


@pytest.fixture
def run(tmp_path: Path, database_url: str) -> Run:
    """Runs `evenkeel` with the test's database."""

    def invoke(*arguments: str, **variables: str) -> Result:
        environment = {
            "EVENKEEL_STATE_DIR": str(tmp_path / "state"),
            "EVENKEEL_API_PORT": "0",
            "EVENKEEL_DATABASE_URL": database_url,
            **{f"EVENKEEL_{name}": value for name, value in variables.items()},
        }
        return CliRunner().invoke(app, list(arguments), env=environment)

    return invoke


def change(url: str, statement: str) -> None:
    with closing(Database(url)) as database, database.write() as session:
        session.execute(text(statement))


def test_downgrade_and_upgrade(run: Run, database_url: str) -> None:
    unsure = run("migrate", "--downgrade", "0001")
    assert unsure.exit_code == 2
    assert "evenkeel backup" in unsure.output
    down = run("migrate", "--downgrade", "0001", "--yes")
    assert (down.exit_code, down.output) == (0, "The database is at revision 0001.\n")
    outdated = run("migrate", "--check")
    assert outdated.exit_code == 1
    assert f"is at revision 0001; this version needs {head_revision()}: run `evenkeel migrate`" in outdated.output
    gone = run("migrate", "--downgrade", "base", "--yes")
    assert (gone.exit_code, gone.output) == (0, "The database is empty.\n")
    empty = run("migrate", "--check")
    assert empty.exit_code == 1
    assert "has no tables yet" in empty.output
    for _ in range(2):
        up = run("migrate")
        assert (up.exit_code, up.output) == (0, f"The database is at revision {head_revision()}.\n")
    assert run("migrate", "--check").exit_code == 0


@pytest.mark.one_database
def test_downgrade_to_an_unknown_revision(run: Run) -> None:
    result = run("migrate", "--downgrade", "0815", "--yes")
    assert result.exit_code == 3
    assert ", 0001, base." in result.output.partition("cannot go back to 0815. Older revisions: ")[2]


@pytest.mark.one_database
def test_check_and_downgrade_together_are_refused(run: Run) -> None:
    assert run("migrate", "--check", "--downgrade", "0001").exit_code == 2


def test_check_lists_differences(run: Run, database_url: str) -> None:
    change(database_url, "DROP INDEX ix_outbox_job_id")
    result = run("migrate", "--check")
    assert result.exit_code == 1
    assert "ix_outbox_job_id" in result.output
    assert "Undo the changes" in result.output
    doctor = run("doctor", "--api-only")
    assert "with 1 difference from" in doctor.output
    assert "evenkeel migrate --check" in doctor.output


def test_newer_compatible_database(run: Run, database_url: str) -> None:
    change(database_url, "UPDATE alembic_version SET version_num = '9999'")
    change(database_url, f"INSERT INTO compatible_revisions VALUES ('{head_revision()}')")
    for command in (("migrate",), ("migrate", "--check")):
        result = run(*command)
        assert result.exit_code == 0
        assert f"newer version of Evenkeel, which is compatible with this version ({head_revision()})" in (
            result.output
        )
    with closing(Database(database_url)) as database:
        assert read_schema(database).state is SchemaState.COMPATIBLE
    assert "at revision 9999 of a newer version, which is compatible" in run("doctor", "--api-only").output


def test_newer_incompatible_database(run: Run, database_url: str) -> None:
    change(database_url, "UPDATE alembic_version SET version_num = '9999'")
    for command in ("migrate", "serve", "worker", "up"):
        result = run(command)
        assert result.exit_code == 3, command
        assert "was migrated by a newer version of Evenkeel. Upgrade this installation" in result.output, command
    assert run("migrate", "--check").exit_code == 1
    doctor = run("doctor", "--api-only")
    assert doctor.exit_code == 1
    assert "FAIL  database" in doctor.output


@pytest.fixture(scope="session")
def role(postgres: PostgresServer) -> str:
    """A PostgreSQL role with a password and without permissions."""
    postgres.add_role("eve", SECRET)
    return "eve"


@pytest.mark.one_database
class TestUnusable:
    """Every command prints one line with advice, and no password."""

    @pytest.fixture
    def bad_urls(self, postgres: PostgresServer, redis_server: RedisServer, role: str) -> dict[str, tuple[str, str]]:
        """URLs with the expected message, by error."""
        secret = f"eve:{SECRET}"
        return {
            "nothing listens": (
                f"postgresql://{secret}@127.0.0.1:{free_port()}/keel",
                "Start PostgreSQL, or correct host and port",
            ),
            "wrong password": (
                f"postgres://eve:not-{SECRET}@127.0.0.1:{postgres.port}/postgres",
                "Correct user and password",
            ),
            "no such user": (
                f"postgresql://nobody:{SECRET}@127.0.0.1:{postgres.port}/postgres",
                "Correct user and password",
            ),
            "no such database": (f"postgresql://{secret}@127.0.0.1:{postgres.port}/nowhere", "Create the database"),
            "not PostgreSQL": (f"postgresql://{secret}@127.0.0.1:{redis_server.port}/keel", "PostgreSQL"),
            "no such host": (f"postgresql://{secret}@nowhere.invalid/keel", "Correct the host's name"),
            "another driver": (f"postgresql+asyncpg://{secret}@db/keel", "begins with postgresql+asyncpg:"),
            "another database": (f"mysql://{secret}@db/keel", "begins with mysql:"),
            "no URL": (f"{secret}@db/keel", "Write postgresql://user:password@host:5432/database"),
            "a port that is none": (f"postgresql://{secret}@db:port/keel", "the port as a number"),
            "an option that is none": (f"postgresql://{secret}@127.0.0.1:{postgres.port}/keel?x=1", "Check"),
            "a file that is no database": (f"sqlite:///{__file__}", "Move the file away"),
        }

    def test_every_command_explains_the_error(
        self, run: Run, bad_urls: dict[str, tuple[str, str]], subtests: pytest.Subtests
    ) -> None:
        patience = {"DATABASE_CONNECT_TIMEOUT_SECONDS": "2"}
        for what, (url, expected) in bad_urls.items():
            # One that is found out by a connection and one that is found out before: by every command.
            others = ("serve", "worker", "up") if what in {"wrong password", "another database"} else ()
            for command in ("migrate", *others):
                with subtests.test(what=what, command=command):
                    result = run(command, DATABASE_URL=url, **patience)
                    assert result.exit_code == 3, result.output
                    assert expected in result.output
                    assert "hunter2" not in result.output
                    assert "Traceback" not in result.output
                    assert len(result.output.splitlines()) <= 3, result.output
            with subtests.test(what=what, command="doctor"):
                result = run("doctor", "--api-only", DATABASE_URL=url, **patience)
                assert (result.exit_code, expected in result.output) == (1, True), result.output
                assert "hunter2" not in result.output
                assert "Traceback" not in result.output

    def test_role_without_permission_to_create_tables(self, run: Run, postgres: PostgresServer, role: str) -> None:
        url = f"postgresql://{role}:{SECRET}@127.0.0.1:{postgres.port}/postgres"
        result = run("migrate", DATABASE_URL=url)
        assert result.exit_code == 3
        assert "permission denied" in result.output
        assert "owner of the database" in result.output
        assert "hunter2" not in result.output


@pytest.mark.one_database("postgresql")
def test_check_as_a_process(tmp_path: Path, database_url: str, postgres: PostgresServer) -> None:
    plain = database_url.replace("postgresql+psycopg", "postgres")
    environment = {**os.environ, "EVENKEEL_STATE_DIR": str(tmp_path), "EVENKEEL_DATABASE_URL": plain}
    done = subprocess.run(
        [sys.executable, "-m", "service.cli", "migrate", "--check"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "its tables match" in done.stdout
