"""Tests of session windows in batch jobs with all settings, against Spark's own; and of cumulative windows, against
the query that copies each row into its windows.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from pyspark.sql import SparkSession

from service.sql.types.data_types import Schema
from tests.conformance.combinations import alone
from tests.conformance.conftest import FACTS, SEED, facts
from tests.conformance.laboratory import Laboratory, interpreted, parquet
from tests.conformance.stream_runs import StreamRun, in_batch, write_rows
from tests.support.rows import difference
from workers.engine.plan.builder import build
from workers.engine.spark.lowering import lower

pytestmark = pytest.mark.spark

# The times of rows are some days, and a day and some microseconds, apart.
QUERIES = (
    "SELECT k, session_window.start AS s, session_window.end AS e, COUNT(*) AS n, SUM(b) AS b FROM t "
    "GROUP BY k, session_window(ts, '1 day')",
    "SELECT session_window AS w, COUNT(DISTINCT k) AS n, MAX(m) AS m FROM t "
    "GROUP BY session_window(ts, '1 microsecond')",
    "SELECT upper(t.k) AS u, COUNT(*) FILTER (WHERE t.q) AS n FROM t JOIN (SELECT DISTINCT g FROM t) AS o ON t.g = o.g "
    "WHERE t.i > -20 GROUP BY upper(t.k), session_window(t.ts, '26 hours') HAVING COUNT(*) > 2",
    "SELECT n, COUNT(*) AS c FROM (SELECT COUNT(*) AS n FROM t GROUP BY g, q, session_window(ts, '2 days')) AS v "
    "GROUP BY n",
    "SELECT k, session_window(ts, '1 day') AS session, SUM(b) AS b FROM t GROUP BY k, session HAVING b > 0",
    "SELECT g, session_window(da, '2 days').start AS w, max(struct(t.i, id AS number)) AS most, struct(g) AS s FROM t "
    "GROUP BY 1, session_window(da, '2 days')",
    "SELECT k, session_window(ts, '1 day') AS w, MAX(ts) AS ts, COUNT(*) AS n FROM t GROUP BY ALL "
    "HAVING ts IS NOT NULL",
    "SELECT session_window.end AS e, COUNT(*) AS n, SUM(COUNT(*)) OVER (PARTITION BY q) AS all FROM t "
    "GROUP BY q, session_window(ts, '1 day') ORDER BY n DESC, session_window.start LIMIT 3",
)


@pytest.fixture(scope="module")
def laboratory(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Laboratory]:
    root = tmp_path_factory.mktemp("sessions")
    (root / "t").mkdir()
    for number in range(3):
        rows = facts(60, 0.3, Random(f"{SEED} {number}").randint(0, 1 << 30))
        write_rows(root / "t" / f"{number}.parquet", FACTS, rows)
    with interpreted(spark):
        found = Laboratory(spark, root, {"t": parquet("t")}, cached=True)
        yield found
        found.close()


@pytest.mark.parametrize("place", range(len(QUERIES)))
def test_sessions_are_those_of_spark(laboratory: Laboratory, place: int) -> None:
    text = QUERIES[place]
    tally = laboratory.check(text, alone(laboratory.choices(text)))
    assert tally.wrong == []
    assert tally.plans


def test_spellings_of_flink_and_of_spark_have_the_same_plan(laboratory: Laboratory) -> None:
    of_flink = (
        "SELECT k, SESSION_START(ts, INTERVAL '1' DAY) AS s, SESSION_END(ts, INTERVAL '1' DAY) AS e, COUNT(*) AS n "
        "FROM t GROUP BY k, SESSION(ts, INTERVAL '1' DAY)"
    )
    of_spark = (
        "SELECT k, session_window.start AS s, session_window.end AS e, COUNT(*) AS n "
        "FROM t GROUP BY k, session_window(ts, '1 day')"
    )
    first, second = (build(laboratory.compile({"sql": text})) for text in (of_flink, of_spark))
    assert first == second


CUMULATIVE = (
    "SELECT k, CUMULATE_START(ts, INTERVAL '6' HOUR, INTERVAL '1' DAY) AS a, "
    "CUMULATE_END(ts, INTERVAL '6' HOUR, INTERVAL '1' DAY) AS b, COUNT(DISTINCT i) AS n, COUNT(*) AS c FROM s "
    "GROUP BY k, CUMULATE(ts, INTERVAL '6' HOUR, INTERVAL '1' DAY)"
)
COPIED = (
    "SELECT k, span.a, span.b, COUNT(DISTINCT i) AS n, COUNT(*) AS c FROM s "
    "LATERAL VIEW explode(transform(sequence(1, 4), h -> struct(date_trunc('DAY', ts) AS a, "
    "date_trunc('DAY', ts) + h * INTERVAL '6' HOUR AS b))) x AS span WHERE span.b > ts GROUP BY k, span.a, span.b"
)


def test_cumulative_windows_of_batch_jobs(spark: SparkSession, laboratory: Laboratory) -> None:
    text = CUMULATIVE.replace("FROM s", "FROM t")
    plain = spark.sql(COPIED.replace("FROM s", "FROM t")).collect()
    assert {row.b.hour for row in plain} == {18, 0}
    frame = lower(build(laboratory.compile({"sql": text})), laboratory.scans(text))
    assert difference(plain, frame.collect()) is None


def test_cumulative_windows_of_streams(spark: SparkSession, tmp_path: Path) -> None:
    run = StreamRun(spark, tmp_path / "run", CUMULATIVE, {"s": Schema(FACTS.fields)})
    put: list[Path] = []
    for number in range(3):
        put.append(write_rows(tmp_path / f"{number}.parquet", FACTS, facts(30, 0.3, SEED + number)))
        run.put("s", put[-1])
        assert run.catch_up() is None
        expected = in_batch(spark, COPIED, {"s": put}, {})
        assert difference(expected, run.rows) is None, number
