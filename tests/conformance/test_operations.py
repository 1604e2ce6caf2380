"""Tests of streams from which rows are removed: after each mini-batch, the result is that of a batch query over the
rows that remain, for any kills.
"""

from __future__ import annotations

import re
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from service.contract.problems import SpecError
from service.contract.tables import ADDING, REMOVING
from service.sql.types.data_types import STRING, Field, Schema
from tests.conformance.conftest import FACTS, SEED, facts
from tests.conformance.stream_runs import StreamRun, catch_up_roughly, in_batch, write_rows
from tests.support.rows import difference

pytestmark = pytest.mark.spark

WITH_OPERATION = Schema((*FACTS.fields, Field("Op", STRING)))
_DDL = ", ".join(f"{field.name} {field.type}" for field in FACTS.fields)
QUERIES = {
    "rows": "SELECT id, k, d, m FROM s WHERE g > 0",
    "sums": "SELECT k, COUNT(*) AS n, SUM(i) AS i, AVG(m) AS m, MIN(d) AS low, MAX(b) AS high FROM s GROUP BY k",
    "without groups": "SELECT COUNT(*) AS n, SUM(b) AS b, COUNT(DISTINCT g) AS g FROM s",
    "inexact without groups": "SELECT SUM(d) AS d, AVG(f) AS f, MIN(f) AS low FROM s",
    "values": "SELECT DISTINCT low FROM (SELECT k, MIN(f) AS low FROM s GROUP BY k) AS g",
    "distinct": "SELECT g, COUNT(DISTINCT k, i) AS n FROM s GROUP BY g HAVING COUNT(*) > 2",
    "first rows": "SELECT k, id FROM (SELECT k, id, ROW_NUMBER() OVER (PARTITION BY k ORDER BY i DESC, id) AS place "
    "FROM s) AS ranked WHERE place <= 2",
    "join": "SELECT s.k, COUNT(*) AS n, SUM(t.i) AS i FROM s JOIN t ON s.g = t.g GROUP BY s.k",
    "outer join": "SELECT s.id, t.id AS other FROM s LEFT JOIN t ON s.i = t.i AND s.id < t.id",
}


def remaining(random: Random, rows: list[Any]) -> tuple[list[Any], list[Any]]:
    """Returns the rows that remain, and those to remove."""
    share = random.choice((0.0, 0.3, 0.6, 1.0))
    flags = [random.random() < share for _ in rows]
    return [row for row, gone in zip(rows, flags, strict=True) if not gone], [
        row for row, gone in zip(rows, flags, strict=True) if gone
    ]


@pytest.mark.parametrize("name", QUERIES)
def test_result_is_that_of_the_rows_that_remain(spark: SparkSession, tmp_path: Path, name: str) -> None:
    random = Random(f"{SEED} {name}")
    sql = QUERIES[name]
    # Rows are removed from one stream, and only added to the other.
    tables = {"s": WITH_OPERATION} | ({"t": FACTS} if " t " in sql else {})
    run = StreamRun(spark, tmp_path / "run", sql, tables, operations={"s": "op"})
    rows: dict[str, list[Any]] = {table: [] for table in tables}
    story: list[str] = []
    for number in range(4):
        for table, schema in tables.items():
            new = facts(25, 0.3, random.randint(0, 1 << 30))
            if table == "s":
                rows[table], removed = remaining(random, rows[table])
                # Some rows are added and removed in one mini-batch.
                kept, short = remaining(random, new)
                rows[table] += kept
                changes = [(*row, random.choice(ADDING)) for row in new]
                changes += [(*row, random.choice(REMOVING).swapcase()) for row in (*removed, *short)]
                random.shuffle(changes)
            else:
                rows[table] += new
                changes = new
            run.put(table, write_rows(tmp_path / "changes" / f"{table}{number}.parquet", schema, changes))
        catch_up_roughly(run, random, story)
        assert run.catch_up() is None
        left = {
            table: [write_rows(tmp_path / "left" / f"{table}{number}.parquet", FACTS, own)]
            for table, own in rows.items()
        }
        expected = in_batch(spark, sql, left, dict.fromkeys(left, _DDL))
        assert difference(expected, run.rows) is None, (number, story)


def test_a_row_may_be_removed_before_it_is_added(spark: SparkSession, tmp_path: Path) -> None:
    row, other = facts(2, 0.0, 7)
    run = StreamRun(spark, tmp_path / "run", QUERIES["sums"], {"s": WITH_OPERATION}, operations={"s": "op"})
    for number, (changes, left) in enumerate(
        [([(*row, "-D")], []), ([(*other, "+I"), (*other, "-D")], []), ([(*row, "+I")], []), ([(*row, "+I")], [row])]
    ):
        run.put("s", write_rows(tmp_path / f"{number}.parquet", WITH_OPERATION, changes))
        assert run.catch_up() is None
        file = write_rows(tmp_path / "left" / f"{number}.parquet", FACTS, left)
        assert difference(in_batch(spark, QUERIES["sums"], {"s": [file]}, {"s": _DDL}), run.rows) is None, number


def test_large_changes_of_a_window_above_a_join(spark: SparkSession, tmp_path: Path) -> None:
    static = write_rows(tmp_path / "u" / "u.parquet", FACTS, facts(200, 0.0, 3))
    sql = (
        "SELECT s.id, SUM(s.d) OVER (PARTITION BY s.k) AS total, u.b FROM s LEFT JOIN "
        "(SELECT k, b FROM u WHERE id = 7) AS u ON s.k = u.k"
    )
    run = StreamRun(spark, tmp_path / "run", sql, {"s": FACTS}, {"u": tmp_path})
    assert run.planned.changes is not None
    run.planned.changes.small_bytes = 0
    files = [write_rows(tmp_path / "s" / f"{number}.parquet", FACTS, facts(60, 0.3, number)) for number in range(4)]
    for file in files:
        run.put("s", file)
    assert run.catch_up() is None
    assert difference(in_batch(spark, sql, {"s": files, "u": [static]}, {"s": _DDL, "u": _DDL}), run.rows) is None


@pytest.mark.parametrize("operation", ["u", "", None])
def test_unknown_operation_ends_the_stream(spark: SparkSession, tmp_path: Path, operation: str | None) -> None:
    run = StreamRun(spark, tmp_path / "run", QUERIES["sums"], {"s": WITH_OPERATION}, operations={"s": "Op"})
    rows = [(*row, operation) for row in facts(1, 0.0, 1)]
    run.put("s", write_rows(tmp_path / "rows.parquet", WITH_OPERATION, rows))
    shown = "NULL" if operation is None else f"'{operation}'"
    text = f"A row of table 's' has the operation {shown}. It must be one of +I, +U,"
    with pytest.raises(PySparkException, match=re.escape(text)):
        run.catch_up()


def test_queries_do_not_see_operations(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(SpecError) as caught:
        StreamRun(spark, tmp_path, "SELECT Op FROM s", {"s": WITH_OPERATION}, operations={"s": "Op"})
    assert caught.value.code == "unknown_column"
    run = StreamRun(spark, tmp_path / "all", "SELECT * FROM s", {"s": WITH_OPERATION}, operations={"s": "Op"})
    assert [field.name for field in run.planned.plan.output] == list(FACTS.names)
