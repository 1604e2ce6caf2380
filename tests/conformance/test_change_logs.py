"""Tests of change logs: applied in order, the changes in a sink give the result of a batch query after each mini-batch,
for any kills.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from service.contract.job import CHANGE_BATCH, CHANGE_COLUMNS, CHANGE_TYPE
from service.contract.tables import ADDING
from service.results.stream_result import open_stream_result
from service.sql.types.data_types import BIGINT, STRING, Field, Schema
from tests.conformance.conftest import FACTS, SEED, facts
from tests.conformance.stream_runs import StreamRun, catch_up_roughly, in_batch, write_rows
from tests.support.rows import difference
from workers.engine.streaming.sinks.append import AppendingSink, FileFormat
from workers.engine.streaming.sinks.base import Sink, SinkTarget
from workers.engine.streaming.sinks.delta import DeltaSink
from workers.engine.streaming.sinks.managed import ManagedSink

pytestmark = pytest.mark.spark

_DDL = ", ".join(f"{field.name} {field.type}" for field in FACTS.fields)
_SINKS: dict[str, Callable[[Path, SinkTarget], Sink]] = {
    "managed": ManagedSink,
    "delta": DeltaSink,
    "parquet": AppendingSink,
    "json": lambda path, target: AppendingSink(path, target, FileFormat.JSON),
}
QUERIES = {
    "rows": "SELECT id, k, m, ts FROM s WHERE g > 0",
    "groups": "SELECT k, COUNT(*) AS n, SUM(i) AS i, MAX(w) AS high FROM s GROUP BY k",
    "groups that vanish": "SELECT g, COUNT(*) AS n FROM s GROUP BY g HAVING COUNT(*) < 9",
    "one row": "SELECT COUNT(*) AS n, SUM(m) AS m, MIN(da) AS first FROM s",
    "hidden keys": "SELECT COUNT(*) AS n FROM s GROUP BY k",
    "rows without keys": "SELECT s.k, t.b, t.q FROM s LEFT JOIN t ON s.g = t.g",
}


def _changes(spark: SparkSession, kind: str, path: Path, columns: tuple[Field, ...]) -> list[dict[str, Any]]:
    """Returns the rows of a sink as another program reads them."""
    if kind == "json":
        ddl = ", ".join(f"`{field.name}` {field.type}" for field in columns)
        reader = spark.read.schema(ddl).option("recursiveFileLookup", value=True)
        return [row.asDict() for row in reader.json(str(path)).collect()]
    table: pa.Table
    if kind == "parquet":
        table = ds.dataset(path, format="parquet").to_table()
    elif kind == "delta":
        table = pa.table(DeltaTable(path).to_pyarrow_table())
    else:
        table = open_stream_result(path).files.page(0, 1 << 20)
    rows: list[dict[str, Any]] = table.to_pylist()
    return [
        {
            name: value.replace(tzinfo=None) if isinstance(value, datetime) else value
            for name, value in row.items()
            if name in {field.name for field in columns}
        }
        for row in rows
    ]


def _applied(changes: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """Returns the result after all changes; no row is removed that is not there."""
    numbers: Counter[str] = Counter()
    rows: dict[str, tuple[Any, ...]] = {}
    for number in sorted({change[CHANGE_BATCH] for change in changes}):
        for change in changes:
            if change[CHANGE_BATCH] == number:
                row = tuple(value for name, value in change.items() if name not in CHANGE_COLUMNS)
                rows[repr(row)] = row
                numbers[repr(row)] += 1 if change[CHANGE_TYPE] in ADDING else -1
        assert min(numbers.values(), default=0) >= 0, number
    return [rows[key] for key, count in numbers.items() for _ in range(count)]


def _check_updates(changes: list[dict[str, Any]], key: str) -> None:
    """Checks that an update has one row before and one after it, and that other keys have one change."""
    types: dict[tuple[Any, Any], list[str]] = {}
    for change in changes:
        types.setdefault((change[CHANGE_BATCH], change[key]), []).append(change[CHANGE_TYPE])
    expected = [["delete"], ["insert"], ["update_postimage", "update_preimage"]]
    assert all(sorted(one) in expected for one in types.values()), types
    assert {kind for one in types.values() for kind in one} > {"insert", "update_preimage"}


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        *(("parquet", name) for name in QUERIES),
        *((kind, name) for kind in ("managed", "delta", "json") for name in ("groups", "rows without keys")),
        ("json", "rows"),
    ],
)
def test_changes_give_the_batch_result(spark: SparkSession, tmp_path: Path, kind: str, name: str) -> None:
    random = Random(f"{SEED} {kind} {name}")
    sql, path = QUERIES[name], tmp_path / "out"
    tables = [table for table in "st" if re.search(rf"\b(FROM|JOIN) {table}\b", sql)]
    run = StreamRun(
        spark,
        tmp_path / "run",
        sql,
        dict.fromkeys(tables, Schema(FACTS.fields)),
        log=lambda target: _SINKS[kind](path, target),
    )
    columns = (*run.planned.plan.output, Field(CHANGE_TYPE, STRING), Field(CHANGE_BATCH, BIGINT))
    put: dict[str, list[Path]] = {table: [] for table in tables}
    story: list[str] = []
    changes: list[dict[str, Any]] = []
    for number in range(4):
        for table in tables:
            rows = facts(30, 0.3, random.randint(0, 1 << 30))
            put[table].append(write_rows(tmp_path / "cuts" / f"{table}{number}.parquet", FACTS, rows))
            run.put(table, put[table][-1])
        catch_up_roughly(run, random, story)
        assert run.catch_up() is None
        expected = in_batch(spark, sql, put, dict.fromkeys(put, _DDL))
        changes = _changes(spark, kind, path, columns)
        assert difference(expected, _applied(changes)) is None, (number, story)
    assert [*changes[0]] == [field.name for field in columns]
    if name == "groups":
        _check_updates(changes, "k")
    if name == "rows":
        assert {change[CHANGE_TYPE] for change in changes} == {"insert"}


def test_another_stream_reads_a_change_log(spark: SparkSession, tmp_path: Path) -> None:
    """The column with the type of a change is an `operation` column."""
    random, path = Random(SEED), tmp_path / "out"
    groups = "SELECT k, COUNT(*) AS n FROM s GROUP BY k"
    first = StreamRun(
        spark,
        tmp_path / "first",
        groups,
        {"s": Schema(FACTS.fields)},
        log=lambda target: AppendingSink(path, target),
    )
    schema = Schema((*first.planned.plan.output, Field(CHANGE_TYPE, STRING), Field(CHANGE_BATCH, BIGINT)))
    sql = "SELECT n, COUNT(*) AS groups FROM c GROUP BY n"
    second = StreamRun(spark, tmp_path / "second", sql, {"c": schema}, operations={"c": CHANGE_TYPE})
    put: list[Path] = []
    for number in range(3):
        rows = facts(20, 0.3, random.randint(0, 1 << 30))
        put.append(write_rows(tmp_path / "cuts" / f"{number}.parquet", FACTS, rows))
        first.put("s", put[-1])
        assert first.catch_up() is None
        for file in sorted(path.glob(f"part-g1-b{number:012}/*.parquet")):
            second.put("c", file)
        assert second.catch_up() is None
        expected = in_batch(spark, f"WITH c AS ({groups}) {sql}", {"s": put}, {"s": _DDL})
        assert difference(expected, second.rows) is None, number
