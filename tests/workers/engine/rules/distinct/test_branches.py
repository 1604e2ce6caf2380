"""Branches: which calls are in which branch, and which inputs can be read again."""

from __future__ import annotations

from service.contract.query import AggregateFunction as F
from service.contract.query import JoinKind
from service.sql.expressions.scalar import column
from service.sql.types.data_types import BIGINT, DOUBLE, STRING, Field
from workers.engine.plan.nodes import Aggregate, Call, Join, Limit, Named, Scan
from workers.engine.rules.distinct.branch_plans import branch_aggregates, is_cheap_to_repeat, is_deterministic

A, B = column("t.a", BIGINT), column("t.b", BIGINT)
T = Scan("t", "t", ((Field("t.a", BIGINT), "a"), (Field("t.b", BIGINT), "b")))


def call(name: str, *arguments: object, distinct: bool = True) -> Call:
    return Call(F.COUNT, arguments, Field(name, BIGINT), distinct)  # type: ignore[arg-type]


def test_a_branch_has_the_calls_of_one_set_and_the_first_all_others() -> None:
    calls = (call("n", distinct=False), call("a", A), call("b", B), call("a2", A))
    branches = branch_aggregates(Aggregate(T, (Named(A, "k"),), calls))
    assert [[one.output.name for one in branch.calls] for branch in branches] == [["n", "a", "a2"], ["b"]]


def test_a_table_is_read_again_cheaply() -> None:
    assert is_cheap_to_repeat(T)
    assert not is_cheap_to_repeat(Limit(T, 3))
    assert not is_cheap_to_repeat(Join(T, T, JoinKind.CROSS, ()))


def test_what_is_the_same_each_time() -> None:
    double = column("t.x", DOUBLE)
    assert is_deterministic(Join(T, Aggregate(T, (Named(A, "k"),), (call("n", A),)), JoinKind.CROSS, ()))
    assert not is_deterministic(Join(T, Limit(T, 3), JoinKind.CROSS, ()))
    for function, argument, output, alike in (
        (F.SUM, A, BIGINT, True),
        (F.MAX, double, DOUBLE, True),
        (F.SUM, double, DOUBLE, False),
        (F.AVG, A, DOUBLE, False),
        (F.STDDEV_POP, A, DOUBLE, False),
        (F.FIRST_VALUE, A, BIGINT, False),
        (F.LISTAGG, A, STRING, False),
    ):
        made = Call(function, (argument,), Field("x", output))
        assert is_deterministic(Aggregate(T, (), (made,))) is alike
