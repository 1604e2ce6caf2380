"""Aggregate calls of a structured query, bound: their shape, their arguments and their types."""

from __future__ import annotations

from service.spec.aggregates import IDEMPOTENT, OF_GROUPING_SETS, ORDERED, result_type, takes
from service.spec.bound import BoundCall
from service.spec.dialect import Text, TextOf
from service.spec.errors import SpecError
from service.spec.expressions import scalar_of
from service.spec.inference import Typing
from service.spec.parsing import read_expression
from service.spec.query import AggregateCall, AggregateFunction
from service.spec.scalar import Scalar
from service.spec.scope import TableScope, resolve
from service.spec.tree import Expression, Number, String
from service.spec.types import UNKNOWN, Field, TypeName


def bind_call(call: AggregateCall, pointer: str, scope: TableScope, text_of: TextOf = Text) -> BoundCall:
    """The call over the columns of `scope`; `pointer` is its JSON pointer, `text_of` makes the texts of its parts.

    Raises SpecError `unsupported_construct`, `type_mismatch`, and what expressions raise.
    """
    refused = _refusal(call)
    if refused is not None:
        raise SpecError.of("unsupported_construct", refused, pointer=pointer)
    arguments = []
    for index, text in enumerate(call.arguments):
        source = text_of(text, f"{pointer}/arguments/{index}")
        tree = resolve(read_expression(source), scope, source)
        if index and call.function in _PARAMETERS:
            _check_parameter(call.function, tree, source)
        else:
            _check_type(call, text, tree, source)
        arguments.append(scalar_of(tree, source))
    type_ = result_type(call.function, arguments[0].type if arguments else None)
    return BoundCall(
        function=call.function,
        arguments=tuple(arguments),
        distinct=call.distinct and call.function not in IDEMPOTENT,
        filter=condition(text_of(call.filter, f"{pointer}/filter"), scope, "FILTER")
        if call.filter is not None
        else None,
        order_by=_order(text_of(call.order_by, f"{pointer}/order_by"), scope) if call.order_by is not None else None,
        output=Field(call.name, type_ or UNKNOWN),
        descending=call.descending,
    )


def condition(source: Text, scope: TableScope, what: str) -> Scalar:
    """A condition over `scope`; `what` names the clause for errors. Raises SpecError as expressions do."""
    tree = resolve(read_expression(source), scope, source)
    Typing(source).require_condition(tree, what)
    return scalar_of(tree, source)


def _order(source: Text, scope: TableScope) -> Scalar:
    tree = resolve(read_expression(source), scope, source)
    Typing(source).computable(tree)
    return scalar_of(tree, source)


def _check_type(call: AggregateCall, text: str, tree: Expression, source: Text) -> None:
    type_ = Typing(source).type_of(tree)
    counted = call.function is AggregateFunction.COUNT and not call.distinct
    if type_ is not None and not counted and not takes(call.function, type_):
        function = f"{call.function}(DISTINCT x)" if call.distinct else call.function
        raise Typing(source).mismatch(f"{function} does not take {text.replace('`', '')}, which is {type_}.", tree)
    if call.distinct:
        Typing(source).groupable(tree)
    if call.function is not AggregateFunction.LISTAGG or type_ is None:
        return
    if type_.name is TypeName.BINARY and len(call.arguments) > 1:
        raise Typing(source).mismatch("LISTAGG puts no delimiter between BINARY values: cast them.", tree)
    if call.distinct and type_.name in _NOT_ONE_TEXT:
        raise Typing(source).mismatch(f"LISTAGG(DISTINCT x) does not take a {type_}: cast it to STRING.", tree)


_NOT_ONE_TEXT = frozenset({TypeName.FLOAT, TypeName.DOUBLE, TypeName.TIMESTAMP})
"""Types of which equal values may be written differently, or the reverse."""

_PARAMETERS = frozenset({AggregateFunction.LISTAGG, AggregateFunction.PERCENTILE})
"""Functions whose second argument is the same for all rows."""


def _check_parameter(function: AggregateFunction, tree: Expression, source: Text) -> None:
    if function is AggregateFunction.LISTAGG and not isinstance(tree, String):
        raise source.unsupported("A delimiter that is no string literal", hint="Write it like LISTAGG(x, ', ').")
    if function is AggregateFunction.PERCENTILE and not (isinstance(tree, Number) and 0 <= float(tree.text) <= 1):
        raise source.unsupported(
            "A percentage that is no number literal from 0 to 1", hint="Write it like PERCENTILE(x, 0.9)."
        )


_ARITY = {
    AggregateFunction.LISTAGG: (1, 2),
    AggregateFunction.PERCENTILE: (2, 2),
    AggregateFunction.GROUPING_ID: (0, 16),
}
_NEEDED = {1: "one argument", 2: "two arguments: the values and the percentage"}


def _refusal(call: AggregateCall) -> str | None:
    """What is wrong with the shape of the call, as a sentence."""
    function, count = call.function, len(call.arguments)
    order = _refused_order(call)
    if order is not None:
        return order
    if function in OF_GROUPING_SETS and (call.distinct or call.filter is not None):
        return f"{function} has neither DISTINCT nor FILTER."
    if function is AggregateFunction.COUNT:
        if call.distinct and not count:
            return "COUNT(DISTINCT *) is not supported: name the columns."
        return "COUNT takes several arguments with DISTINCT alone." if count > 1 and not call.distinct else None
    least, most = _ARITY.get(function, (1, 1))
    if function is AggregateFunction.LISTAGG and count > most:
        return "LISTAGG takes the values and a delimiter."
    return None if least <= count <= most else f"{function} takes {_NEEDED[least]}, not {count}."


def _refused_order(call: AggregateCall) -> str | None:
    function = call.function
    if function is AggregateFunction.LISTAGG:
        if call.order_by is None:
            return (
                "LISTAGG needs an order, for example LISTAGG(x, ',') WITHIN GROUP (ORDER BY t): "
                "without one its result would be arbitrary."
            )
        if call.distinct and call.arguments[:1] != (call.order_by,):
            return "LISTAGG(DISTINCT x) can be ordered by x alone."
        return None
    if call.descending:
        return f"The order of {function} is an ascending one."
    if function in ORDERED:
        if call.order_by is None:
            return (
                f"{function} needs an order, for example {function}(x ORDER BY t): "
                "without one its result would be arbitrary."
            )
        return f"{function} has no DISTINCT." if call.distinct else None
    return f"{function} does not depend on an order: remove it." if call.order_by is not None else None
