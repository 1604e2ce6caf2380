"""Tests of Spark's physical plans after the rules: exchanges, their keys, and the number of aggregations."""

from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from pyspark.sql import SparkSession

from service.contract.options import JobSettings
from service.contract.query import Query
from service.sql.resolve.binder import bind
from service.sql.types.data_types import BIGINT, STRING, Field, Schema
from tests.support.compiled import compiled
from workers.engine.plan.nodes import Scan
from workers.engine.plan.repeated_subqueries import repeated_subqueries
from workers.engine.plan.traversal import walk_up
from workers.engine.planner import plan_query
from workers.engine.report.reused_exchanges import use_of
from workers.engine.spark.lowering import lower, physical_plan, plan_with_reuse
from workers.engine.statistics.model import Statistics, TableSize

pytestmark = pytest.mark.spark

SCHEMA = Schema((Field("k", STRING), Field("d", BIGINT), Field("n", BIGINT)))
LARGE = Statistics({alias: TableSize(alias, 8, 1 << 40, 10**9, True) for alias in ("t", "u")}, {}, slots=2)
DISTINCT = {"function": "COUNT", "arguments": ["t.d"], "distinct": True, "name": "c"}
SUM = {"function": "SUM", "arguments": ["t.n"], "name": "s"}
JOIN = {
    "kind": "inner",
    "right": {"kind": "table", "table": "t", "alias": "u"},
    "on": [{"left": "t.k", "right": "u.k"}],
}

Shape = Callable[..., tuple[list[str], list[str]]]


@pytest.fixture
def shape(spark: SparkSession) -> Shape:
    """Returns a function that lists the exchanges with their keys and the aggregates of a physical plan, top down."""

    def planned(
        *calls: dict[str, Any], joins: tuple[dict[str, Any], ...] = (), group: str = "t.k", **settings: Any
    ) -> tuple[list[str], list[str]]:
        query = Query.model_validate(
            {
                "source": {"kind": "table", "table": "t"},
                "joins": joins,
                "group_by": [{"expression": group, "name": "k"}],
                "aggregates": list(calls),
            }
        )
        plan = plan_query(bind(query, {"t": SCHEMA}), LARGE, JobSettings.model_validate(settings))
        names = [field.name for field in SCHEMA.fields]
        scans = {
            alias: spark.createDataFrame([("a", 1, 2)], "k STRING, d BIGINT, n BIGINT").toDF(
                *[f"{alias}.{name}" for name in names]
            )
            for alias in ("t", "u")
        }
        text = physical_plan(lower(plan.after, scans))
        operators = re.findall(r"(\w*Aggregate|\bExchange|\w+Join|Generate|Expand) \(", text.split("\n\n", 1)[0])
        return operators, re.findall(r"hashpartitioning\((.*), \d+\), [A-Z]", re.sub(r"#\d+L?", "", text))

    return planned


@pytest.fixture
def without_broadcast(spark: SparkSession) -> Any:
    spark.conf.set("spark.sql.autoBroadcastJoinThreshold", "-1")
    yield
    spark.conf.unset("spark.sql.autoBroadcastJoinThreshold")


def test_spark_aggregates_before_and_after_one_exchange(shape: Shape) -> None:
    assert shape(SUM) == (["HashAggregate", "Exchange", "HashAggregate"], ["t.k"])


def test_one_phase_shuffles_unaggregated_rows(shape: Shape) -> None:
    assert shape(SUM, agg_phase="ONE_PHASE") == (["HashAggregate", "Exchange"], ["t.k"])


def test_spark_shuffles_a_distinct_by_key_and_value(shape: Shape) -> None:
    operators, hashed = shape(DISTINCT)
    assert operators.count("Exchange") == 2
    assert hashed == ["t.k, t.d", "t.k"]


def test_one_phase_distinct_has_one_exchange_by_the_key(shape: Shape) -> None:
    operators, hashed = shape(DISTINCT, SUM, agg_phase="ONE_PHASE")
    assert operators == ["HashAggregate", "HashAggregate", "Exchange"]
    assert hashed == ["t.k"]


def test_distinct_with_a_filter_is_shuffled_by_spark_in_any_phase(shape: Shape, without_broadcast: None) -> None:
    filtered = {**DISTINCT, "filter": "t.n > 1"}
    native = shape(filtered)
    assert "Expand" in native[0]
    assert native[1][0].startswith("t.k, ")
    assert shape(filtered, agg_phase="ONE_PHASE") == native
    joined, hashed = shape(filtered, joins=(JOIN,), agg_phase="ONE_PHASE")
    assert joined.count("Exchange") == 4
    assert any(keys.startswith("t.k, ") for keys in hashed)


def test_one_phase_by_a_fraction_keeps_both_aggregates(shape: Shape) -> None:
    operators, _ = shape(SUM, group="CAST(t.n AS DOUBLE)", agg_phase="ONE_PHASE")
    assert (operators.count("HashAggregate"), operators.count("Exchange")) == (2, 1)


def test_split_counts_by_bucket_and_sums_by_key(shape: Shape) -> None:
    operators, hashed = shape(DISTINCT, **{"distinct_split.enabled": True, "distinct_split.bucket_num": 16})
    assert operators.count("Exchange") >= 2
    assert hashed[-1] == "k"
    assert "$bucket" in hashed[-2] or "_groupingexpression" in hashed[-2]


def test_split_with_one_phase_shuffles_by_key_and_bucket(shape: Shape) -> None:
    settings = {"distinct_split.enabled": True, "distinct_split.bucket_num": 16, "agg_phase": "ONE_PHASE"}
    operators, hashed = shape(DISTINCT, **settings)
    assert operators.count("Exchange") == 2
    assert operators[-1] == "Exchange"
    assert hashed == ["t.k, pmod(xxhash64(t.d, 42), 16)", "k"]


def test_split_above_a_join_on_the_key_shuffles_by_key_and_bucket(shape: Shape, without_broadcast: None) -> None:
    native, native_hashed = shape(DISTINCT, joins=(JOIN,), **{"distinct_split.enabled": False})
    assert set(native_hashed) == {"t.k", "u.k"}
    split, hashed = shape(DISTINCT, joins=(JOIN,), **{"distinct_split.enabled": True, "distinct_split.bucket_num": 16})
    assert native.count("Exchange") == 2
    assert split.count("Exchange") == 4
    assert "t.k, pmod(xxhash64(t.d, 42), 16)" in hashed


def test_several_distincts_are_computed_in_branches(shape: Shape) -> None:
    other = {"function": "COUNT", "arguments": ["t.n"], "distinct": True, "name": "o"}
    native, _ = shape(DISTINCT, other)
    assert "Expand" in native
    split, _ = shape(DISTINCT, other, **{"distinct_split.enabled": True})
    assert "Generate" in split


def test_several_distincts_are_expanded_after_one_exchange_by_the_key(shape: Shape) -> None:
    other = {"function": "COUNT", "arguments": ["t.n"], "distinct": True, "name": "o", "filter": "t.d > 1"}
    joined = shape(DISTINCT, other, SUM, joins=(JOIN,), distinct_method="branches")
    assert joined[0][:4] == ["HashAggregate", "HashAggregate", "Generate", "Exchange"]
    assert "Expand" not in joined[0]


def test_split_distincts_are_not_expanded_again(shape: Shape) -> None:
    other = {"function": "SUM", "arguments": ["t.n"], "distinct": True, "name": "o"}
    operators, hashed = shape(DISTINCT, other, SUM, distinct_method="split", incremental_agg=False)
    assert "Expand" not in operators
    assert operators.count("Exchange") == 2
    assert hashed[-1] == "k"


def test_merged_phases_save_a_shuffle_and_two_aggregates(shape: Shape) -> None:
    four, _ = shape(DISTINCT, distinct_method="split", incremental_agg=False)
    merged, hashed = shape(DISTINCT, distinct_method="split")
    assert (four.count("Exchange"), merged.count("Exchange")) == (3, 2)
    assert (four.count("HashAggregate"), merged.count("HashAggregate")) == (6, 4)
    assert hashed[-1] == "k"


def test_bitmaps_are_hashed_and_counted_in_the_stage_that_merges_them(shape: Shape) -> None:
    operators, _ = shape(DISTINCT, distinct_method="bitmap")
    assert operators == ["HashAggregate", "Exchange", "HashAggregate", "HashAggregate", "Exchange", "HashAggregate"]


@pytest.mark.parametrize(
    ("condition", "said"),
    [
        ("", "computed once: its exchange is reused"),
        ("WHERE b.k LIKE '%1'", "computed each time, because Spark applies"),
    ],
)
@pytest.mark.parametrize("adaptive", ["true", "false"])
def test_the_text_shows_which_exchanges_are_reused(
    spark: SparkSession, condition: str, said: str, adaptive: str
) -> None:
    grouped = "WITH s AS (SELECT t.k, COUNT(*) AS n FROM t WHERE d > 0 GROUP BY t.k)"
    text = f"{grouped} SELECT a.n, b.k FROM s AS a JOIN s AS b ON a.n = b.n AND a.k < b.k {condition}"
    plan = plan_query(compiled({"t": "k STRING, d BIGINT"}, text), LARGE, JobSettings())
    (one,) = repeated_subqueries(plan.before)
    rows = spark.range(100).selectExpr("CAST(id % 7 AS STRING) AS k", "id AS d")
    aliases = [scan.alias for scan in walk_up(plan.before) if isinstance(scan, Scan)]
    scans = {alias: rows.toDF(f"{alias}.k", f"{alias}.d") for alias in aliases}
    before = spark.conf.get("spark.sql.adaptive.enabled", "true") or "true"
    spark.conf.set("spark.sql.adaptive.enabled", adaptive)
    try:
        assert said in use_of(one, plan_with_reuse(lower(plan.before, scans)))
    finally:
        spark.conf.set("spark.sql.adaptive.enabled", before)


def test_reuse_is_shown_in_a_thread_without_an_active_session(spark: SparkSession) -> None:
    """As on a worker. Spark merges the two totals, whose operator of one row needs the active session when copied.
    `merge_aggregates` would merge them first, so the plan is that before the rules.
    """
    total = "(SELECT COUNT(*) AS n, MAX(d) AS m FROM t WHERE d > 0)"
    plan = plan_query(
        compiled({"t": "d BIGINT"}, f"WITH s AS {total} SELECT a.n, b.m FROM s AS a LEFT JOIN s AS b ON TRUE"),
        LARGE,
        JobSettings(),
    )
    aliases = [scan.alias for scan in walk_up(plan.before) if isinstance(scan, Scan)]
    scans = {alias: spark.range(100).selectExpr(f"id AS `{alias}.d`") for alias in aliases}
    with ThreadPoolExecutor(1) as threads:
        shown = threads.submit(lambda: plan_with_reuse(lower(plan.before, scans))).result()
        assert threads.submit(SparkSession.getActiveSession).result() is None
    assert "OneRowRelation" in shown
