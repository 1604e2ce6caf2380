"""The table of scalar functions that a query may call: their arguments and result types.

Result types are those of Spark 4.3 with ANSI mode on, checked against it by
`tests/service/sql/types/test_functions.py`. Not included are functions that differ from call to call (rand,
uuid) or reach outside the query (java_method, input_file_name), see `service.sql.builtins`. Arguments that could make
a value or the work large must be literals, see `service.sql.types.literal_arguments`.
"""

from __future__ import annotations

from service.sql.expressions.nodes import Null, String
from service.sql.types import function_results
from service.sql.types.data_types import (
    BIGINT,
    BINARY,
    BOOLEAN,
    DATE,
    DOUBLE,
    INT,
    MAX_PRECISION,
    NULL,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    TINYINT,
    DataType,
    Incompatible,
    TypeName,
    arithmetic,
    array,
    decimal,
    widest,
)
from service.sql.types.document_functions import DOCUMENT_GROUPS, SKETCH_GROUPS
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


def _chosen(types: Types) -> DataType | None:
    return function_results.bytes_or_text(types[1:])


def _tried(operator: str) -> Result:
    return by_types(f"as of the operator {operator}", lambda types: function_results.tried(operator, types))


def _number_in_format(_types: Types, arguments: Arguments) -> DataType | None:
    format_ = arguments[1]
    return function_results.of_number_format(format_.value) if isinstance(format_, String) else None


_ANY, _VALUE, _NUMBER, _TIME, _BYTES = (Kind.ANY,), (Kind.VALUE,), (Kind.NUMBER,), (Kind.TIME,), (Kind.BYTES,)

_COMMON = by_types("the common type of the arguments", _common)
_ROUNDED = Result("the type of the first argument with these digits; DOUBLE for a string", _rounded)
_COMMON_OF_LAST = by_types("the common type of the last two arguments", _second_or_third)
_TEXT_OR_BYTES = by_types("STRING, or BINARY for BINARY", _text_or_bytes)
_SAME_NUMBER = by_types("the type of the argument; DOUBLE for a string", _same_number)
_STRING, _INT, _BIGINT, _DOUBLE, _BOOLEAN = map(always, (STRING, INT, BIGINT, DOUBLE, BOOLEAN))
_DATE, _TIMESTAMP, _LOCAL_TIME, _BINARY = map(always, (DATE, TIMESTAMP, TIMESTAMP_NTZ, BINARY))
_OVERLAID = by_types("STRING, or BINARY for two BINARY", function_results.overlaid)
_SHIFTED = by_types("INT, or BIGINT for BIGINT", function_results.shifted)
_SAME_TIME = by_types("TIMESTAMP, or TIMESTAMP_NTZ for a TIMESTAMP_NTZ", function_results.same_time)
_NUMBER_IN_FORMAT = Result("the DECIMAL of the format", _number_in_format)
_INTERVAL = by_types("an interval, which can be added to a date or timestamp", lambda _types: None)
_PARTS = (*[Kind.NUMBER] * 6, Kind.ANY)
_TEXT_AND_NUMBER = (Kind.ANY, Kind.ANY, Kind.NUMBER)

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
        **rows("nanvl", 2, 2, _NUMBER, by_types("DOUBLE, or FLOAT for two FLOAT", function_results.not_a_number_or)),
        **rows("zeroifnull", 1, 1, _NUMBER, by_types("the common type with INT", function_results.or_zero)),
        **rows("nullifzero", 1, 1, _NUMBER, by_types("the type of the argument", function_results.or_null)),
        **rows("typeof", 1, 1, _ANY, _STRING),
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
        **rows("acosh asinh atanh cot sec csc", 1, 1, _NUMBER, _DOUBLE),
        **rows("e pi", 0, 0, _ANY, _DOUBLE),
        **rows("factorial", 1, 1, _NUMBER, _BIGINT),
        **rows("bin", 1, 1, _NUMBER, _STRING),
        **rows("conv", 3, 3, (Kind.ANY, Kind.NUMBER), _STRING),
        **rows("width_bucket", 4, 4, _NUMBER, _BIGINT),
        **rows("bit_count", 1, 1, (Kind.BITS,), _INT),
        **rows("bit_get getbit", 2, 2, (Kind.INTEGER, Kind.NUMBER), always(TINYINT)),
        **rows("shiftleft shiftright shiftrightunsigned", 2, 2, (Kind.NUMBER,), _SHIFTED),
        **rows("try_add", 2, 2, _ANY, _tried("+")),
        **rows("try_subtract", 2, 2, _ANY, _tried("-")),
        **rows("try_multiply", 2, 2, _ANY, _tried("*")),
        **rows("try_divide", 2, 2, _ANY, _tried("/")),
        **rows("try_mod", 2, 2, _ANY, _tried("%")),
    },
    "strings": {
        **rows("upper lower ucase lcase initcap hex", 1, 1, _ANY, always(STRING)),
        **rows("trim ltrim rtrim btrim", 1, 2, _ANY, always(STRING)),
        **rows("length len char_length character_length octet_length bit_length ascii", 1, 1, _ANY, always(INT)),
        **rows("reverse", 1, 1, _VALUE, by_types("STRING, or BINARY or an array as the argument", _reversed)),
        **rows("substring substr", 2, 3, (Kind.ANY, Kind.NUMBER), _TEXT_OR_BYTES),
        **rows("left", 2, 2, (Kind.ANY, Kind.NUMBER), _TEXT_OR_BYTES),
        **rows("right", 2, 2, (Kind.ANY, Kind.NUMBER), always(STRING)),
        **rows("lpad rpad", 2, 3, (Kind.ANY, Kind.NUMBER, Kind.ANY), by_types("STRING", _padded_type)),
        **rows(
            "concat", 1, None, _VALUE, by_types("STRING, or BINARY or an array if all arguments are", _concatenated)
        ),
        **rows("concat_ws", 2, None, (Kind.ANY, Kind.VALUE), by_types("STRING", _joined_texts)),
        **rows("replace", 2, 3, _ANY, always(STRING)),
        **rows("translate", 3, 3, _ANY, always(STRING)),
        **rows("regexp_replace", 3, 4, (Kind.ANY, Kind.ANY, Kind.ANY, Kind.NUMBER), always(STRING)),
        **rows("regexp_extract", 2, 3, (Kind.ANY, Kind.ANY, Kind.NUMBER), always(STRING)),
        **rows("split_part", 3, 3, (Kind.ANY, Kind.ANY, Kind.NUMBER), always(STRING)),
        **rows("instr", 2, 2, _ANY, always(INT)),
        **rows("levenshtein", 2, 3, _TEXT_AND_NUMBER, _INT),
        **rows("locate position", 2, 3, (Kind.ANY, Kind.ANY, Kind.NUMBER), always(INT)),
        **rows("startswith endswith contains", 2, 2, _ANY, always(BOOLEAN)),
        **rows("md5 sha1 sha", 1, 1, (Kind.BYTES,), always(STRING)),
        **rows("sha2", 2, 2, (Kind.BYTES, Kind.NUMBER), always(STRING)),
        **rows("soundex", 1, 1, (Kind.FORMAT,), _STRING),
        **rows("quote url_encode url_decode try_url_decode", 1, 1, _ANY, _STRING),
        **rows("make_valid_utf8 validate_utf8 try_validate_utf8", 1, 1, _ANY, _STRING),
        **rows("luhn_check is_valid_utf8", 1, 1, _ANY, _BOOLEAN),
        **rows("chr char", 1, 1, _NUMBER, _STRING),
        **rows("space", 1, 1, _NUMBER, _STRING),
        **rows("repeat", 2, 2, (Kind.ANY, Kind.NUMBER), _STRING),
        **rows("substring_index", 3, 3, _TEXT_AND_NUMBER, _STRING),
        **rows("overlay", 3, 4, _TEXT_AND_NUMBER, _OVERLAID),
        **rows("find_in_set", 2, 2, _ANY, _INT),
        **rows("elt", 2, None, (Kind.NUMBER, Kind.ANY), by_types("STRING, or BINARY if all are", _chosen)),
        **rows("jaro_winkler_similarity", 2, 2, _ANY, _DOUBLE),
        **rows("mask", 1, 5, (Kind.FORMAT,), _STRING),
        **rows("regexp_count", 2, 2, _ANY, _INT),
        **rows("regexp_instr", 2, 3, _TEXT_AND_NUMBER, _INT),
        **rows("regexp_substr", 2, 2, _ANY, _STRING),
        **rows("sentences", 1, 3, _ANY, by_types("an array of arrays of STRING", lambda _types: array(array(STRING)))),
        **rows("parse_url try_parse_url", 2, 3, (Kind.FORMAT,), _STRING),
        **rows("format_string printf", 1, None, _ANY, _STRING),
        **rows("format_number", 2, 2, (Kind.SECONDS, Kind.ANY), _STRING),
        **rows("to_char to_varchar", 2, 2, (Kind.PRINTABLE, Kind.ANY), _STRING),
        **rows("to_number try_to_number", 2, 2, _ANY, _NUMBER_IN_FORMAT),
        **rows("encode", 2, 2, _ANY, _BINARY),
        **rows("decode", 2, 2, (Kind.BYTES, Kind.ANY), _STRING),
        **rows("base64 to_base32", 1, 1, _BYTES, _STRING),
        **rows("unbase64 unhex from_base32", 1, 1, _ANY, _BINARY),
        **rows("to_binary try_to_binary", 1, 2, _ANY, _BINARY),
        **rows("hmac", 2, 3, (Kind.BYTES, Kind.BYTES, Kind.ANY), _BINARY),
        **rows("aes_decrypt try_aes_decrypt", 2, 5, (Kind.BYTES, Kind.BYTES, Kind.ANY, Kind.ANY, Kind.BYTES), _BINARY),
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
        **rows("months_between", 2, 3, (Kind.TIME, Kind.TIME, Kind.BOOLEAN), always(DOUBLE)),
        **rows("date_format", 2, 2, (Kind.TIME, Kind.ANY), always(STRING)),
        **rows("unix_timestamp to_unix_timestamp", 1, 2, (Kind.TIME, Kind.FORMAT), always(BIGINT)),
        **rows("from_unixtime", 1, 2, (Kind.NUMBER, Kind.ANY), always(STRING)),
        **rows("timestamp_seconds", 1, 1, (Kind.SECONDS,), always(TIMESTAMP)),
        **rows("make_date", 3, 3, _NUMBER, always(DATE)),
        **rows("curdate", 0, 0, _ANY, _DATE),
        **rows("localtimestamp", 0, 0, _ANY, _LOCAL_TIME),
        **rows("dayname monthname", 1, 1, _TIME, _STRING),
        **rows("try_to_date", 1, 2, _ANY, _DATE),
        **rows("to_timestamp_ltz try_to_timestamp", 1, 2, _ANY, by_types("TIMESTAMP", _parsed_timestamp)),
        **rows("to_timestamp_ntz", 1, 2, _ANY, _LOCAL_TIME),
        **rows("make_timestamp make_timestamp_ltz try_make_timestamp try_make_timestamp_ltz", 6, 7, _PARTS, _TIMESTAMP),
        **rows("make_timestamp_ntz try_make_timestamp_ntz", 6, 6, _NUMBER, _LOCAL_TIME),
        **rows("timestampadd", 3, 3, (Kind.ANY, Kind.NUMBER, Kind.TIME), _SAME_TIME),
        **rows("timestampdiff", 3, 3, (Kind.ANY, Kind.TIME, Kind.TIME), _BIGINT),
        **rows("time_bucket", 2, 2, (Kind.ANY, Kind.INSTANT), _SAME_TIME),
        **rows("make_interval try_make_interval", 0, 7, _NUMBER, _INTERVAL),
        **rows("make_dt_interval", 0, 4, _NUMBER, _INTERVAL),
        **rows("make_ym_interval", 0, 2, _NUMBER, _INTERVAL),
        **rows("from_utc_timestamp to_utc_timestamp", 2, 2, (Kind.TIME, Kind.ANY), _TIMESTAMP),
        **rows("convert_timezone", 3, 3, (Kind.ANY, Kind.ANY, Kind.TIME), _LOCAL_TIME),
        **rows("unix_date", 1, 1, (Kind.DAY,), _INT),
        **rows("unix_seconds unix_millis unix_micros", 1, 1, (Kind.INSTANT,), _BIGINT),
        **rows("date_from_unix_date", 1, 1, _NUMBER, _DATE),
        **rows("timestamp_millis timestamp_micros", 1, 1, (Kind.INTEGER,), _TIMESTAMP),
    },
    **NESTED_GROUPS,
    **DOCUMENT_GROUPS,
    **SKETCH_GROUPS,
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
