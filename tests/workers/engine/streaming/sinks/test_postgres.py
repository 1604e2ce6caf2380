"""The PostgreSQL sink with a real server: it commits each mini-batch once, and what it requires of tables."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any, LiteralString
from zoneinfo import ZoneInfo

import psycopg
import pytest

from service.sql.types.aggregates import FinalColumn, FinalLevel, Merge, MergedColumn
from service.sql.types.data_types import (
    BIGINT,
    BOOLEAN,
    DOUBLE,
    FLOAT,
    INT,
    NULL,
    STRING,
    DataType,
    Field,
    array,
    decimal,
    struct,
)
from tests.support.staged import EVERY_TYPE, staged
from workers.engine.streaming.sinks import postgres
from workers.engine.streaming.sinks.base import FenceLostError, SinkError, SinkTarget
from workers.engine.streaming.sinks.postgres import PostgresSink

APP = "evenkeel/job/1"
COLUMNS = (Field("k", STRING), Field("n", BIGINT))
UTC = ZoneInfo("UTC")


@pytest.fixture
def url(postgres_url: str) -> str:
    """A database without tables."""
    run(postgres_url, "DROP SCHEMA public CASCADE", "CREATE SCHEMA public")
    return postgres_url


@pytest.fixture
def sinks() -> Iterator[list[PostgresSink]]:
    made: list[PostgresSink] = []
    yield made
    for sink in made:
        sink.close()


@pytest.fixture
def sink_at(url: str, sinks: list[PostgresSink]) -> Any:
    def make(fence: int = 1, table: str = "out", app: str = APP, **changes: Any) -> PostgresSink:
        columns = changes.pop("columns", COLUMNS)
        of_nothing = changes.pop("of_nothing", None)
        pause = changes.pop("pause", lambda _: None)
        settings = {"output": columns, "keys": ("k",), **changes}
        sink = PostgresSink(url, table, SinkTarget(app, fence, columns, **settings), of_nothing, pause)
        sinks.append(sink)
        sink.prepare()
        return sink

    return make


def rows_of(url: str, query: LiteralString = "SELECT * FROM out") -> list[tuple[Any, ...]]:
    with psycopg.connect(url, options="-c TimeZone=UTC") as connection:
        return sorted(connection.execute(query).fetchall(), key=repr)


def run(url: str, *statements: LiteralString) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement)


def end_sessions(url: str) -> None:
    """Ends every other session, as a restart of the server would."""
    run(
        url,
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid()",
    )


def test_a_newer_row_replaces_an_older_one_of_its_key(url: str, tmp_path: Path, sink_at: Any) -> None:
    sink = sink_at()
    assert sink.committed() is None
    sink.commit(0, staged(tmp_path, COLUMNS, [("a", 1), (None, 2), ("b", 3)], files=2))
    sink.commit(1, staged(tmp_path, COLUMNS, [(None, 5), ("c", 6), ("c", 7)]))
    sink.commit(2, staged(tmp_path, COLUMNS, [], files=0))
    assert sink.committed() == 2
    assert rows_of(url) == [("a", 1), ("b", 3), ("c", 7), (None, 5)]


def test_a_repeated_commit_changes_nothing(url: str, tmp_path: Path, sink_at: Any) -> None:
    sink_at().commit(0, staged(tmp_path, COLUMNS, [("a", 1)]))
    sink = sink_at(fence=2)
    sink.commit(0, staged(tmp_path, COLUMNS, [("a", 7)]))
    assert (sink.committed(), rows_of(url)) == (0, [("a", 1)])


def test_attempts_of_older_generations_are_fenced_off(url: str, tmp_path: Path, sink_at: Any) -> None:
    older, old = sink_at(fence=3), sink_at(fence=4)
    new, other_job = sink_at(fence=5, app="evenkeel/job/2"), sink_at(fence=1, app="evenkeel/job2/1")
    for late in (older, old):
        for call in (late.prepare, late.committed, lambda late=late: late.commit(0, staged(tmp_path, COLUMNS, []))):
            with pytest.raises(FenceLostError):
                call()
    new.commit(0, staged(tmp_path, COLUMNS, [("a", 1)]))
    other_job.commit(0, staged(tmp_path, COLUMNS, [("b", 1)]))
    assert rows_of(url) == [("a", 1), ("b", 1)]


@pytest.fixture
def expensive_starts_with(url: str) -> Iterator[None]:
    """PostgreSQL evaluates the operands of AND in any order: cheap ones first, by its own estimate."""
    run(url, "ALTER FUNCTION pg_catalog.starts_with(text, text) COST 1000000")
    yield
    run(url, "ALTER FUNCTION pg_catalog.starts_with(text, text) COST 1")


@pytest.mark.parametrize("name", ["some-other-program", "{own}", "{own}x", "{own}1x", "{own}" + "9" * 30, "{own}2-1"])
@pytest.mark.usefixtures("expensive_starts_with")
def test_only_sessions_of_older_attempts_are_terminated(url: str, sink_at: Any, name: str) -> None:
    sink = sink_at(fence=2)
    named = name.format(own=sink._session_prefix)
    # Closed without a commit, which fails on a session that the server has ended.
    with (
        closing(psycopg.connect(url, application_name=named, autocommit=True)) as other,
        closing(psycopg.connect(url, application_name=f"{sink._session_prefix}1", autocommit=True)) as older,
    ):
        sink._terminate_older_sessions()
        assert other.execute("SELECT 1").fetchone() == (1,)
        with pytest.raises(psycopg.OperationalError):
            older.execute("SELECT pg_sleep(60)")


def test_an_attempt_that_hangs_in_a_transaction_is_terminated(
    url: str, tmp_path: Path, sink_at: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "_LOCK_TIMEOUT_MS", 100)
    old = sink_at(fence=1)
    hangs, goes_on = threading.Event(), threading.Event()
    take = PostgresSink._apply_stage
    errors: list[Exception] = []

    def hanging(sink: PostgresSink, connection: psycopg.Connection) -> None:
        take(sink, connection)
        hangs.set()
        goes_on.wait(60)

    def commit() -> None:
        try:
            old.commit(0, staged(tmp_path, COLUMNS, [("a", 1)]))
        except FenceLostError as error:
            errors.append(error)

    with monkeypatch.context() as patched:
        patched.setattr(PostgresSink, "_apply_stage", hanging)
        thread = threading.Thread(target=commit)
        thread.start()
        assert hangs.wait(60)
    new = sink_at(fence=2)
    assert new.committed() is None
    new.commit(0, staged(tmp_path, COLUMNS, [("a", 2)]))
    goes_on.set()
    thread.join(60)
    assert len(errors) == 1
    assert rows_of(url) == [("a", 2)]


def test_one_of_two_concurrent_commits_succeeds(url: str, tmp_path: Path, sink_at: Any) -> None:
    sinks = [sink_at(fence=1), sink_at(fence=1)]
    stages = [staged(tmp_path, COLUMNS, [("a", number), (str(number), 0)]) for number in range(2)]
    threads = [threading.Thread(target=sink.commit, args=(0, stage)) for sink, stage in zip(sinks, stages, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert rows_of(url) in ([("0", 0), ("a", 0)], [("1", 0), ("a", 1)])


@pytest.mark.parametrize("where", ["before", "after"])
def test_a_commit_whose_response_is_lost_is_stored_once(
    url: str, tmp_path: Path, sink_at: Any, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    sink = sink_at(keys=None)
    write = PostgresSink._write

    def breaking(sink: PostgresSink, *args: Any) -> None:
        monkeypatch.setattr(PostgresSink, "_write", write)
        write(sink, *args)
        connection = sink._connected()
        if where == "after":
            connection.execute("COMMIT")
        connection.close()
        raise psycopg.OperationalError("server closed the connection unexpectedly")

    monkeypatch.setattr(PostgresSink, "_write", breaking)
    sink.commit(0, staged(tmp_path, COLUMNS, [("a", 1)]))
    assert rows_of(url) == [("a", 1)]


def test_a_server_that_restarts_is_waited_for(url: str, tmp_path: Path, sink_at: Any) -> None:
    pauses: list[float] = []
    sink = sink_at(pause=pauses.append)
    for number in range(3):
        end_sessions(url)
        assert sink.committed() == (number - 1 if number else None)
        end_sessions(url)
        sink.commit(number, staged(tmp_path, COLUMNS, [("a", number)]))
    assert pauses == [0.5] * 6
    assert rows_of(url) == [("a", 2)]


def test_an_unreachable_server_is_an_error(tmp_path: Path, sink_at: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    sink = sink_at(pause=pauses.append)
    sink.close()
    monkeypatch.setattr(sink, "_url", "postgresql://postgres@127.0.0.1:1/none")
    with pytest.raises(SinkError, match="Cannot reach PostgreSQL"):
        sink.commit(0, staged(tmp_path, COLUMNS, [("a", 1)]))
    assert 50 < sum(pauses) < 70


def test_rows_that_are_only_added(url: str, tmp_path: Path, sink_at: Any) -> None:
    sink = sink_at(keys=None)
    for batch_id in (0, 1, 1):
        sink.commit(batch_id, staged(tmp_path, COLUMNS, [("a", batch_id)] * 2))
    assert rows_of(url) == [("a", 0), ("a", 0), ("a", 1), ("a", 1)]


def test_a_result_of_one_row_is_replaced(url: str, tmp_path: Path, sink_at: Any) -> None:
    columns = (Field("n", BIGINT), Field("s", decimal(38, 2)))
    for fence in (1, 2):
        sink = sink_at(fence=fence, columns=columns, keys=(), of_nothing=(0, None))
        assert rows_of(url) == [(0, None)]
    sink.commit(0, staged(tmp_path, columns, [(1, None)]))
    sink.commit(1, staged(tmp_path, columns, [(2, Decimal("1.50")), (3, Decimal("2.50"))]))
    assert rows_of(url) == [(3, Decimal("2.50"))]
    run(url, "INSERT INTO out VALUES (7, 7)")
    with pytest.raises(SinkError, match="has 2 rows"):
        sink.commit(2, staged(tmp_path, columns, [(4, None)]))


def test_a_table_of_keys_only(url: str, tmp_path: Path, sink_at: Any) -> None:
    columns = (Field("k", STRING), Field("j", INT))
    sink = sink_at(columns=columns, keys=("j", "k"))
    for batch_id in range(2):
        sink.commit(batch_id, staged(tmp_path, columns, [("a", None), (None, batch_id)]))
    assert rows_of(url) == [("a", None), (None, 0), (None, 1)]


PARTS = (
    Field("k", STRING),
    Field("j", INT),
    Field("part", BIGINT),
    Field("bits", BIGINT),
    Field("s", FLOAT),
    Field("low", STRING),
    Field("any", BOOLEAN),
)
FINAL = FinalLevel(
    keys=("k", "j"),
    parts=("part",),
    merged=(
        MergedColumn("bits", Merge.SUM),
        MergedColumn("s", Merge.SUM),
        MergedColumn("low", Merge.MIN),
        MergedColumn("any", Merge.MAX),
    ),
    output=(
        FinalColumn(Field("uniques", BIGINT), "bits", zero=True),
        FinalColumn(Field("K", STRING), "k"),
        FinalColumn(Field("j", INT), "j"),
        FinalColumn(Field("mean", DOUBLE), "s", divisor="bits"),
        FinalColumn(Field("low", STRING), "low"),
        FinalColumn(Field("any", BOOLEAN), "any"),
    ),
)
OUTPUT = tuple(column.field for column in FINAL.output)


def test_groups_are_merged_from_the_newest_of_their_parts(url: str, tmp_path: Path, sink_at: Any) -> None:
    sink = sink_at(table="public.out", columns=PARTS, output=OUTPUT, keys=FINAL.keys, final=FINAL)
    first = [
        ("a", 1, 0, 2, 3.0, "é", False),
        ("a", 1, None, None, 1.0, "Z", None),
        (None, 1, 0, 1, 5.0, None, None),
        (None, None, 0, 1, 6.0, None, None),
        ("b", None, 0, None, None, "b", True),
    ]
    sink.commit(0, staged(tmp_path, PARTS, first))
    expected = [
        (0, "b", None, None, "b", True),
        (1, None, 1, 5.0, None, None),
        (1, None, None, 6.0, None, None),
        (2, "a", 1, 2.0, "Z", False),
    ]
    assert rows_of(url) == expected
    second = [("a", 1, 0, 4, 7.0, "a", True), ("b", None, 1, 2, 1.0, "a", False), (None, 1, 1, 1, 5.0, None, None)]
    sink.commit(1, staged(tmp_path, PARTS, second))
    assert rows_of(url) == [
        (1, None, None, 6.0, None, None),
        (2, "b", None, 0.5, "a", True),
        (2, None, 1, 5.0, None, None),
        (4, "a", 1, 2.0, "Z", True),
    ]


def test_one_group_is_merged_from_its_parts(url: str, tmp_path: Path, sink_at: Any) -> None:
    columns = (Field("part", BIGINT), Field("bits", BIGINT))
    final = FinalLevel(
        (), ("part",), (MergedColumn("bits", Merge.SUM),), (FinalColumn(Field("n", BIGINT), "bits", zero=True),)
    )
    sink = sink_at(columns=columns, output=(Field("n", BIGINT),), keys=(), final=final)
    sink.commit(0, staged(tmp_path, columns, [(1, 2), (2, 3)]))
    sink.commit(1, staged(tmp_path, columns, [(1, 4), (None, None)]))
    assert rows_of(url) == [(7,)]


@pytest.mark.parametrize(("type_", "values"), EVERY_TYPE, ids=[str(type_) for type_, _ in EVERY_TYPE])
def test_values_and_keys_of_every_type(
    url: str, tmp_path: Path, sink_at: Any, type_: DataType, values: list[Any]
) -> None:
    columns = (Field('Key "of" %s {} all; types', type_), Field("v", type_), Field("_row", INT))
    first, second = values
    sink = sink_at(columns=columns, keys=(columns[0].name,))
    sink.commit(0, staged(tmp_path, columns, [(first, first, 0), (second, second, 1), (None, None, 2)]))
    # Prepared again, its own table is one that it takes.
    sink.prepare()
    sink.commit(1, staged(tmp_path, columns, [(second, first, 3), (None, second, 4)]))
    expected = [(first, first, 0), (second, first, 3), (None, second, 4)]
    assert rows_of(url) == sorted(expected, key=repr)


def test_nested_values_are_json(url: str, tmp_path: Path, sink_at: Any) -> None:
    columns = (Field("k", STRING), Field("a", array(INT)), Field("s", struct([Field("x", decimal(5, 1))])))
    sink = sink_at(columns=columns)
    sink.commit(0, staged(tmp_path, columns, [("a", [1, None], {"x": Decimal("1.5")}), ("b", None, None)]))
    assert rows_of(url) == [("a", [1, None], {"x": "1.5"}), ("b", None, None)]
    with pytest.raises(SinkError, match=r"'a' of type ARRAY<INT> cannot be a key in PostgreSQL. CAST it"):
        sink_at(columns=columns, keys=("a",), table="other")


@pytest.mark.parametrize(
    "table",
    [
        'CREATE TABLE out (n numeric, "k" varchar(9) NOT NULL UNIQUE, more int DEFAULT 7)',
        "CREATE TABLE out (k text, n int8, more int, UNIQUE NULLS NOT DISTINCT (k) INCLUDE (n))",
        "CREATE TABLE out (k text, n numeric(25, 3)); CREATE UNIQUE INDEX ON out (k) NULLS NOT DISTINCT",
    ],
)
def test_suitable_tables_are_accepted(url: str, tmp_path: Path, sink_at: Any, table: LiteralString) -> None:
    run(url, table)
    sink = sink_at()
    for number in range(2):
        sink.commit(number, staged(tmp_path, COLUMNS, [("a", number)]))
    assert rows_of(url, "SELECT k, n::int FROM out") == [("a", 1)]


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("CREATE VIEW out AS SELECT 1 AS k", "is not a table"),
        ("CREATE TABLE out (k text UNIQUE)", r'no column \'n\'. Add it with ALTER TABLE ... ADD COLUMN "n" int8'),
        ("CREATE TABLE out (k text, n int4)", "'n' of public.out is of type int4, .* Change it to int8"),
        ("CREATE TABLE out (k text, n numeric(18, 0))", "cannot store every BIGINT"),
        ("CREATE TABLE out (k text, n int8 GENERATED ALWAYS AS IDENTITY)", "'n' of public.out is a generated column"),
        ("CREATE TABLE out (k text, n int8, more int NOT NULL)", "no values for required columns of public.out: more"),
        ("CREATE TABLE out (k text UNIQUE, n int8)", r'CREATE UNIQUE INDEX ON "public"."out" \("k"\) NULLS NOT DIST'),
        ("CREATE TABLE out (k text, n int8, UNIQUE NULLS NOT DISTINCT (k, n))", "no unique index on k"),
        ("CREATE TABLE out (k text NOT NULL, n int8, UNIQUE (k) DEFERRABLE)", "no unique index on k"),
        (
            "CREATE TABLE out (k text, n int8); CREATE UNIQUE INDEX ON out (k) NULLS NOT DISTINCT WHERE n > 0",
            "no uniq",
        ),
        (
            "CREATE TABLE out (k text, n int8); CREATE UNIQUE INDEX ON out (lower(k)) NULLS NOT DISTINCT",
            "no unique index",
        ),
    ],
)
def test_unsuitable_tables_are_refused(url: str, sink_at: Any, table: LiteralString, message: str) -> None:
    run(url, table)
    with pytest.raises(SinkError, match=message):
        sink_at()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"columns": (Field("k", STRING), Field("n", NULL))}, "The column n: the type VOID"),
        ({"columns": (Field("k", STRING), Field("k", INT))}, "Several columns"),
        ({"columns": (Field("k", STRING), Field("n" * 64, INT))}, "names have 1 to 63 bytes"),
        ({"table": "t" * 64}, "longer than 63"),
        ({"table": "nowhere.out"}, "PostgreSQL returned an error: .*nowhere"),
        ({"output": (Field("n", BIGINT),)}, "Key column k is missing"),
        ({"columns": PARTS, "output": OUTPUT, "keys": FINAL.keys, "final": FINAL, "table": "t" * 60}, "longer than 63"),
    ],
)
def test_unsupported_results_are_refused(sink_at: Any, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SinkError, match=message):
        sink_at(**changes)


def test_rows_that_the_table_refuses(url: str, tmp_path: Path, sink_at: Any) -> None:
    run(url, "CREATE TABLE out (k text NOT NULL UNIQUE, n int8 CHECK (n < 5))")
    sink = sink_at()
    for row in ((None, 1), ("a", 5), ("a\0", 1)):
        with pytest.raises(SinkError, match="PostgreSQL returned an error"):
            sink.commit(0, staged(tmp_path, COLUMNS, [row]))
    sink.commit(0, staged(tmp_path, COLUMNS, [("a", 1)]))
    assert rows_of(url) == [("a", 1)]


def test_names_are_quoted(url: str, tmp_path: Path, sink_at: Any) -> None:
    table = '"; DROP TABLE out; --'
    sink = sink_at(table=table, columns=(Field("k", STRING), Field('n"; --', BIGINT)))
    sink.commit(0, staged(tmp_path, (Field("k", STRING), Field('n"; --', BIGINT)), [("a'); --", 1)]))
    assert rows_of(url, 'SELECT * FROM """; DROP TABLE out; --"') == [("a'); --", 1)]


def test_two_attempts_may_create_the_table_at_once(url: str, tmp_path: Path, sink_at: Any) -> None:
    errors: list[BaseException] = []

    def make(fence: int) -> None:
        try:
            sink_at(fence=fence)
        except FenceLostError as error:
            errors.append(error)

    threads = [threading.Thread(target=make, args=(fence,)) for fence in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(errors) <= 1
    sink_at(fence=3).commit(0, staged(tmp_path, COLUMNS, [("a", 1)]))
    assert rows_of(url) == [("a", 1)]
