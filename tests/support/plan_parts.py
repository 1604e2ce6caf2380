"""Builds scans and calls, and lists the lines of plans."""

from __future__ import annotations

from service.contract.query import AggregateFunction
from service.sql.expressions.scalar import Scalar, column
from service.sql.types.data_types import BIGINT, Field
from workers.engine.plan.explain import line_of
from workers.engine.plan.nodes import Call, Node, PlanFunction, Scan
from workers.engine.plan.traversal import walk_up

UID = column("o.uid", BIGINT)
ORDERS = Scan("orders", "o", ((Field("o.uid", BIGINT), "uid"),))
USERS = Scan("users", "u", ((Field("u.uid", BIGINT), "uid"),))
COUNT = Call(AggregateFunction.COUNT, (), Field("n", BIGINT))


def call(
    function: AggregateFunction | PlanFunction,
    *arguments: Scalar,
    distinct: bool = False,
    where: Scalar | None = None,
    order_by: Scalar | None = None,
) -> Call:
    """Returns a call named `x` of type BIGINT."""
    return Call(function, arguments, Field("x", BIGINT), distinct, where, order_by)


def lines_of(node: Node) -> list[str]:
    """Returns the lines of a plan from the bottom up, without its scans."""
    return [line_of(part) for part in walk_up(node) if not isinstance(part, Scan)]
