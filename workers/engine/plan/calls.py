"""Aggregate calls in Spark's SQL: for the plans that run, and for the text that tells them."""

from __future__ import annotations

from service.spec.query import AggregateFunction
from service.spec.scalar import Scalar
from workers.engine.plan.nodes import Call, PlanFunction

_SPARK_NAMES: dict[AggregateFunction | PlanFunction, str] = {
    AggregateFunction.FIRST_VALUE: "min_by",
    AggregateFunction.LAST_VALUE: "max_by",
}
"""Where Spark's name differs. First and last by a column are its smallest and largest: Spark's own
`first_value` takes whatever row comes first."""


def call_sql(call: Call) -> str:
    """The call in Spark's SQL: ``count(DISTINCT `o.d`) FILTER (WHERE `o.ok`)``."""
    arguments = [argument.sql for argument in call.arguments]
    order = ""
    if call.order_by is not None and call.function is AggregateFunction.LISTAGG:
        order = f" WITHIN GROUP (ORDER BY {_order_of(call, call.order_by)})"
    elif call.order_by is not None:
        arguments.append(call.order_by.sql)
    name = _SPARK_NAMES.get(call.function, call.function.value.lower())
    inner = ", ".join(arguments) or ("*" if call.function is AggregateFunction.COUNT else "")
    text = f"{name}({'DISTINCT ' if call.distinct else ''}{inner}){order}"
    return f"{text} FILTER (WHERE {call.filter.sql})" if call.filter is not None else text


def _order_of(call: Call, order_by: Scalar) -> str:
    """The order of a LISTAGG, with the values themselves behind it: they alone decide where rows are equal in it."""
    way = " DESC" if call.descending else ""
    by_value = call.arguments[0]
    return order_by.sql + way if by_value.sql == order_by.sql else f"{order_by.sql}{way}, {by_value.sql}"
