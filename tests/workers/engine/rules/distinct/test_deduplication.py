"""One row for each value: the columns of the sets, and the calls over them."""

from __future__ import annotations

from service.contract.query import AggregateFunction as F
from service.sql.expressions.scalar import column
from service.sql.types.data_types import BIGINT, INT, STRING, Field
from workers.engine.plan.explain import line_of
from workers.engine.plan.nodes import Aggregate, Call, Scan
from workers.engine.rules.distinct.deduplication import deduplicate

A, B, S = column("t.a", BIGINT), column("t.b", BIGINT), column("t.s", STRING)
T = Scan("t", "t", ((Field("t.a", BIGINT), "a"), (Field("t.b", BIGINT), "b"), (Field("t.s", STRING), "s")))


def test_sets_share_columns_of_a_type_and_never_within_a_set() -> None:
    calls = (
        Call(F.COUNT, (A, B), Field("x", BIGINT), distinct=True),
        Call(F.SUM, (B,), Field("y", BIGINT), distinct=True),
        Call(F.COUNT, (S,), Field("z", BIGINT), distinct=True),
    )
    made = deduplicate(Aggregate(T, (), calls), T, (), column("$branch", INT), frozenset())
    assert line_of(made.rows) == (
        "Aggregate PARTIAL BY $branch, CASE $branch WHEN 1 THEN t.a WHEN 2 THEN t.b END AS $v0, "
        "CASE $branch WHEN 1 THEN t.b END AS $v1, CASE $branch WHEN 3 THEN t.s END AS $v2 []"
    )
    assert [[str(value) for value in call.arguments] for call in made.calls] == [["$v0", "$v1"], ["$v0"], ["$v2"]]
    assert [result.name for result in made.results] == ["x", "y", "z"]
