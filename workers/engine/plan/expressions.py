"""Creates expressions for rules: from templates, from values of a sample, and aggregate calls in Spark's SQL.

Values become literals of the expression tree, which `service.sql` renders; they are never inserted as text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, date, datetime
from decimal import Context, Decimal
from functools import lru_cache, reduce

from service.contract.query import AggregateFunction, GeneratorFunction, JoinKind
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
from service.sql.expressions.scalar import Scalar, quoted
from service.sql.types.data_types import BOOLEAN, NULL, DataType, TypeName
from workers.engine.plan.nodes import Call, Generate, Join, PlanFunction, Values

_PLACE = re.compile(r"\{(\d+)\}")

_SPARK_NAMES: dict[AggregateFunction | PlanFunction, str] = {
    AggregateFunction.FIRST_VALUE: "min_by",
    AggregateFunction.LAST_VALUE: "max_by",
}
"""Names that differ in Spark. First and last by a column are the values with its minimum and maximum: Spark's own
`first_value` returns the first row in any order."""

_HAVE_OUTER = frozenset({GeneratorFunction.EXPLODE, GeneratorFunction.POSEXPLODE, GeneratorFunction.INLINE})

_INTEGERS = {
    TypeName.TINYINT: (7, "Y"),
    TypeName.SMALLINT: (15, "S"),
    TypeName.INT: (31, ""),
    TypeName.BIGINT: (63, "L"),
}
"""The number of bits without the sign, and the suffix of literals in Spark."""

_DIGITS = re.compile(r"-?[0-9]{1,38}")
_DECIMAL = re.compile(r"-?[0-9]{1,38}(\.[0-9]{1,38})?")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
MAX_LENGTH = 1_024
"""Characters or bytes of the longest literal in a plan: Spark parses the text of each literal."""

_EXACT = Context(prec=80)
"""Enough digits for all decimals of Spark, in files and in columns."""

_BOOLEANS = {"true": True, "false": False}

NULL_LITERAL = Scalar(Null(), NULL)
"""NULL without a type."""


def compose(template: str, operands: tuple[Scalar, ...], type_: DataType | None) -> Scalar:
    """Returns the expression `template` with the operands inserted for `{0}`, `{1}`, …; `type_` is the type of the
    result.

    >>> from service.sql.expressions.scalar import column
    >>> str(compose("COALESCE({0}, 0L)", (column("n", None),), None))
    'coalesce(n, 0L)'
    """
    trees = {f"{{{place}}}": operand.tree for place, operand in enumerate(operands)}
    return Scalar(_filled(_template(template), trees), type_)


def conjunction(left: Scalar | None, right: Scalar) -> Scalar:
    """Returns `left AND right`; `right` alone if there is no `left`."""
    if left is None:
        return right
    return Scalar(Connective("AND", (*conjuncts(left.tree), *conjuncts(right.tree))), BOOLEAN)


def all_of(terms: Iterable[Scalar | None]) -> Scalar | None:
    """Returns the conjunction of the terms that are not None; None if there are none.

    >>> from service.sql.expressions.scalar import column
    >>> print(all_of((None, column("a", BOOLEAN))))
    a
    """
    given = [term for term in terms if term is not None]
    return reduce(conjunction, given) if given else None


def any_of(terms: Iterable[Scalar]) -> Scalar:
    """Returns the disjunction of `terms`. Raises ValueError without terms."""
    given = tuple(terms)
    if not given:
        raise ValueError("a disjunction needs a term")
    return reduce(lambda left, right: compose("({0}) OR ({1})", (left, right), BOOLEAN), given)


def is_not_null(scalars: Iterable[Scalar]) -> Scalar | None:
    """Returns the condition that none of `scalars` is NULL; None without scalars."""
    return all_of(compose("({0}) IS NOT NULL", (scalar,), BOOLEAN) for scalar in scalars)


def is_null(scalars: Iterable[Scalar]) -> Scalar:
    """Returns the condition that one of `scalars` is NULL. Raises ValueError without scalars."""
    return any_of(compose("({0}) IS NULL", (scalar,), BOOLEAN) for scalar in scalars)


def fresh_name(name: str, taken: frozenset[str]) -> str:
    """Returns `name`, with underscores appended until it is not in `taken`; like Spark, it ignores case.

    >>> fresh_name("$bucket", frozenset({"$BUCKET"}))
    '$bucket_'
    """
    folded = {name.casefold() for name in taken}
    while name.casefold() in folded:
        name += "_"
    return name


@lru_cache(maxsize=4096)
def _template(text: str) -> Expression:
    # Templates are constants of the rules, some with a type or a number inserted: each is parsed once per process.
    return read_template(_PLACE.sub(r"`\g<0>`", text))


def _filled(node: Expression, trees: Mapping[str, Expression]) -> Expression:
    if isinstance(node, Name):
        return trees[node.name]
    return map_children(node, lambda child: _filled(child, trees))


def call_sql(call: Call) -> str:
    """Returns the call in Spark's SQL: ``count(DISTINCT `o.d`) FILTER (WHERE `o.ok`)``."""
    arguments = [argument.sql for argument in call.arguments]
    order = ""
    if call.function is AggregateFunction.LISTAGG:
        order = f" WITHIN GROUP (ORDER BY {_order_of(call, call.order_by or call.arguments[0])})"
    elif call.function is AggregateFunction.PERCENTILE_DISC:
        order = f" WITHIN GROUP (ORDER BY {arguments[0]})"
        arguments = arguments[1:]
    elif call.order_by is not None:
        arguments.append(call.order_by.sql)
    name = _SPARK_NAMES.get(call.function, call.function.value.lower())
    inner = ", ".join(arguments) or ("*" if call.function is AggregateFunction.COUNT else "")
    text = f"{name}({'DISTINCT ' if call.distinct else ''}{inner}){order}"
    return f"{text} FILTER (WHERE {call.filter.sql})" if call.filter is not None else text


def values_sql(node: Values) -> str:
    """Returns the query of a node's rows of constants."""
    rows = ", ".join(f"({', '.join(value.sql for value in row)})" for row in node.rows)
    names = ", ".join(quoted(field.name) for field in node.columns)
    return f"SELECT *\nFROM VALUES {rows} AS `values`({names})"


def generator_sql(node: Generate) -> str:
    """Returns the item of SELECT that computes the columns of a generator: ``explode(`t.a`) AS (`u.x`)``."""
    # json_tuple and stack always make a row.
    suffix = "_outer" if node.outer and node.function in _HAVE_OUTER else ""
    arguments = ", ".join(argument.sql for argument in node.arguments)
    columns = ", ".join(quoted(field.name) for field in node.columns)
    return f"{node.function.value}{suffix}({arguments}) AS ({columns})"


def join_condition(join: Join) -> str:
    """Returns the condition of the join in Spark's SQL; an empty text if all pairs of rows match in an inner join."""
    equals = "<=>" if join.null_safe else "="
    conditions = [f"({left.sql}) {equals} ({right.sql})" for left, right in join.keys]
    if join.residual is not None:
        conditions.append(f"({join.residual.sql})")
    if not conditions and join.kind not in {JoinKind.INNER, JoinKind.CROSS}:
        return "TRUE"
    return " AND ".join(conditions)


def _order_of(call: Call, order_by: Scalar) -> str:
    """Returns the order of a LISTAGG followed by the values themselves, so that the order of equal rows is defined."""
    direction = " DESC" if call.descending else ""
    by_value = call.arguments[0]
    return order_by.sql + direction if by_value.sql == order_by.sql else f"{order_by.sql}{direction}, {by_value.sql}"


def literal(value: object, type_: DataType) -> Scalar | None:
    """Returns `value`, from a column of `type_`, as a literal of that type; None if it has no exact literal.

    Integers, decimals, booleans and dates may be given as text, as in text files. There are no literals for floats (a
    decimal fraction is another number), instants without a time zone, nested values, values longer than MAX_LENGTH and
    values out of range. Equal values have equal literals.

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
    """Returns a text that is equal for equal values of a key only, also in integral columns of different widths.

    >>> from service.sql.types.data_types import BIGINT, INT
    >>> [identity_of((one,)) for one in (literal("007", INT), literal(7, BIGINT)) if one is not None]
    ['7', '7']
    """
    integral = (one.type is not None and one.type.is_integral for one in literals)
    texts = (one.sql.rstrip("YSL") if plain else one.sql for one, plain in zip(literals, integral, strict=True))
    return "\0".join(texts)


def typed_null(type_: DataType) -> Scalar | None:
    """Returns NULL of `type_`; None for a type without a name to cast to."""
    if not type_.is_known or type_.name is TypeName.NULL:
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
    # With all digits of the column's scale, so that a value has one literal for all of its texts in files.
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
    # Without a time zone it is not known which instant Spark reads from a file. Spark has no nanoseconds.
    if not isinstance(value, datetime) or getattr(value, "nanosecond", None):
        return None
    if (value.tzinfo is None) is (type_.name is TypeName.TIMESTAMP):
        return None
    # In UTC, so that an instant has one literal.
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
