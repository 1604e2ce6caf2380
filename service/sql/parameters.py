"""Binds the parameters of a job's SQL: each placeholder gets the literal of its value, which no parser reads.

A value is checked against its type here, so that the literal in the tree is one that the SQL could contain as text.
"""

from __future__ import annotations

import base64
import binascii
import math
import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal

from sqlglot import exp
from sqlglot.tokenizer_core import TokenType

from service.contract.parameters import Parameters, ParameterValue, TypedValue
from service.contract.problems import Issue, SpecError, did_you_mean, nearest_names
from service.contract.query import SQL_CHARACTERS
from service.sql.ddl import parse_type
from service.sql.expressions.nodes import Binary, Boolean, Cast, Expression, Negation, Null, Number, String
from service.sql.expressions.reader import placeholder
from service.sql.parser import Text
from service.sql.types.data_types import BIGINT, DOUBLE, STRING, DataType, TypeName

POINTER = "/parameters"

_INTEGERS = {
    TypeName.TINYINT: (7, "Y"),
    TypeName.SMALLINT: (15, "S"),
    TypeName.INT: (31, ""),
    TypeName.BIGINT: (63, "L"),
}
"""By type: its bits without the sign, and the suffix of its literals."""
_WHOLE = re.compile(r"[+-]?\d{1,60}", re.ASCII)
_DECIMAL = re.compile(r"[+-]?(?:\d{1,60}(?:\.\d{0,60})?|\.\d{1,60})", re.ASCII)
_DOUBLE = re.compile(r"[+-]?(?:\d{1,400}(?:\.\d{0,400})?|\.\d{1,400})(?:[eE][+-]?\d{1,3})?", re.ASCII)
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)
_TIMESTAMP = re.compile(
    r"(\d{4}-\d{2}-\d{2})(?:[T ](\d{2}:\d{2}(?::\d{2}(?:\.\d{1,6})?)?)(Z|[+-]\d{2}:\d{2})?)?", re.ASCII
)
_EXACT_DIGITS = 15
"""A double with at most so many digits is the decimal number that was written."""


class Bindings(Mapping[int, Expression]):
    """The literal of each placeholder, by its offset in the SQL. It records which of them were read."""

    def __init__(self, literals: Mapping[int, Expression]) -> None:
        self._literals = dict(literals)
        self._unread = set(literals)

    def __getitem__(self, at: int) -> Expression:
        """Returns the literal of the placeholder at the offset `at`."""
        self._unread.discard(at)
        return self._literals[at]

    def __iter__(self) -> Iterator[int]:
        """Iterates over the offsets."""
        return iter(self._literals)

    def __len__(self) -> int:
        """Returns the number of placeholders."""
        return len(self._literals)

    def check_all_read(self, source: Text) -> None:
        """Raises SpecError `unsupported_construct` for a placeholder where the compiler reads no expression."""
        if self._unread:
            raise source.unsupported("A parameter", at=min(self._unread), hint="Write the value.")


def bind_parameters(source: Text, tree: exp.Expr, parameters: Parameters | None) -> Bindings:
    """Returns the literals of the placeholders of `tree`, the parsed SQL of `source`.

    Raises SpecError with all of these issues: `parameter_missing` at a placeholder without a value, `parameter_unused`
    for a value without a placeholder, `parameter_type` and `parameter_value` for what is not a type or a value of it.
    Else it raises `parameters_mixed` if the SQL has both kinds of placeholders or not the kind of the parameters, and
    `query_too_deep` if the SQL with all values is too long.
    """
    has_placeholders = any(token.token_type is TokenType.PLACEHOLDER for token in source.tokens)
    found = sorted(_placeholders(tree), key=lambda node: node.meta["start"]) if has_placeholders else []
    _check_kinds(source, found, parameters)
    values = _by_key(parameters)
    keys = {node.meta["start"]: node.name if node.this else index for index, node in enumerate(found)}
    issues: list[Issue] = []
    literals: dict[str | int, Expression] = {}
    for key, value in values.items():
        try:
            literals[key] = literal_of(value, f"{POINTER}/{key}")
        except SpecError as error:
            issues += error.issues
    used = set(keys.values())
    as_text = {keys[node.meta["start"]] for node in found if _is_compared_with_text(node)}
    for key in used - as_text:
        literal = literals.get(key)
        if isinstance(literal, String):
            literals[key] = replace(literal, parameter=key)
    unused = [key for key in values if key not in used]
    missing = {node.meta["start"]: node for node in found if keys[node.meta["start"]] not in values}
    issues += [_missing(source, node, keys[at], unused) for at, node in missing.items()]
    issues += [_unused(key, bool(found)) for key in unused]
    if issues:
        raise SpecError(issues)
    _check_length(source, [values[key] for key in keys.values()])
    return Bindings({at: literals[key] for at, key in keys.items()})


def _placeholders(tree: exp.Expr) -> list[exp.Placeholder]:
    return [node for node in tree.find_all(exp.Placeholder) if not node.args.get("widget")]


def _is_compared_with_text(node: exp.Placeholder) -> bool:
    """Whether the SQL compares the placeholder with a string, as in `:m = 'all' OR f.month = :m`."""
    others = [] if not isinstance(node.parent, exp.Predicate) else node.parent.iter_expressions()
    return any(isinstance(other, exp.Literal) and other.is_string for other in others)


def _by_key(parameters: Parameters | None) -> Mapping[str | int, ParameterValue]:
    if parameters is None:
        return {}
    return dict(parameters.items() if isinstance(parameters, Mapping) else enumerate(parameters))


def _check_kinds(source: Text, found: list[exp.Placeholder], parameters: Parameters | None) -> None:
    named = next((node for node in found if node.this), None)
    positional = next((node for node in found if not node.this), None)
    if named is not None and positional is not None:
        detail = f"The SQL has both {placeholder(named)} and ?. Use only names, or only ?."
        at = max(named.meta["start"], positional.meta["start"])
        raise source.error("parameters_mixed", detail, at=at)
    if named is not None and parameters and not isinstance(parameters, Mapping):
        detail = f'{placeholder(named)} has a name, but `parameters` is a list. Give an object: {{"{named.name}": …}}.'
        raise source.error("parameters_mixed", detail, at=named.meta["start"])
    if positional is not None and isinstance(parameters, Mapping) and parameters:
        detail = "? has no name, but `parameters` is an object. Give a list of values, or write names such as :name."
        raise source.error("parameters_mixed", detail, at=positional.meta["start"])


def _missing(source: Text, node: exp.Placeholder, key: str | int, unused: list[str | int]) -> Issue:
    if isinstance(key, int):
        detail = f"This is placeholder {key + 1}, for which `parameters` has no value. Add one to the list."
        nearest: tuple[str, ...] = ()
    else:
        nearest = nearest_names(key, [name for name in unused if isinstance(name, str)])
        detail = f"{placeholder(node)} has no value in `parameters`.{did_you_mean(nearest)}"
        if not nearest:
            detail += f' Add it: {{"{key}": …}}.'
    return source.error("parameter_missing", detail, at=node.meta["start"], suggestions=nearest).issues[0]


def _unused(key: str | int, has_placeholders: bool) -> Issue:
    sign = "?" if isinstance(key, int) else f":{key}"
    where = "no placeholder uses it" if has_placeholders else "the SQL has no placeholders"
    detail = f"The value is not used: {where}. Remove it, or write {sign} in the SQL."
    return Issue(code="parameter_unused", detail=detail, pointer=f"{POINTER}/{key}")


def _check_length(source: Text, used: list[ParameterValue]) -> None:
    """Checks the limit of a text with each value in the place of its placeholder."""
    if source.is_accepted:
        return
    scalars = (value.value if isinstance(value, TypedValue) else value for value in used)
    length = len(source.text) + sum(len(value) for value in scalars if isinstance(value, str))
    if length > SQL_CHARACTERS.most:
        raise SpecError([source.beyond(SQL_CHARACTERS, length).issues[0].model_copy(update={"pointer": POINTER})])


def literal_of(value: ParameterValue, pointer: str) -> Expression:
    """Returns the literal of a parameter; `pointer` is its JSON pointer.

    Raises SpecError `parameter_type` if its type is not an atomic SQL type, `parameter_value` if the value does not
    fit the type.
    """
    try:
        if not isinstance(value, TypedValue):
            return _untyped(value)
    except _UnfitError as error:
        raise SpecError.of("parameter_value", str(error), pointer=pointer) from None
    try:
        type_ = parse_type(value.type, f"{pointer}/type", is_atomic=True)
    except SpecError as error:
        issue = error.issues[0]
        raise SpecError.of(
            "parameter_type", issue.detail, pointer=issue.pointer, suggestions=issue.suggestions
        ) from None
    try:
        return _typed(value.value, type_)
    except _UnfitError as error:
        raise SpecError.of("parameter_value", str(error), pointer=f"{pointer}/value") from None


class _UnfitError(Exception):
    """A value that does not fit its type; the text says what is wrong."""


def _unfit(value: object, type_: DataType, form: str) -> _UnfitError:
    shown = f"'{value[:40]}'" if isinstance(value, str) else str(value)[:40]
    return _UnfitError(f"{shown} is not a value of the type {type_}. Give {form}.")


def _untyped(value: str | float | bool | None) -> Expression:
    match value:
        case None:
            return Null()
        case bool():
            return Boolean(value)
        case str():
            return _string(value)
        case float():
            return _double(value, DOUBLE)
    if not -(1 << 63) <= value < 1 << 63:
        form = '{"type": "DECIMAL(38,0)", "value": …}, with the number as text'
        raise _unfit(value, BIGINT, form)
    return _signed(Number(str(abs(value))), value < 0)


def _typed(value: str | float | bool | None, type_: DataType) -> Expression:
    if value is None:
        return Cast(Null(), type_, tries=False)
    name = type_.name
    if name in _INTEGERS:
        return _integer(value, type_)
    match name:
        case TypeName.BOOLEAN:
            if isinstance(value, bool) or value in {"true", "false"}:
                return Boolean(value in {True, "true"})
            raise _unfit(value, type_, "true or false")
        case TypeName.FLOAT | TypeName.DOUBLE:
            return _double(value, type_)
        case TypeName.DECIMAL:
            return _decimal(value, type_)
    if not isinstance(value, str):
        raise _unfit(value, type_, "the value as text, in quotes")
    match name:
        case TypeName.DATE:
            return _date(value, type_)
        case TypeName.TIMESTAMP | TypeName.TIMESTAMP_NTZ:
            return _timestamp(value, type_)
        case TypeName.BINARY:
            return _binary(value, type_)
        case _:
            return _string(value)


def _signed(number: Number, is_negative: bool) -> Expression:
    return Negation(number) if is_negative else number


def _string(value: str) -> String:
    if any("\ud800" <= character <= "\udfff" for character in value):
        raise _UnfitError(f"The value is not a {STRING}: it contains half of a surrogate pair.")
    return String(value)


def _integer(value: str | float | bool, type_: DataType) -> Expression:
    bits, suffix = _INTEGERS[type_.name]
    form = f"a whole number from {-(1 << bits)} to {(1 << bits) - 1}"
    if isinstance(value, bool | float) or (isinstance(value, str) and not _WHOLE.fullmatch(value)):
        raise _unfit(value, type_, form)
    number = int(value)
    if not -(1 << bits) <= number < 1 << bits:
        raise _unfit(value, type_, form)
    if type_ == BIGINT and abs(number) > 1 << 31:
        # The literal that the same number has without a type.
        suffix = ""
    return _signed(Number(str(abs(number)), suffix), number < 0)


def _double(value: str | float | bool, type_: DataType) -> Expression:
    form = "a finite number, such as 1.5 or 1e6"
    if isinstance(value, bool) or (isinstance(value, str) and not _DOUBLE.fullmatch(value)):
        raise _unfit(value, type_, form)
    try:
        number = float(value)
        if type_ != DOUBLE:
            struct.pack("<f", number)
    except OverflowError:
        raise _unfit(value, type_, form) from None
    if not math.isfinite(number):
        raise _unfit(value, type_, form)
    # Without an exponent, the number would be a decimal.
    text = repr(abs(number))
    literal = _signed(Number(text if "e" in text else f"{text}e0"), math.copysign(1, number) < 0)
    return literal if type_ == DOUBLE else Cast(literal, type_, tries=False)


def _decimal(value: str | float | bool, type_: DataType) -> Expression:
    precision, scale = type_.precision or 0, type_.scale or 0
    form = f"a number with at most {precision - scale} digits before and {scale} after the point, as text if it is long"
    if isinstance(value, bool) or (isinstance(value, str) and not _DECIMAL.fullmatch(value)):
        raise _unfit(value, type_, form)
    if isinstance(value, float) and len(Decimal(repr(value)).normalize().as_tuple().digits) > _EXACT_DIGITS:
        raise _unfit(value, type_, "a number of so many digits as text, in quotes")
    text = format(Decimal(repr(value)), "f") if isinstance(value, float) else str(value)
    whole, _, fraction = text.lstrip("+-").partition(".")
    whole, fraction = whole.lstrip("0"), fraction.rstrip("0")
    if len(whole) > precision - scale or len(fraction) > scale:
        raise _unfit(value, type_, form)
    number = Number(f"{whole or '0'}.{fraction}" if fraction else whole or "0")
    return Cast(_signed(number, text.startswith("-")), type_, tries=False)


def _date(value: str, type_: DataType) -> Expression:
    try:
        if _DATE.fullmatch(value):
            return Cast(String(date.fromisoformat(value).isoformat()), type_, tries=False)
    except ValueError:
        pass
    raise _unfit(value, type_, "a day from 0001-01-01 to 9999-12-31, such as 2024-01-31")


def _timestamp(value: str, type_: DataType) -> Expression:
    is_instant = type_.name is TypeName.TIMESTAMP
    zone = ", which may end with Z or an offset such as +02:00" if is_instant else ", without a time zone"
    form = f"a time such as 2024-01-31 12:30:00.5{zone}"
    match = _TIMESTAMP.fullmatch(value)
    if match is None or (match[3] and not is_instant):
        raise _unfit(value, type_, form)
    try:
        moment = datetime.fromisoformat(f"{match[1]}T{match[2] or '00:00'}{match[3] or ''}")
        if moment.tzinfo is not None:
            moment = moment.astimezone(UTC).replace(tzinfo=None)
    except (ValueError, OverflowError):
        raise _unfit(value, type_, form) from None
    return Cast(String(moment.isoformat(" ") + ("Z" if match[3] else "")), type_, tries=False)


def _binary(value: str, type_: DataType) -> Expression:
    try:
        return Binary(base64.b64decode(value.encode("ascii"), validate=True).hex().upper())
    except (UnicodeEncodeError, binascii.Error):
        raise _unfit(value, type_, "bytes in base64") from None
