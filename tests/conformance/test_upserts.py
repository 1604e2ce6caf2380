"""Tests of streams whose rows replace each other, in files of rows and of Debezium's records: after each mini-batch,
the result is that of a batch query over the newest rows, for any kills.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from service.contract.tables import ADDING, REMOVING, REPLACED
from service.sql.ddl import parse_schema
from service.sql.types.data_types import BIGINT, STRING, Field, Schema
from tests.conformance.conftest import FACTS, SEED, facts
from tests.conformance.stream_runs import StreamRun, catch_up_roughly, in_batch, write_rows
from tests.support.rows import difference

pytestmark = pytest.mark.spark

WITH_ORDER = Schema((*FACTS.fields, Field("at", BIGINT), Field("op", STRING)))
_DDL = ", ".join(f"{field.name} {field.type}" for field in FACTS.fields)
UPSERT = {"keys": ["id"], "order": "at"}
QUERIES = {
    "rows": "SELECT id, k, d, m FROM s",
    "rows without their keys": "SELECT k, g FROM s WHERE g > 0",
    "sums": "SELECT k, COUNT(*) AS n, SUM(i) AS i, MAX(b) AS high FROM s GROUP BY k",
    "distinct": "SELECT g, COUNT(DISTINCT k) AS n, COUNT(DISTINCT k) FILTER (WHERE q) AS m FROM s GROUP BY g",
    "join": "SELECT t.k, COUNT(*) AS n FROM s JOIN t ON s.g = t.g GROUP BY t.k",
    "with itself": "SELECT a.id, b.k FROM s AS a JOIN s AS b ON a.g = b.g AND a.id < b.id",
}


@pytest.mark.parametrize("name", QUERIES)
def test_result_is_that_of_the_newest_rows(spark: SparkSession, tmp_path: Path, name: str) -> None:
    random = Random(f"{SEED} {name}")
    sql = QUERIES[name]
    tables = {"s": WITH_ORDER} | ({"t": FACTS} if " t " in sql else {})
    run = StreamRun(spark, tmp_path / "run", sql, tables, fields={"s": {"upsert": UPSERT, "operation": "op"}})
    newest: dict[int, tuple[Any, ...]] = {}
    orders: dict[int, int] = {}
    others: list[Any] = []
    story: list[str] = []
    for number in range(4):
        changes: list[tuple[Any, ...]] = []
        for row in facts(40, 0.3, random.randint(0, 1 << 30)):
            # A row may come after a newer one.
            key, at = random.randint(0, 15), 100 * random.randint(0, 9) + len(changes) + 1000 * number // 2
            operation = random.choice((*ADDING, *REMOVING))
            changed = (key, *row[1:])
            changes.append((*changed, at, operation))
            if operation.lower() in map(str.lower, REPLACED) or orders.get(key, -1) > at:
                continue
            orders[key] = at
            newest.pop(key, None)
            if operation in ADDING:
                newest[key] = changed
        random.shuffle(changes)
        run.put("s", write_rows(tmp_path / "changes" / f"{number}.parquet", WITH_ORDER, changes))
        left = {"s": [write_rows(tmp_path / "left" / f"{number}.parquet", FACTS, list(newest.values()))]}
        if "t" in tables:
            others += facts(10, 0.3, random.randint(0, 1 << 30))
            run.put("t", write_rows(tmp_path / "t" / f"{number}.parquet", FACTS, others[-10:]))
            left["t"] = [write_rows(tmp_path / "left" / f"t{number}.parquet", FACTS, others)]
        catch_up_roughly(run, random, story)
        assert run.catch_up() is None
        expected = in_batch(spark, sql, left, dict.fromkeys(left, _DDL))
        assert difference(expected, run.rows) is None, (number, story)


def test_the_keys_identify_rows_of_the_result(spark: SparkSession, tmp_path: Path) -> None:
    run = StreamRun(spark, tmp_path, "SELECT k, Id FROM s", {"s": WITH_ORDER}, fields={"s": {"upsert": UPSERT}})
    assert run.planned.plan.keys == ("Id",)


def test_rows_may_replace_each_other_without_operations(spark: SparkSession, tmp_path: Path) -> None:
    schema = Schema(tuple(field for field in WITH_ORDER.fields if field.name in {"id", "k", "at"}))
    run = StreamRun(spark, tmp_path / "run", "SELECT id, k FROM s", {"s": schema}, fields={"s": {"upsert": UPSERT}})
    # NULL is before all other values, and a row with the same order does not depend on the order of files.
    cuts: list[list[tuple[Any, ...]]] = [[(1, "a", None)], [(1, "b", 5), (2, "x", 1)], [(1, "c", 4)], [(2, "y", 7)]]
    for number, rows in enumerate(cuts):
        run.put("s", write_rows(tmp_path / f"{number}.parquet", schema, rows))
        assert run.catch_up() is None
    assert sorted(tuple(row) for row in run.rows) == [(1, "b"), (2, "y")]


def test_an_unknown_operation_ends_the_stream(spark: SparkSession, tmp_path: Path) -> None:
    fields = {"s": {"upsert": UPSERT, "operation": "op"}}
    run = StreamRun(spark, tmp_path / "run", "SELECT id, k FROM s", {"s": WITH_ORDER}, fields=fields)
    # The other row is newer.
    rows = [(*row, at, op) for row, at, op in zip(facts(1, 0.0, 1) * 2, (1, 2), ("x", "+I"), strict=True)]
    run.put("s", write_rows(tmp_path / "rows.parquet", WITH_ORDER, rows))
    with pytest.raises(PySparkException, match=re.escape("A row of table 's' has the operation 'x'. It must be one")):
        run.catch_up()


# Debezium


CUSTOMERS = "id BIGINT, name STRING, city STRING, spent DECIMAL(10,2)"
_SUMS = "SELECT city, COUNT(*) AS n, SUM(spent) AS spent FROM s GROUP BY city"


def _record(before: Any, after: Any, operation: str, at: int, *, is_wrapped: bool) -> str:
    record = {"before": before, "after": after, "op": operation, "ts_ms": 1_767_225_600_000, "source": {"lsn": at}}
    return json.dumps({"schema": {"type": "struct"}, "payload": record} if is_wrapped else record)


def _run(spark: SparkSession, root: Path, upsert: Mapping[str, Any] | None, sql: str = _SUMS) -> StreamRun:
    fields = {"format": "json", "schema": CUSTOMERS, "envelope": "debezium", "upsert": upsert}
    return StreamRun(spark, root, sql, {"s": parse_schema(CUSTOMERS, "")}, fields={"s": fields})


@pytest.mark.parametrize("upsert", [None, {"keys": ["id"], "order": "source.lsn"}])
@pytest.mark.parametrize("sql", [_SUMS, "SELECT id, name, spent FROM s WHERE city <> 'c1'"])
def test_records_of_debezium_are_the_table(
    spark: SparkSession, tmp_path: Path, upsert: Mapping[str, Any] | None, sql: str
) -> None:
    random = Random(f"{SEED} {sql} {upsert}")
    run = _run(spark, tmp_path / "run", upsert, sql)
    rows: dict[int, dict[str, Any]] = {}
    story: list[str] = []
    at = 0
    for number in range(4):
        records = []
        for _ in range(30):
            at += 1
            key = random.randint(0, 9)
            old = rows.get(key)
            new = {"id": key, "name": f"n{at}", "city": f"c{at % 3}", "spent": random.randint(0, 999) / 4}
            if old is not None and random.random() < 0.3:
                # A database may only write the keys of the row before.
                before: Any = old if upsert is None else {"id": key}
                after, operation = None, "d"
                del rows[key]
            else:
                operation = random.choice("cr") if old is None else "u"
                before, after = old if upsert is None else None, new
                rows[key] = new
            records.append(_record(before, after, operation, at, is_wrapped=number % 2 == 0))
        random.shuffle(records)
        file = tmp_path / "records" / f"{number}.json"
        file.parent.mkdir(exist_ok=True)
        file.write_text("\n".join(records) + "\n")
        run.put("s", file)
        catch_up_roughly(run, random, story)
        assert run.catch_up() is None
        spark.createDataFrame([json.dumps(row) for row in rows.values()], "STRING").createOrReplaceTempView("texts")
        parsed = spark.sql(f"SELECT j.* FROM (SELECT FROM_JSON(value, '{CUSTOMERS}') AS j FROM texts)")
        parsed.createOrReplaceTempView("s")
        assert difference(spark.sql(sql).collect(), run.rows) is None, (number, story)


@pytest.mark.parametrize(
    ("upsert", "record", "text"),
    [
        (None, (None, {"id": 1}, "u"), "has no row in 'before'. Let the database write it (PostgreSQL: REPLICA"),
        (None, (None, None, "d"), "has no row in 'before'"),
        (None, (None, None, "c"), "has no row in 'after'"),
        (None, (None, {"id": 1}, "t"), "has an operation other than 'c', 'r', 'u' and 'd'"),
        ({"keys": ["id"]}, (None, None, "d"), "has no keys in 'before', so it is not known which row it removes"),
    ],
)
def test_an_incomplete_record_ends_the_stream(
    spark: SparkSession, tmp_path: Path, upsert: Mapping[str, Any] | None, record: tuple[Any, Any, str], text: str
) -> None:
    run = _run(spark, tmp_path / "run", upsert)
    file = tmp_path / "records.json"
    file.write_text(_record(*record, 1, is_wrapped=False) + "\n")
    run.put("s", file)
    with pytest.raises(PySparkException, match=re.escape(f"A record of table 's' {text}")):
        run.catch_up()
