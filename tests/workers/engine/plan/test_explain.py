"""Plans as text and as reports."""

from __future__ import annotations

import pytest

from service.contract.query import AggregateFunction, JoinKind, NullsOrder, SortDirection
from service.sql.expressions.scalar import column
from service.sql.types.data_types import BIGINT, BOOLEAN, STRING, Field
from tests.support.plan_parts import COUNT, USERS
from tests.support.scalars import scalar
from workers.engine.plan.explain import call_text, explain, line_of, text_of
from workers.engine.plan.nodes import (
    Aggregate,
    AggregateRole,
    Call,
    Deduplicate,
    Exchange,
    Expand,
    Filter,
    Join,
    Limit,
    MultisetOperation,
    Named,
    Node,
    Phases,
    Project,
    Scan,
    Sort,
    SortItem,
    Values,
    Watermark,
    WindowFunctions,
    Windows,
)
from workers.engine.plan.traversal import with_ids

ORDERS = Scan("orders", "o", ((Field("o.uid", BIGINT), "uid"), (Field("o.x", STRING), "x")))
UID, X = column("o.uid", BIGINT), column("o.x", STRING)
JOIN = Join(ORDERS, USERS, JoinKind.LEFT, ((UID, column("u.uid", BIGINT)),), scalar("`o.x` > 'a'", BOOLEAN))


@pytest.mark.parametrize(
    ("node", "line"),
    [
        (ORDERS, "Scan orders AS o [o.uid, o.x]"),
        (Filter(ORDERS, scalar("`o.uid` = 1", BOOLEAN)), "Filter o.uid = 1"),
        (Watermark(ORDERS, X, 90_000), "Watermark o.x DELAY 90s"),
        (Windows(ORDERS, X, 3_600_000, 3_600_000, "w"), "Windows o.x SIZE 1h AS w"),
        (Windows(ORDERS, X, 3_600_000, 1, "w"), "Windows o.x SIZE 1h SLIDE 1ms AS w"),
        (Project(ORDERS, (Named(UID, "uid"), Named(X, "o.x"))), "Project o.uid AS uid, o.x"),
        (JOIN, "Join LEFT ON o.uid = u.uid AND o.x > 'a'"),
        (Join(ORDERS, USERS, JoinKind.CROSS, ()), "Join CROSS"),
        (Aggregate(ORDERS, (), (COUNT,)), "Aggregate [COUNT(*) AS n]"),
        (
            Aggregate(ORDERS, (Named(UID, "uid"),), (COUNT,), AggregateRole.PARTIAL, Phases.TWO_PHASE),
            "Aggregate PARTIAL TWO_PHASE BY o.uid AS uid [COUNT(*) AS n]",
        ),
        (Deduplicate(ORDERS), "Deduplicate"),
        (Expand(ORDERS, 3, "$branch"), "Expand 3 branches AS $branch"),
        (
            WindowFunctions(ORDERS, (Named(scalar("lag(`o.x`) OVER (ORDER BY `o.uid`)", STRING), "l"),)),
            "WindowFunctions lag(o.x) OVER (ORDER BY o.uid) AS l",
        ),
        (Exchange(ORDERS, (UID, X)), "Exchange BY o.uid, o.x"),
        (Sort(ORDERS, (SortItem(UID, SortDirection.DESC, NullsOrder.LAST),)), "Sort o.uid DESC NULLS LAST"),
        (MultisetOperation(ORDERS, ORDERS, "intersect_all"), "MultisetOperation INTERSECT ALL"),
        (Values((Field("v.x", BIGINT),), ((UID,), (UID,))), "Values 2 rows [v.x]"),
        (Limit(ORDERS, 5), "Limit 5"),
        (Limit(ORDERS, 5, 2), "Limit 5 OFFSET 2"),
        (Limit(ORDERS, None, 2), "Limit OFFSET 2"),
    ],
)
def test_a_node_on_one_line(node: Node, line: str) -> None:
    assert line_of(node) == line


def test_a_call_reads_as_sql() -> None:
    call = Call(
        AggregateFunction.FIRST_VALUE, (X,), Field("f", STRING), filter=scalar("`o.uid` > 0", None), order_by=UID
    )
    assert call_text(call) == "FIRST_VALUE(o.x ORDER BY o.uid) FILTER (WHERE o.uid > 0)"


def test_the_text_indents_inputs() -> None:
    assert text_of(Limit(JOIN, 1)).splitlines() == [
        "Limit 1",
        "  Join LEFT ON o.uid = u.uid AND o.x > 'a'",
        "    Scan orders AS o [o.uid, o.x]",
        "    Scan users AS u [u.uid]",
    ]


def test_reports_number_inputs_before_the_nodes_that_read_them() -> None:
    plan = with_ids(Limit(JOIN, 1))
    tree = explain(plan, {2: "some_rule"}, lambda node: 7 if node == ORDERS else None)
    assert [(node.id, node.operator, node.inputs) for node in tree.nodes] == [
        (0, "Scan", ()),
        (1, "Scan", ()),
        (2, "Join", (0, 1)),
        (3, "Limit", (2,)),
    ]
    assert [node.changed_by for node in tree.nodes] == [None, None, "some_rule", None]
    assert [node.estimated_rows for node in tree.nodes] == [7, None, None, None]
    assert tree.text == text_of(plan)
