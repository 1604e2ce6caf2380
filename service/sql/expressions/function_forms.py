"""Functions that Spark also has in the form of an operator, a CAST or a keyword, and are read as such.

`like(x, p)` is read as `x LIKE p`, `bigint(x)` as `CAST(x AS BIGINT)`, `date_part('year', t)` as
`EXTRACT(YEAR FROM t)`, and `datediff(DAY, a, b)` as `timestampdiff(DAY, a, b)`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from sqlglot import exp

from service.contract.problems import SpecError, did_you_mean, nearest_names
from service.sql.expressions.nodes import Call, Case, Cast, Comparison, Expression, Extract, Keyword, Like, String
from service.sql.parser import Text
from service.sql.refusals import EXTRACT_PARTS, EXTRACT_SYNONYMS
from service.sql.types.data_types import DataType, TypeName, decimal
from service.sql.types.signatures import Arguments

TIME_UNITS = (
    "YEAR",
    "QUARTER",
    "MONTH",
    "WEEK",
    "DAY",
    "DAYOFYEAR",
    "HOUR",
    "MINUTE",
    "SECOND",
    "MILLISECOND",
    "MICROSECOND",
)
"""The units of `timestampadd` and `timestampdiff`."""
WITH_UNITS = {
    "timestampadd": "timestampadd",
    "dateadd": "timestampadd",
    "date_add": "timestampadd",
    "timestampdiff": "timestampdiff",
    "datediff": "timestampdiff",
    "date_diff": "timestampdiff",
}
"""Functions that begin with a unit if they have three arguments, and the function that each of them is."""

MANY = 256
"""The most arguments of a form that takes any number of pairs."""


@dataclass(frozen=True)
class Form:
    """A function of `least` to `most` arguments; `text` is what it is read as, for the documentation."""

    least: int
    most: int
    text: str
    read: Callable[[Arguments], Expression | None]

    def accepts(self, arguments: int) -> bool:
        """Whether a call may have this number of arguments."""
        return self.least <= arguments <= self.most

    @property
    def arity(self) -> str:
        """The number of arguments, for messages."""
        return str(self.least) if self.least == self.most else f"{self.least} to {self.most}"


def _like(operator: str) -> Form:
    def read(arguments: Arguments) -> Expression | None:
        operand, pattern, *rest = arguments
        if not rest:
            return Like(operator, operand, pattern, None)
        escape = rest[0]
        is_character = isinstance(escape, String) and len(escape.value) == 1
        return Like(operator, operand, pattern, escape.value) if is_character and isinstance(escape, String) else None

    return Form(2, 2 if operator == "RLIKE" else 3, f"x {operator} 'pattern'", read)


def _cast(type_: DataType) -> Form:
    return Form(1, 1, f"CAST(x AS {type_})", lambda arguments: Cast(arguments[0], type_, tries=False))


def _part(arguments: Arguments) -> Expression | None:
    part, operand = arguments
    name = part_named(part.value) if isinstance(part, String) else None
    return Extract(name, operand) if name is not None else None


def part_named(text: str) -> str | None:
    """Returns the part of EXTRACT with this name or a synonym of it; None if there is none."""
    upper = text.upper()
    return upper if upper in EXTRACT_PARTS else EXTRACT_SYNONYMS.get(upper)


def _decode(arguments: Arguments) -> Expression | None:
    if len(arguments) == 2:
        return Call("decode", arguments)
    operand, *rest = arguments
    pairs = [rest[place : place + 2] for place in range(0, len(rest) - 1, 2)]
    default = rest[-1] if len(rest) % 2 else None
    return Case(None, tuple((Comparison("<=>", operand, search), result) for search, result in pairs), default)


def _convert_timezone(arguments: Arguments) -> Expression | None:
    # The time zone of a session is UTC.
    return Call("convert_timezone", arguments if len(arguments) == 3 else (String("UTC"), *arguments))


_CASTS = ("BOOLEAN", "TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "STRING", "BINARY", "TIMESTAMP")
FORMS: dict[str, Form] = {
    "like": _like("LIKE"),
    "ilike": _like("ILIKE"),
    **dict.fromkeys(("rlike", "regexp", "regexp_like"), _like("RLIKE")),
    **{name.lower(): _cast(DataType(TypeName(name))) for name in _CASTS},
    "decimal": _cast(decimal(10, 0)),
    "equal_null": Form(2, 2, "x <=> y", lambda arguments: Comparison("<=>", *arguments)),
    "decode": Form(2, MANY, "CASE WHEN x <=> a THEN b ELSE c END", _decode),
    "convert_timezone": Form(2, 3, "convert_timezone('UTC', zone, t)", _convert_timezone),
    **dict.fromkeys(("date_part", "datepart"), Form(2, 2, "EXTRACT(YEAR FROM t)", _part)),
}
"""By lower-case name."""
_HINTS = {
    **dict.fromkeys(("like", "ilike"), "Write a string literal of one character as the third argument."),
    **dict.fromkeys(("date_part", "datepart"), "Write a part as a string literal, such as date_part('year', t)."),
}


def read_form(name: str, arguments: Arguments, at: int | None, source: Text) -> Expression:
    """Returns the tree of a call of a function of FORMS with as many arguments as it takes. Raises SpecError."""
    tree = FORMS[name].read(arguments)
    if tree is None:
        raise source.unsupported(f"This argument of {name}", at=at, hint=_HINTS[name])
    return replace(tree, at=at) if isinstance(tree, Call) else tree


def with_unit(
    name: str, nodes: Sequence[exp.Expr], at: int | None, source: Text, read: Callable[[exp.Expr], Expression]
) -> Call:
    """Reads a call of a function of WITH_UNITS with three arguments. Raises SpecError."""
    unit = nodes[0].name.upper()
    is_word = isinstance(nodes[0], exp.Column | exp.Var) and not nodes[0].args.get("table")
    if not is_word or unit not in TIME_UNITS:
        raise _wrong_unit(name, unit, at, source)
    return Call(WITH_UNITS[name], (Keyword(unit), *map(read, nodes[1:])), at)


def _wrong_unit(name: str, unit: str, at: int | None, source: Text) -> SpecError:
    suggestions = nearest_names(unit, TIME_UNITS)
    units = ", ".join(TIME_UNITS)
    detail = f"{name} with three arguments begins with a unit, without quotes: {units}.{did_you_mean(suggestions)}"
    return source.error("unsupported_function", detail, at=at, suggestions=suggestions)
