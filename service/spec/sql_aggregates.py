"""Aggregate calls as they are written: DISTINCT, an order inside or behind (WITHIN GROUP), and other names for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from sqlglot import exp

from service.spec.dialect import Text
from service.spec.errors import SpecError
from service.spec.query import AggregateFunction
from service.spec.tree import Aggregate, Expression, Number

SYNONYMS = {
    "VARIANCE": AggregateFunction.VAR_SAMP,
    "STDDEV": AggregateFunction.STDDEV_SAMP,
    "STD": AggregateFunction.STDDEV_SAMP,
    "STRING_AGG": AggregateFunction.LISTAGG,
    "MEAN": AggregateFunction.AVG,
    "PERCENTILE_CONT": AggregateFunction.PERCENTILE,
    "MEDIAN": AggregateFunction.PERCENTILE,
}
"""Other names of the aggregate functions; the last two are written differently too."""

WITHIN_GROUP = frozenset({"LISTAGG", "STRING_AGG", "PERCENTILE_CONT"})
"""Functions whose order stands behind them."""


def function_named(name: str) -> AggregateFunction | None:
    """The aggregate function that is called `name` or has it as another name; case does not count."""
    upper = name.upper()
    return AggregateFunction[upper] if upper in AggregateFunction.__members__ else SYNONYMS.get(upper)


@dataclass(frozen=True)
class AggregateReader:
    """Reads aggregate calls of one text. `read` and `check` are those of the expressions inside them, `refuse` makes
    the error for a node, a construct and a hint.
    """

    source: Text
    read: Callable[[exp.Expr], Expression]
    check: Callable[[exp.Expr], None]
    refuse: Callable[[exp.Expr, str, str], SpecError]

    def call(self, function: AggregateFunction, node: exp.Anonymous, at: int | None) -> Aggregate:
        """The call without what stands behind it. Raises SpecError."""
        if node.name.upper() == "PERCENTILE_CONT" and not isinstance(node.parent, exp.WithinGroup):
            hint = "Write PERCENTILE_CONT(0.5) WITHIN GROUP (ORDER BY x), or PERCENTILE(x, 0.5)."
            raise self.refuse(node, "PERCENTILE_CONT without WITHIN GROUP", hint)
        raw = list(node.expressions)
        distinct = len(raw) == 1 and isinstance(raw[0], exp.Distinct)
        if distinct:
            self.check(raw[0])
            raw = list(raw[0].expressions)
        order: exp.Order | None = None
        if raw and isinstance(raw[-1], exp.Order):
            order = raw[-1]
            raw[-1] = order.this
            if not distinct and isinstance(raw[-1], exp.Distinct) and len(raw) == 1:
                self.check(raw[-1])
                distinct, raw = True, list(raw[-1].expressions)
        counts_all = function is AggregateFunction.COUNT and not distinct and len(raw) == 1
        if counts_all and isinstance(raw[0], exp.Star):
            self.check(raw[0])
            raw = []
        elif not raw and function is not AggregateFunction.GROUPING_ID:
            raise self.source.error("unsupported_function", f"{node.name.upper()} needs an argument.", at=at)
        arguments = tuple(self.read(argument) for argument in raw)
        if node.name.upper() == "MEDIAN":
            arguments = (*arguments, Number("0.5"))
        call = Aggregate(function, arguments, distinct, None, None, at)
        return call if order is None else self._ordered(call, order)

    def within_group(self, call: Aggregate, node: exp.WithinGroup) -> Aggregate:
        """`call` with the order that stands behind it. Raises SpecError."""
        name = node.this.name.upper()
        order = node.expression
        if name not in WITHIN_GROUP or not isinstance(order, exp.Order) or call.order_by is not None:
            raise self.refuse(node, f"WITHIN GROUP behind {name}", f"It belongs to {', '.join(sorted(WITHIN_GROUP))}.")
        ordered = self._ordered(call, order)
        if name != "PERCENTILE_CONT":
            return ordered
        if ordered.descending or ordered.order_by is None:
            raise self.refuse(node, "A descending order in PERCENTILE_CONT", "Use 1 - p with an ascending one.")
        return replace(call, arguments=(ordered.order_by, *call.arguments))

    def _ordered(self, call: Aggregate, order: exp.Order) -> Aggregate:
        self.check(order)
        keys, function = order.expressions, call.function
        if len(keys) != 1 or not isinstance(keys[0], exp.Ordered):
            raise self.refuse(order, f"More than one order in {function}", "")
        descending = bool(keys[0].args.get("desc"))
        if descending and function in {AggregateFunction.FIRST_VALUE, AggregateFunction.LAST_VALUE}:
            other = "LAST_VALUE" if function is AggregateFunction.FIRST_VALUE else "FIRST_VALUE"
            raise self.refuse(order, f"A descending order in {function}", f"Use {other} with an ascending one.")
        self.check(keys[0])
        if bool(keys[0].args.get("nulls_first")) is descending:
            place = "FIRST" if descending else "LAST"
            hint = "Rows whose order is NULL never count."
            if function is AggregateFunction.LISTAGG:
                hint = "NULLs come first ascending and last descending; order by COALESCE to place them."
            raise self.refuse(order, f"NULLS {place} in {function}", hint)
        return replace(call, order_by=self.read(keys[0].this), descending=descending)
