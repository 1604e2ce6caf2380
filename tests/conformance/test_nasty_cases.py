"""The cases that break naive rewrites, one by one, with the answer written down beside the oracle's."""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest
from pyspark.errors import ArithmeticException
from pyspark.sql import DataFrame, SparkSession

from service.spec.binding import bind
from service.spec.options import JobSettings
from service.spec.query import Query
from service.spec.reports import RuleOutcome
from service.spec.types import BIGINT, DOUBLE, STRING, Field, Schema, decimal
from workers.engine.planner import Plan, plan_query
from workers.engine.spark.lowering import lower
from workers.engine.stats.statistics import Statistics

pytestmark = pytest.mark.spark

SPLIT = {"distinct_split.enabled": "true", "distinct_split.bucket_num": 7}
SETTINGS = [SPLIT, {**SPLIT, "agg_phase": "ONE_PHASE"}, {"agg_phase": "ONE_PHASE"}]
SCHEMA = Schema((Field("k", STRING), Field("x", DOUBLE), Field("n", BIGINT), Field("m", decimal(10, 2))))
DDL = ", ".join(f"`t.{field.name}` {field.type}" for field in SCHEMA.fields)

NAN_1 = math.nan
ZEROES = [("a", 0.0), ("a", -0.0), ("a", NAN_1), ("a", -NAN_1), ("a", 1.0), ("a", None), ("b", -0.0), ("b", None)]
Json = dict[str, Any]
Run = Callable[..., dict[Any, Any]]


@pytest.fixture
def planned() -> Callable[[list[str], list[Json], Json], Plan]:
    def plan(keys: list[str], calls: list[Json], settings: Json) -> Plan:
        query = Query.model_validate(
            {
                "source": {"kind": "table", "table": "t"},
                "group_by": [{"expression": key, "name": f"key{number}"} for number, key in enumerate(keys)],
                "aggregates": [{**call, "name": f"x{number}"} for number, call in enumerate(calls)],
            }
        )
        return plan_query(bind(query, {"t": SCHEMA}), Statistics({}, {}, 2), JobSettings.model_validate(settings))

    return plan


@pytest.fixture
def run(spark: SparkSession, planned: Callable[..., Plan]) -> Run:
    """Both plans over the rows; asserts they agree, and gives the values by group key."""

    def both(rows: list[tuple[Any, ...]], keys: list[str], calls: list[Json], settings: Json) -> Any:
        plan = planned(keys, calls, settings)
        assert any(trace.outcome is RuleOutcome.FIRED for trace in plan.trace)
        scans = {"t": frame_of(spark, rows)}
        before, after = (_by_key(lower(node, scans), len(keys)) for node in (plan.before, plan.after))
        assert repr(after) == repr(before)
        return after

    return both


def frame_of(spark: SparkSession, rows: list[tuple[Any, ...]]) -> DataFrame:
    padded = [(*row, *[None] * (len(SCHEMA.fields) - len(row))) for row in rows]
    return spark.createDataFrame(padded, DDL).repartition(3)


def _by_key(frame: DataFrame, keys: int) -> dict[Any, Any]:
    rows = sorted((tuple(row) for row in frame.collect()), key=repr)
    return {row[:keys]: row[keys:] for row in rows}


def count_distinct(*arguments: str, where: str | None = None) -> Json:
    return {"function": "COUNT", "arguments": list(arguments), "distinct": True, "filter": where}


@pytest.mark.parametrize("settings", SETTINGS)
def test_zeroes_are_one_value_and_so_are_nans(run: Run, settings: Json) -> None:
    got = run(ZEROES, ["t.k"], [count_distinct("t.x")], settings)
    assert got == {("a",): (3,), ("b",): (1,)}


@pytest.mark.parametrize("settings", SETTINGS)
def test_zeroes_and_nans_as_group_keys(run: Run, settings: Json) -> None:
    got = run(
        [(k, x, n) for n, (k, x) in enumerate(ZEROES)],
        ["t.x"],
        [count_distinct("t.n"), count_distinct("t.n")],
        settings,
    )
    assert sorted((repr(key), value) for key, value in got.items()) == [
        ("(0.0,)", (3, 3)),
        ("(1.0,)", (1, 1)),
        ("(None,)", (2, 2)),
        ("(nan,)", (2, 2)),
    ]


@pytest.mark.parametrize("settings", SETTINGS)
def test_pairs_with_a_null_do_not_count(run: Run, settings: Json) -> None:
    rows = [("a", 1.0, 1), ("a", 1.0, None), ("a", None, 1), ("a", None, None), ("a", 1.0, 1), ("a", 2.0, 1)]
    assert run(rows, ["t.k"], [count_distinct("t.x", "t.n")], settings) == {("a",): (2,)}


@pytest.mark.parametrize("settings", SETTINGS)
def test_a_key_with_nine_tenths_of_the_rows(run: Run, settings: Json) -> None:
    rows = [("hot" if number % 10 else f"k{number % 70}", None, number % 1000) for number in range(5000)]
    got = run(rows, ["t.k"], [count_distinct("t.n"), {"function": "COUNT"}], settings)
    assert got[("hot",)] == (900, 4500)
    assert len(got) == 8


@pytest.mark.parametrize("settings", SETTINGS)
def test_null_group_keys_and_empty_text(run: Run, settings: Json) -> None:
    rows = [(None, None, 1), (None, None, 2), ("", None, 1), ("NULL", None, 1), (None, None, None)]
    assert run(rows, ["t.k"], [count_distinct("t.n")], settings) == {(None,): (2,), ("",): (1,), ("NULL",): (1,)}


@pytest.mark.parametrize("settings", SETTINGS)
def test_average_of_decimals_keeps_its_type_and_rounding(run: Run, settings: Json) -> None:
    rows = [("a", None, n, Decimal(m)) for n, m in enumerate(["0.01", "0.01", "0.02", "-99999999.99", "0.05"])]
    calls = [
        {"function": "AVG", "arguments": ["t.m"]},
        {**count_distinct("t.m"), "function": "AVG"},
        count_distinct("t.n"),
    ]
    if "distinct_split.enabled" not in settings:
        calls.pop(1)
    got = run(rows, ["t.k"], calls, settings)
    assert got[("a",)][0] == Decimal("-19999999.980000")


@pytest.mark.parametrize("settings", SETTINGS[:2])
def test_filters_on_distinct(run: Run, settings: Json) -> None:
    rows = [("a", 1.0, 1), ("a", 2.0, 1), ("a", 1.0, 2), ("a", None, 3), ("b", 5.0, 5)]
    calls = [
        count_distinct("t.n", where="t.x > 1"),
        count_distinct("t.n", where="t.x = 1"),
        count_distinct("t.x", where="t.n > 9"),
    ]
    assert run(rows, ["t.k"], calls, settings) == {("a",): (1, 2, 0), ("b",): (1, 0, 0)}


def test_everything_of_nothing(run: Run) -> None:
    calls: list[Json] = [
        count_distinct("t.n"),
        {"function": "COUNT"},
        {"function": "SUM", "arguments": ["t.n"]},
        {"function": "SUM", "arguments": ["t.n"], "distinct": True},
        {"function": "AVG", "arguments": ["t.m"]},
        {"function": "MAX", "arguments": ["t.k"]},
    ]
    assert run([], [], calls, SPLIT) == {(): (0, 0, None, None, None, None)}
    assert run([], ["t.k"], calls, SPLIT) == {}


LARGE = 2**63 - 1


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("distinct", [False, True])
def test_a_sum_that_overflows_is_an_error_in_both(
    spark: SparkSession, planned: Callable[..., Plan], settings: Json, distinct: bool
) -> None:
    total = {"function": "SUM", "arguments": ["t.n"], "distinct": distinct}
    plan = planned(["t.k"], [total, count_distinct("t.n")], settings)
    scans = {"t": frame_of(spark, [("a", None, LARGE), ("a", None, LARGE - 1), ("a", None, 5)])}
    for node in (plan.before, plan.after):
        with pytest.raises(ArithmeticException) as caught:
            lower(node, scans).collect()
        assert caught.value.getCondition() == "ARITHMETIC_OVERFLOW"


@pytest.mark.parametrize("settings", SETTINGS)
def test_an_average_does_not_overflow_where_its_sum_would(run: Run, settings: Json) -> None:
    rows = [("a", None, LARGE), ("a", None, LARGE), ("a", None, LARGE - 1)]
    got = run(rows, ["t.k"], [{"function": "AVG", "arguments": ["t.n"]}, count_distinct("t.n")], settings)
    assert got[("a",)] == (float(LARGE), 2)
