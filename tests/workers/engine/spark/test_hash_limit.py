"""The limit of hashed objects. `tests/conformance/test_distinct_methods.py` tests that Spark uses it."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from service.contract.query import AggregateFunction
from service.sql.expressions.scalar import column
from service.sql.types.data_types import BIGINT, Field
from workers.engine.plan.nodes import Aggregate, Call, Node, PlanFunction, Scan
from workers.engine.spark.session_options import has_bitmaps, may_hash_bitmaps, raise_hash_limit

pytestmark = pytest.mark.spark

THRESHOLD = "spark.sql.objectHashAggregate.sortBased.fallbackThreshold"


def plan(*functions: AggregateFunction | PlanFunction) -> Node:
    calls = tuple(
        Call(function, (column("t.k", BIGINT),), Field(f"x{number}", BIGINT))
        for number, function in enumerate(functions)
    )
    return Aggregate(Scan("t", "t", ((Field("t.k", BIGINT), "k"),)), (), calls)


@pytest.mark.parametrize(
    ("made", "memory", "entries"),
    [
        (plan(PlanFunction.BITMAP_CONSTRUCT_AGG), 1 << 30, "123361"),
        (plan(PlanFunction.BITMAP_CONSTRUCT_AGG), 1, "128"),
        (plan(PlanFunction.BIT_OR), 1 << 30, None),
        (plan(PlanFunction.BITMAP_CONSTRUCT_AGG, AggregateFunction.PERCENTILE), 1 << 30, None),
        (plan(PlanFunction.BITMAP_CONSTRUCT_AGG, AggregateFunction.LISTAGG), 1 << 30, None),
    ],
)
def test_as_many_as_memory_holds(spark: SparkSession, made: Node, memory: int, entries: str | None) -> None:
    session = spark.newSession()
    before = session.conf.get(THRESHOLD)
    raise_hash_limit(session, made, memory)
    assert session.conf.get(THRESHOLD) == (entries or before)


def test_functions_of_a_plan() -> None:
    assert has_bitmaps(plan(PlanFunction.BITMAP_CONSTRUCT_AGG))
    assert not has_bitmaps(plan(PlanFunction.BIT_OR))
    assert not may_hash_bitmaps(plan(AggregateFunction.PERCENTILE))
