"""Tests of joins of two streams against Spark's batch result: for any order of rows within the delay, any division into
mini-batches and any retries, each pair and each unmatched row is emitted once. An unmatched row far in the future moves
each watermark past all other rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from service.contract.enums import OutputMode
from service.contract.options import StateProvider
from service.sql.ddl import parse_schema
from tests.conformance.conftest import SEED
from tests.conformance.stream_runs import StreamRun, catch_up_roughly, in_batch
from tests.support.rows import difference
from workers.engine.streaming.stream_plan import Shape

pytestmark = pytest.mark.spark

_DDL = "k STRING, i INT, d DOUBLE, ts TIMESTAMP, other TIMESTAMP"
_START = datetime(2024, 2, 28, 23, 3, tzinfo=UTC)
_DELAY = timedelta(minutes=5)
_MINUTES = 90
_ROWS = 60

Cells = tuple[Any, ...]


@dataclass(frozen=True)
class Query:
    """A query over the streams `s` and `t` and the static table `n`. `batch` is the equivalent batch query if its
    windows differ.
    """

    sql: str
    shape: Shape = Shape.JOINED_ROWS
    batch: str = ""
    output: OutputMode | None = None


_WITHIN = "s.ts BETWEEN t.ts - INTERVAL '10' MINUTE AND t.ts + INTERVAL '4' MINUTE"
_TUMBLE = "TUMBLE(s.ts, INTERVAL '10' MINUTE)"
_HOP = "HOP(t.ts, INTERVAL '4' MINUTE, INTERVAL '10' MINUTE)"

QUERIES = {
    "inner": Query(
        "SELECT s.k, s.i + t.i AS e, s.ts, t.other FROM s JOIN t ON s.d = t.d AND s.i < t.i + 3 "
        "WHERE s.ts > t.ts - INTERVAL '600' SECOND AND t.ts + INTERVAL '3' MINUTE >= s.ts"
    ),
    "left, then a static table": Query(
        f"SELECT s.k, t.i, s.ts, n.name FROM s LEFT JOIN t ON s.k = t.k AND s.i < t.i AND s.d > 0 AND {_WITHIN} "
        "LEFT JOIN n ON n.g = t.i"
    ),
    "right, of filtered and united rows": Query(
        "SELECT x.a, t.k, t.i, t.ts FROM (SELECT k, ts AS a FROM s WHERE i > 1 UNION ALL SELECT k, ts FROM s) x "
        "RIGHT JOIN t ON x.k = t.k AND x.a >= t.ts AND x.a - INTERVAL '5' MINUTE < t.ts"
    ),
    "semi, by what may be NULL": Query(
        f"SELECT s.k, s.i, s.ts FROM s LEFT SEMI JOIN t ON nullif(s.k, 'b') = nullif(t.k, 'b') AND s.i < t.i "
        f"AND {_WITHIN}"
    ),
    "times that are a minute apart": Query(
        "SELECT s.i, t.i AS j, t.ts FROM s RIGHT JOIN t ON s.ts = t.ts - INTERVAL '1' MINUTE"
    ),
    "another time as key": Query(f"SELECT s.i, t.i AS j, s.ts FROM s LEFT JOIN t ON s.ts = t.other AND {_WITHIN}"),
    "different rows": Query(
        f"SELECT DISTINCT s.k, t.i, s.ts FROM s LEFT JOIN t ON s.k = t.k AND {_WITHIN}", Shape.DISTINCT_ROWS
    ),
    "grouped by something else": Query(
        f"SELECT t.i, COUNT(DISTINCT s.ts) AS c, COUNT(DISTINCT s.ts, t.ts) AS n FROM s JOIN t ON s.k = t.k "
        f"AND {_WITHIN} GROUP BY t.i HAVING COUNT(DISTINCT s.ts) > 1",
        Shape.DISTINCT,
    ),
    "windows": Query(
        f"SELECT s.k, TUMBLE_START(s.ts, INTERVAL '10' MINUTE) AS b, COUNT(*) AS n, COUNT(t.i) AS c FROM s "
        f"LEFT JOIN t ON s.k = t.k AND {_WITHIN} GROUP BY s.k, {_TUMBLE}",
        Shape.PLAIN,
        "SELECT k, w.start AS b, COUNT(*) AS n, COUNT(j) AS c FROM (SELECT s.k, t.i AS j, "
        f"window(s.ts, '10 minutes') AS w FROM s LEFT JOIN t ON s.k = t.k AND {_WITHIN}) GROUP BY k, w",
    ),
    "windows of the other time": Query(
        f"SELECT s.i, COUNT(DISTINCT t.i) AS c, MAX(s.ts) AS m FROM s JOIN t ON s.k = t.k AND {_WITHIN} "
        f"GROUP BY s.i, {_HOP}",
        Shape.UNITED,
        "SELECT i, COUNT(DISTINCT j) AS c, MAX(ts) AS m FROM (SELECT s.i, s.ts, t.i AS j, "
        f"window(t.ts, '10 minutes', '4 minutes') AS w FROM s JOIN t ON s.k = t.k AND {_WITHIN}) GROUP BY i, w",
    ),
    "windows of different rows": Query(
        f"SELECT n.name, COUNT(*) AS c FROM (SELECT DISTINCT s.i, s.ts AS at FROM s LEFT SEMI JOIN t ON s.k = t.k "
        f"AND {_WITHIN}) x JOIN n ON n.g = x.i GROUP BY n.name, TUMBLE(at, INTERVAL '10' MINUTE)",
        Shape.PLAIN,
        "SELECT name, COUNT(*) AS c FROM (SELECT n.name, window(ts, '10 minutes') AS w FROM (SELECT DISTINCT s.i, s.ts "
        f"FROM s LEFT SEMI JOIN t ON s.k = t.k AND {_WITHIN}) x JOIN n ON n.g = x.i) GROUP BY name, w",
    ),
    "windows as they change": Query(
        f"SELECT s.i, TUMBLE_START(s.ts, INTERVAL '10' MINUTE) AS b, COUNT(*) AS n FROM s JOIN t ON s.k = t.k "
        f"AND {_WITHIN} GROUP BY s.i, {_TUMBLE}",
        Shape.PLAIN,
        "SELECT i, w.start AS b, COUNT(*) AS n FROM (SELECT s.i, window(s.ts, '10 minutes') AS w FROM s JOIN t "
        f"ON s.k = t.k AND {_WITHIN}) GROUP BY i, w",
        OutputMode.UPDATE,
    ),
}


_WAITING = Query(
    "SELECT s.i, t.i AS j FROM s LEFT JOIN t ON s.k = t.k AND s.i = t.i AND t.ts BETWEEN s.ts "
    "AND s.ts + INTERVAL '10' MINUTE"
)


def _rows(random: Random) -> list[Cells]:
    """Returns rows in their order of arrival; none is later than the delay allows."""
    rows: list[tuple[float, Cells]] = []
    for _ in range(_ROWS):
        minute = random.randrange(_MINUTES) if random.random() < 0.5 else random.uniform(0, _MINUTES)
        at = _START + timedelta(minutes=minute)
        other = _START + timedelta(minutes=random.randrange(_MINUTES))
        cells = (
            random.choice(["a", "b", "c", None]),
            random.choice([*range(5), None]),
            random.choice([0.0, -0.0, float("nan"), 1.5, None]),
            at if random.random() > 0.05 else None,
            other,
        )
        rows.append((60 * minute + random.uniform(0, _DELAY.total_seconds() - 1), cells))
    return [cells for _, cells in sorted(rows, key=lambda row: row[0])]


def _file(spark: SparkSession, rows: Sequence[Cells], path: Path) -> Path:
    table: pa.Table = spark.createDataFrame(list(rows), _DDL).toArrow()
    path.parent.mkdir(exist_ok=True)
    pq.write_table(table, path)
    return path


def _files(spark: SparkSession, random: Random, directory: Path) -> list[Path]:
    rows = _rows(random)
    borders = [0, *sorted(random.sample(range(len(rows) + 1), random.randint(1, 2))), len(rows)]
    return [
        _file(spark, rows[start:end], directory / f"{number}.parquet")
        for number, (start, end) in enumerate(pairwise(borders))
    ]


def _static(spark: SparkSession, directory: Path) -> Path:
    (directory / "n").mkdir(parents=True)
    table: pa.Table = spark.createDataFrame([(0, "zero"), (1, "one"), (3, None)], "g INT, name STRING").toArrow()
    pq.write_table(table, directory / "n" / "n.parquet")
    return directory


def _run(spark: SparkSession, root: Path, query: Query, provider: StateProvider) -> StreamRun:
    delay = f"{int(_DELAY.total_seconds())}s"
    return StreamRun(
        spark,
        root / "run",
        query.sql,
        {name: parse_schema(_DDL, "/schema") for name in ("s", "t")},
        {"n": _static(spark, root / "static")},
        provider=provider,
        event_time=dict.fromkeys(("s", "t"), ("ts", delay)),
        output=query.output,
    )


@pytest.mark.slow
@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", QUERIES)
def test_each_pair_is_emitted_once(spark: SparkSession, tmp_path: Path, name: str) -> None:
    random, query = Random(f"{SEED} {name}"), QUERIES[name]
    files = {table: _files(spark, random, tmp_path / table) for table in ("s", "t")}
    run = _run(spark, tmp_path, query, random.choice(list(StateProvider)))
    assert run.planned.plan.shape is query.shape
    story: list[str] = []
    order = _mixed(files, random)
    for table, file in order[:-2]:
        run.put(table, file)
    catch_up_roughly(run, random, story)
    for table, file in order[-2:]:
        run.put(table, file)
    catch_up_roughly(run, random, story)
    assert run.catch_up() is None
    # Both in one mini-batch: a watermark depends on the rows of each stream since Spark was started.
    for table in files:
        end = (f"the end of {table}", 9, 9.0, _START + timedelta(days=100 if table == "s" else 200), _START)
        run.put(table, _file(spark, [end], tmp_path / "end" / f"{table}.parquet"))
    catch_up_roughly(run, random, story)
    assert run.catch_up() is None
    empty = dict.fromkeys(files, _DDL)
    expected = in_batch(spark, query.batch or query.sql, {**files, "n": [tmp_path / "static" / "n"]}, empty)
    assert len(expected) > 2
    assert difference(expected, run.rows) is None, story
    assert sum(state.late_rows for batch in run.progress for state in batch.state) == 0
    assert any(state.removed for batch in run.progress for state in batch.state if "Join" in state.operator)


def _mixed(files: dict[str, list[Path]], random: Random) -> list[tuple[str, Path]]:
    """Returns the files of both streams in random order, with each stream's order preserved."""
    order = [table for table, paths in files.items() for _ in paths]
    random.shuffle(order)
    left = {table: iter(paths) for table, paths in files.items()}
    return [(table, next(left[table])) for table in order]


def test_late_rows_are_dropped_and_others_wait_for_partners(spark: SparkSession, tmp_path: Path) -> None:
    def row(i: int, minute: int) -> Cells:
        at = _START + timedelta(minutes=minute)
        return ("a", i, 1.0, at, at)

    run = _run(spark, tmp_path, _WAITING, StateProvider.ROCKSDB)
    batches: list[tuple[dict[str, list[Cells]], set[tuple[int, int | None]]]] = [
        # Then the watermark is at minute 5: row 1 of `s` waits for its partner until 10, row 2 until 20.
        ({"s": [row(1, 0), row(2, 10)], "t": [row(1, 20)]}, set()),
        # Earlier rows are late; then the watermark is at minute 15.
        ({"s": [row(3, 20), row(4, 4)], "t": [row(2, 14), row(5, 3), row(6, 20)]}, {(1, None), (2, 2)}),
    ]
    for number, (files, expected) in enumerate(batches):
        for table, rows in files.items():
            run.put(table, _file(spark, rows, tmp_path / table / f"{number}.parquet"))
        assert run.catch_up() is None
        assert {(i, j) for i, j in run.rows} == expected
    assert sum(state.late_rows for batch in run.progress for state in batch.state) == 2
