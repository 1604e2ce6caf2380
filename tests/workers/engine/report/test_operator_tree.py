"""Our plans and Spark's plans as trees of segments."""

from __future__ import annotations

import pytest

from service.contract.query import JoinKind
from tests.support.plan_parts import COUNT, ORDERS, UID, USERS
from tests.support.scalars import scalar
from tests.support.stages import operator
from workers.engine.plan.explain import explain
from workers.engine.plan.nodes import Aggregate, Filter, Join, Limit, Named, Project, Union
from workers.engine.plan.traversal import with_ids
from workers.engine.report import operator_tree
from workers.engine.report.operator_tree import (
    Kind,
    Numbered,
    TooManySegmentsError,
    numbered,
    segments_of_operators,
    segments_of_plan,
)

KEEP = scalar("`o.uid` > 1", None)
BY_UID = (Named(UID, "o.uid"),)


def everything(top: Numbered) -> list[Numbered]:
    return [*(below for each in top.inputs for below in everything(each)), top]


def test_nodes_have_the_ids_of_the_report() -> None:
    plan = with_ids(Limit(Join(Filter(ORDERS, KEEP), Union((USERS, USERS)), JoinKind.INNER, ((UID, UID),)), 3))
    reports = explain(plan, {}, lambda _: None).nodes
    nodes = everything(numbered(plan))
    assert [(each.id, type(each.node).__name__, tuple(one.id for one in each.inputs)) for each in nodes] == [
        (each.id, each.operator, each.inputs) for each in reports
    ]


def test_a_plan_of_ours() -> None:
    inner = Aggregate(Filter(ORDERS, KEEP), BY_UID, (COUNT,))
    plan = Limit(Aggregate(Project(inner, BY_UID), BY_UID, (COUNT,)), 3)
    top = segments_of_plan(numbered(plan))
    assert (top.kind, [type(each.node).__name__ for each in top.above]) == (Kind.AGGREGATE, ["Limit"])
    assert [type(each.node).__name__ for each in top.members] == ["Aggregate", "Project", "Aggregate"]
    (below,) = top.inputs
    assert (below.kind, [type(each.node).__name__ for each in below.above]) == (Kind.SCAN, ["Filter"])


def test_aggregates_with_a_condition_between_them_are_two_segments() -> None:
    plan = Aggregate(Filter(Aggregate(ORDERS, BY_UID, (COUNT,)), KEEP), BY_UID, (COUNT,))
    assert [each.kind for each in segments_of_plan(numbered(plan)).walk()] == [
        Kind.AGGREGATE,
        Kind.AGGREGATE,
        Kind.SCAN,
    ]


def test_unions_below_unions_are_one() -> None:
    limited = Project(Limit(Union((ORDERS, ORDERS)), 3), BY_UID)
    plan = Union((Project(Union((ORDERS, ORDERS)), BY_UID), limited, ORDERS))
    top = segments_of_plan(numbered(plan))
    assert [each.kind for each in top.inputs] == [Kind.SCAN, Kind.SCAN, Kind.UNION, Kind.SCAN]


def test_sparks_unions_below_unions_are_one() -> None:
    found = segments_of_operators(
        [
            operator(1, "Union", 2, 3),
            operator(2, "Project", 4),
            operator(3, "Filter", 4),
            operator(4, "Union", 5, 5),
            operator(5, "Scan parquet"),
        ]
    )
    assert [each.kind for each in found.inputs] == [Kind.SCAN, Kind.SCAN, Kind.UNION]


def test_sparks_operators() -> None:
    found = segments_of_operators(
        [
            operator(1, "Execute InsertIntoHadoopFsRelationCommand", 2),
            operator(2, "WriteFiles", 3),
            operator(3, "HashAggregate", 4),
            operator(4, "AQEShuffleRead", 5),
            operator(5, "Exchange", 6),
            operator(6, "HashAggregate", 7),
            operator(7, "SortMergeJoin(skew=true)", 8, 9),
            operator(8, "Scan parquet"),
            operator(9, "Filter", 10),
            operator(10, "ColumnarToRow", 11),
            operator(11, "Scan csv"),
        ]
    )
    assert [each.kind for each in found.walk()] == [Kind.AGGREGATE, Kind.JOIN, Kind.SCAN, Kind.SCAN]
    assert [each.id for each in found.above] == [1, 2]
    assert [each.id for each in found.members] == [3, 4, 5, 6]
    assert [each.id for each in found.inputs[0].inputs[1].above] == [9, 10]


@pytest.mark.parametrize(
    "name",
    [
        *("Filter", "Project", "Sort", "TakeOrderedAndProject", "LocalLimit", "GlobalLimit", "CollectLimit"),
        *("Exchange", "BroadcastExchange", "AQEShuffleRead", "ReusedExchange", "ColumnarToRow"),
        *("WriteFiles", "Execute InsertIntoHadoopFsRelationCommand"),
    ],
)
def test_operators_that_move_rows_are_above_the_members(name: str) -> None:
    found = segments_of_operators([operator(1, name, 2), operator(2, "Scan parquet")])
    assert (found.kind, len(found.above)) == (Kind.SCAN, 1)


def test_copies_end_a_row_of_aggregates() -> None:
    found = segments_of_operators(
        [
            operator(1, "HashAggregate", 2),
            operator(2, "Expand", 3),
            operator(3, "HashAggregate", 4),
            operator(4, "Scan parquet"),
        ]
    )
    assert [[each.id for each in segment.members] for segment in found.walk()] == [[1, 2], [3], [4]]


def test_sorts_and_moves_stand_between_aggregates() -> None:
    names = ("SortAggregate", "Sort", "AQEShuffleRead", "Exchange", "Project", "SortAggregate")
    chain = [operator(number, name, number + 1) for number, name in enumerate(names)]
    found = segments_of_operators([*chain, operator(len(names), "Scan parquet")])
    assert [each.operator for each in found.members] == [*names]


def test_an_operator_above_an_aggregate_is_not_part_of_it() -> None:
    found = segments_of_operators(
        [
            operator(1, "Window", 2),
            operator(2, "SortAggregate", 3),
            operator(3, "ReusedExchange", 4),
            operator(4, "Scan parquet"),
        ]
    )
    assert [(segment.kind, len(segment.members)) for segment in found.walk()] == [
        (Kind.WINDOW, 1),
        (Kind.AGGREGATE, 1),
        (Kind.SCAN, 1),
    ]


def test_calls_with_over_are_one_segment() -> None:
    names = ("Window", "Sort", "Exchange", "Window", "WindowGroupLimit")
    chain = [operator(number, name, number + 1) for number, name in enumerate(names)]
    found = segments_of_operators([*chain, operator(len(names), "Sort", 9), operator(9, "Scan parquet")])
    assert [(segment.kind, len(segment.members)) for segment in found.walk()] == [(Kind.WINDOW, 5), (Kind.SCAN, 1)]


@pytest.mark.parametrize(
    ("name", "inputs", "kind"),
    [
        *((name, 0, Kind.OTHER) for name in ("EmptyRelation", "Window", "InMemoryTableScan")),
        ("LocalTableScan", 0, Kind.VALUES),
        *((name, 0, Kind.OTHER) for name in ("Expand", "ReusedExchange", "HashAggregate", "Generate")),
        ("Scan parquet", 1, Kind.OTHER),
        *((name, 1, Kind.AGGREGATE) for name in ("HashAggregate", "ObjectHashAggregate", "SortAggregate")),
        *((name, 2, Kind.JOIN) for name in ("SortMergeJoin", "BroadcastHashJoin", "ShuffledHashJoin")),
        *((name, 2, Kind.JOIN) for name in ("BroadcastNestedLoopJoin", "CartesianProduct")),
        ("SortMergeJoin", 1, Kind.OTHER),
        ("Generate", 1, Kind.EXPAND),
        *((name, 1, Kind.WINDOW) for name in ("Window", "WindowGroupLimit")),
        ("Generate", 2, Kind.OTHER),
    ],
)
def test_an_operator_of_another_name_or_number_of_inputs_is_unknown(name: str, inputs: int, kind: Kind) -> None:
    operators = [operator(1, "Project", 2), operator(2, name, *[3] * inputs), operator(3, "Scan parquet")]
    assert segments_of_operators(operators).kind is kind


def test_the_number_of_segments_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operator_tree, "MAX_SEGMENTS", 50)
    # Each union takes the next one twice.
    chain = [operator(number, "Union", number + 1, number + 1) for number in range(30)]
    joins = [each.model_copy(update={"operator": "SortMergeJoin"}) for each in chain]
    with pytest.raises(TooManySegmentsError):
        segments_of_operators([*joins, operator(30, "Scan parquet")])
