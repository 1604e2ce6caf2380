"""The sink for Delta tables of users: it merges each mini-batch once, also with other writers."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from service.sql.types.aggregates import FinalLevel
from service.sql.types.data_types import BIGINT, DOUBLE, INT, STRING, DataType, Field, array, decimal, struct
from tests.support.staged import EVERY_TYPE, staged
from workers.engine.streaming.sinks.base import FenceLostError, SinkError, SinkTarget
from workers.engine.streaming.sinks.delta import DeltaSink

COLUMNS = (Field("k", STRING), Field("N", BIGINT))
UTC = ZoneInfo("UTC")


def sink_at(path: Path, fence: int = 1, app: str = "evenkeel/job/1", **changes: Any) -> DeltaSink:
    of_nothing = changes.pop("of_nothing", None)
    settings = {"columns": COLUMNS, "output": changes.get("columns", COLUMNS), "keys": ("k",), **changes}
    sink = DeltaSink(path, SinkTarget(app, fence, **settings), of_nothing)
    sink.prepare()
    return sink


def rows_at(path: Path) -> list[tuple[Any, ...]]:
    rows = DeltaTable(path).to_pyarrow_table().to_pylist()
    return sorted((tuple(row.values()) for row in rows), key=repr)


def test_a_newer_row_replaces_an_older_one_of_its_key(tmp_path: Path) -> None:
    path = tmp_path / "out"
    sink = sink_at(path)
    assert sink.committed() is None
    assert sink.commit(0, staged(tmp_path, COLUMNS, [("a", 1), (None, 2), ("b", 3)], files=2)) == 1
    assert sink.commit(1, staged(tmp_path, COLUMNS, [(None, 5), ("c", 6), ("c", 7)])) == 2
    assert sink.commit(2, staged(tmp_path, COLUMNS, [], files=0)) == 2
    assert sink.commit(1, staged(tmp_path, COLUMNS, [("a", 9)])) == 2
    assert sink.committed() == 1
    assert rows_at(path) == [("a", 1), ("b", 3), ("c", 7), (None, 5)]


def test_attempts_of_older_generations_are_fenced_off(tmp_path: Path) -> None:
    path = tmp_path / "out"
    old = sink_at(path, fence=3)
    sink_at(path, fence=4, app="evenkeel/job/2")
    for late in (old.prepare, lambda: old.commit(0, staged(tmp_path, COLUMNS, [("a", 1)]))):
        with pytest.raises(FenceLostError):
            late()
    # Another job's tokens are its own.
    sink_at(path, fence=1, app="evenkeel/other/1").commit(0, staged(tmp_path, COLUMNS, [("a", 2)]))
    assert rows_at(path) == [("a", 2)]


@pytest.mark.parametrize(
    ("keys", "expected"),
    [(("k",), [("a", 1), ("b", 9)]), ((), [("a", 1)]), (None, [("a", 1), ("a", 8), ("b", 9)])],
)
def test_commits_of_other_writers_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keys: tuple[str, ...] | None, expected: list[Any]
) -> None:
    path = tmp_path / "out"
    sink = sink_at(path, keys=keys)
    write = DeltaSink._write

    def after_another(sink: DeltaSink, table: DeltaTable, *args: Any) -> None:
        monkeypatch.setattr(DeltaSink, "_write", write)
        write_deltalake(path, pa.table({"k": ["a", "b"], "N": [8, 9]}), mode="append")
        write(sink, table, *args)

    monkeypatch.setattr(DeltaSink, "_write", after_another)
    assert sink.commit(0, staged(tmp_path, COLUMNS, [("a", 1)])) == 2
    assert rows_at(path) == expected


def test_an_attempt_that_checked_before_the_next_one_began_commits_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "out"
    old = sink_at(path)
    write = DeltaSink._write

    def after_the_next_has_come(sink: DeltaSink, table: DeltaTable, *args: Any) -> None:
        sink_at(path, fence=2)
        write(sink, table, *args)

    monkeypatch.setattr(DeltaSink, "_write", after_the_next_has_come)
    with pytest.raises(FenceLostError):
        old.commit(0, staged(tmp_path, COLUMNS, [("a", 1)]))
    assert rows_at(path) == []


def test_a_result_of_one_row_is_replaced(tmp_path: Path) -> None:
    columns = (Field("n", BIGINT), Field("s", decimal(5, 2)))
    for fence in (1, 2):
        sink = sink_at(tmp_path / "out", fence, columns=columns, keys=(), of_nothing=(0, None))
        assert rows_at(tmp_path / "out") == [(0, None)]
    sink.commit(0, staged(tmp_path, columns, [(1, None), (2, Decimal("1.50"))]))
    sink_at(tmp_path / "out", 3, columns=columns, keys=(), of_nothing=(0, None))
    assert rows_at(tmp_path / "out") == [(2, Decimal("1.50"))]


@pytest.mark.parametrize(("type_", "values"), EVERY_TYPE, ids=[str(type_) for type_, _ in EVERY_TYPE])
def test_values_and_keys_of_every_type(tmp_path: Path, type_: DataType, values: list[Any]) -> None:
    columns = (Field('Key-"of".all', type_), Field("j", INT), Field("v", array(struct([Field("x", type_)]))))
    first, second = values
    path = tmp_path / "out"
    sink = sink_at(path, columns=columns, keys=(columns[0].name, "j"))
    old, new = [{"x": first}], [{"x": second}, None]
    sink.commit(0, staged(tmp_path, columns, [(first, None, old), (second, 1, old), (None, None, None)]))
    # Prepared again, its own table is one that it takes.
    sink.prepare()
    sink.commit(1, staged(tmp_path, columns, [(second, 1, new), (None, None, new)]))
    assert rows_at(path) == sorted([(first, None, old), (second, 1, new), (None, None, new)], key=repr)


def test_nan_is_a_key(tmp_path: Path) -> None:
    columns = (Field("k", DOUBLE), Field("n", BIGINT))
    sink = sink_at(tmp_path / "out", columns=columns)
    for batch_id in range(2):
        sink.commit(batch_id, staged(tmp_path, columns, [(float("nan"), batch_id)]))
    assert [n for _, n in rows_at(tmp_path / "out")] == [1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"columns": (Field("k", STRING), Field("COUNT(x)", INT))}, "a column 'COUNT"),
        ({"columns": (Field("k", STRING), Field("K", INT))}, "have the same name"),
        ({"output": (COLUMNS[1],)}, "Key column k is missing"),
        ({"columns": (Field("k", STRING), Field("N", INT))}, "has the columns k string, N int64, but the result"),
        ({"final": FinalLevel((), (), (), ())}, "kept in parts"),
    ],
)
def test_unsupported_results_are_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    sink_at(tmp_path / "out")
    with pytest.raises(SinkError, match=message):
        sink_at(tmp_path / "out", **changes)
