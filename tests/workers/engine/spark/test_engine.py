"""A bound query gives a report and Parquet files with the right rows, in a second run if memory ran out."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from service.contract.job import JobSpec
from service.contract.options import JobSettings
from service.contract.query import Query
from service.contract.read_options import TableFormat
from service.contract.reports import RuleOutcome
from service.sql.compile import compile_job
from service.sql.resolve.binder import bind
from service.sql.resolve.bound import BoundQuery
from service.sql.types.data_types import BIGINT, STRING, Field
from tests.support.tables import on_disk
from workers.engine.rules.required_statistics import NOT_READ, READ_IN_PART
from workers.engine.spark.engine import Engine, PlannedQuery, result_files
from workers.engine.spark.error_mapping import is_lack_of_memory, problem_of_spark_error
from workers.engine.spark.sources import TableInput

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


def test_constants_need_no_table(plan: Plan, rows_of: RowsOf) -> None:
    values = {"kind": "values", "rows": [["1", "'a'"], ["2", "NULL"]], "alias": "v", "columns": ["x", "y"]}
    columns = [{"expression": f"v.{name}", "name": name} for name in "xy"]
    planned = plan({"source": values, "select": columns, "order_by": [{"expression": "x"}], "offset": 1})
    assert rows_of(planned) == [{"x": 2, "y": None}]


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


def test_the_report_has_all_parts(plan: Plan) -> None:
    planned = plan({"source": ORDERS, "group_by": [BY_UID], "aggregates": [CATEGORIES]}, agg_phase="ONE_PHASE")
    report = planned.report
    assert {trace.rule: trace.outcome for trace in report.rules} == {
        "bitmap_distinct": RuleOutcome.SKIPPED,
        "distinct_branches": RuleOutcome.SKIPPED,
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


def test_only_files_for_open_decisions_are_read(spark: SparkSession, tables: dict[str, TableInput]) -> None:
    query = Query.model_validate({**JOINED, "group_by": [BY_UID], "aggregates": [CATEGORIES]})
    bound = bind(query, {name: table.schema for name, table in tables.items()})
    engine = Engine(spark, slots=2)

    def gathered(**settings: Any) -> tuple[set[tuple[str, ...]], list[bool], list[str]]:
        report = engine.plan(bound, tables, JobSettings.model_validate(settings)).report
        warnings = [trace.reason for trace in report.rules if trace.rule == "statistics"]
        return {key.columns for key in report.keys}, [table.cached for table in report.tables], warnings

    keys, cached, warnings = gathered()
    assert keys >= {("o.uid",), ("u.uid",), ("o.category",), ("o.uid", "o.category")}
    assert (cached, warnings) == ([False, False], [])
    assert gathered() == (keys, [True, True], [])
    aggregate = {"agg_phase": "TWO_PHASE", "distinct_method": "native", "eager_aggregation": False}
    assert gathered(**aggregate) == ({("o.uid",), ("u.uid",)}, [True, True], [READ_IN_PART])
    forced = {**aggregate, "join.ship": "BROADCAST_RIGHT"}
    assert gathered(**forced) == (set(), [False, False], [NOT_READ])
    # The report has hot keys nevertheless: their statistics are read during the run.
    late = engine.late_statistics(engine.plan(bound, tables, JobSettings.model_validate(forced)), tables)
    assert late is not None
    known = late.result(60)
    assert known is not None
    assert known.keys.keys() == keys
    assert engine.late_statistics(engine.plan(bound, tables, JobSettings()), tables) is None


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


def test_pages_that_only_the_statistics_meet_cost_a_warning(
    spark: SparkSession, parquet_table: Tables, tmp_path: Path
) -> None:
    # Spark passes over the damaged file by the range in its footer, which is sound; the sample is of all files.
    rows = {"day": [number // 100 for number in range(300)], "k": [number % 7 for number in range(300)]}
    table = parquet_table(pa.table(rows), name="t", files=3)
    damaged = on_disk(table.files)[1]
    content = damaged.read_bytes()
    pages = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    damaged.write_bytes(content[:4] + b"\xff" * (pages - 4) + content[pages:])
    spec, query = compiled({"t": table}, "SELECT k, COUNT(*) AS n FROM t WHERE day <> 1 AND day >= 2 GROUP BY k")
    engine = Engine(spark, slots=2)
    plan = engine.plan(query, {"t": table}, spec.settings)
    reasons = [trace.reason for trace in plan.report.rules if trace.rule == "statistics"]
    assert reasons == [
        "A sample of part-001.parquet cannot be read: its content does not match its format. "
        "The planner uses defaults for what is not known."
    ]
    assert plan.report.tables[0].rows_are_exact
    engine.execute(plan, tmp_path / "result")
    found = {row["k"]: row["n"] for row in pq.read_table(tmp_path / "result").to_pylist()}
    assert found == {k: sum(number % 7 == k for number in range(200, 300)) for k in range(7)}
    # What the job itself must read is reported by Spark.
    _, whole = compiled({"t": table}, "SELECT k, COUNT(*) AS n FROM t GROUP BY k")
    with pytest.raises(Exception) as caught:  # noqa: PT011 - Spark's, of several kinds
        engine.execute(engine.plan(whole, {"t": table}, spec.settings), tmp_path / "whole")
    problem = problem_of_spark_error(caught.value)
    assert problem is not None
    assert problem.code == "corrupt_file"


# A hash table or broadcast that does not fit costs a second run and not the job. Spark's own limits, made small.

HINTED = "SELECT {hint} a.k, b.v FROM a JOIN b ON a.k = b.k"
MATCHES = 1000


@pytest.fixture
def sides(parquet_table: Tables) -> dict[str, TableInput]:
    keys = list(range(MATCHES))
    return {
        "a": parquet_table(pa.table({"k": pa.array(keys, pa.int64())}), name="a"),
        "b": parquet_table(pa.table({"k": pa.array(keys, pa.int64()), "v": pa.array(keys, pa.int64())}), name="b"),
    }


def hinted(engine: Engine, tables: Mapping[str, TableInput], hint: str) -> PlannedQuery:
    spec, query = hinted_query(tables, hint)
    return engine.plan(query, tables, spec.settings)


def hinted_query(tables: Mapping[str, TableInput], hint: str) -> tuple[JobSpec, BoundQuery]:
    return compiled(tables, HINTED.format(hint=f"/*+ {hint} */" if hint else ""))


def compiled(tables: Mapping[str, TableInput], sql: str) -> tuple[JobSpec, BoundQuery]:
    sources = {name: {"format": "parquet", "path": name} for name in tables}
    spec = JobSpec.model_validate({"tables": sources, "sql": sql})
    return spec, compile_job(spec, {name: table.schema for name, table in tables.items()})


@contextmanager
def limited(spark: SparkSession, key: str, value: str) -> Iterator[None]:
    """A limit of the running context: Spark reads some of them again for each stage."""
    conf = spark.sparkContext._jsc.sc().conf()
    before = conf.getOption(key)
    conf.set(key, value)
    try:
        yield
    finally:
        conf.set(key, before.get()) if before.isDefined() else conf.remove(key)


def run_again(engine: Engine, tables: Mapping[str, TableInput], plan: PlannedQuery, directory: Path) -> PlannedQuery:
    with pytest.raises(Exception) as caught:  # noqa: PT011 - Spark's, of several kinds
        engine.execute(plan, directory)
    assert is_lack_of_memory(caught.value)
    safer = engine.fall_back(plan, tables, caught.value, 1_234)
    assert safer is not None
    assert engine.execute(safer, directory).rows == MATCHES
    assert sorted(row["v"] for row in pq.read_table(directory).to_pylist()) == list(range(MATCHES))
    assert engine.fall_back(safer, tables, caught.value, 1_234) is None
    return safer


def test_a_broadcast_above_the_drivers_result_limit(
    spark: SparkSession, sides: dict[str, TableInput], tmp_path: Path
) -> None:
    engine = Engine(spark, slots=2)
    plan = hinted(engine, sides, "BROADCAST(b)")
    assert "BroadcastHashJoin" in (plan.report.physical_plan or "")
    with limited(spark, "spark.driver.maxResultSize", "2k"):
        safer = run_again(engine, sides, plan, tmp_path / "result")
    assert "SortMergeJoin" in (safer.report.physical_plan or "")
    assert "REPARTITION SORT_MERGE" in safer.report.after.text
    trace = safer.report.rules[0]
    assert (trace.rule, trace.outcome.value) == ("fallback", "fired")
    assert trace.reason.startswith("Fell back and ran again: after 1,234 ms the query ran out of memory (")
    assert "bigger than" in trace.reason
    first = safer.report.first_run
    assert first is not None
    assert (first.after, first.rules, first.physical_plan) == (
        plan.report.after,
        plan.report.rules,
        plan.report.physical_plan,
    )
    assert first.execution_ms == 1_234
    assert "bigger than" in first.failure
    assert safer.report.before == plan.report.before


def test_a_broadcast_larger_than_spark_allows(
    spark: SparkSession, sides: dict[str, TableInput], tmp_path: Path
) -> None:
    session = spark.newSession()
    engine = Engine(session, slots=2)
    plan = hinted(engine, sides, "BROADCAST(b)")
    session.conf.set("spark.sql.maxBroadcastTableSize", "1k")
    safer = run_again(engine, sides, plan, tmp_path / "result")
    assert "Cannot broadcast the table" in safer.report.rules[0].reason


def test_a_broadcast_that_spark_chose_itself(spark: SparkSession, sides: dict[str, TableInput], tmp_path: Path) -> None:
    # By the size of its files: after a condition, which adaptive execution alone can know, and before the run.
    for number, threshold in enumerate(("10m", "-1")):
        session = spark.newSession()
        session.conf.set("spark.sql.autoBroadcastJoinThreshold", threshold)
        session.conf.set("spark.sql.adaptive.autoBroadcastJoinThreshold", "10m")
        session.conf.set("spark.sql.shuffle.partitions", "3")
        session.conf.set("spark.sql.maxBroadcastTableSize", "1k")
        engine = Engine(session, slots=2)
        plan = hinted(engine, sides, "")
        assert ("BroadcastHashJoin" in (plan.report.physical_plan or "")) == (number == 0)
        safer = run_again(engine, sides, plan, tmp_path / f"result-{number}")
        assert "SortMergeJoin" in (safer.report.physical_plan or "")
        assert safer.frame.sparkSession.conf.get("spark.sql.shuffle.partitions") == "3"
        assert session.conf.get("spark.sql.autoBroadcastJoinThreshold") == threshold


def lacking_memory(planned: PlannedQuery) -> PlannedQuery:
    """The query with a task that ends as one does for which there is no memory."""
    condition = "raise_error('SparkOutOfMemoryError: no memory for a page') IS NULL"
    return replace(planned, frame=planned.frame.filter(condition))


def test_memory_that_a_broadcast_by_adaptive_execution_may_have_taken(
    spark: SparkSession, sides: dict[str, TableInput], tmp_path: Path
) -> None:
    session = spark.newSession()
    session.conf.set("spark.sql.autoBroadcastJoinThreshold", "-1")
    session.conf.set("spark.sql.adaptive.autoBroadcastJoinThreshold", "10m")
    engine = Engine(session, slots=2)
    plan = hinted(engine, sides, "")
    assert "BroadcastHashJoin" not in (plan.report.physical_plan or "")
    safer = run_again(engine, sides, lacking_memory(plan), tmp_path / "result")
    assert safer.low_memory
    reasons = safer.report.rules[0].reason
    assert "The plan hashed and broadcast no side of a join, but adaptive execution may have broadcast one." in reasons
    assert "Spark broadcasts nothing automatically" in reasons
    assert safer.report.first_run is not None

    def joins(frame: DataFrame) -> set[str]:
        frame.collect()
        final = frame._jdf.queryExecution().executedPlan().toString().partition("== Initial Plan ==")[0]
        return set(re.findall(r"\w+Join(?= )", final))

    assert joins(plan.frame) == {"BroadcastHashJoin"}
    assert joins(safer.frame) == {"SortMergeJoin"}
    # Where nothing of the kind can have happened, another run would end as the first.
    with pytest.raises(Exception, match="SparkOutOfMemoryError") as caught:
        engine.execute(lacking_memory(plan), tmp_path / "once more")
    assert engine.fall_back(hinted(engine, sides, "MERGE(b)"), sides, caught.value, 1) is None
    session.conf.set("spark.sql.adaptive.autoBroadcastJoinThreshold", "-1")
    assert engine.fall_back(plan, sides, caught.value, 1) is None


def test_nothing_is_hashed_after_a_crash(spark: SparkSession, sides: dict[str, TableInput], tmp_path: Path) -> None:
    engine = Engine(spark, slots=2)
    spec, query = hinted_query(sides, "BROADCAST(b)")
    plan = engine.plan(query, sides, spec.settings, crashes=1)
    assert plan.report.rules[0].rule == "fallback"
    assert "SortMergeJoin" in (plan.report.physical_plan or "")
    assert plan.report.first_run is None
    assert engine.execute(plan, tmp_path / "result").rows == MATCHES
    alone, by_itself = compiled(sides, "SELECT COUNT(*) AS n FROM a")
    assert engine.plan(by_itself, sides, alone.settings, crashes=1).report.rules[0].rule != "fallback"


def test_other_failures_and_other_plans_are_left_alone(spark: SparkSession, sides: dict[str, TableInput]) -> None:
    engine = Engine(spark, slots=2)
    plan = hinted(engine, sides, "BROADCAST(b)")
    assert engine.fall_back(plan, sides, ValueError("no error of Spark's"), 0) is None
    with pytest.raises(Exception, match="DIVIDE_BY_ZERO") as caught:
        spark.range(1).selectExpr("1 / id").collect()
    assert not is_lack_of_memory(caught.value)
    assert engine.fall_back(plan, sides, caught.value, 0) is None


class Unwanted(Exception):  # noqa: N818 - an order to stop, no error
    """The plan is no longer wanted."""


class Check:
    """Raises from one call on, counted from 1."""

    def __init__(self, last: int) -> None:
        self.last = last
        self.calls = 0

    def __call__(self) -> None:
        self.calls += 1
        if self.calls >= self.last:
            raise Unwanted


@pytest.mark.parametrize("crashes", [0, 1])
def test_a_plan_that_is_no_longer_wanted_ends_at_the_next_check(
    spark: SparkSession, parquet_table: Tables, text_table: Tables, crashes: int
) -> None:
    orders = pa.table({"uid": [1, 2, 3] * 100, "name": ["a", "b", "c"] * 100})
    fields = [Field("uid", BIGINT), Field("name", STRING)]
    users = ["uid,name\n1,a\n2,b\n", "uid,name\n3,c\n"]
    there = {
        "o": parquet_table(orders, name="o", files=3),
        "u": text_table(TableFormat.CSV, users, fields, name="u", header=True),
    }
    sql = "SELECT o.name, COUNT(DISTINCT u.uid) AS n FROM o JOIN u ON o.name = u.name GROUP BY o.name"
    spec, query = compiled(there, sql)

    def planned(check: Check) -> PlannedQuery:
        return Engine(spark, slots=2).plan(query, there, spec.settings, crashes=crashes, check=check)

    counting = Check(1_000)
    planned(counting)
    # Before each file at least, in footers and samples; between the rules, and between the steps.
    assert counting.calls > 15
    for last in range(1, counting.calls + 1):
        check = Check(last)
        with pytest.raises(Unwanted):
            planned(check)
        # Statistics, which fail no job, ask once more before they make a failure of the reading out of it.
        assert check.calls <= last + 2
