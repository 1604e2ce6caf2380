"""Binds aggregate calls (shape, arguments, types), and resolves names in the clauses after GROUP BY.

After GROUP BY, an expression may use the group keys, the aggregates, and expressions that equal a group key.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from service.contract.problems import SpecError, did_you_mean, nearest_names
from service.contract.query import AggregateCall, AggregateFunction, NamedExpression
from service.sql.expressions.aggregate_parameters import check_parameter, has_several_percentages, is_parameter
from service.sql.expressions.compile_expression import TableScope, resolve, scalar_of
from service.sql.expressions.nodes import (
    Column,
    Expression,
    GetField,
    Name,
    Negation,
    Number,
    children,
    map_children,
    walk,
)
from service.sql.expressions.reader import read_expression
from service.sql.expressions.scalar import Scalar
from service.sql.parser import Text, TextOf
from service.sql.resolve.aggregate_forms import Computed, computed
from service.sql.resolve.bound import BoundCall
from service.sql.types.aggregates import (
    IDEMPOTENT,
    NEAREST,
    OF_GROUPING_SETS,
    ORDERED,
    PAIRED,
    PERCENTILES,
    SKETCHES,
    deciding,
    result_type,
    takes,
)
from service.sql.types.data_types import UNKNOWN, Field, TypeName, array, known
from service.sql.types.inference import Typing
from service.sql.types.intervals import WAY_OUT, IntervalKind, kind_of

_NOT_ONE_TEXT = frozenset({TypeName.FLOAT, TypeName.DOUBLE, TypeName.TIMESTAMP})
"""Types whose equal values may have different texts, or different values the same text."""
_ARITY = {
    AggregateFunction.LISTAGG: (1, 2),
    AggregateFunction.PERCENTILE: (2, 3),
    AggregateFunction.PERCENTILE_DISC: (2, 2),
    AggregateFunction.APPROX_PERCENTILE: (2, 3),
    AggregateFunction.APPROX_COUNT_DISTINCT: (1, 2),
    AggregateFunction.GROUPING_ID: (0, 16),
    **dict.fromkeys((AggregateFunction.FIRST, AggregateFunction.LAST, AggregateFunction.MODE), (1, 2)),
    **dict.fromkeys(NEAREST | PAIRED, (2, 2)),
    **dict.fromkeys(SKETCHES - {AggregateFunction.THETA_INTERSECTION_AGG}, (1, 2)),
    AggregateFunction.HISTOGRAM_NUMERIC: (2, 2),
    AggregateFunction.COUNT_MIN_SKETCH: (4, 4),
    AggregateFunction.APPROX_TOP_K: (1, 3),
}
_NEEDED = {
    (1, 1): "one argument",
    (1, 2): "one or two arguments",
    (1, 3): "one to three arguments",
    (2, 2): "two arguments",
    (4, 4): "four arguments: the values, the relative error, the confidence, and a seed",
    (2, 3): "two or three arguments: the values, the percentage, and an optional number",
}
_BY_ORDER = {AggregateFunction.MAX_BY: ", false", AggregateFunction.MIN_BY: ""}
_OF_INTERVALS = frozenset(
    {
        AggregateFunction.SUM,
        AggregateFunction.AVG,
        AggregateFunction.MIN,
        AggregateFunction.MAX,
        AggregateFunction.FIRST_VALUE,
        AggregateFunction.LAST_VALUE,
        AggregateFunction.ANY_VALUE,
        AggregateFunction.MAX_BY,
        AggregateFunction.MIN_BY,
    }
)
_NO_DISTINCT = (
    NEAREST
    | PAIRED
    | SKETCHES
    | {
        AggregateFunction.HISTOGRAM_NUMERIC,
        AggregateFunction.APPROX_TOP_K,
        AggregateFunction.COLLECT_UNION,
        AggregateFunction.VECTOR_AVG,
        AggregateFunction.VECTOR_SUM,
        AggregateFunction.FIRST,
        AggregateFunction.LAST,
        AggregateFunction.MODE,
        AggregateFunction.PERCENTILE_DISC,
        AggregateFunction.APPROX_PERCENTILE,
    }
)
"""Functions that have no DISTINCT."""


def bind_call(call: AggregateCall, pointer: str, scope: TableScope, text_of: TextOf = Text) -> BoundCall:
    """Returns the call over the columns of `scope`; `pointer` is its JSON pointer, `text_of` creates its parts' `Text`.

    Raises SpecError `unsupported_construct`, `type_mismatch`, and what expressions raise.
    """
    refused = _refusal(call)
    if refused is not None:
        raise SpecError.of("unsupported_construct", refused, pointer=pointer)
    arguments = []
    for index, text in enumerate(call.arguments):
        source = text_of(text, f"{pointer}/arguments/{index}")
        tree = resolve(read_expression(source), scope, source)
        if index and is_parameter(call.function, index):
            check_parameter(call.function, index, tree, source)
        else:
            _check_type(call, index, text, tree, source)
        arguments.append(scalar_of(tree, source))
    type_ = result_type(call.function, arguments[deciding(call.function)].type if arguments else None)
    if call.function in PERCENTILES and has_several_percentages(arguments[1].tree):
        type_ = array(type_) if type_ is not None else None
    order = _order(text_of(call.order_by, f"{pointer}/order_by"), scope) if call.order_by is not None else None
    as_ = computed(Computed(call.function, tuple(arguments), order))
    return BoundCall(
        function=as_.function,
        arguments=as_.arguments,
        distinct=call.distinct and call.function not in IDEMPOTENT,
        filter=condition(text_of(call.filter, f"{pointer}/filter"), scope, "FILTER")
        if call.filter is not None
        else None,
        order_by=as_.order_by,
        output=Field(call.name, type_ or UNKNOWN),
        descending=call.descending,
    )


def condition(source: Text, scope: TableScope, what: str) -> Scalar:
    """Returns a condition over `scope`; `what` names the clause in errors. Raises SpecError as expressions do."""
    tree = resolve(read_expression(source), scope, source)
    Typing(source).require_condition(tree, what)
    return scalar_of(tree, source)


def _order(source: Text, scope: TableScope) -> Scalar:
    tree = resolve(read_expression(source), scope, source)
    Typing(source).computable(tree)
    return scalar_of(tree, source)


def _check_type(call: AggregateCall, index: int, text: str, tree: Expression, source: Text) -> None:
    type_ = Typing(source).type_of(tree)
    kind = kind_of(tree)
    takes_it = kind is not IntervalKind.CALENDAR and call.function in _OF_INTERVALS
    if kind is not None and not takes_it and call.function is not AggregateFunction.COUNT:
        raise Typing(source).mismatch(f"{call.function} does not take an interval. {WAY_OUT}", tree)
    if index and call.function in NEAREST:
        Typing(source).groupable(tree)
        return
    if index and call.function is AggregateFunction.PERCENTILE:
        if type_ is not None and not type_.is_integral:
            detail = f"The frequency of PERCENTILE must be an integer, but {text.replace('`', '')} is {type_}."
            raise Typing(source).mismatch(detail, tree)
        return
    counted = call.function is AggregateFunction.COUNT and not call.distinct
    if type_ is not None and not counted and not takes(call.function, type_):
        function = f"{call.function}(DISTINCT x)" if call.distinct else call.function
        raise Typing(source).mismatch(f"{function} does not take {text.replace('`', '')}, which is {type_}.", tree)
    if call.distinct:
        Typing(source).groupable(tree)
    if call.function is not AggregateFunction.LISTAGG or type_ is None:
        return
    if type_.name is TypeName.BINARY and len(call.arguments) > 1:
        detail = "LISTAGG does not support a delimiter between BINARY values. CAST them to STRING."
        raise Typing(source).mismatch(detail, tree)
    if call.distinct and type_.name in _NOT_ONE_TEXT:
        raise Typing(source).mismatch(f"LISTAGG(DISTINCT x) does not support {type_}. CAST x to STRING.", tree)


def _refusal(call: AggregateCall) -> str | None:
    """Returns what is wrong with the shape of the call, as a sentence; None if nothing is."""
    function, count = call.function, len(call.arguments)
    order = _refused_order(call)
    if order is not None:
        return order
    if function in OF_GROUPING_SETS and (call.distinct or call.filter is not None):
        return f"{function} does not support DISTINCT and FILTER. Remove them."
    if function is AggregateFunction.COUNT:
        if call.distinct and not count:
            return "COUNT(DISTINCT *) is not supported. Name the columns."
        if count > 1 and not call.distinct:
            return "COUNT takes several arguments only with DISTINCT. Add DISTINCT, or count one column."
        return None
    least, most = _ARITY.get(function, (1, 1))
    if function is AggregateFunction.LISTAGG and count > most:
        return f"LISTAGG takes the values and a delimiter, not {count} arguments."
    if call.distinct and function in _NO_DISTINCT:
        return f"{function} does not support DISTINCT. Remove it."
    if least <= count <= most:
        return None
    several = ""
    if function in _BY_ORDER and count == 3:
        listed = f"sort_array(collect_list(struct(y, x)){_BY_ORDER[function]})"
        several = f" For several values, write slice({listed}, 1, 2)."
    return f"{function} takes {_NEEDED[least, most]}, not {count}.{several}"


def _refused_order(call: AggregateCall) -> str | None:
    function = call.function
    if function is AggregateFunction.LISTAGG:
        if call.order_by is not None and call.distinct and call.arguments[:1] != (call.order_by,):
            return "LISTAGG(DISTINCT x) can only be ordered by x."
        return None
    if call.descending:
        return f"{function} does not support a descending order. Order ascending."
    if function in ORDERED:
        if call.order_by is not None and len(call.arguments) > 1:
            return f"{function} takes one argument if it has an order, not {len(call.arguments)}."
        return f"{function} does not support DISTINCT. Remove it." if call.distinct else None
    return f"{function} does not depend on an order. Remove it." if call.order_by is not None else None


@dataclass(frozen=True)
class Key:
    """A group key: the name of its column and its expression over the tables."""

    name: str
    tree: Expression
    scalar: Scalar


@dataclass(frozen=True)
class Grouped:
    """The scope of HAVING, ORDER BY and SELECT of an aggregate query."""

    keys: tuple[Key, ...]
    calls: tuple[BoundCall, ...]
    tables: TableScope
    has_sets: bool = False
    """Whether there are grouping sets: then a key, even a constant, is NULL in rows of sets without it."""
    window: tuple[Field, ...] = ()
    """The columns with the start and the end of a window, if there is one."""

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        """The columns that the aggregation emits: the window's start and end, keys, then aggregates."""
        return (
            *(Column(field.name, field.type) for field in self.window),
            *(_column(key) for key in self.keys),
            *(
                Column(call.output.name, known(call.output.type), longest=_longest(call.arguments))
                for call in self.calls
            ),
        )

    @cached_property
    def names(self) -> frozenset[str]:
        """Names of the columns, case-folded."""
        return frozenset(self._by_folded_name)

    @cached_property
    def _by_folded_name(self) -> dict[str, Column]:
        return {column.name.casefold(): column for column in reversed(self.columns)}

    def resolve(self, tree: Expression, source: Text) -> Expression:
        """Returns `tree` over keys and aggregates: by name, else as an expression that equals a group key.

        Raises SpecError `not_grouped`, `unknown_column` and what `TableScope.find` raises.
        """
        return self._over(tree, self._over_tables(tree, source), source)

    def _over(self, tree: Expression, over_tables: Expression, source: Text) -> Expression:
        """Does the same as `resolve`; `over_tables` is `tree` with the names of the tables' columns resolved."""
        if isinstance(tree, Column):
            return tree
        if isinstance(tree, Name) and isinstance(over_tables, GetField):
            tree = GetField(Name(None, tree.qualifier or "", tree.at), tree.name, tree.at)
        if isinstance(tree, Name) and tree.qualifier is None:
            column = self._by_folded_name.get(tree.name.casefold())
            if column is not None:
                return replace(column, at=tree.at)
        key = self._key_that_equals(tree, over_tables)
        if key is not None:
            return replace(key, at=tree.at) if isinstance(tree, Name) else key
        if isinstance(tree, Name):
            call = self.tables.call_by_name(tree, source)
            if call is None:
                raise self._not_grouped(tree, source)
            return call
        if isinstance(tree, Negation) and isinstance(tree.operand, Number):
            # To Spark a negative number is one literal: the key 5 is not a part of -5.
            return tree
        parts = iter(children(over_tables))
        return map_children(tree, lambda child: self._over(child, next(parts), source))

    def _over_tables(self, tree: Expression, source: Text) -> Expression:
        """Returns `tree` resolved; names that are not columns of a table stay, and do not equal parts of keys."""
        if isinstance(tree, Name):
            # Resolving it would create an error with suggestions, which takes long.
            if tree.qualifier is None and tree.name.casefold() in self.names and not self.tables.has_column(tree.name):
                return tree
            try:
                return resolve(tree, self.tables, source)
            except SpecError:
                return tree
        return map_children(tree, lambda child: self._over_tables(child, source))

    def _key_that_equals(self, tree: Expression, over_tables: Expression) -> Column | None:
        key = next((key for key in self.keys if key.tree == over_tables), None)
        # A constant stays itself, whether it is a key or not.
        is_constant = key is not None and not any(isinstance(part, Name) for part in walk(tree))
        return None if key is None or (is_constant and not self.has_sets) else _column(key)

    def _not_grouped(self, name: Name, source: Text) -> SpecError:
        text = f"{name.qualifier}.{name.name}" if name.qualifier is not None else name.name
        try:
            self.tables.find(name, source)
        except SpecError as error:
            if error.code != "unknown_column" or name.qualifier is not None:
                return error
            suggestions = nearest_names(name.name, [column.name for column in self.columns]) or (
                error.issues[0].suggestions
            )
            return source.error(
                "unknown_column",
                f"There is no column {text}.{did_you_mean(suggestions)}",
                at=name.at,
                suggestions=suggestions,
            )
        return source.error(
            "not_grouped",
            f"{text} is neither a group key nor an aggregate. Add it to GROUP BY, or use it in an aggregate.",
            at=name.at,
        )


def over_keys(call: BoundCall, keys: Sequence[Key], has_sets: bool, pointer: str) -> BoundCall:
    """Returns GROUPING of a group key, or GROUPING_ID of all group keys, without its arguments.

    Raises SpecError `unsupported_construct`.
    """
    if not has_sets:
        detail = f"{call.function} needs ROLLUP, CUBE or GROUPING SETS in GROUP BY."
        raise SpecError.of("unsupported_construct", detail, pointer=pointer)
    wanted = [key.scalar for key in keys]
    if call.function is AggregateFunction.GROUPING:
        if call.arguments[0] not in wanted:
            detail = "The argument of GROUPING must be one of the group keys."
            raise SpecError.of("unsupported_construct", detail, pointer=pointer)
        return call
    if call.arguments and list(call.arguments) != wanted:
        detail = "GROUPING_ID takes all group keys in the order of GROUP BY. Write GROUPING_ID(), which is the same."
        raise SpecError.of("unsupported_construct", detail, pointer=pointer)
    return replace(call, arguments=())


def check_keys(keys: Sequence[Key], pointer: str) -> None:
    """Raises SpecError `unsupported_construct` if grouping sets have the same key twice, under two names.

    It would be NULL in the sets of one name and not in those of the other, but both are one expression to GROUPING and
    to SELECT.
    """
    for index, key in enumerate(keys):
        first = next(other for other in keys if other.tree == key.tree)
        if first is not key:
            detail = (
                f"{key.name} is the same key as {first.name}. Use each key of grouping sets under one name; SELECT may "
                "repeat it."
            )
            raise SpecError.of("unsupported_construct", detail, pointer=f"{pointer}/group_by/{index}/expression")


def positions_of(
    sets: Sequence[Sequence[str]], keys: Sequence[NamedExpression], pointer: str
) -> tuple[tuple[int, ...], ...]:
    """Returns grouping sets of names as positions in `keys`. Raises SpecError `unknown_column`."""
    names = [key.name.casefold() for key in keys]
    found = []
    for index, one in enumerate(sets):
        for name in one:
            if name.casefold() not in names:
                suggestions = nearest_names(name, [key.name for key in keys])
                detail = f"group_by has no key called {name}.{did_you_mean(suggestions)}"
                at = f"{pointer}/grouping_sets/{index}"
                raise SpecError.of("unknown_column", detail, pointer=at, suggestions=suggestions)
        found.append(tuple(dict.fromkeys(names.index(name.casefold()) for name in one)))
    if sets and not keys:
        detail = "grouping_sets needs group_by."
        raise SpecError.of("unsupported_construct", detail, pointer=f"{pointer}/grouping_sets")
    return tuple(found)


def _column(key: Key) -> Column:
    return Column(key.name, key.scalar.type, longest=key.scalar.longest, size=key.scalar.size)


def _longest(arguments: Iterable[Scalar]) -> int | None:
    return max((argument.longest or 0 for argument in arguments), default=0) or None
