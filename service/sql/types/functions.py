"""The table of scalar functions that a query may call: their arguments and result types.

Result types are those of Spark 4.3 with ANSI mode on, checked against it by
`tests/service/sql/types/test_functions.py`. Not included are functions that differ from call to call (rand,
uuid), reach outside the query (java_method, input_file_name) or grow their input without bound (repeat, space).
"""

from __future__ import annotations

from service.sql.expressions.nodes import Null
from service.sql.types.data_types import (
    BIGINT,
    BOOLEAN,
    DATE,
    DOUBLE,
    INT,
    MAX_PRECISION,
    NULL,
    STRING,
    TIMESTAMP,
    DataType,
    Incompatible,
    TypeName,
    arithmetic,
    array,
    decimal,
    widest,
)
from service.sql.types.nested_functions import NESTED_GROUPS, concatenated_arrays
from service.sql.types.signatures import (
    Arguments,
    Function,
    Kind,
    Result,
    Types,
    always,
    by_types,
    literal_integer,
    rows,
)

MAX_PADDED_LENGTH = 65_536
_ROUNDING = frozenset({"round", "bround", "floor", "ceil", "ceiling"})


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


def _reversed(types: Types) -> DataType | None:
    if types[0] is not None and types[0].is_nested:
        return concatenated_arrays(types)
    return _text_or_bytes(types)


def _joined_texts(types: Types) -> DataType | None:
    for type_ in types:
        if type_ is not None and type_.is_nested and type_ != array(STRING):
            raise Incompatible
    return STRING


def _concatenated(types: Types) -> DataType | None:
    if any(type_ is not None and type_.is_nested for type_ in types):
        return concatenated_arrays(types)
    if not types or any(type_ is not None and type_.name is not TypeName.BINARY for type_ in types):
        return STRING
    return None if None in types else types[0]


def _hashed(types: Types, type_: DataType) -> DataType:
    if any(argument is not None and not argument.is_groupable for argument in types):
        raise Incompatible
    return type_


def _padded_type(types: Types) -> DataType | None:
    return None if any(type_ is not None and type_.name is TypeName.BINARY for type_ in types) else STRING


def _parsed_timestamp(types: Types) -> DataType | None:
    # With a format, Spark fails on numbers in a way of its own.
    alone = len(types) == 1
    return TIMESTAMP if alone or (types[0] is not None and Kind.TIME.admits(types[0])) else None


def _remainder(types: Types) -> DataType | None:
    return arithmetic("%", types[0], types[1]) if types[0] is not None and types[1] is not None else None


_ANY, _VALUE, _NUMBER, _TIME = (Kind.ANY,), (Kind.VALUE,), (Kind.NUMBER,), (Kind.TIME,)

_COMMON = by_types("the common type of the arguments", _common)
_ROUNDED = Result("the type of the first argument with these digits; DOUBLE for a string", _rounded)
_COMMON_OF_LAST = by_types("the common type of the last two arguments", _second_or_third)
_TEXT_OR_BYTES = by_types("STRING, or BINARY for BINARY", _text_or_bytes)
_SAME_NUMBER = by_types("the type of the argument; DOUBLE for a string", _same_number)

GROUPS: dict[str, dict[str, Function]] = {
    "conditions": {
        **rows("coalesce", 1, None, _VALUE, _COMMON),
        **rows("nvl ifnull", 2, 2, _VALUE, _COMMON),
        **rows("nvl2", 3, 3, _VALUE, _COMMON_OF_LAST),
        **rows("if", 3, 3, (Kind.BOOLEAN, Kind.VALUE), _COMMON_OF_LAST),
        **rows("nullif", 2, 2, _VALUE, by_types("the type of the first argument", _first)),
        **rows("greatest least", 2, None, _ANY, by_types("the common type of the arguments", _extreme)),
        **rows("isnull isnotnull", 1, 1, (Kind.ALL,), always(BOOLEAN)),
        **rows("isnan", 1, 1, _NUMBER, always(BOOLEAN)),
        **rows("raise_error", 1, 1, _ANY, by_types("the type of the other branch", lambda _types: NULL)),
    },
    "numbers": {
        **rows("abs positive negative", 1, 1, _NUMBER, _SAME_NUMBER),
        **rows("round bround", 1, 2, _NUMBER, _ROUNDED),
        **rows("floor ceil ceiling", 1, 2, _NUMBER, by_types("BIGINT, or DECIMAL for a DECIMAL", _whole_number)),
        **rows("sqrt cbrt exp expm1 ln log10 log1p log2 sin cos tan asin acos atan", 1, 1, _NUMBER, always(DOUBLE)),
        **rows("sinh cosh tanh degrees radians sign signum rint", 1, 1, _NUMBER, always(DOUBLE)),
        **rows("log", 1, 2, _NUMBER, always(DOUBLE)),
        **rows("power pow atan2 hypot", 2, 2, _NUMBER, always(DOUBLE)),
        **rows("mod pmod", 2, 2, _NUMBER, by_types("as of the operator %", _remainder)),
        **rows("hash", 1, None, _VALUE, by_types("INT", lambda types: _hashed(types, INT))),
        **rows("xxhash64", 1, None, _VALUE, by_types("BIGINT", lambda types: _hashed(types, BIGINT))),
        **rows("crc32", 1, 1, (Kind.BYTES,), always(BIGINT)),
    },
    "strings": {
        **rows("upper lower ucase lcase initcap hex", 1, 1, _ANY, always(STRING)),
        **rows("trim ltrim rtrim btrim", 1, 2, _ANY, always(STRING)),
        **rows("length char_length character_length octet_length bit_length ascii", 1, 1, _ANY, always(INT)),
        **rows("reverse", 1, 1, _VALUE, by_types("STRING, or BINARY or an array as the argument", _reversed)),
        **rows("substring substr", 2, 3, (Kind.ANY, Kind.NUMBER), _TEXT_OR_BYTES),
        **rows("left", 2, 2, (Kind.ANY, Kind.NUMBER), _TEXT_OR_BYTES),
        **rows("right", 2, 2, (Kind.ANY, Kind.NUMBER), always(STRING)),
        **rows("lpad rpad", 3, 3, (Kind.ANY, Kind.NUMBER, Kind.ANY), by_types("STRING", _padded_type)),
        **rows(
            "concat", 1, None, _VALUE, by_types("STRING, or BINARY or an array if all arguments are", _concatenated)
        ),
        **rows("concat_ws", 2, None, (Kind.ANY, Kind.VALUE), by_types("STRING", _joined_texts)),
        **rows("replace", 2, 3, _ANY, always(STRING)),
        **rows("translate regexp_replace", 3, 3, _ANY, always(STRING)),
        **rows("regexp_extract", 3, 3, (Kind.ANY, Kind.ANY, Kind.NUMBER), always(STRING)),
        **rows("split_part", 3, 3, (Kind.ANY, Kind.ANY, Kind.NUMBER), always(STRING)),
        **rows("instr levenshtein", 2, 2, _ANY, always(INT)),
        **rows("locate position", 2, 3, (Kind.ANY, Kind.ANY, Kind.NUMBER), always(INT)),
        **rows("startswith endswith contains", 2, 2, _ANY, always(BOOLEAN)),
        **rows("md5 sha1 sha", 1, 1, (Kind.BYTES,), always(STRING)),
        **rows("sha2", 2, 2, (Kind.BYTES, Kind.NUMBER), always(STRING)),
    },
    "dates and times": {
        **rows("current_date", 0, 0, _ANY, always(DATE)),
        **rows("current_timestamp now", 0, 0, _ANY, always(TIMESTAMP)),
        **rows("year quarter month day dayofmonth dayofweek dayofyear weekday weekofyear", 1, 1, _TIME, always(INT)),
        **rows("hour minute second", 1, 1, _TIME, always(INT)),
        **rows("date", 1, 1, _TIME, always(DATE)),
        **rows("last_day", 1, 1, _TIME, always(DATE)),
        **rows("to_date", 1, 2, _ANY, always(DATE)),
        **rows("to_timestamp", 1, 2, _ANY, by_types("TIMESTAMP", _parsed_timestamp)),
        **rows("date_trunc", 2, 2, (Kind.ANY, Kind.TIME), always(TIMESTAMP)),
        **rows("trunc next_day", 2, 2, (Kind.TIME, Kind.ANY), always(DATE)),
        **rows("date_add date_sub dateadd", 2, 2, (Kind.TIME, Kind.DAYS), always(DATE)),
        **rows("add_months", 2, 2, (Kind.TIME, Kind.NUMBER), always(DATE)),
        **rows("datediff date_diff", 2, 2, _TIME, always(INT)),
        **rows("months_between", 2, 2, _TIME, always(DOUBLE)),
        **rows("date_format", 2, 2, (Kind.TIME, Kind.ANY), always(STRING)),
        **rows("unix_timestamp to_unix_timestamp", 1, 2, (Kind.TIME, Kind.FORMAT), always(BIGINT)),
        **rows("from_unixtime", 1, 2, (Kind.NUMBER, Kind.ANY), always(STRING)),
        **rows("timestamp_seconds", 1, 1, (Kind.SECONDS,), always(TIMESTAMP)),
        **rows("make_date", 3, 3, _NUMBER, always(DATE)),
    },
    **NESTED_GROUPS,
}
"""By the name of a group, then by lower-case name."""
FUNCTIONS: dict[str, Function] = {name: function for group in GROUPS.values() for name, function in group.items()}
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
