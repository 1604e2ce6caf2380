"""Tests of group windows over streams against Spark's batch result: for any order of rows within the delay, any
division into mini-batches and any retries, each window is emitted once, with the rows of the batch result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession

from service.contract.enums import OutputMode
from service.contract.options import StateProvider
from service.sql.ddl import parse_schema
from tests.conformance.conftest import SEED
from tests.conformance.stream_runs import StreamRun, catch_up_roughly, in_one_piece, write_rows
from tests.support.rows import difference

pytestmark = pytest.mark.spark

_SCHEMA = parse_schema("k STRING, i INT, d DOUBLE, ts TIMESTAMP, at TIMESTAMP_NTZ", "/schema")
_START = datetime(2024, 2, 28, 23, 3, tzinfo=UTC)
_DELAY = timedelta(minutes=5)
_ROWS = 150

Cells = tuple[Any, ...]


@dataclass(frozen=True)
class Query:
    """A query over `s` and the equivalent batch query, in which `{rows}` stands for rows with the window in column `w`.
    A flag says whether all state is dropped with the windows.
    """

    sql: str
    batch: str
    column: str = "ts"
    size: timedelta = timedelta(minutes=10)
    slide: timedelta = timedelta(minutes=10)
    forgets: bool = True


_TUMBLE = "TUMBLE(ts, INTERVAL '10' MINUTE)"
_HOP = "HOP(s.ts, INTERVAL '4' MINUTE, INTERVAL '10' MINUTE)"
_FOUR = timedelta(minutes=4)

QUERIES = {
    "plain": Query(
        f"SELECT k, TUMBLE_START(ts, INTERVAL '10' MINUTE) AS b, TUMBLE_END(ts, INTERVAL '600' SECOND) AS e, "
        f"COUNT(*) AS n, SUM(i) AS s, MAX(ts) AS m FROM s GROUP BY {_TUMBLE}, k",
        "SELECT k, w.start AS b, w.end AS e, COUNT(*) AS n, SUM(i) AS s, MAX(ts) AS m FROM {rows} GROUP BY w, k",
    ),
    "hopping": Query(
        f"SELECT HOP_START(ts, INTERVAL '4' MINUTE, INTERVAL '10' MINUTE) AS b, COUNT(i) AS n FROM s GROUP BY {_HOP}",
        "SELECT w.start AS b, COUNT(i) AS n FROM {rows} GROUP BY w",
        slide=_FOUR,
    ),
    "distinct": Query(
        f"SELECT k, COUNT(DISTINCT d) AS c FROM s GROUP BY k, {_TUMBLE}",
        "SELECT k, COUNT(DISTINCT d) AS c FROM {rows} GROUP BY w, k",
    ),
    "distinct times": Query(
        f"SELECT COUNT(DISTINCT ts) AS c FROM s GROUP BY {_TUMBLE}",
        "SELECT COUNT(DISTINCT ts) AS c FROM {rows} GROUP BY w",
    ),
    "united": Query(
        f"SELECT COUNT(DISTINCT i) AS c, COUNT(DISTINCT k, d) AS e, AVG(i) AS a, MIN(ts) AS m, COUNT(*) AS n "
        f"FROM s GROUP BY {_HOP} HAVING COUNT(*) > 1",
        "SELECT COUNT(DISTINCT i) AS c, COUNT(DISTINCT k, d) AS e, AVG(i) AS a, MIN(ts) AS m, COUNT(*) AS n "
        "FROM {rows} GROUP BY w HAVING COUNT(*) > 1",
        slide=_FOUR,
    ),
    "lists": Query(
        f"SELECT k, LISTAGG(CAST(i AS STRING), ',') WITHIN GROUP (ORDER BY i) AS l, PERCENTILE(i, 0.5) AS p FROM s "
        f"GROUP BY {_TUMBLE}, k",
        "SELECT k, LISTAGG(CAST(i AS STRING), ',') WITHIN GROUP (ORDER BY i) AS l, "
        "PERCENTILE(i, 0.5) AS p FROM {rows} GROUP BY w, k",
    ),
    "windows alone": Query(
        f"SELECT TUMBLE_END(ts, INTERVAL '10' MINUTE) AS e FROM s GROUP BY {_TUMBLE}",
        "SELECT w.end AS e FROM {rows} GROUP BY w",
    ),
    "times without a zone": Query(
        "SELECT TUMBLE_START(at, INTERVAL '10' MINUTE) AS b, COUNT(*) AS n, COUNT(DISTINCT k) AS c FROM s "
        "GROUP BY TUMBLE(at, INTERVAL '10' MINUTE)",
        "SELECT w.start AS b, COUNT(*) AS n, COUNT(DISTINCT k) AS c FROM {rows} GROUP BY w",
        column="at",
    ),
    "windows as rows": Query(
        f"SELECT b, n + 1 AS m FROM (SELECT TUMBLE_START(ts, INTERVAL '10' MINUTE) AS b, k, COUNT(*) AS n FROM s "
        f"WHERE i > 0 GROUP BY {_TUMBLE}, k) t WHERE n < 9",
        "SELECT b, n + 1 AS m FROM (SELECT w.start AS b, k, COUNT(*) AS n FROM {rows} WHERE i > 0 GROUP BY w, k) t "
        "WHERE n < 9",
    ),
    "windows of two queries": Query(
        f"SELECT b, n FROM (SELECT TUMBLE_START(ts, INTERVAL '10' MINUTE) AS b, COUNT(*) AS n FROM s WHERE i > 5 "
        f"GROUP BY {_TUMBLE} UNION ALL SELECT TUMBLE_END(ts, INTERVAL '10' MINUTE) AS b, COUNT(DISTINCT k) AS n FROM s "
        f"GROUP BY {_TUMBLE}) u",
        "SELECT w.start AS b, COUNT(*) AS n FROM {rows} WHERE i > 5 GROUP BY w UNION ALL "
        "SELECT w.end AS b, COUNT(DISTINCT k) AS n FROM {rows} GROUP BY w",
    ),
    "different windows": Query(
        f"SELECT DISTINCT n FROM (SELECT COUNT(*) AS n FROM s GROUP BY {_TUMBLE}, k) t",
        "SELECT DISTINCT n FROM (SELECT COUNT(*) AS n FROM {rows} GROUP BY w, k) t",
        forgets=False,
    ),
    "united streams": Query(
        "SELECT TUMBLE_START(t, INTERVAL '10' MINUTE) AS b, COUNT(*) AS n FROM (SELECT ts AS t FROM s WHERE i > 5 "
        "UNION ALL SELECT ts FROM s) u GROUP BY TUMBLE(t, INTERVAL '10' MINUTE)",
        "SELECT w.start AS b, SUM(IF(i > 5, 2, 1)) AS n FROM {rows} GROUP BY w",
    ),
}


def _rows(random: Random, number: int = _ROWS) -> list[Cells]:
    """Returns rows in their order of arrival; none is later than the delay allows."""
    rows: list[tuple[float, Cells]] = []
    for _ in range(number):
        second = random.uniform(0, 7200)
        at = _START + timedelta(seconds=second, microseconds=random.choice([0, 1, 999_999]))
        if random.random() < 0.1:
            # At the exact border of windows.
            second = 60 * random.randrange(120)
            at = _START + timedelta(seconds=second)
        k = random.choice(["a", "b", "a", None])
        i = random.choice([*range(12), None])
        d = random.choice([0.0, -0.0, float("nan"), 1.5, None])
        known = random.random() > 0.05
        cells = (k, i, d, at if known else None, at.replace(tzinfo=None) if known else None)
        rows.append((second + random.uniform(0, _DELAY.total_seconds() - 1), cells))
    return [cells for _, cells in sorted(rows, key=lambda row: row[0])]


def _files(rows: Sequence[Cells], random: Random, directory: Path) -> list[Path]:
    borders = sorted(random.sample(range(len(rows) + 1), random.randint(2, 3)))
    return [
        write_rows(directory / f"{number}.parquet", _SCHEMA, rows[start:end])
        for number, (start, end) in enumerate(zip([0, *borders], [*borders, len(rows)], strict=True))
    ]


def _run(spark: SparkSession, root: Path, query: Query, random: Random, output: OutputMode | None = None) -> StreamRun:
    return StreamRun(
        spark,
        root,
        query.sql,
        {"s": _SCHEMA},
        provider=random.choice(list(StateProvider)),
        event_time={"s": (query.column, f"{int(_DELAY.total_seconds())}s")},
        output=output,
    )


def _in_batch(spark: SparkSession, query: Query, files: Sequence[Path], closed_at: datetime | None) -> list[Row]:
    """Returns Spark's batch result for the windows closed at `closed_at`, or for all windows."""
    session = in_one_piece(spark)
    session.read.parquet(*map(str, files)).createOrReplaceTempView("s")
    length = f"'{query.size.total_seconds()} seconds', '{query.slide.total_seconds()} seconds'"
    rows = f"SELECT *, window({query.column}, {length}) AS w FROM s"
    session.sql(rows).createOrReplaceTempView("windowed")
    closed = "" if closed_at is None else f" WHERE w.end <= TIMESTAMP '{closed_at:%Y-%m-%d %H:%M:%S.%f}'"
    return session.sql(query.batch.format(rows=f"(SELECT * FROM windowed{closed})")).collect()


def _watermark(rows: Sequence[Cells]) -> datetime:
    newest = max(cells[3] for cells in rows if cells[3] is not None)
    late: datetime = newest - _DELAY
    # Spark counts milliseconds.
    return late.replace(microsecond=late.microsecond // 1000 * 1000)


@pytest.mark.slow
@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", QUERIES)
def test_each_closed_window_is_emitted_once(spark: SparkSession, tmp_path: Path, name: str) -> None:
    random, query = Random(f"{SEED} {name}"), QUERIES[name]
    rows = _rows(random)
    files = _files(rows, random, tmp_path / "cuts")
    run = _run(spark, tmp_path / "run", query, random)
    assert run.planned.output is OutputMode.APPEND
    story: list[str] = []
    for file in files:
        run.put("s", file)
        if random.random() < 0.5:
            catch_up_roughly(run, random, story)
    catch_up_roughly(run, random, story)
    assert run.catch_up() is None
    expected = _in_batch(spark, query, files, _watermark(rows))
    assert expected, "no window was closed"
    assert difference(expected, run.rows) is None, (len(files), story)
    assert _late_rows(run) == 0
    operators = {state.operator for batch in run.progress for state in batch.state}
    emptied = {state.operator for batch in run.progress for state in batch.state if state.removed}
    assert emptied == (operators if query.forgets else {"stateStoreSave"})


@pytest.mark.parametrize("name", ["plain", "hopping", "united", "windows alone"])
def test_open_windows_are_updated(spark: SparkSession, tmp_path: Path, name: str) -> None:
    random, query = Random(f"{SEED} {name} updated"), QUERIES[name]
    files = _files(_rows(random), random, tmp_path / "cuts")
    run = _run(spark, tmp_path / "run", query, random, OutputMode.UPDATE)
    assert run.planned.output is OutputMode.UPDATE
    story: list[str] = []
    for file in files:
        run.put("s", file)
    catch_up_roughly(run, random, story)
    assert run.catch_up() is None
    assert difference(_in_batch(spark, query, files, None), run.rows) is None, (len(files), story)
    assert any(state.removed for batch in run.progress for state in batch.state)


@pytest.mark.parametrize("output", OutputMode)
def test_late_rows_are_dropped_and_counted(spark: SparkSession, tmp_path: Path, output: OutputMode) -> None:
    def row(k: str, minute: int) -> Cells:
        at = datetime(2024, 1, 1, tzinfo=UTC) + timedelta(minutes=minute)
        return (k, 1, 1.0, at, at.replace(tzinfo=None))

    first = [row("a", 1), row("a", 9), row("a", 31), row("a", 40)]
    # The watermark is at minute 35: windows up to 30 are closed, the next one is open.
    second = [row("a", 2), row("b", 3), row("c", 29), row("a", 30), row("a", 34), row("a", 41)]
    # Spark's times start in 1970.
    ancient = datetime(1969, 12, 31, tzinfo=UTC)
    third = [row("a", 60), ("a", 1, 1.0, ancient, ancient.replace(tzinfo=None))]
    query = QUERIES["plain"]
    run = _run(spark, tmp_path / "run", query, Random(0), output)
    for number, rows in enumerate((first, second, third)):
        run.put("s", write_rows(tmp_path / f"{number}.parquet", _SCHEMA, rows))
        assert run.catch_up() is None
    counted = {(k, 60 * b.hour + b.minute, n) for k, b, _, n, *_ in run.rows}
    last = {("a", 40, 2)} | ({("a", 60, 1)} if output is OutputMode.UPDATE else set())
    assert counted == {("a", 0, 2), ("a", 30, 3)} | last
    assert _late_rows(run) == 4


def _late_rows(run: StreamRun) -> int:
    return sum(state.late_rows for batch in run.progress for state in batch.state)
