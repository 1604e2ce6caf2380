"""Fixtures of the whole suite, its tiers, and the profiles of Hypothesis."""

from __future__ import annotations

import logging
import os
import secrets
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import structlog
from hypothesis import HealthCheck, settings

from service.config.settings import Settings
from service.store.session import Clock, Database, database_clock
from tests.support.class_archive import class_archive, reading
from tests.support.counts import FULL
from tests.support.databases import POSTGRESQL, SQLITE, PostgresDatabases, SqliteDatabases
from tests.support.servers import PostgresServer, RedisServer, running_postgres, running_redis
from tests.support.spark_cluster import SparkCluster, running_cluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.support.object_store import ObjectStore

# JVMs of tests live for seconds: compiling thoroughly costs them twice the processor time that it saves.
# Without the room, 48 MB by default then, the one of the session would sweep its code again and again.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=160m")

# As it is without being configured, but for its tracebacks: they would take seconds to draw.
structlog.configure(
    processors=[
        *structlog.get_config()["processors"][:-1],
        structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback),
    ]
)

FIXED, RANDOM = "fixed", "random"
"""The profiles of Hypothesis: the same inputs in every run, or new inputs in each run, which prints their seed."""

for _name in (FIXED, RANDOM):
    settings.register_profile(
        _name,
        derandomize=_name == FIXED,
        deadline=None,
        print_blob=True,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )
settings.load_profile(FIXED)

SERVERS = frozenset({"spark", "spark_cluster", "postgres", "postgres_databases", "redis_server", "object_store"})
"""Fixtures that start a server or a JVM."""

TWINS = "tests/service/"
"""Where the tests of PostgreSQL, which repeat those of SQLite, are of the slow tier."""

ON_SQLITE = "tests/service/api/"
"""Where tests are about HTTP: they run on SQLite alone, unless they are marked `both_databases`."""

NOT_QUICK = tuple(
    f"tests/{folder}/"
    for folder in (
        "e2e",
        "clients",
        "deployment",
        "conformance",
        "benchmarks",
        # Each of these tests makes an application or runs a command: a tenth of a second, for two thousand tests.
        "service/api",
        "service/cli",
    )
)
"""Folders without a quick test."""


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Chooses the seed of a randomised run, which the processes of the run share."""
    if config.getoption("hypothesis_profile", None) == RANDOM and config.getoption("hypothesis_seed", None) is None:
        config.option.hypothesis_seed = str(secrets.randbelow(2**32))


def pytest_report_header(config: pytest.Config) -> str | None:
    """Says how to repeat a randomised run."""
    seed = config.getoption("hypothesis_seed", None)
    return None if seed is None else f"hypothesis: repeat with --hypothesis-seed={seed}"


@pytest.fixture(autouse=True)
def _same_logging() -> Iterator[None]:
    """Undoes what a test configures of the log, as each application that it makes does: a level of ERROR would hide
    the events that later tests expect."""
    root = logging.getLogger()
    handlers, level, config = root.handlers[:], root.level, structlog.get_config()
    yield
    root.handlers[:], root.level = handlers, level
    structlog.configure(**config)


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    """The one PostgreSQL of this test process. Tests that stop a server start their own."""
    with running_postgres(tmp_path_factory.mktemp("postgres")) as server:
        yield server


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """The one Redis of this test process. Tests that stop a server start their own."""
    with running_redis(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(scope="session")
def object_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    """The one S3-speaking server of this test process. Tests make buckets of their own, and those that stop it their
    own server."""
    from tests.support.object_store import running_object_store

    with running_object_store(tmp_path_factory.mktemp("object-store")) as server:
        yield server


@pytest.fixture(scope="session")
def sqlite_databases(tmp_path_factory: pytest.TempPathFactory) -> SqliteDatabases:
    """Makes migrated SQLite files."""
    return SqliteDatabases(tmp_path_factory.mktemp("sqlite"))


@pytest.fixture(scope="session")
def postgres_databases(postgres: PostgresServer) -> PostgresDatabases:
    """Makes migrated databases in the one PostgreSQL of this test process."""
    return PostgresDatabases(postgres)


@pytest.fixture
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """An empty, migrated database of the test's own. Each test that takes it, or a fixture built on it, runs twice:
    on SQLite and on PostgreSQL; in the folder `ON_SQLITE`, or marked `one_database`, on SQLite alone, or on the
    kind that the mark names."""
    if request.param == POSTGRESQL:
        postgres_databases: PostgresDatabases = request.getfixturevalue("postgres_databases")
        new = postgres_databases.new()
    else:
        sqlite_databases: SqliteDatabases = request.getfixturevalue("sqlite_databases")
        new = sqlite_databases.new(tmp_path)
    with new as url:
        yield url


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Marks the tiers that follow from what a test needs, leaves out those of the full tier from other runs, and puts
    files that start processes first: at the end no test process is to work alone for minutes.
    """
    if not FULL and not config.getoption("--write", False):
        left_out = set(_of_full_tier(items))
        config.hook.pytest_deselected(items=[item for item in items if item in left_out])
        items[:] = [item for item in items if item not in left_out]
    for item in items:
        if isinstance(item, pytest.Function):
            _mark_tier(item)
    starts_processes = {item.path for item in items if not item.get_closest_marker("quick")}
    items.sort(key=lambda item: item.path not in starts_processes)


def _of_full_tier(items: Sequence[pytest.Item]) -> Iterator[pytest.Item]:
    """Yields the tests marked `full`, and those of a test marked `sampled` that its sample does not contain."""
    seen: Counter[str] = Counter()
    for item in items:
        if item.get_closest_marker("full"):
            yield item
        elif sampled := item.get_closest_marker("sampled"):
            name = item.nodeid.partition("[")[0]
            if seen[name] % sampled.args[0]:
                yield item
            seen[name] += 1


def _mark_tier(item: pytest.Function) -> None:
    given = item.callspec.params.values() if hasattr(item, "callspec") else ()
    on_postgres = any(isinstance(value, str) and value == POSTGRESQL for value in given)
    if on_postgres and item.nodeid.startswith(TWINS) and not item.get_closest_marker("one_database"):
        item.add_marker(pytest.mark.slow)
    if getattr(item.function, "is_hypothesis_test", False):
        item.add_marker(pytest.mark.property)
        if item.get_closest_marker("spark"):
            item.add_marker(pytest.mark.slow)
    is_heavy = any(item.get_closest_marker(name) for name in ("slow", "not_quick", "spark", "e2e"))
    if not (is_heavy or on_postgres or SERVERS & {*item.fixturenames} or item.nodeid.startswith(NOT_QUICK)):
        item.add_marker(pytest.mark.quick)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Lets every JVM of the run start from Spark's classes as they were once loaded, where JVMs are to be started."""
    # None where pytest is told to keep no cache.
    cache = getattr(session.config, "cache", None)
    if session.config.option.collectonly or cache is None:
        return
    if any(item.get_closest_marker("spark") or item.get_closest_marker("e2e") for item in session.items):
        archive = class_archive(cache.mkdir("spark-classes"))
        os.environ["JDK_JAVA_OPTIONS"] += f" {reading(archive)}"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """See `database_url`."""
    if "database_url" in metafunc.fixturenames:
        definition = metafunc.definition
        one = definition.get_closest_marker("one_database")
        both = definition.get_closest_marker("both_databases") or not definition.nodeid.startswith(ON_SQLITE)
        kinds = (one.args or (SQLITE,)) if one else (SQLITE, POSTGRESQL) if both else (SQLITE,)
        metafunc.parametrize("database_url", kinds, indirect=True)


@pytest.fixture
def state_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory, `state` below the test's own, that settings take as the state directory."""
    directory = tmp_path / "state"
    directory.mkdir(exist_ok=True)
    monkeypatch.setenv("EVENKEEL_STATE_DIR", str(directory))
    return directory


@pytest.fixture(name="settings")
def _settings(state_dir: Path) -> Settings:
    """The default settings with `state_dir`."""
    return Settings()


@pytest.fixture
def clock() -> Clock:
    """The clock of `database`: the database's own. Tests that change the time replace it with a `ManualClock`."""
    return database_clock


@pytest.fixture
def database(database_url: str, clock: Clock) -> Iterator[Database]:
    """The empty, migrated database of `database_url`."""
    with closing(Database(database_url, clock)) as database:
        yield database


@pytest.fixture
def sqlite_database(sqlite_databases: SqliteDatabases, tmp_path: Path, clock: Clock) -> Iterator[Database]:
    """An empty, migrated SQLite database: `state/evenkeel.db` below the test's directory."""
    with sqlite_databases.new(tmp_path) as url, closing(Database(url, clock)) as database:
        yield database


@pytest.fixture
def postgres_database(postgres_databases: PostgresDatabases, clock: Clock) -> Iterator[Database]:
    """An empty, migrated PostgreSQL database."""
    with postgres_databases.new() as url, closing(Database(url, clock)) as database:
        yield database


@pytest.fixture(scope="session")
def spark_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    """The one Spark cluster of this test process: two workers of one core. Tests that stop parts start their own."""
    with running_cluster(tmp_path_factory.mktemp("spark-cluster")) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The one session of this test process: two cores, few partitions, nothing written into the tree."""
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    scratch = tmp_path_factory.mktemp("spark")
    session = (
        SparkSession.builder.master("local[2]")
        .appName("evenkeel-tests")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "2g")
        .config("spark.local.dir", str(scratch / "local"))
        .config("spark.sql.warehouse.dir", str(scratch / "warehouse"))
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.ui.port", "0")
        .config("spark.ui.killEnabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.scheduler.mode", "FAIR")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    with pytest.MonkeyPatch.context() as patch:
        # What is planned depends on no clock.
        patch.setattr("workers.engine.spark.predicate_evaluation.SECONDS", 60.0)
        yield session
    session.stop()
