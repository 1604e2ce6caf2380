"""The managed sink: it commits each mini-batch once, also after errors and with other writers."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError

from service.contract.errors import InvalidLookupError
from service.results.lookup import rows_of_stream
from service.results.stream_result import open_stream_result
from service.sql.types.aggregates import FinalColumn, FinalLevel, Merge, MergedColumn
from service.sql.types.data_types import (
    BIGINT,
    BINARY,
    BOOLEAN,
    DATE,
    DOUBLE,
    FLOAT,
    INT,
    NULL,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    TINYINT,
    DataType,
    Field,
    TypeName,
    array,
    decimal,
    mapping,
    struct,
)
from tests.support.staged import staged
from workers.engine.streaming.sinks import managed as compaction
from workers.engine.streaming.sinks.base import FenceLostError, SinkError, SinkTarget
from workers.engine.streaming.sinks.managed import ManagedSink

APP = "evenkeel/job/1"
UTC = ZoneInfo("UTC")
COLUMNS = (Field("k", STRING), Field("n", BIGINT))


def sink_at(path: Path, fence: int = 1, **changes: Any) -> ManagedSink:
    of_nothing = changes.pop("of_nothing", None)
    settings = {"columns": COLUMNS, "output": changes.get("columns", COLUMNS), "keys": ("k",), **changes}
    sink = ManagedSink(path, SinkTarget(APP, fence, **settings), of_nothing)
    sink.prepare()
    return sink


def rows_at(path: Path, version: int | None = None) -> list[tuple[Any, ...]]:
    table = open_stream_result(path, version).files.page(0, 10_000)
    return [tuple(row[name] for name in table.column_names) for row in table.to_pylist()]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "g1" / "result"


@pytest.fixture
def always_due(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "LEAST_ROWS", 0)
    monkeypatch.setattr(compaction, "LEAST_FILES", 0)


def test_a_newer_row_replaces_an_older_one_of_its_key(path: Path, tmp_path: Path) -> None:
    sink = sink_at(path)
    assert sink.committed() is None
    assert sink.commit(0, staged(tmp_path, COLUMNS, [("a", 1), (None, 2), ("b", 3)], files=2)) == 1
    assert sink.commit(1, staged(tmp_path, COLUMNS, [(None, 5), ("c", 6)])) == 2
    assert sink.committed() == 1
    assert sorted(rows_at(path), key=repr) == [("a", 1), ("b", 3), ("c", 6), (None, 5)]
    assert rows_at(path, 1) == [("a", 1), (None, 2), ("b", 3)]


def test_a_repeated_commit_changes_nothing(path: Path, tmp_path: Path) -> None:
    sink = sink_at(path)
    sink.commit(0, staged(tmp_path, COLUMNS, [("a", 1)]))
    sink.commit(1, staged(tmp_path, COLUMNS, [("a", 2)]))
    assert sink.commit(0, staged(tmp_path, COLUMNS, [("a", 7)])) == 2
    assert sink_at(path, fence=2).commit(1, staged(tmp_path, COLUMNS, [("a", 8)])) == 3
    assert rows_at(path) == [("a", 2)]


def test_a_mini_batch_without_rows_makes_no_version(path: Path, tmp_path: Path) -> None:
    sink = sink_at(path)
    assert sink.commit(0, staged(tmp_path, COLUMNS, [], files=0)) == 0
    assert sink.commit(1, staged(tmp_path, COLUMNS, [], files=2)) == 0
    assert sink.commit(2, staged(tmp_path, COLUMNS, [("a", 1)], files=2)) == 1
    assert (sink.committed(), rows_at(path)) == (2, [("a", 1)])


def test_an_older_attempt_is_fenced_off_at_every_step(path: Path, tmp_path: Path) -> None:
    old = sink_at(path, fence=3)
    old.commit(0, staged(tmp_path, COLUMNS, [("a", 1)]))
    new = sink_at(path, fence=4)
    for late in (lambda: old.commit(1, staged(tmp_path, COLUMNS, [("a", 9)])), old.tidy, old.prepare):
        with pytest.raises(FenceLostError):
            late()
    with pytest.raises(FenceLostError):
        old.commit(0, staged(tmp_path, COLUMNS, [("a", 9)]))
    assert new.committed() == 0
    new.commit(1, staged(tmp_path, COLUMNS, [("b", 2)]))
    assert rows_at(path) == [("a", 1), ("b", 2)]


def test_an_attempt_that_checked_before_the_next_one_began_commits_nothing(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = sink_at(path, fence=1)
    write = DeltaTable.create_write_transaction

    def after_the_next_has_come(table: DeltaTable, *args: Any, **kwargs: Any) -> None:
        monkeypatch.setattr(DeltaTable, "create_write_transaction", write)
        sink_at(path, fence=2)
        write(table, *args, **kwargs)

    monkeypatch.setattr(DeltaTable, "create_write_transaction", after_the_next_has_come)
    with pytest.raises(FenceLostError):
        old.commit(0, staged(tmp_path, COLUMNS, [("a", 1)]))
    assert rows_at(path) == []


@pytest.mark.usefixtures("always_due")
def test_a_compaction_keeps_rows_appended_meanwhile(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = sink_at(path, fence=1)
    old.commit(0, staged(tmp_path, COLUMNS, [("a", 1)]))
    old.commit(1, staged(tmp_path, COLUMNS, [("a", 2)]))
    write = DeltaTable.create_write_transaction

    def after_another_append(table: DeltaTable, *args: Any, **kwargs: Any) -> None:
        monkeypatch.setattr(DeltaTable, "create_write_transaction", write)
        sink_at(path, fence=2).commit(2, staged(tmp_path, COLUMNS, [("b", 3)]))
        write(table, *args, **kwargs)

    monkeypatch.setattr(DeltaTable, "create_write_transaction", after_another_append)
    old.tidy()
    assert rows_at(path) == [("a", 2), ("b", 3)]
    assert not list(path.glob("*base*"))


@pytest.mark.parametrize("error", [DeltaError("lost"), OSError("lost"), CommitFailedError("lost")])
def test_a_commit_whose_response_is_lost_is_stored_once(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    sink = sink_at(path)
    write = DeltaTable.create_write_transaction

    def without_an_answer(table: DeltaTable, *args: Any, **kwargs: Any) -> None:
        monkeypatch.setattr(DeltaTable, "create_write_transaction", write)
        write(table, *args, **kwargs)
        raise error

    monkeypatch.setattr(DeltaTable, "create_write_transaction", without_an_answer)
    assert sink.commit(0, staged(tmp_path, COLUMNS, [("a", 1)])) == 1
    assert (sink.committed(), rows_at(path)) == (0, [("a", 1)])


def test_a_failed_commit_stores_nothing(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = sink_at(path)

    def full(*_: Any, **__: Any) -> None:
        raise OSError("No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(DeltaTable, "create_write_transaction", full)
        with pytest.raises(OSError, match="No space"):
            sink.commit(0, staged(tmp_path, COLUMNS, [("a", 1)]))
    assert sink.committed() is None
    left = set(path.glob("*.parquet"))
    assert left
    # Who comes next removes what was left.
    sink_at(path, fence=2)
    assert not left & set(path.iterdir())


@pytest.mark.usefixtures("always_due")
def test_compaction_leaves_one_row_per_key_in_order(path: Path, tmp_path: Path) -> None:
    sink = sink_at(path)
    sink.commit(0, staged(tmp_path, COLUMNS, [("a", 1), ("b", 2), (None, 3)]))
    sink.tidy()
    assert open_stream_result(path).version == 2
    sink.commit(1, staged(tmp_path, COLUMNS, [("c", 4), ("a", 5)]))
    before = rows_at(path)
    sink.tidy()
    assert before == rows_at(path) == [("a", 5), ("b", 2), (None, 3), ("c", 4)]
    assert DeltaTable(path).count() == 4
    # Readers of older versions are let finish, and a new attempt leaves their files alone too.
    sink_at(path, fence=2)
    assert rows_at(path, 1) == [("a", 1), ("b", 2), (None, 3)]
    version = open_stream_result(path).version
    sink.close()
    sink_at(path, fence=2).tidy()
    assert open_stream_result(path).version == version


def test_compaction_waits_until_it_is_due(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "LEAST_ROWS", 4)
    sink = sink_at(path)
    for batch_id in range(2):
        sink.commit(batch_id, staged(tmp_path, COLUMNS, [("a", batch_id), ("b", batch_id)]))
        sink.tidy()
    assert open_stream_result(path).version == 2
    sink.commit(2, staged(tmp_path, COLUMNS, [("c", 9)]))
    sink.tidy()
    assert open_stream_result(path).version == 4


def test_many_small_files_are_compacted(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "LEAST_FILES", 3)
    sink = sink_at(path, keys=None)
    for batch_id in range(11):
        sink.commit(batch_id, staged(tmp_path, COLUMNS, [("a", batch_id), ("a", batch_id)]))
        before = rows_at(path)
        sink.tidy()
        assert rows_at(path) == before == [("a", number // 2) for number in range(2 * batch_id + 2)]
    assert len(DeltaTable(path).file_uris()) == 2 + 3


@pytest.mark.usefixtures("always_due")
def test_files_of_no_recent_version_are_removed(path: Path, tmp_path: Path) -> None:
    sink = sink_at(path)
    sink.commit(0, staged(tmp_path, COLUMNS, [("a", 1)]))
    DeltaTable(path).alter.set_table_properties({"delta.deletedFileRetentionDuration": "interval 0 seconds"})
    sink.tidy()
    assert len(list(path.glob("*.parquet"))) == 1
    assert rows_at(path) == [("a", 1)]


@pytest.mark.not_quick
def test_the_log_of_the_table_is_short_and_keeps_transactions(path: Path, tmp_path: Path) -> None:
    sink = sink_at(path, fence=7)
    for batch_id in range(101):
        sink.commit(batch_id, staged(tmp_path, COLUMNS, [("a", batch_id)]))
    assert (path / "_delta_log" / "_last_checkpoint").exists()
    assert sink.committed() == 100
    with pytest.raises(FenceLostError):
        sink_at(path, fence=6)


def test_a_result_of_one_row_is_replaced(path: Path, tmp_path: Path) -> None:
    columns = (Field("COUNT(*)", BIGINT), Field("SUM(x y)", decimal(38, 2)))
    sink = sink_at(path, columns=columns, keys=(), of_nothing=(0, None))
    assert rows_at(path) == [(0, None)]
    sink.commit(0, staged(tmp_path, columns, [(1, Decimal("1.50"))]))
    sink.commit(1, staged(tmp_path, columns, [(2, Decimal("3.50"))]))
    assert rows_at(path) == [(2, Decimal("3.50"))]


PARTS = (Field("k", STRING), Field("bitmap", BIGINT), Field("bits", BIGINT), Field("s", DOUBLE))
FINAL = FinalLevel(
    keys=("k",),
    parts=("bitmap",),
    merged=(MergedColumn("bits", Merge.SUM), MergedColumn("s", Merge.SUM)),
    output=(
        FinalColumn(Field("k", STRING), "k"),
        FinalColumn(Field("uniques", BIGINT), "bits", zero=True),
        FinalColumn(Field("mean", DOUBLE), "s", divisor="bits"),
    ),
)


@pytest.mark.usefixtures("always_due")
def test_groups_are_merged_from_the_newest_of_their_parts(path: Path, tmp_path: Path) -> None:
    output = tuple(column.field for column in FINAL.output)
    sink = sink_at(path, columns=PARTS, output=output, final=FINAL)
    sink.commit(0, staged(tmp_path, PARTS, [("a", 0, 2, 3.0), ("a", None, None, 1.0), (None, 0, 1, 5.0)]))
    sink.commit(1, staged(tmp_path, PARTS, [("a", 0, 3, 5.0), ("b", 1, None, None)]))
    expected = [("a", 3, 2.0), (None, 1, 5.0), ("b", 0, None)]
    assert sorted(rows_at(path), key=repr) == sorted(expected, key=repr)
    sink.tidy()
    assert sorted(rows_at(path), key=repr) == sorted(expected, key=repr)
    sink.commit(2, staged(tmp_path, PARTS, [("a", 1, 1, 3.0)]))
    assert sorted(rows_at(path), key=repr) == sorted([("a", 4, 2.25), *expected[1:]], key=repr)


ALL: tuple[tuple[DataType, list[Any]], ...] = (
    (BOOLEAN, [True, False]),
    (TINYINT, [-128, 127]),
    (DataType(TypeName.SMALLINT), [-(2**15), 2**15 - 1]),
    (INT, [-(2**31), 2**31 - 1]),
    (BIGINT, [-(2**63), 2**63 - 1]),
    (FLOAT, [1.5, float("inf")]),
    (DOUBLE, [0.1, float("-inf")]),
    (decimal(38, 10), [Decimal("9" * 28 + ".0000000001"), Decimal("-1.5000000000")]),
    (decimal(5, 0), [Decimal(-99999), Decimal(7)]),
    (STRING, ["", "ä'\"\\\n\x01"]),
    (BINARY, [b"", b"\x00\xff"]),
    (DATE, [date(1, 1, 1), date(9999, 12, 31)]),
    (TIMESTAMP, [datetime(1, 1, 1, tzinfo=UTC), datetime(2026, 3, 29, 1, 30, 0, 123456, tzinfo=UTC)]),
    (TIMESTAMP_NTZ, [datetime.fromisoformat("0001-01-01"), datetime.fromisoformat("9999-12-31T23:59:59.999999")]),
    (array(INT), [[], [1, None]]),
    (struct([Field("x y", STRING), Field("z", array(decimal(10, 2)))]), [{"x y": "a", "z": [Decimal("1.25")]}, None]),
    (mapping(STRING, INT), [[("a", 1)], []]),
)


@pytest.mark.usefixtures("always_due")
@pytest.mark.parametrize(("type_", "values"), ALL, ids=[str(type_) for type_, _ in ALL])
def test_values_and_keys_of_every_type(path: Path, tmp_path: Path, type_: DataType, values: list[Any]) -> None:
    columns = (Field("Key (of\t all; types)", type_), Field("v", type_), Field("_batch", INT))
    first, second = values
    sink = sink_at(path, columns=columns, keys=(columns[0].name,))
    sink.commit(0, staged(tmp_path, columns, [(first, first, 0), (second, second, 1), (None, None, 2)]))
    sink.commit(1, staged(tmp_path, columns, [(second, first, 3), (None, second, 4)]))
    expected = {repr((first, first, 0)), repr((second, first, 3)), repr((None, second, 4))}
    if second is None:
        expected = {repr((first, first, 0)), repr((None, second, 4))}
    assert {repr(row) for row in rows_at(path)} == expected
    sink.tidy()
    assert {repr(row) for row in rows_at(path)} == expected
    assert open_stream_result(path).files.columns[0].type == str(type_)


def test_nan_is_a_key(path: Path, tmp_path: Path) -> None:
    columns = (Field("k", DOUBLE), Field("n", BIGINT))
    sink = sink_at(path, columns=columns)
    sink.commit(0, staged(tmp_path, columns, [(float("nan"), 1)]))
    sink.commit(1, staged(tmp_path, columns, [(float("nan"), 2)]))
    assert [n for _, n in rows_at(path)] == [2]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"columns": (Field("k", STRING), Field("n", NULL))}, "The column n: .* CAST it"),
        ({"columns": (Field("k", STRING), Field("K", INT))}, "same name, ignoring case: k"),
        ({"keys": ("n",)}, "has other columns or keys"),
        ({"columns": (*COLUMNS, Field("more", INT))}, "has other columns or keys"),
    ],
)
def test_unsupported_results_are_refused(path: Path, changes: dict[str, Any], message: str) -> None:
    sink_at(path)
    with pytest.raises(SinkError, match=message):
        sink_at(path, fence=2, **changes)


def test_one_of_two_attempts_creates_the_table(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    create: Callable[..., DeltaTable] = DeltaTable.create

    def second(*args: Any, **kwargs: Any) -> DeltaTable:
        monkeypatch.setattr(DeltaTable, "create", create)
        sink_at(path, fence=2)
        return create(*args, **kwargs)

    monkeypatch.setattr(DeltaTable, "create", second)
    with pytest.raises(FenceLostError):
        sink_at(path, fence=1)
    assert DeltaTable(path).version() == 0


class TestDeltaLake:
    """What the sink builds on, and a new release of the package could change."""

    SCHEMA = pa.schema([("k", pa.int64())])

    def written(self, table: DeltaTable, app: str, version: int, retries: int | None) -> None:
        properties = CommitProperties(app_transactions=[Transaction(app, version)], max_commit_retries=retries)
        table.create_write_transaction([], "append", self.SCHEMA, commit_properties=properties)

    def test_a_commit_without_retries_creates_the_next_version_or_none(self, tmp_path: Path) -> None:
        DeltaTable.create(tmp_path, self.SCHEMA)
        stale = DeltaTable(tmp_path)
        self.written(DeltaTable(tmp_path), "a", 1, 0)
        with pytest.raises(CommitFailedError):
            self.written(stale, "b", 1, 0)
        # With retries it comes through: nothing that it has looked at may be what it was.
        self.written(stale, "b", 1, None)
        assert (stale.version(), DeltaTable(tmp_path).version()) == (0, 2)

    def test_transactions_may_decrease(self, tmp_path: Path) -> None:
        DeltaTable.create(tmp_path, self.SCHEMA)
        for version in (5, 4):
            self.written(DeltaTable(tmp_path), "a", version, 0)
            assert DeltaTable(tmp_path).transaction_version("a") == version


def looked_up(path: Path, **key: Any) -> list[tuple[Any, ...]]:
    _, table = rows_of_stream(path, key, 100)
    return [tuple(row.values()) for row in table.to_pylist()]


def test_the_newest_row_of_a_key_is_looked_up(path: Path, tmp_path: Path, always_due: None) -> None:
    sink = sink_at(path)
    batches: list[list[tuple[Any, ...]]] = [[("a", 1), (None, 5)], [("a", 2), ("b", 3)], [("a", 4)]]
    for number, rows in enumerate(batches):
        sink.commit(number, staged(tmp_path, COLUMNS, rows))
        if number == 1:
            sink.tidy()
    assert looked_up(path, k="a") == [("a", 4)]
    assert looked_up(path, k=None) == [(None, 5)]
    assert looked_up(path, k="b", n=3) == [("b", 3)]
    assert looked_up(path, k="b", n=4) == []
    assert looked_up(path, k="c") == []
    with pytest.raises(InvalidLookupError, match="replace each other by their keys: name k too"):
        looked_up(path, n=3)
    with pytest.raises(InvalidLookupError, match="The result has no column x"):
        looked_up(path, k="a", x=1)


def test_removed_rows_are_not_looked_up(path: Path, tmp_path: Path) -> None:
    columns = (*COLUMNS, Field("$weight", BIGINT))
    sink = sink_at(path, columns=columns, output=COLUMNS, weight="$weight")
    sink.commit(0, staged(tmp_path, columns, [("a", 1, 1), ("b", 1, 1)]))
    sink.commit(1, staged(tmp_path, columns, [("a", 1, 0)]))
    assert (looked_up(path, k="a"), looked_up(path, k="b")) == ([], [("b", 1)])


def test_rows_without_keys_are_looked_up_by_any_column(path: Path, tmp_path: Path) -> None:
    sink = sink_at(path, keys=None)
    sink.commit(0, staged(tmp_path, COLUMNS, [("a", 1), ("b", 1)]))
    sink.commit(1, staged(tmp_path, COLUMNS, [("c", 1), ("c", 2)]))
    assert looked_up(path, n=1) == [("a", 1), ("b", 1), ("c", 1)]


def test_the_only_row_of_a_result_is_looked_up(path: Path, tmp_path: Path) -> None:
    columns = (Field("n", BIGINT),)
    sink = sink_at(path, columns=columns, keys=(), of_nothing=(0,))
    assert (looked_up(path, n=0), looked_up(path, n=1)) == ([(0,)], [])
    sink.commit(0, staged(tmp_path, columns, [(1,)]))
    assert (looked_up(path, n=0), looked_up(path, n=1)) == ([], [(1,)])


def test_a_result_without_its_keys_has_no_look_up(path: Path, tmp_path: Path) -> None:
    sink = sink_at(path, output=COLUMNS[1:])
    sink.commit(0, staged(tmp_path, COLUMNS, [("a", 1)]))
    with pytest.raises(InvalidLookupError, match="Select every key of GROUP BY to look rows up"):
        looked_up(path, n=1)
