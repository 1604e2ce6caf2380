"""Expressions that rules make out of expressions, with the columns and the type kept right.

Aggregate calls in Spark's SQL: for the plans that run, and for the text that tells them.

Values of a sample as expressions, so that a plan can name them: rendered by the service, never pasted as text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime
from decimal import Context, Decimal
from functools import lru_cache

from service.contract.query import AggregateFunction
from service.sql.expressions.nodes import (
    Binary,
    Boolean,
    Cast,
    Connective,
    Expression,
    Name,
    Negation,
    Null,
    Number,
    String,
    conjuncts,
    map_children,
)
from service.sql.expressions.reader import read_template
from service.sql.expressions.scalar import Scalar
from service.sql.types.data_types import BOOLEAN, NULL, DataType, TypeName
from workers.engine.plan.nodes import Call, PlanFunction

_PLACE = re.compile(r"\{(\d+)\}")


def compose(template: str, operands: tuple[Scalar, ...], type_: DataType | None) -> Scalar:
    """`template`, an expression, with the operands in the places of `{0}`, `{1}`, …; `type_` is the type of the whole.

    >>> from service.sql.expressions.scalar import column
    >>> str(compose("COALESCE({0}, 0L)", (column("n", None),), None))
    'coalesce(n, 0L)'
    """
    trees = {f"{{{place}}}": operand.tree for place, operand in enumerate(operands)}
    return Scalar(_filled(_template(template), trees), type_)


def conjunction(left: Scalar | None, right: Scalar) -> Scalar:
    """`left AND right`; `right` alone where there is no `left`."""
    if left is None:
        return right
    return Scalar(Connective("AND", (*conjuncts(left.tree), *conjuncts(right.tree))), BOOLEAN)


def fresh_name(wanted: str, taken: frozenset[str]) -> str:
    """`wanted`, with underscores appended until no name of `taken` is the same; Spark does not tell case apart.

    >>> fresh_name("$bucket", frozenset({"$BUCKET"}))
    '$bucket_'
    """
    folded = {name.casefold() for name in taken}
    while wanted.casefold() in folded:
        wanted += "_"
    return wanted


@lru_cache(maxsize=4096)
def _template(text: str) -> Expression:
    # Templates are constants of the rules, some with a type or a number put in: each is read once in a process.
    return read_template(_PLACE.sub(r"`\g<0>`", text))


def _filled(node: Expression, trees: Mapping[str, Expression]) -> Expression:
    if isinstance(node, Name):
        return trees[node.name]
    return map_children(node, lambda child: _filled(child, trees))


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


_INTEGERS = {
    TypeName.TINYINT: (7, "Y"),
    TypeName.SMALLINT: (15, "S"),
    TypeName.INT: (31, ""),
    TypeName.BIGINT: (63, "L"),
}
"""Bits without the sign, and Spark's suffix."""

_DIGITS = re.compile(r"-?[0-9]{1,38}")
_DECIMAL = re.compile(r"-?[0-9]{1,38}(\.[0-9]{1,38})?")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
MAX_LENGTH = 1_024
"""Characters or bytes of the longest value that a plan names: Spark parses the text of each of them."""

_EXACT = Context(prec=80)
"""Digits enough for every decimal that Spark has, in files and in columns."""

_BOOLEANS = {"true": True, "false": False}

NULL_LITERAL = Scalar(Null(), NULL)
"""NULL of no type."""


def literal(value: object, type_: DataType) -> Scalar | None:
    """`value`, of a column of `type_`, as a literal of that type; None where it has no exact one.

    Text stands for integers, decimals, booleans and dates too, as text files have them. Floats have none (a
    decimal fraction is another number), nor do instants without a zone, nested values, what is longer than MAX_LENGTH,
    and what is out of range.
    Equal values have equal literals.

    >>> from service.sql.types.data_types import BIGINT, STRING
    >>> [str(literal(value, type_)) for value, type_ in ((-7, BIGINT), ("7", BIGINT), ("it's", STRING), (0.1, STRING))]
    ['-7L', '7L', "'it\\\\'s'", 'None']
    """
    if value is None:
        return NULL_LITERAL
    reader = _READERS.get(type_.name)
    try:
        tree = reader(value, type_) if reader is not None else None
    except (ValueError, ArithmeticError):
        return None
    return None if tree is None else Scalar(tree, type_)


def identity_of(literals: tuple[Scalar, ...]) -> str:
    """A text that is the same for equal values of a key, in integral columns of any width, and for no others.

    >>> from service.sql.types.data_types import BIGINT, INT
    >>> [identity_of((one,)) for one in (literal("007", INT), literal(7, BIGINT)) if one is not None]
    ['7', '7']
    """
    integral = (one.type is not None and one.type.is_integral for one in literals)
    texts = (one.sql.rstrip("YSL") if plain else one.sql for one, plain in zip(literals, integral, strict=True))
    return "\0".join(texts)


def typed_null(type_: DataType) -> Scalar | None:
    """NULL of `type_`; None for a type that has no name to cast to."""
    if type_.name in {TypeName.OTHER, TypeName.NULL}:
        return None
    return Scalar(Cast(Null(), type_, tries=False), type_)


def _signed(text: str, suffix: str = "") -> Expression:
    negative = text.startswith("-")
    number = Number(text.removeprefix("-"), suffix)
    return Negation(number) if negative else number


def _integer(value: object, type_: DataType) -> Expression | None:
    bits, suffix = _INTEGERS[type_.name]
    if isinstance(value, str) and _DIGITS.fullmatch(value):
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not -(1 << bits) < value < (1 << bits):
        return None
    return _signed(str(value), suffix)


def _decimal(value: object, type_: DataType) -> Expression | None:
    if isinstance(value, str) and _DECIMAL.fullmatch(value):
        value = Decimal(value)
    if not isinstance(value, Decimal) or not value.is_finite():
        return None
    # With all digits of the column's scale: a value has one literal, whatever a file's text of it looks like.
    scaled = value.quantize(Decimal(1).scaleb(-(type_.scale or 0)), context=_EXACT)
    if scaled != value or len(scaled.as_tuple().digits) > (type_.precision or 0):
        return None
    return Cast(_signed(format(scaled if scaled else abs(scaled), "f")), type_, tries=False)


def _boolean(value: object, _: DataType) -> Expression | None:
    found = _BOOLEANS.get(value) if isinstance(value, str) else value
    return Boolean(found) if isinstance(found, bool) else None


def _string(value: object, _: DataType) -> Expression | None:
    return String(value) if isinstance(value, str) and len(value) <= MAX_LENGTH else None


def _binary(value: object, _: DataType) -> Expression | None:
    return Binary(value.hex()) if isinstance(value, bytes) and len(value) <= MAX_LENGTH else None


def _date(value: object, type_: DataType) -> Expression | None:
    if isinstance(value, str) and _DATE.fullmatch(value):
        value = date.fromisoformat(value)
    if not isinstance(value, date) or isinstance(value, datetime):
        return None
    return Cast(String(value.isoformat()), type_, tries=False)


def _timestamp(value: object, type_: DataType) -> Expression | None:
    # Without a zone it is not known which instant a file's time is to Spark; below microseconds Spark knows nothing.
    if not isinstance(value, datetime) or getattr(value, "nanosecond", None):
        return None
    if (value.tzinfo is None) is (type_.name is TypeName.TIMESTAMP):
        return None
    # In one zone, so that an instant has one literal.
    shown = value if value.tzinfo is None else value.astimezone(UTC)
    return Cast(String(shown.isoformat(sep=" ", timespec="microseconds")), type_, tries=False)


_READERS: Mapping[TypeName, Callable[[object, DataType], Expression | None]] = {
    **dict.fromkeys(_INTEGERS, _integer),
    TypeName.DECIMAL: _decimal,
    TypeName.BOOLEAN: _boolean,
    TypeName.STRING: _string,
    TypeName.BINARY: _binary,
    TypeName.DATE: _date,
    TypeName.TIMESTAMP: _timestamp,
    TypeName.TIMESTAMP_NTZ: _timestamp,
}
