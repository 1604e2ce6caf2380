"""Every node gives the right rows on Spark, with the columns of `output_of` in their order."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal

import pytest
from pyspark.sql import DataFrame, SparkSession

from service.contract.query import AggregateFunction, JoinKind, NullsOrder, SortDirection
from service.sql.expressions.scalar import Scalar, column
from service.sql.types.data_types import BIGINT, BOOLEAN, DOUBLE, INT, STRING, TIMESTAMP, Field
from tests.support.plan_parts import call
from tests.support.scalars import scalar
from workers.engine.plan.nodes import (
    Aggregate,
    Call,
    Deduplicate,
    Exchange,
    Expand,
    Filter,
    Join,
    Limit,
    Named,
    Node,
    Phases,
    Project,
    Scan,
    Sort,
    SortItem,
    Union,
    Watermark,
    Windows,
    output_of,
    window_type,
)
from workers.engine.spark.lowering import lower, physical_plan, with_texts_of_intervals

pytestmark = pytest.mark.spark

Scans = Mapping[str, DataFrame]

K, D, W = column("o.k", STRING), column("o.d", BIGINT), column("o.w", DOUBLE)
ORDERS = Scan("orders", "o", ((Field("o.k", STRING), "k"), (Field("o.d", BIGINT), "d"), (Field("o.w", DOUBLE), "w")))
USERS = Scan("users", "u", ((Field("u.k", STRING), "k"), (Field("u.city", STRING), "city")))

ROWS = [("a", 1, 1.0), ("a", 2, 2.0), ("a", 2, None), ("b", None, 4.0), ("b", 3, 0.5), (None, 7, 8.0)]
CITIES = [("a", "Rome"), ("b", "Oslo"), ("b", "Bonn"), ("c", "Nice"), (None, "Graz")]


@pytest.fixture(scope="module")
def scans(spark: SparkSession) -> Scans:
    return {
        "o": spark.createDataFrame(ROWS, "`o.k` STRING, `o.d` BIGINT, `o.w` DOUBLE"),
        "u": spark.createDataFrame(CITIES, "`u.k` STRING, `u.city` STRING"),
    }


def rows_of(node: Node, scans: Scans) -> list[tuple[object, ...]]:
    frame = lower(node, scans)
    assert frame.columns == [field.name for field in output_of(node)]
    return [tuple(row) for row in frame.collect()]


def unordered(rows: Sequence[tuple[object, ...]]) -> list[tuple[object, ...]]:
    return sorted(rows, key=repr)


def test_scan_prunes(scans: Scans) -> None:
    pruned = Scan("orders", "o", ORDERS.columns[1:2])
    assert unordered(rows_of(pruned, scans)) == unordered([(row[1],) for row in ROWS])


def test_rows_without_columns(scans: Scans) -> None:
    nothing = Scan("orders", "o", ())
    assert rows_of(nothing, scans) == [()] * 6
    assert rows_of(Join(nothing, Scan("users", "u", ()), JoinKind.CROSS, ()), scans) == [()] * 30
    assert rows_of(Union((nothing, Project(USERS, ()))), scans) == [()] * 11


def test_filter_keeps_what_is_true(scans: Scans) -> None:
    node = Filter(ORDERS, scalar("`o.d` > 1", BOOLEAN))
    assert unordered(rows_of(node, scans)) == unordered([row for row in ROWS if row[1] is not None and row[1] > 1])


def test_project_names_and_orders(scans: Scans) -> None:
    node = Project(USERS, (Named(column("u.city", STRING), "city"), Named(scalar("upper(`u.k`)", STRING), "k")))
    assert ("Rome", "A") in rows_of(node, scans)


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (call(AggregateFunction.COUNT), {"a": 3, "b": 2, None: 1}),
        (call(AggregateFunction.COUNT, D), {"a": 3, "b": 1, None: 1}),
        (call(AggregateFunction.COUNT, D, distinct=True), {"a": 2, "b": 1, None: 1}),
        (call(AggregateFunction.SUM, D, distinct=True), {"a": 3, "b": 3, None: 7}),
        (call(AggregateFunction.AVG, D), {"a": 5 / 3, "b": 3.0, None: 7.0}),
        (call(AggregateFunction.MIN, W), {"a": 1.0, "b": 0.5, None: 8.0}),
        (call(AggregateFunction.FIRST_VALUE, D, order_by=W), {"a": 1, "b": 3, None: 7}),
        (call(AggregateFunction.LAST_VALUE, D, order_by=W), {"a": 2, "b": None, None: 7}),
        (
            call(AggregateFunction.COUNT, where=scalar("`o.w` >= 2", BOOLEAN)),
            {"a": 1, "b": 1, None: 1},
        ),
    ],
)
def test_aggregate(scans: Scans, made: Call, expected: dict[str | None, object]) -> None:
    rows = rows_of(Aggregate(ORDERS, (Named(K, "k"),), (made,)), scans)
    assert {row[0]: row[1] for row in rows} == expected
    assert len(rows) == len(expected)


def test_grouping_sets_of_expressions_and_constants(scans: Scans) -> None:
    keys = (
        Named(scalar("`o.d` % 2", BIGINT), "odd"),
        Named(scalar("1", INT), "one"),
    )
    calls = (call(AggregateFunction.COUNT), Call(AggregateFunction.GROUPING, (keys[1].expression,), Field("g", INT)))
    rows = rows_of(Aggregate(ORDERS, keys, calls, grouping_sets=((0,), (1,))), scans)
    assert unordered(rows) == unordered([(0, None, 2, 1), (1, None, 3, 1), (None, None, 1, 1), (None, 1, 6, 0)])


def test_aggregate_of_everything_is_one_row_even_of_nothing(scans: Scans) -> None:
    nothing = Filter(ORDERS, scalar("false", BOOLEAN))
    calls = (call(AggregateFunction.COUNT), Call(AggregateFunction.SUM, (D,), Field("s", BIGINT)))
    assert rows_of(Aggregate(nothing, (), calls), scans) == [(0, None)]
    assert rows_of(Aggregate(nothing, (), ()), scans) == [()]


def test_keys_without_calls_are_the_distinct_keys(scans: Scans) -> None:
    node = Aggregate(ORDERS, (Named(scalar("`o.d` % 2", BIGINT), "odd"),), ())
    assert unordered(rows_of(node, scans)) == unordered([(0,), (1,), (None,)])


MATCHED = [("a", 1, "Rome"), ("a", 2, "Rome"), ("a", 2, "Rome")]
BOTH_B = [("b", None, "Bonn"), ("b", None, "Oslo"), ("b", 3, "Bonn"), ("b", 3, "Oslo")]
LEFT_ALONE, RIGHT_ALONE = [(None, 7, None)], [(None, None, "Nice"), (None, None, "Graz")]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (JoinKind.INNER, MATCHED + BOTH_B),
        (JoinKind.LEFT, MATCHED + BOTH_B + LEFT_ALONE),
        (JoinKind.RIGHT, MATCHED + BOTH_B + RIGHT_ALONE),
        (JoinKind.FULL, MATCHED + BOTH_B + LEFT_ALONE + RIGHT_ALONE),
    ],
)
def test_join(scans: Scans, kind: JoinKind, expected: list[tuple[object, ...]]) -> None:
    node = Join(ORDERS, USERS, kind, ((K, column("u.k", STRING)),))
    got = [(row[0], row[1], row[4]) for row in rows_of(node, scans)]
    assert unordered(got) == unordered(expected)


@pytest.mark.parametrize(
    ("kind", "expected"), [(JoinKind.LEFT_SEMI, {"Rome", "Oslo", "Bonn"}), (JoinKind.LEFT_ANTI, {"Nice", "Graz"})]
)
def test_one_sided_join(scans: Scans, kind: JoinKind, expected: set[str]) -> None:
    node = Join(USERS, ORDERS, kind, ((column("u.k", STRING), K),))
    assert {row[1] for row in rows_of(node, scans)} == expected


def test_join_with_residual_and_cross(scans: Scans) -> None:
    residual = scalar("`o.d` = 3 AND `u.city` <> 'Oslo'", BOOLEAN)
    joined = rows_of(Join(ORDERS, USERS, JoinKind.INNER, ((K, column("u.k", STRING)),), residual), scans)
    assert [(row[0], row[1], row[4]) for row in joined] == [("b", 3, "Bonn")]
    assert len(rows_of(Join(ORDERS, USERS, JoinKind.CROSS, ()), scans)) == len(ROWS) * len(CITIES)
    assert len(rows_of(Join(ORDERS, USERS, JoinKind.CROSS, (), residual), scans)) == 4


def test_self_join_of_one_table_under_two_aliases(spark: SparkSession) -> None:
    source = spark.createDataFrame([(1, 2), (2, 3), (3, None)], "id BIGINT, boss BIGINT")
    scans = {alias: source.selectExpr(f"id AS `{alias}.id`", f"boss AS `{alias}.boss`") for alias in ("worker", "boss")}
    worker, boss = (
        Scan("staff", alias, ((Field(f"{alias}.id", BIGINT), "id"), (Field(f"{alias}.boss", BIGINT), "boss")))
        for alias in ("worker", "boss")
    )
    node = Join(worker, boss, JoinKind.LEFT, ((column("worker.boss", BIGINT), column("boss.id", BIGINT)),))
    assert unordered(rows_of(node, scans)) == [(1, 2, 2, 3), (2, 3, 3, None), (3, None, None, None)]


def test_equal_rows_come_out_once(scans: Scans) -> None:
    keyed = Project(ORDERS, (Named(K, "k"), Named(column("o.d", BIGINT), "d")))
    twice = Union((keyed, keyed))
    expected = [("a", 1), ("a", 2), ("b", None), ("b", 3), (None, 7)]
    assert unordered(rows_of(Deduplicate(twice), scans)) == unordered(expected)


def test_expand_numbers_the_branches_from_one(spark: SparkSession, scans: Scans) -> None:
    node = Expand(
        Limit(Sort(USERS, (SortItem(column("u.city", STRING), SortDirection.ASC, NullsOrder.FIRST),)), 1), 3, "$e"
    )
    assert unordered(rows_of(node, scans)) == [("b", "Bonn", number) for number in (1, 2, 3)]
    assert lower(node, scans).schema["$e"].dataType.simpleString() == "int"


@pytest.mark.parametrize(
    ("direction", "nulls", "expected"),
    [
        (SortDirection.ASC, NullsOrder.FIRST, [None, "a", "b", "b", "c"]),
        (SortDirection.ASC, NullsOrder.LAST, ["a", "b", "b", "c", None]),
        (SortDirection.DESC, NullsOrder.FIRST, [None, "c", "b", "b", "a"]),
        (SortDirection.DESC, NullsOrder.LAST, ["c", "b", "b", "a", None]),
    ],
)
def test_sort_and_limit(scans: Scans, direction: SortDirection, nulls: NullsOrder, expected: list[str | None]) -> None:
    node = Sort(USERS, (SortItem(column("u.k", STRING), direction, nulls),))
    assert [row[0] for row in rows_of(node, scans)] == expected
    assert [row[0] for row in rows_of(Limit(node, 2), scans)] == expected[:2]
    assert rows_of(Limit(node, 0), scans) == []


def test_decimal_types_are_sparks_own(spark: SparkSession) -> None:
    scans = {"o": spark.createDataFrame([(Decimal("1.50"),), (Decimal("2.50"),)], "`o.m` DECIMAL(10,2)")}
    scan = Scan("orders", "o", ((Field("o.m", DOUBLE), "m"),))
    frame = lower(Aggregate(scan, (), (call(AggregateFunction.SUM, column("o.m", None)),)), scans)
    assert frame.schema["x"].dataType.simpleString() == "decimal(20,2)"


@pytest.mark.parametrize(
    ("key", "aggregates"),
    [
        (K, 1),
        (scalar("`o.d` + 1", BIGINT), 1),
        (scalar("CAST(`o.w` AS INT)", INT), 1),
        # Spark normalises -0.0 and NaN between the two halves of the aggregate and so does not merge them.
        (W, 2),
    ],
    ids=["column", "expression", "cast", "double"],
)
def test_one_phase_is_one_exchange_and_nothing_aggregated_before_it(scans: Scans, key: Scalar, aggregates: int) -> None:
    node = Aggregate(
        Exchange(ORDERS, (key,)), (Named(key, "k"),), (call(AggregateFunction.SUM, D),), phases=Phases.ONE_PHASE
    )
    tree = tree_of(physical_plan(lower(node, scans)))
    assert re.findall(r"\w*(?:Aggregate|Exchange)\b", tree) == ["HashAggregate"] * aggregates + ["Exchange"]


def test_undecided_is_a_partial_and_a_final_aggregate(scans: Scans) -> None:
    node = Aggregate(ORDERS, (Named(K, "k"),), (call(AggregateFunction.SUM, D),))
    tree = tree_of(physical_plan(lower(node, scans)))
    assert re.findall(r"\w*(?:Aggregate|Exchange)\b", tree) == ["HashAggregate", "Exchange", "HashAggregate"]


def tree_of(plan: str) -> str:
    """The tree alone, without the list of operators below it."""
    return plan.split("\n\n", 1)[0]


TIME = column("e.t", TIMESTAMP)
EVENTS = Scan("events", "e", ((Field("e.t", TIMESTAMP), "t"),))


def test_a_row_is_in_every_window_that_covers_it(spark: SparkSession) -> None:
    times = [datetime(1969, 12, 31, 23, 58, tzinfo=UTC), datetime(2024, 1, 1, 0, 4, tzinfo=UTC), None]
    scans = {"e": spark.createDataFrame([(time,) for time in times], "`e.t` TIMESTAMP")}
    windows = Windows(Watermark(EVENTS, TIME, 1000), TIME, 600_000, 300_000, "$w")
    whole = column("$w", window_type(TIMESTAMP))
    ends = [Named(scalar(f"{whole.sql}.`{end}`", TIMESTAMP), end) for end in ("start", "end")]
    rows = rows_of(Project(windows, (Named(TIME, "t"), *ends)), scans)
    minutes = sorted(tuple(time.minute for time in row if isinstance(time, datetime)) for row in rows)
    assert minutes == [(4, 0, 10), (4, 55, 5), (58, 50, 0), (58, 55, 5)]


def test_the_window_alone_has_the_watermark(spark: SparkSession) -> None:
    stream = spark.readStream.format("rate").load()
    scans = {"e": stream.select(stream["timestamp"].alias("e.t"))}
    marked = lower(Watermark(EVENTS, TIME, 7000), scans)
    assert marked.schema["e.t"].metadata == {"spark.watermarkDelayMs": 7000}
    schema = lower(Windows(Watermark(EVENTS, TIME, 7000), TIME, 60_000, 60_000, "$w"), scans).schema
    assert schema["$w"].metadata["spark.watermarkDelayMs"] == 7000
    assert "spark.watermarkDelayMs" not in schema["e.t"].metadata


def test_results_have_the_texts_of_intervals(spark: SparkSession) -> None:
    day, month = "INTERVAL '4' DAY", "INTERVAL '3' MONTH"
    frame = with_texts_of_intervals(
        spark.sql(f"SELECT 1 AS id, {day} AS `a.b`, {month} AS m, array({day}) AS l, named_struct('x', {month}) AS s")
    )
    assert frame.schema.simpleString() == "struct<id:int,a.b:string,m:string,l:array<string>,s:struct<x:string>>"
    assert [tuple(row) for row in frame.collect()] == [(1, day, month, [day], (month,))]
    plain = spark.sql("SELECT 1 AS id")
    assert with_texts_of_intervals(plain) is plain
