"""Aggregate calls of one aggregate in Spark's SQL, with a LISTAGG that Spark 4.3 can run next to them.

Spark fails on `listagg(…) WITHIN GROUP (ORDER BY …)` where it copies rows for DISTINCT calls: its rule
RewriteDistinctAggregates replaces the keys of the order by columns and ends with a ClassCastException. There, LISTAGG
is an array of values that are collected, sorted and joined.
"""

from __future__ import annotations

from service.contract.query import AggregateFunction
from service.sql.types.data_types import TypeName
from workers.engine.plan.expressions import call_sql
from workers.engine.plan.nodes import Aggregate, Call

_BY_VALUE = "WHEN l.v < r.v THEN -1 WHEN l.v > r.v THEN 1 ELSE 0 END"
_DESCENDING = (
    "(l, r) -> CASE WHEN l.o IS NULL AND r.o IS NOT NULL THEN 1 WHEN r.o IS NULL AND l.o IS NOT NULL THEN -1 "
    f"WHEN l.o > r.o THEN -1 WHEN l.o < r.o THEN 1 {_BY_VALUE}"
)
"""The order of ORDER BY o DESC, v: NULL is the last one, as in Spark."""


def calls_sql(node: Aggregate) -> tuple[str, ...]:
    """Returns the calls of `node` in Spark's SQL."""
    is_copied = _may_copy_rows(node)
    return tuple(
        _collected(call) if is_copied and call.function is AggregateFunction.LISTAGG else call_sql(call)
        for call in node.calls
    )


def _may_copy_rows(node: Aggregate) -> bool:
    """Whether Spark may copy the rows of `node` for its DISTINCT calls, as an upper bound."""
    distinct = [call for call in node.calls if call.distinct]
    return len(distinct) > 1 or any(call.filter is not None for call in distinct)


def _collected(call: Call) -> str:
    """Returns a LISTAGG as an array of structures of the order `o` and the value `v`; it is NULL without a value."""
    value, *delimiter = (argument.sql for argument in call.arguments)
    order = value if call.order_by is None else call.order_by.sql
    row = f"IF(({value}) IS NULL, NULL, named_struct('o', {order}, 'v', {value}))"
    rows = f"{'collect_set' if call.distinct else 'collect_list'}({row})"
    if call.filter is not None:
        rows += f" FILTER (WHERE {call.filter.sql})"
    ordered = f"array_sort({rows}, {_DESCENDING})" if call.descending else f"sort_array({rows})"
    is_binary = call.output.type.name is TypeName.BINARY
    text = "hex(e.v)" if is_binary else "CAST(e.v AS STRING)"
    between = delimiter[0] if delimiter else "''"
    joined = f"array_join(transform(a, e -> {text}), {between})"
    if is_binary:
        joined = f"unhex({joined})"
    return f"get(transform(filter(array({ordered}), a -> size(a) > 0), a -> {joined}), 0)"
