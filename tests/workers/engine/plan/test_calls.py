"""Aggregate calls in Spark's SQL."""

from __future__ import annotations

from dataclasses import replace

import pytest

from service.contract.query import AggregateFunction
from service.sql.expressions.scalar import column
from service.sql.types.data_types import BIGINT, BOOLEAN, DOUBLE, STRING
from tests.support.plan_parts import call
from tests.support.scalars import scalar
from workers.engine.plan.expressions import call_sql
from workers.engine.plan.nodes import Call, PlanFunction

K, D, W = column("o.k", STRING), column("o.d", BIGINT), column("o.w", DOUBLE)


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (call(AggregateFunction.COUNT), "count(*)"),
        (call(AggregateFunction.COUNT, D, K, distinct=True), "count(DISTINCT `o.d`, `o.k`)"),
        (call(AggregateFunction.FIRST_VALUE, D, order_by=W), "min_by(`o.d`, `o.w`)"),
        (call(AggregateFunction.LAST_VALUE, D, order_by=W), "max_by(`o.d`, `o.w`)"),
        (call(PlanFunction.MIN_BY, D, W), "min_by(`o.d`, `o.w`)"),
        (
            call(AggregateFunction.SUM, D, distinct=True, where=scalar("`o.w` > 1", BOOLEAN)),
            "sum(DISTINCT `o.d`) FILTER (WHERE `o.w` > 1)",
        ),
        (call(AggregateFunction.GROUPING_ID), "grouping_id()"),
        # Rows that are equal in the order are told apart by the values themselves.
        (
            replace(call(AggregateFunction.LISTAGG, K, scalar("','", STRING), order_by=D), descending=True),
            "listagg(`o.k`, ',') WITHIN GROUP (ORDER BY `o.d` DESC, `o.k`)",
        ),
        (
            call(AggregateFunction.LISTAGG, K, distinct=True, order_by=K),
            "listagg(DISTINCT `o.k`) WITHIN GROUP (ORDER BY `o.k`)",
        ),
    ],
)
def test_call_text(made: Call, text: str) -> None:
    assert call_sql(made) == text
