"""The table of scalar functions that a query may call: their arguments and result types.

Result types are those of Spark 4.3 with ANSI mode on, checked against it by
`tests/service/sql/types/test_functions.py`. Not included are functions that differ from call to call (rand,
uuid) or reach outside the query (java_method, input_file_name), see `service.sql.builtins`. Arguments that could make
a value or the work large must be literals, see `service.sql.types.literal_arguments`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum

from service.sql.expressions.nodes import Expression, Negation, Null, Number, String
from service.sql.types import function_results
from service.sql.types.data_types import (
    BIGINT,
    BINARY,
    BOOLEAN,
    DATE,
    DOUBLE,
    INT,
    INTEGRAL,
    MAX_PRECISION,
    NULL,
    NUMERIC,
    STRING,
    TEMPORAL,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    TINYINT,
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


@dataclass(frozen=True)
class Result:
    """The result type of a function, as a rule over its arguments; `text` describes it for the documentation."""

    text: str
    of: Callable[[Types, Arguments], DataType | None]

    def __call__(self, types: Types, arguments: Arguments) -> DataType | None:
        """Returns the type; None if it is not known. Raises Incompatible if the arguments have no common type."""
        return self.of(types, arguments)


class Kind(Enum):
    """The types that an argument may have. As in Spark, a string is converted to any of them at run time."""

    ANY = None
    NUMBER = NUMERIC | {TypeName.STRING, TypeName.NULL}
    TIME = TEMPORAL | {TypeName.STRING, TypeName.NULL}
    BOOLEAN = frozenset({TypeName.BOOLEAN, TypeName.STRING, TypeName.NULL})
    DAYS = frozenset({TypeName.TINYINT, TypeName.SMALLINT, TypeName.INT, TypeName.STRING, TypeName.NULL})
    SECONDS = NUMERIC | {TypeName.NULL}
    FORMAT = frozenset({TypeName.STRING, TypeName.NULL})
    BYTES = frozenset({TypeName.BINARY, TypeName.STRING, TypeName.NULL})
    INTEGER = INTEGRAL | {TypeName.NULL}
    BITS = INTEGRAL | {TypeName.BOOLEAN, TypeName.NULL}
    DAY = frozenset({TypeName.DATE, TypeName.NULL})
    INSTANT = frozenset({TypeName.TIMESTAMP, TypeName.TIMESTAMP_NTZ, TypeName.NULL})
    PRINTABLE = NUMERIC | TEMPORAL | {TypeName.STRING, TypeName.BINARY, TypeName.NULL}

    def admits(self, type_: DataType) -> bool:
        """Whether Spark accepts an argument of this type, unchanged or converted."""
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
        """Returns the kind of the argument at `index`."""
        return self.kinds[min(index, len(self.kinds) - 1)]


def _always(type_: DataType) -> Result:
    return Result(str(type_), lambda _types, _arguments: type_)


def _by_types(text: str, rule: Callable[[Types], DataType | None]) -> Result:
    return Result(text, lambda types, _arguments: rule(types))


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
    """Returns the value of an integer literal of up to nine digits, with its sign; None for other expressions."""
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


def _chosen(types: Types) -> DataType | None:
    return function_results.bytes_or_text(types[1:])


def _tried(operator: str) -> Result:
    return _by_types(f"as of the operator {operator}", lambda types: function_results.tried(operator, types))


def _number_in_format(_types: Types, arguments: Arguments) -> DataType | None:
    format_ = arguments[1]
    return function_results.of_number_format(format_.value) if isinstance(format_, String) else None


_ANY, _NUMBER, _TIME, _BYTES = (Kind.ANY,), (Kind.NUMBER,), (Kind.TIME,), (Kind.BYTES,)

_COMMON = _by_types("the common type of the arguments", _common)
_ROUNDED = Result("the type of the first argument with these digits; DOUBLE for a string", _rounded)
_COMMON_OF_LAST = _by_types("the common type of the last two arguments", _second_or_third)
_TEXT_OR_BYTES = _by_types("STRING, or BINARY for BINARY", _text_or_bytes)
_SAME_NUMBER = _by_types("the type of the argument; DOUBLE for a string", _same_number)
_STRING, _INT, _BIGINT, _DOUBLE, _BOOLEAN = map(_always, (STRING, INT, BIGINT, DOUBLE, BOOLEAN))
_DATE, _TIMESTAMP, _LOCAL_TIME, _BINARY = map(_always, (DATE, TIMESTAMP, TIMESTAMP_NTZ, BINARY))
_OVERLAID = _by_types("STRING, or BINARY for two BINARY", function_results.overlaid)
_SHIFTED = _by_types("INT, or BIGINT for BIGINT", function_results.shifted)
_SAME_TIME = _by_types("TIMESTAMP, or TIMESTAMP_NTZ for a TIMESTAMP_NTZ", function_results.same_time)
_NUMBER_IN_FORMAT = Result("the DECIMAL of the format", _number_in_format)
_PARTS = (*[Kind.NUMBER] * 6, Kind.ANY)
_TEXT_AND_NUMBER = (Kind.ANY, Kind.ANY, Kind.NUMBER)

GROUPS: dict[str, dict[str, Function]] = {
    "conditions": {
        **_rows("coalesce", 1, None, _ANY, _COMMON),
        **_rows("nvl ifnull", 2, 2, _ANY, _COMMON),
        **_rows("nvl2", 3, 3, _ANY, _COMMON_OF_LAST),
        **_rows("if", 3, 3, (Kind.BOOLEAN, Kind.ANY), _COMMON_OF_LAST),
        **_rows("nullif", 2, 2, _ANY, _by_types("the type of the first argument", _first)),
        **_rows("greatest least", 2, None, _ANY, _by_types("the common type of the arguments", _extreme)),
        **_rows("isnull isnotnull", 1, 1, _ANY, _always(BOOLEAN)),
        **_rows("isnan", 1, 1, _NUMBER, _always(BOOLEAN)),
        **_rows("nanvl", 2, 2, _NUMBER, _by_types("DOUBLE, or FLOAT for two FLOAT", function_results.not_a_number_or)),
        **_rows("zeroifnull", 1, 1, _NUMBER, _by_types("the common type with INT", function_results.or_zero)),
        **_rows("nullifzero", 1, 1, _NUMBER, _by_types("the type of the argument", function_results.or_null)),
        **_rows("typeof", 1, 1, _ANY, _STRING),
        **_rows("raise_error", 1, 1, _ANY, _by_types("the type of the other branch", lambda _types: NULL)),
    },
    "numbers": {
        **_rows("abs positive negative", 1, 1, _NUMBER, _SAME_NUMBER),
        **_rows("round bround", 1, 2, _NUMBER, _ROUNDED),
        **_rows("floor ceil ceiling", 1, 2, _NUMBER, _by_types("BIGINT, or DECIMAL for a DECIMAL", _whole_number)),
        **_rows("sqrt cbrt exp expm1 ln log10 log1p log2 sin cos tan asin acos atan", 1, 1, _NUMBER, _always(DOUBLE)),
        **_rows("sinh cosh tanh degrees radians sign signum rint", 1, 1, _NUMBER, _always(DOUBLE)),
        **_rows("log", 1, 2, _NUMBER, _always(DOUBLE)),
        **_rows("power pow atan2 hypot", 2, 2, _NUMBER, _always(DOUBLE)),
        **_rows("mod pmod", 2, 2, _NUMBER, _by_types("as of the operator %", _remainder)),
        **_rows("hash", 1, None, _ANY, _always(INT)),
        **_rows("xxhash64", 1, None, _ANY, _always(BIGINT)),
        **_rows("crc32", 1, 1, (Kind.BYTES,), _always(BIGINT)),
        **_rows("acosh asinh atanh cot sec csc", 1, 1, _NUMBER, _DOUBLE),
        **_rows("e pi", 0, 0, _ANY, _DOUBLE),
        **_rows("factorial", 1, 1, _NUMBER, _BIGINT),
        **_rows("bin", 1, 1, _NUMBER, _STRING),
        **_rows("conv", 3, 3, (Kind.ANY, Kind.NUMBER), _STRING),
        **_rows("width_bucket", 4, 4, _NUMBER, _BIGINT),
        **_rows("bit_count", 1, 1, (Kind.BITS,), _INT),
        **_rows("bit_get getbit", 2, 2, (Kind.INTEGER, Kind.NUMBER), _always(TINYINT)),
        **_rows("shiftleft shiftright shiftrightunsigned", 2, 2, (Kind.NUMBER,), _SHIFTED),
        **_rows("try_add", 2, 2, _ANY, _tried("+")),
        **_rows("try_subtract", 2, 2, _ANY, _tried("-")),
        **_rows("try_multiply", 2, 2, _ANY, _tried("*")),
        **_rows("try_divide", 2, 2, _ANY, _tried("/")),
        **_rows("try_mod", 2, 2, _ANY, _tried("%")),
    },
    "strings": {
        **_rows("upper lower ucase lcase initcap hex", 1, 1, _ANY, _always(STRING)),
        **_rows("trim ltrim rtrim btrim", 1, 2, _ANY, _always(STRING)),
        **_rows("length len char_length character_length octet_length bit_length ascii", 1, 1, _ANY, _always(INT)),
        **_rows("reverse", 1, 1, _ANY, _TEXT_OR_BYTES),
        **_rows("substring substr", 2, 3, (Kind.ANY, Kind.NUMBER), _TEXT_OR_BYTES),
        **_rows("left", 2, 2, (Kind.ANY, Kind.NUMBER), _TEXT_OR_BYTES),
        **_rows("right", 2, 2, (Kind.ANY, Kind.NUMBER), _always(STRING)),
        **_rows("lpad rpad", 2, 3, (Kind.ANY, Kind.NUMBER, Kind.ANY), _by_types("STRING", _padded_type)),
        **_rows("concat", 1, None, _ANY, _by_types("STRING, or BINARY if all arguments are BINARY", _concatenated)),
        **_rows("concat_ws", 2, None, _ANY, _always(STRING)),
        **_rows("replace", 2, 3, _ANY, _always(STRING)),
        **_rows("translate", 3, 3, _ANY, _always(STRING)),
        **_rows("regexp_replace", 3, 4, (Kind.ANY, Kind.ANY, Kind.ANY, Kind.NUMBER), _always(STRING)),
        **_rows("regexp_extract", 2, 3, (Kind.ANY, Kind.ANY, Kind.NUMBER), _always(STRING)),
        **_rows("split_part", 3, 3, (Kind.ANY, Kind.ANY, Kind.NUMBER), _always(STRING)),
        **_rows("instr", 2, 2, _ANY, _always(INT)),
        **_rows("levenshtein", 2, 3, _TEXT_AND_NUMBER, _INT),
        **_rows("locate position", 2, 3, (Kind.ANY, Kind.ANY, Kind.NUMBER), _always(INT)),
        **_rows("startswith endswith contains", 2, 2, _ANY, _always(BOOLEAN)),
        **_rows("md5 sha1 sha", 1, 1, (Kind.BYTES,), _always(STRING)),
        **_rows("sha2", 2, 2, (Kind.BYTES, Kind.NUMBER), _always(STRING)),
        **_rows("soundex", 1, 1, (Kind.FORMAT,), _STRING),
        **_rows("quote url_encode url_decode try_url_decode", 1, 1, _ANY, _STRING),
        **_rows("make_valid_utf8 validate_utf8 try_validate_utf8", 1, 1, _ANY, _STRING),
        **_rows("luhn_check is_valid_utf8", 1, 1, _ANY, _BOOLEAN),
        **_rows("chr char", 1, 1, _NUMBER, _STRING),
        **_rows("space", 1, 1, _NUMBER, _STRING),
        **_rows("repeat", 2, 2, (Kind.ANY, Kind.NUMBER), _STRING),
        **_rows("substring_index", 3, 3, _TEXT_AND_NUMBER, _STRING),
        **_rows("overlay", 3, 4, _TEXT_AND_NUMBER, _OVERLAID),
        **_rows("find_in_set", 2, 2, _ANY, _INT),
        **_rows("elt", 2, None, (Kind.NUMBER, Kind.ANY), _by_types("STRING, or BINARY if all are", _chosen)),
        **_rows("jaro_winkler_similarity", 2, 2, _ANY, _DOUBLE),
        **_rows("mask", 1, 5, (Kind.FORMAT,), _STRING),
        **_rows("regexp_count", 2, 2, _ANY, _INT),
        **_rows("regexp_instr", 2, 3, _TEXT_AND_NUMBER, _INT),
        **_rows("regexp_substr", 2, 2, _ANY, _STRING),
        **_rows("parse_url try_parse_url", 2, 3, (Kind.FORMAT,), _STRING),
        **_rows("format_string printf", 1, None, _ANY, _STRING),
        **_rows("format_number", 2, 2, (Kind.SECONDS, Kind.ANY), _STRING),
        **_rows("to_char to_varchar", 2, 2, (Kind.PRINTABLE, Kind.ANY), _STRING),
        **_rows("to_number try_to_number", 2, 2, _ANY, _NUMBER_IN_FORMAT),
        **_rows("encode", 2, 2, _ANY, _BINARY),
        **_rows("decode", 2, 2, (Kind.BYTES, Kind.ANY), _STRING),
        **_rows("base64 to_base32", 1, 1, _BYTES, _STRING),
        **_rows("unbase64 unhex from_base32", 1, 1, _ANY, _BINARY),
        **_rows("to_binary try_to_binary", 1, 2, _ANY, _BINARY),
        **_rows("hmac", 2, 3, (Kind.BYTES, Kind.BYTES, Kind.ANY), _BINARY),
        **_rows("aes_decrypt try_aes_decrypt", 2, 5, (Kind.BYTES, Kind.BYTES, Kind.ANY, Kind.ANY, Kind.BYTES), _BINARY),
    },
    "dates and times": {
        **_rows("current_date", 0, 0, _ANY, _always(DATE)),
        **_rows("current_timestamp now", 0, 0, _ANY, _always(TIMESTAMP)),
        **_rows("year quarter month day dayofmonth dayofweek dayofyear weekday weekofyear", 1, 1, _TIME, _always(INT)),
        **_rows("hour minute second", 1, 1, _TIME, _always(INT)),
        **_rows("date", 1, 1, _TIME, _always(DATE)),
        **_rows("last_day", 1, 1, _TIME, _always(DATE)),
        **_rows("to_date", 1, 2, _ANY, _always(DATE)),
        **_rows("to_timestamp", 1, 2, _ANY, _by_types("TIMESTAMP", _parsed_timestamp)),
        **_rows("date_trunc", 2, 2, (Kind.ANY, Kind.TIME), _always(TIMESTAMP)),
        **_rows("trunc next_day", 2, 2, (Kind.TIME, Kind.ANY), _always(DATE)),
        **_rows("date_add date_sub dateadd", 2, 2, (Kind.TIME, Kind.DAYS), _always(DATE)),
        **_rows("add_months", 2, 2, (Kind.TIME, Kind.NUMBER), _always(DATE)),
        **_rows("datediff date_diff", 2, 2, _TIME, _always(INT)),
        **_rows("months_between", 2, 3, (Kind.TIME, Kind.TIME, Kind.BOOLEAN), _always(DOUBLE)),
        **_rows("date_format", 2, 2, (Kind.TIME, Kind.ANY), _always(STRING)),
        **_rows("unix_timestamp to_unix_timestamp", 1, 2, (Kind.TIME, Kind.FORMAT), _always(BIGINT)),
        **_rows("from_unixtime", 1, 2, (Kind.NUMBER, Kind.ANY), _always(STRING)),
        **_rows("timestamp_seconds", 1, 1, (Kind.SECONDS,), _always(TIMESTAMP)),
        **_rows("make_date", 3, 3, _NUMBER, _always(DATE)),
        **_rows("curdate", 0, 0, _ANY, _DATE),
        **_rows("localtimestamp", 0, 0, _ANY, _LOCAL_TIME),
        **_rows("dayname monthname", 1, 1, _TIME, _STRING),
        **_rows("try_to_date", 1, 2, _ANY, _DATE),
        **_rows("to_timestamp_ltz try_to_timestamp", 1, 2, _ANY, _by_types("TIMESTAMP", _parsed_timestamp)),
        **_rows("to_timestamp_ntz", 1, 2, _ANY, _LOCAL_TIME),
        **_rows(
            "make_timestamp make_timestamp_ltz try_make_timestamp try_make_timestamp_ltz", 6, 7, _PARTS, _TIMESTAMP
        ),
        **_rows("make_timestamp_ntz try_make_timestamp_ntz", 6, 6, _NUMBER, _LOCAL_TIME),
        **_rows("timestampadd", 3, 3, (Kind.ANY, Kind.NUMBER, Kind.TIME), _SAME_TIME),
        **_rows("timestampdiff", 3, 3, (Kind.ANY, Kind.TIME, Kind.TIME), _BIGINT),
        **_rows("time_bucket", 2, 2, (Kind.ANY, Kind.INSTANT), _SAME_TIME),
        **_rows("from_utc_timestamp to_utc_timestamp", 2, 2, (Kind.TIME, Kind.ANY), _TIMESTAMP),
        **_rows("convert_timezone", 3, 3, (Kind.ANY, Kind.ANY, Kind.TIME), _LOCAL_TIME),
        **_rows("unix_date", 1, 1, (Kind.DAY,), _INT),
        **_rows("unix_seconds unix_millis unix_micros", 1, 1, (Kind.INSTANT,), _BIGINT),
        **_rows("date_from_unix_date", 1, 1, _NUMBER, _DATE),
        **_rows("timestamp_millis timestamp_micros", 1, 1, (Kind.INTEGER,), _TIMESTAMP),
    },
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
