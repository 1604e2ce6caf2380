"""Nodes without a row count, with operators made by hand, since no real plan shows these cases reliably.

Real plans of every rule are in `tests/conformance/test_node_figures.py`.
"""

from __future__ import annotations

import pytest

from service.contract.query import AggregateFunction, JoinKind
from service.contract.reports import OperatorMetrics, OperatorReport
from service.sql.types.data_types import BIGINT, Field
from tests.support.plan_parts import ORDERS, UID, USERS
from tests.support.scalars import scalar
from tests.support.stages import operator
from tests.workers.engine.report.test_operator_tree import BY_UID, KEEP
from tests.workers.engine.report.test_segment_agreement import FILES, ORDER_FILE, USER_FILE
from tests.workers.engine.report.test_segment_agreement import scan as scan_of
from workers.engine.plan.nodes import Aggregate, Call, Filter, Join, Limit, Node, Recursion, StepRows, Union, output_of
from workers.engine.report import operator_tree
from workers.engine.report.operator_matching import figures_of

TOTAL = Aggregate(ORDERS, BY_UID, (Call(AggregateFunction.COUNT, (), Field("n", BIGINT)),))
OF_CALLS = scalar("`n` > 1", None)
SCAN, OTHER_SCAN = 50, 20


def scan(number: int, location: str = ORDER_FILE, rows: int = SCAN) -> OperatorMetrics:
    return scan_of(number, location).model_copy(update={"rows": rows})


def figures(plan: Node, *operators: OperatorMetrics) -> OperatorReport:
    return figures_of(plan, operators, FILES)


def rows(plan: Node, *operators: OperatorMetrics) -> dict[int, int | None]:
    return {each.id: each.rows for each in figures(plan, *operators).nodes}


def joined(kind: JoinKind) -> Join:
    """0 orders, 1 the aggregate of them, 2 users, 3 the join."""
    return Join(TOTAL, USERS, kind, ((UID, UID),))


def side_by_side(name: str, *between: str, joined_rows: int = 30) -> list[OperatorMetrics]:
    """A join of that name over an aggregate, with these operators between them, and a scan."""
    chain = [operator(10 + place, each, 11 + place, rows=7) for place, each in enumerate(between)]
    below = 10 + len(between)
    return [
        operator(1, name, 10, 2, rows=joined_rows),
        *chain,
        operator(below, "HashAggregate", below + 1, rows=7, detail="functions=[count(1)]"),
        scan(below + 1),
        scan(2, USER_FILE, OTHER_SCAN),
    ]


def test_a_whole_plan() -> None:
    found = figures(joined(JoinKind.LEFT), *side_by_side("BroadcastHashJoin"))
    assert {each.id: each.rows for each in found.nodes} == {0: SCAN, 1: 7, 2: OTHER_SCAN, 3: 30}
    assert {each.id: each.node for each in found.operators} == {1: 3, 10: 1, 11: 0, 2: 2}


def test_operators_of_one_step_of_a_recursion_are_not_those_of_the_plan() -> None:
    recursion = Recursion((ORDERS,), StepRows(0, ()), output_of(ORDERS))
    assert figures(recursion, *side_by_side("BroadcastHashJoin")) == OperatorReport()


@pytest.mark.parametrize("kind", [JoinKind.INNER, JoinKind.RIGHT, JoinKind.LEFT_SEMI])
def test_a_side_of_which_the_join_may_drop_rows_before(kind: JoinKind) -> None:
    assert rows(joined(kind), *side_by_side("BroadcastHashJoin"))[1] is None


@pytest.mark.parametrize(
    ("name", "between", "expected"),
    [
        ("BroadcastHashJoin", (), 7),
        ("SortMergeJoin", (), None),  # it may end before the side does
        ("SortMergeJoin", ("Sort",), 7),
        ("SortMergeJoin", ("Sort", "Exchange"), 7),
        ("SortMergeJoin(skew=true)", ("Sort",), None),  # parts of a side are read several times
        ("SortMergeJoin(skew=true)", ("Sort", "AQEShuffleRead", "Exchange"), 7),
        ("ShuffledHashJoin", ("Sort",), None),  # nothing is asked for where the other side is empty
        ("ShuffledHashJoin", ("Exchange",), 7),
        ("BroadcastNestedLoopJoin", (), None),  # a side may be run twice
        ("CartesianProduct", (), None),  # each side once for each part of the other
        ("CartesianProduct", ("Exchange",), 7),
    ],
)
def test_a_side_that_the_join_may_read_in_part_or_twice(
    name: str, between: tuple[str, ...], expected: int | None
) -> None:
    assert rows(joined(JoinKind.FULL), *side_by_side(name, *between))[1] == expected


def test_a_join_without_rows_may_not_have_asked_for_any() -> None:
    assert rows(joined(JoinKind.FULL), *side_by_side("BroadcastHashJoin", joined_rows=0))[1] is None


def test_rows_of_a_scan_are_those_read_but_where_it_may_have_run_several_times() -> None:
    plan = Join(ORDERS, USERS, JoinKind.INNER, ((UID, UID),))
    for name, expected in (("SortMergeJoin", SCAN), ("CartesianProduct", None)):
        found = rows(plan, operator(1, name, 2, 3, rows=9), scan(2), scan(3, USER_FILE))
        assert (found[0], found[2]) == (expected, 9)


def test_below_a_condition() -> None:
    aggregate = operator(2, "HashAggregate", 3, rows=7, detail="functions=[count(1)]")
    for condition, expected in ((KEEP, None), (OF_CALLS, 7)):
        plan = Filter(TOTAL, condition)
        assert rows(plan, operator(1, "Filter", 2, rows=4), aggregate, scan(3)) == {0: SCAN, 1: expected, 2: 4}


def test_below_a_limit() -> None:
    plan = Limit(TOTAL, 3)
    aggregate = operator(3, "HashAggregate", 4, rows=7, detail="functions=[count(1)]")
    write = operator(1, "Execute InsertIntoHadoopFsRelationCommand", 2, rows=3)
    stops = operator(2, "GlobalLimit", 3)
    assert rows(plan, write, stops, aggregate, scan(4)) == {0: SCAN, 1: None, 2: 3}
    takes_all = operator(2, "TakeOrderedAndProject", 3)
    assert rows(plan, write, takes_all, aggregate, scan(4)) == {0: SCAN, 1: 7, 2: 3}


def test_rows_of_a_union_are_those_of_its_inputs_where_all_are_known() -> None:
    scans = [operator(1, "Union", 2, 3), scan(2), scan(3, USER_FILE, OTHER_SCAN)]
    assert rows(Union((ORDERS, USERS)), *scans)[2] == SCAN + OTHER_SCAN
    unknown = scans[2].model_copy(update={"rows": None})
    assert rows(Union((ORDERS, USERS)), *scans[:2], unknown).get(2) is None


def test_where_the_plans_do_not_agree_the_result_alone_is_known() -> None:
    write = operator(1, "Execute InsertIntoHadoopFsRelationCommand", 2, rows=3)
    found = figures(TOTAL, write, operator(2, "EmptyRelation"))
    assert {each.id: each.rows for each in found.nodes} == {1: 3}
    assert all(each.node is None for each in found.operators)


def test_a_reused_exchange_is_counted_once() -> None:
    """Both sides of the join read the one exchange: rows are those of both, bytes and time those of the first."""
    plan = Join(TOTAL, TOTAL, JoinKind.FULL, ((UID, UID),))
    exchange = operator(3, "Exchange", 4, rows=7).model_copy(update={"bytes": 100, "time_ms": 5})
    aggregate = operator(4, "HashAggregate", 5, rows=7, detail="functions=[count(1)]").model_copy(update={"time_ms": 9})
    found = figures(
        plan,
        operator(1, "SortMergeJoin", 2, 6, rows=8),
        operator(2, "Sort", 3),
        exchange,
        aggregate,
        scan(5),
        operator(6, "Sort", 3),
    )
    expected = {each.id: each for each in found.nodes}
    assert (expected[1].rows, expected[3].rows) == (7, 7)
    assert (expected[1].time_ms, expected[3].time_ms) == (9, None)
    assert expected[4].bytes == 100


def test_operators_of_values_are_left_out() -> None:
    value = (operator(3, "Subquery", 4, rows=1), scan(4))
    found = figures(ORDERS, operator(1, "Filter", 2, 3, rows=50), scan(2), *value)
    assert [(each.id, each.rows) for each in found.nodes] == [(0, 50)]


def test_no_operators_and_too_many_segments_give_no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    assert figures(TOTAL) == OperatorReport()
    monkeypatch.setattr(operator_tree, "MAX_SEGMENTS", 1)
    assert figures(joined(JoinKind.FULL), *side_by_side("BroadcastHashJoin")).nodes == ()
