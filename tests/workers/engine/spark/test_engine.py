"""A bound query goes in; a report and Parquet files with the right rows come out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from service.spec.binding import bind
from service.spec.options import JobSettings
from service.spec.query import Query
from service.spec.reports import RuleOutcome
from workers.engine.spark.engine import Engine, PlannedQuery, TableInput
from workers.engine.spark.sinks import result_files

pytestmark = pytest.mark.spark

Tables = Callable[..., TableInput]

ROWS = 6_000
BY_UID = {"expression": "o.uid", "name": "uid"}
CATEGORIES = {"function": "COUNT", "arguments": ["o.category"], "distinct": True, "name": "categories"}
JOINED = {
    "source": {"kind": "table", "table": "orders", "alias": "o"},
    "joins": [
        {
            "kind": "inner",
            "right": {"kind": "table", "table": "users", "alias": "u"},
            "on": [{"left": "o.uid", "right": "u.uid"}],
        }
    ],
}


@pytest.fixture
def tables(parquet_table: Tables) -> dict[str, TableInput]:
    """Orders, half of them user 0's, and ten users."""
    uids = [0 if number % 2 else number % 10 for number in range(ROWS)]
    orders = pa.table({"uid": uids, "category": [number % 97 for number in range(ROWS)], "amount": [1.5] * ROWS})
    users = pa.table({"uid": list(range(10)), "name": [f"n{number % 3}" for number in range(10)]})
    return {"orders": parquet_table(orders, name="orders", files=3), "users": parquet_table(users, name="users")}


@pytest.fixture
def plan(spark: SparkSession, tables: dict[str, TableInput]) -> Callable[..., PlannedQuery]:
    def planned(query: dict[str, Any], **settings: Any) -> PlannedQuery:
        bound = bind(Query.model_validate(query), {name: table.schema for name, table in tables.items()})
        return Engine(spark, slots=2).plan(bound, tables, JobSettings.model_validate(settings))

    return planned


@pytest.fixture
def rows_of(spark: SparkSession, tmp_path: Path) -> Callable[[PlannedQuery], list[dict[str, Any]]]:
    def run(planned: PlannedQuery) -> list[dict[str, Any]]:
        written = Engine(spark, slots=2).execute(planned, tmp_path / "result")
        table = pa.concat_tables([pq.read_table(path) for path in result_files(tmp_path / "result")])
        assert written.rows == table.num_rows
        assert written.bytes > 0
        rows: list[dict[str, Any]] = table.to_pylist()
        return rows

    return run


Plan = Callable[..., PlannedQuery]
RowsOf = Callable[[PlannedQuery], list[dict[str, Any]]]
ORDERS = {"kind": "table", "table": "orders", "alias": "o"}


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"agg_phase": "ONE_PHASE"},
        {"agg_phase": "TWO_PHASE"},
        {"distinct_split.enabled": True, "distinct_split.bucket_num": 8},
        {"distinct_split.enabled": True, "agg_phase": "ONE_PHASE"},
    ],
)
def test_distinct_per_group_in_order(plan: Plan, rows_of: RowsOf, settings: dict[str, Any]) -> None:
    planned = plan(
        {
            "source": ORDERS,
            "group_by": [BY_UID],
            "aggregates": [CATEGORIES, {"function": "COUNT", "name": "n"}],
            "order_by": [{"expression": "n", "direction": "desc"}, {"expression": "uid"}],
            "limit": 3,
        },
        **settings,
    )
    rows = rows_of(planned)
    assert [(row["uid"], row["n"]) for row in rows] == [(0, 3600), (2, 600), (4, 600)]
    assert [row["categories"] for row in rows] == [97, 97, 97]


def test_join_and_aggregate(plan: Plan, rows_of: RowsOf) -> None:
    planned = plan(
        {
            **JOINED,
            "where": "o.category < 50",
            "group_by": [{"expression": "upper(u.name)", "name": "who"}],
            "aggregates": [{"function": "SUM", "arguments": ["o.amount * 2"], "name": "total"}],
            "having": "total > 0",
        }
    )
    expected: dict[str, float] = {}
    for number in range(ROWS):
        uid = 0 if number % 2 else number % 10
        if number % 97 < 50:
            expected[f"N{uid % 3}"] = expected.get(f"N{uid % 3}", 0.0) + 3.0
    assert {row["who"]: row["total"] for row in rows_of(planned)} == expected


def test_a_selection_without_rows_has_its_columns(plan: Plan, rows_of: RowsOf, tmp_path: Path) -> None:
    planned = plan(
        {"source": ORDERS, "where": "o.uid < 0", "select": [{"expression": "o.amount", "name": "the amount"}]}
    )
    assert rows_of(planned) == []
    (file,) = result_files(tmp_path / "result")
    assert pq.read_schema(file).names == ["the amount"]


def test_the_report_tells_all(plan: Plan) -> None:
    planned = plan({"source": ORDERS, "group_by": [BY_UID], "aggregates": [CATEGORIES]}, agg_phase="ONE_PHASE")
    report = planned.report
    assert {trace.rule: trace.outcome for trace in report.rules} == {
        "split_distinct_aggregate": RuleOutcome.SKIPPED,
        "two_phase_aggregate": RuleOutcome.FIRED,
    }
    assert [(table.table, table.rows, table.rows_are_exact) for table in report.tables] == [("o", ROWS, True)]
    uid = next(key for key in report.keys if key.columns == ("o.uid",))
    assert uid.hot_keys[0].value == "0"
    assert uid.hot_keys[0].share == pytest.approx(0.6)
    assert report.physical_plan is not None
    assert "== Physical Plan ==" in report.physical_plan
    assert planned.statistics.slots == 2


@pytest.mark.parametrize("files", [1, 40])
def test_planning_runs_no_job(spark: SparkSession, parquet_table: Tables, files: int) -> None:
    # Above 32 paths Spark would list them by a job.
    table = parquet_table(pa.table({"uid": range(200)}), name="many", files=files)
    query = {
        "source": {"kind": "table", "table": "many", "alias": "o"},
        "group_by": [BY_UID],
        "aggregates": [{"function": "COUNT", "name": "n"}],
        "order_by": [{"expression": "uid"}],
    }
    bound = bind(Query.model_validate(query), {"many": table.schema})
    tracker = spark.sparkContext.statusTracker()
    before = set(tracker.getJobIdsForGroup())
    spark.sparkContext.addJobTag("planning")
    try:
        Engine(spark, slots=2).plan(bound, {"many": table}, JobSettings())
    finally:
        spark.sparkContext.removeJobTag("planning")
    assert set(tracker.getJobIdsForGroup()) == before
