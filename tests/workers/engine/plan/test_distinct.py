"""The sets of DISTINCT values of an aggregate."""

from __future__ import annotations

from dataclasses import replace

from service.contract.query import AggregateFunction as F
from service.sql.expressions.scalar import column
from service.sql.types.data_types import BIGINT, STRING, Field
from workers.engine.plan.aggregates import distinct_sets
from workers.engine.plan.nodes import Aggregate, Call, Scan

A, B = column("t.a", BIGINT), column("t.b", STRING)
TABLE = Scan("t", "t", ((Field("t.a", BIGINT), "a"), (Field("t.b", STRING), "b")))
COUNT_A = Call(F.COUNT, (A,), Field("n", BIGINT), distinct=True)


def test_calls_over_the_same_values_share_a_set_whatever_their_function_filter_or_order() -> None:
    calls = (
        COUNT_A,
        replace(COUNT_A, function=F.SUM, filter=B),
        replace(COUNT_A, arguments=(A, B)),
        replace(COUNT_A, arguments=(B, A)),
        replace(COUNT_A, distinct=False, arguments=(B,)),
        replace(COUNT_A, function=F.MAX, arguments=(B,)),
    )
    assert distinct_sets(Aggregate(TABLE, (), calls)) == ((A,), (A, B))


def test_no_distinct_call_no_set() -> None:
    assert distinct_sets(Aggregate(TABLE, (), (replace(COUNT_A, function=F.MIN),))) == ()
