"""The table of scalar functions that a query may call (arguments and result types), and limits of expressions.

Result types are those of Spark 4.3 with ANSI mode on, checked against it by
`tests/service/sql/expressions/test_functions.py`. Not included are functions that differ from call to call (rand,
uuid), reach outside the query (java_method, input_file_name) or grow their input without bound (repeat, space).

`longest` limits the bytes (UTF-8) of values, because Spark computes constants while it plans, in the process that all
jobs share. A column's values are assumed to be short, so for them it limits how much longer they can become.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum

from service.contract.query import CONDITIONS, EXPANDED_NODES
from service.sql.expressions.nodes import (
    Arithmetic,
    Binary,
    Call,
    Case,
    Cast,
    Column,
    Connective,
    Expression,
    Negation,
    NodeCounter,
    Not,
    Null,
    Number,
    String,
    children,
    position_of,
    walk,
)
from service.sql.parser import Text
from service.sql.types.data_types import (
    BIGINT,
    BOOLEAN,
    DATE,
    DOUBLE,
    INT,
    MAX_PRECISION,
    NUMERIC,
    STRING,
    TEMPORAL,
    TIMESTAMP,
    DataType,
    TypeName,
    arithmetic,
    decimal,
    widest,
)

MAX_PADDED_LENGTH = 65_536
_ROUNDING = frozenset({"round", "bround", "floor", "ceil", "ceiling"})

Types = tuple[DataType | None, ...]
Arguments = tuple[Expression, ...]
Result = Callable[[Types, Arguments], DataType | None]


class Kind(Enum):
    """The types that an argument may have; as in Spark, a string is converted to any of them at run time."""

    ANY = None
    NUMBER = NUMERIC | {TypeName.STRING, TypeName.NULL}
    TIME = TEMPORAL | {TypeName.STRING, TypeName.NULL}
    BOOLEAN = frozenset({TypeName.BOOLEAN, TypeName.STRING, TypeName.NULL})
    DAYS = frozenset({TypeName.TINYINT, TypeName.SMALLINT, TypeName.INT, TypeName.STRING, TypeName.NULL})
    SECONDS = NUMERIC | {TypeName.NULL}
    FORMAT = frozenset({TypeName.STRING, TypeName.NULL})
    BYTES = frozenset({TypeName.BINARY, TypeName.STRING, TypeName.NULL})

    def admits(self, type_: DataType) -> bool:
        """Whether Spark accepts an argument of this type, as it is or converted."""
        return self.value is None or type_.name in self.value


@dataclass(frozen=True)
class Function:
    """`kinds` are those of the arguments; the last one repeats. `most` is None if there is no upper bound."""

    name: str
    least: int
    most: int | None
    kinds: tuple[Kind, ...]
    result: Result

    def accepts(self, arguments: int) -> bool:
        """Whether a call may have this number of arguments."""
        return self.least <= arguments and (self.most is None or arguments <= self.most)

    @property
    def arity(self) -> str:
        """The number of arguments, for messages: `2`, `1 to 3`, `at least 1`."""
        if self.most is None:
            return f"at least {self.least}"
        return str(self.least) if self.least == self.most else f"{self.least} to {self.most}"

    def kind(self, index: int) -> Kind:
        """The kind of the argument at `index`."""
        return self.kinds[min(index, len(self.kinds) - 1)]


def _always(type_: DataType) -> Result:
    return lambda _types, _arguments: type_


def _by_types(rule: Callable[[Types], DataType | None]) -> Result:
    return lambda types, _arguments: rule(types)


def _common(types: Types) -> DataType | None:
    return widest(types, strings_convert=True)


def _extreme(types: Types) -> DataType | None:
    return widest(types, strings_convert=False)


def _first(types: Types) -> DataType | None:
    return types[0] if types[0] is not None and types[0].name is not TypeName.NULL else None


def _second_or_third(types: Types) -> DataType | None:
    return widest(types[1:], strings_convert=True)


def _same_number(types: Types) -> DataType | None:
    (only,) = types
    if only is not None and only.name is TypeName.STRING:
        return DOUBLE
    return only if only is not None and only.is_numeric else None


def _rounded(types: Types, arguments: Arguments) -> DataType | None:
    type_, digits = types[0], literal_integer(arguments[1]) if len(arguments) > 1 else 0
    if type_ is None or type_.name is TypeName.STRING:
        return DOUBLE if type_ is not None else None
    if type_.name is not TypeName.DECIMAL:
        return type_ if type_.is_numeric else None
    if digits is None or type_.precision is None or type_.scale is None:
        return None
    whole = type_.precision - type_.scale + 1
    if digits < 0:
        return decimal(max(whole, 1 - digits), 0)
    scale = min(type_.scale, digits)
    return decimal(whole + scale, scale)


def literal_integer(node: Expression) -> int | None:
    """The value of an integer literal of up to nine digits, with its sign."""
    if isinstance(node, Negation):
        inner = literal_integer(node.operand)
        return -inner if inner is not None else None
    return int(node.text) if isinstance(node, Number) and node.is_integer and len(node.text) < 10 else None


def _whole_number(types: Types) -> DataType | None:
    type_ = types[0]
    if len(types) > 1 or type_ is None or type_.name is TypeName.NULL:
        return None
    if type_.name is not TypeName.DECIMAL:
        return BIGINT
    if not type_.scale or type_.precision is None:
        return None
    return decimal(type_.precision - type_.scale + 1, 0)


def _text_or_bytes(types: Types) -> DataType | None:
    if types[0] is None:
        return None
    return types[0] if types[0].name is TypeName.BINARY else STRING


def _concatenated(types: Types) -> DataType | None:
    if not types or any(type_ is not None and type_.name is not TypeName.BINARY for type_ in types):
        return STRING
    return None if None in types else types[0]


def _padded_type(types: Types) -> DataType | None:
    return None if any(type_ is not None and type_.name is TypeName.BINARY for type_ in types) else STRING


def _parsed_timestamp(types: Types) -> DataType | None:
    # With a format, Spark fails on numbers in a way of its own.
    alone = len(types) == 1
    return TIMESTAMP if alone or (types[0] is not None and Kind.TIME.admits(types[0])) else None


def _remainder(types: Types) -> DataType | None:
    return arithmetic("%", types[0], types[1]) if types[0] is not None and types[1] is not None else None


def _rows(names: str, least: int, most: int | None, kinds: Iterable[Kind], result: Result) -> dict[str, Function]:
    return {name: Function(name, least, most, tuple(kinds), result) for name in names.split()}


_ANY, _NUMBER, _TIME = (Kind.ANY,), (Kind.NUMBER,), (Kind.TIME,)

FUNCTIONS: dict[str, Function] = {
    # Conditions
    **_rows("coalesce", 1, None, _ANY, _by_types(_common)),
    **_rows("nvl ifnull", 2, 2, _ANY, _by_types(_common)),
    **_rows("nvl2", 3, 3, _ANY, _by_types(_second_or_third)),
    **_rows("if", 3, 3, (Kind.BOOLEAN, Kind.ANY), _by_types(_second_or_third)),
    **_rows("nullif", 2, 2, _ANY, _by_types(_first)),
    **_rows("greatest least", 2, None, _ANY, _by_types(_extreme)),
    **_rows("isnull isnotnull", 1, 1, _ANY, _always(BOOLEAN)),
    **_rows("isnan", 1, 1, _NUMBER, _always(BOOLEAN)),
    # Numbers
    **_rows("abs positive negative", 1, 1, _NUMBER, _by_types(_same_number)),
    **_rows("round bround", 1, 2, _NUMBER, _rounded),
    **_rows("floor ceil ceiling", 1, 2, _NUMBER, _by_types(_whole_number)),
    **_rows("sqrt cbrt exp expm1 ln log10 log1p log2 sin cos tan asin acos atan", 1, 1, _NUMBER, _always(DOUBLE)),
    **_rows("sinh cosh tanh degrees radians sign signum rint", 1, 1, _NUMBER, _always(DOUBLE)),
    **_rows("log", 1, 2, _NUMBER, _always(DOUBLE)),
    **_rows("power pow atan2 hypot", 2, 2, _NUMBER, _always(DOUBLE)),
    **_rows("mod pmod", 2, 2, _NUMBER, _by_types(_remainder)),
    **_rows("hash", 1, None, _ANY, _always(INT)),
    **_rows("xxhash64", 1, None, _ANY, _always(BIGINT)),
    **_rows("crc32", 1, 1, (Kind.BYTES,), _always(BIGINT)),
    # Strings
    **_rows("upper lower ucase lcase initcap hex", 1, 1, _ANY, _always(STRING)),
    **_rows("trim ltrim rtrim btrim", 1, 2, _ANY, _always(STRING)),
    **_rows("length char_length character_length octet_length bit_length ascii", 1, 1, _ANY, _always(INT)),
    **_rows("reverse", 1, 1, _ANY, _by_types(_text_or_bytes)),
    **_rows("substring substr", 2, 3, (Kind.ANY, Kind.NUMBER), _by_types(_text_or_bytes)),
    **_rows("left", 2, 2, (Kind.ANY, Kind.NUMBER), _by_types(_text_or_bytes)),
    **_rows("right", 2, 2, (Kind.ANY, Kind.NUMBER), _always(STRING)),
    **_rows("lpad rpad", 3, 3, (Kind.ANY, Kind.NUMBER, Kind.ANY), _by_types(_padded_type)),
    **_rows("concat", 1, None, _ANY, _by_types(_concatenated)),
    **_rows("concat_ws", 2, None, _ANY, _always(STRING)),
    **_rows("replace", 2, 3, _ANY, _always(STRING)),
    **_rows("translate regexp_replace", 3, 3, _ANY, _always(STRING)),
    **_rows("regexp_extract", 3, 3, (Kind.ANY, Kind.ANY, Kind.NUMBER), _always(STRING)),
    **_rows("split_part", 3, 3, (Kind.ANY, Kind.ANY, Kind.NUMBER), _always(STRING)),
    **_rows("instr levenshtein", 2, 2, _ANY, _always(INT)),
    **_rows("locate position", 2, 3, (Kind.ANY, Kind.ANY, Kind.NUMBER), _always(INT)),
    **_rows("startswith endswith contains", 2, 2, _ANY, _always(BOOLEAN)),
    **_rows("md5 sha1 sha", 1, 1, (Kind.BYTES,), _always(STRING)),
    **_rows("sha2", 2, 2, (Kind.BYTES, Kind.NUMBER), _always(STRING)),
    # Dates and times
    **_rows("current_date", 0, 0, _ANY, _always(DATE)),
    **_rows("current_timestamp now", 0, 0, _ANY, _always(TIMESTAMP)),
    **_rows("year quarter month day dayofmonth dayofweek dayofyear weekday weekofyear", 1, 1, _TIME, _always(INT)),
    **_rows("hour minute second", 1, 1, _TIME, _always(INT)),
    **_rows("date", 1, 1, _TIME, _always(DATE)),
    **_rows("last_day", 1, 1, _TIME, _always(DATE)),
    **_rows("to_date", 1, 2, _ANY, _always(DATE)),
    **_rows("to_timestamp", 1, 2, _ANY, _by_types(_parsed_timestamp)),
    **_rows("date_trunc", 2, 2, (Kind.ANY, Kind.TIME), _always(TIMESTAMP)),
    **_rows("trunc next_day", 2, 2, (Kind.TIME, Kind.ANY), _always(DATE)),
    **_rows("date_add date_sub dateadd", 2, 2, (Kind.TIME, Kind.DAYS), _always(DATE)),
    **_rows("add_months", 2, 2, (Kind.TIME, Kind.NUMBER), _always(DATE)),
    **_rows("datediff date_diff", 2, 2, _TIME, _always(INT)),
    **_rows("months_between", 2, 2, _TIME, _always(DOUBLE)),
    **_rows("date_format", 2, 2, (Kind.TIME, Kind.ANY), _always(STRING)),
    **_rows("unix_timestamp to_unix_timestamp", 1, 2, (Kind.TIME, Kind.FORMAT), _always(BIGINT)),
    **_rows("from_unixtime", 1, 2, (Kind.NUMBER, Kind.ANY), _always(STRING)),
    **_rows("timestamp_seconds", 1, 1, (Kind.SECONDS,), _always(TIMESTAMP)),
    **_rows("make_date", 3, 3, _NUMBER, _always(DATE)),
}
"""By lower-case name."""


def digits_are_bounded(name: str, arguments: Arguments) -> bool:
    """Whether the digits of a rounding, if any, are a small literal: Spark would write out all of them."""
    if name not in _ROUNDING or len(arguments) < 2 or isinstance(arguments[1], Null):
        return True
    digits = literal_integer(arguments[1])
    return digits is not None and abs(digits) <= MAX_PRECISION


def padding_is_bounded(name: str, arguments: Arguments) -> bool:
    """Whether the length of `lpad` or `rpad` is a limited literal: otherwise a value could fill the memory."""
    if name not in {"lpad", "rpad"}:
        return True
    length = literal_integer(arguments[1])
    return length is not None and length <= MAX_PADDED_LENGTH


MAX_VALUE_BYTES = 1 << 20
COLUMN_BYTES = 256
# The longest decimal, time or hash that is written out; sha2 gives 128 digits.
_SHORT = 128
_CHARACTER_BYTES = 4
# The longest output of one letter of a date format is the name of a time zone.
_DATE_PART_BYTES = 32
_TEXTS = {TypeName.STRING, TypeName.BINARY}

_Rule = Callable[[Call, list[int]], int]


def longest(node: Expression, source: Text) -> int:
    """Returns the maximum bytes of a value of the resolved tree `node`.

    Raises SpecError `unsupported_construct` if it is more than MAX_VALUE_BYTES.
    """
    bytes_ = _bytes_of(node, [longest(child, source) for child in children(node)])
    if bytes_ > MAX_VALUE_BYTES:
        what = node.name if isinstance(node, Call) else "||"
        raise source.error(
            "unsupported_construct",
            f"{what} could return a value of more than {MAX_VALUE_BYTES >> 20} MB, if the values of a column have "
            f"{COLUMN_BYTES} bytes. Shorten its constants, or nest fewer calls.",
            at=position_of(node),
        )
    return bytes_


def expanded(tree: Expression, source: Text) -> int:
    """Returns the number of nodes of the resolved `tree`, with columns of derived tables counted as their expressions:
    Spark expands them to push a filter down.

    Raises SpecError `query_too_deep` if there are more than EXPANDED_NODES.
    """
    nodes = sum(part.size if isinstance(part, Column) else 1 for part in walk(tree))
    if nodes > EXPANDED_NODES.most:
        raise source.beyond(EXPANDED_NODES, nodes, at=position_of(tree))
    return nodes


def check_replaced(tree: Expression, source: Text) -> None:
    """Checks the same limit as `expanded`, for a tree in which names were replaced by shared trees; it visits each
    shared tree once.
    """
    nodes = NodeCounter().count(tree)
    if nodes > EXPANDED_NODES.most:
        raise source.beyond(EXPANDED_NODES, nodes)


def conditions_in(tree: Expression, source: Text) -> int:
    """Returns the number of conditions joined by AND at the top of `tree`; as in Spark, NOT turns an OR below into AND.

    Raises SpecError `query_too_deep` if there, or anywhere inside, AND joins more than CONDITIONS, unless `source` is
    accepted: earlier versions did not have this limit.
    """
    counts: list[int] = []
    pending = [(tree, False)]
    while pending:
        joined, count = [pending.pop()], 0
        while joined:
            node, negated = joined.pop()
            if isinstance(node, Not):
                joined.append((node.operand, not negated))
            elif isinstance(node, Connective) and (node.operator == "AND") is not negated:
                joined += [(term, negated) for term in node.terms]
            else:
                count += 1
                pending += [(part, negated and isinstance(node, Connective)) for part in children(node)]
        if count > CONDITIONS.most and not source.is_accepted:
            raise source.beyond(CONDITIONS, count, at=position_of(tree))
        counts.append(count)
    return counts[0]


def of_column(type_: DataType | None) -> int:
    """Returns the assumed bytes of a column's values."""
    return COLUMN_BYTES if type_ is None or type_.name in _TEXTS else _SHORT


def _bytes_of(node: Expression, parts: list[int]) -> int:
    match node:
        case String(value):
            return len(value.encode())
        case Binary(digits):
            return len(digits) // 2
        case Column(type=type_):
            return node.longest if node.longest is not None else of_column(type_)
        case Arithmetic("||"):
            return sum(parts)
        case Cast(_, type_):
            return max(_SHORT, *parts) if type_.name in _TEXTS else _SHORT
        case Case():
            return max(parts)
        case Call(name):
            return _RULES.get(name, _not_longer)(node, parts)
        case _:
            return _SHORT


def _not_longer(_call: Call, parts: list[int]) -> int:
    # Some letters get longer with their case, once.
    return max((_SHORT, *parts))


def _replaced(call: Call, parts: list[int]) -> int:
    if len(parts) < 3:
        return parts[0]
    searched = max(_length_of(call.arguments[1], 1), 1)
    return max(parts[0], parts[0] // searched * parts[2] + parts[0] % searched)


def _replaced_by_pattern(call: Call, parts: list[int]) -> int:
    subject, _, replacement = parts
    pattern, by = call.arguments[1], call.arguments[2]
    # The empty text between any two characters may match.
    matches = subject + 1
    groups = _groups_in(by, replacement)
    if isinstance(pattern, String) and not ("?" in pattern.value and "=" in pattern.value):
        return subject + matches * replacement + groups * subject
    # A group inside of a look-ahead may hold the whole subject in every match.
    return subject + matches * (replacement + groups * subject)


def _groups_in(by: Expression, bytes_: int) -> int:
    """How many references to groups (`$1`) a replacement holds."""
    if isinstance(by, String):
        return by.value.count("$")
    return 1 if isinstance(by, Column) else bytes_ // 2


def _translated(call: Call, parts: list[int]) -> int:
    by = call.arguments[2]
    return parts[0] if isinstance(by, String) and by.value.isascii() else parts[0] * _CHARACTER_BYTES


def _padded_length(call: Call, _parts: list[int]) -> int:
    length = literal_integer(call.arguments[1])
    return _CHARACTER_BYTES * (MAX_PADDED_LENGTH if length is None else max(length, 0))


def _formatted(_call: Call, parts: list[int]) -> int:
    return _SHORT + (parts[1] * _DATE_PART_BYTES if len(parts) > 1 else 0)


def _length_of(node: Expression, otherwise: int) -> int:
    return len(node.value.encode()) if isinstance(node, String) else otherwise


_RULES: dict[str, _Rule] = {
    "hex": lambda _call, parts: 2 * parts[0],
    "concat": lambda _call, parts: sum(parts),
    "concat_ws": lambda _call, parts: sum(parts[1:]) + parts[0] * len(parts),
    "replace": _replaced,
    "regexp_replace": _replaced_by_pattern,
    "translate": _translated,
    "lpad": _padded_length,
    "rpad": _padded_length,
    "date_format": _formatted,
    "from_unixtime": _formatted,
}
