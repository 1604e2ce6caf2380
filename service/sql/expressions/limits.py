"""Limits of expressions: the bytes of their values, their number of nodes, and the number of joined conditions.

`longest` limits the bytes (UTF-8) of values, because Spark computes constants while it plans, in the process that all
jobs share. A column's values are assumed to be short, so for them it limits how much longer they can become.
"""

from __future__ import annotations

from collections.abc import Callable

from service.contract.query import CONDITIONS, EXPANDED_NODES
from service.sql.expressions.nested_limits import bytes_of_call
from service.sql.expressions.nodes import (
    Arithmetic,
    Binary,
    Call,
    Case,
    Cast,
    Column,
    Connective,
    Element,
    Expression,
    GetField,
    Lambda,
    NodeCounter,
    Not,
    Over,
    String,
    Variable,
    children,
    position_of,
    walk,
)
from service.sql.parser import Text
from service.sql.types.data_types import DataType, TypeName
from service.sql.types.functions import MAX_PADDED_LENGTH
from service.sql.types.literal_arguments import widths_in
from service.sql.types.signatures import literal_integer

MAX_VALUE_BYTES = 1 << 20
COLUMN_BYTES = 256
# The longest decimal, time or hash that is written out; sha2 gives 128 digits.
_SHORT = 128
_CHARACTER_BYTES = 4
# The longest output of one letter of a date format is the name of a time zone.
_DATE_PART_BYTES = 32
# The digits of the largest DOUBLE, which some formats write out, with separators of thousands.
_DOUBLE_DIGITS = 512
_TEXTS = {TypeName.STRING, TypeName.BINARY}

_Rule = Callable[[Call, list[int]], int]


def longest(node: Expression, source: Text) -> int:
    """Returns the maximum bytes of a value of the resolved tree `node`.

    Raises SpecError `unsupported_construct` if it is more than MAX_VALUE_BYTES.
    """
    parts = [longest(child, source) for child in children(node)]
    bytes_ = bytes_of_call(node, parts, lambda tree: longest(tree, source)) if isinstance(node, Call) else None
    if bytes_ is None:
        bytes_ = _bytes_of(node, parts)
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
    return COLUMN_BYTES if type_ is None or type_.name in _TEXTS or type_.is_nested else _SHORT


def _bytes_of(node: Expression, parts: list[int]) -> int:
    match node:
        case String(value):
            return len(value.encode())
        case Binary(digits):
            return len(digits) // 2
        case Column(type=type_):
            return node.longest if node.longest is not None else of_column(type_)
        case Variable():
            return COLUMN_BYTES
        case GetField() | Element() | Lambda():
            return max(_SHORT, parts[0])
        case Arithmetic("||"):
            return sum(parts)
        case Cast(_, type_):
            return max(_SHORT, *parts) if type_.name in _TEXTS or type_.is_nested else _SHORT
        case Case():
            return max(parts)
        case Over():
            return max(_SHORT, *parts, 0)
        case Call(name):
            return _RULES.get(name, _not_longer)(node, parts)
        case _:
            return _SHORT


def _not_longer(_call: Call, parts: list[int]) -> int:
    # Some letters become longer in the other case, but only once.
    return max((_SHORT, *parts))


def _replaced(call: Call, parts: list[int]) -> int:
    if len(parts) < 3:
        return parts[0]
    searched = max(_length_of(call.arguments[1], 1), 1)
    return max(parts[0], parts[0] // searched * parts[2] + parts[0] % searched)


def _replaced_by_pattern(call: Call, parts: list[int]) -> int:
    subject, _, replacement = parts[:3]
    pattern, by = call.arguments[1], call.arguments[2]
    # The empty text between any two characters may match.
    matches = subject + 1
    groups = _groups_in(by, replacement)
    if isinstance(pattern, String) and not ("?" in pattern.value and "=" in pattern.value):
        return subject + matches * replacement + groups * subject
    # A group inside a look-ahead may contain the whole subject in every match.
    return subject + matches * (replacement + groups * subject)


def _groups_in(by: Expression, bytes_: int) -> int:
    """Returns the maximum number of references to groups (`$1`) in a replacement."""
    if isinstance(by, String):
        return by.value.count("$")
    return 1 if isinstance(by, Column) else bytes_ // 2


def _translated(call: Call, parts: list[int]) -> int:
    by = call.arguments[2]
    return parts[0] if isinstance(by, String) and by.value.isascii() else parts[0] * _CHARACTER_BYTES


def _padded_length(call: Call, _parts: list[int]) -> int:
    length = literal_integer(call.arguments[1])
    return _CHARACTER_BYTES * (MAX_PADDED_LENGTH if length is None else max(length, 0))


def _repeated(call: Call, parts: list[int]) -> int:
    times = literal_integer(call.arguments[1])
    return parts[0] * (MAX_PADDED_LENGTH if times is None else max(times, 0))


def _spaces(call: Call, _parts: list[int]) -> int:
    length = literal_integer(call.arguments[0])
    return MAX_PADDED_LENGTH if length is None else max(length, 0)


def _printed(call: Call, parts: list[int]) -> int:
    format_ = call.arguments[0]
    widths = widths_in(format_.value) if isinstance(format_, String) else None
    # An argument may be used several times, each of at most the characters of one specifier.
    uses = format_.value.count("%") if isinstance(format_, String) else 1
    return parts[0] + (widths or 0) + uses * (_DOUBLE_DIGITS + max(parts[1:], default=0))


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
    "to_char": _formatted,
    "to_varchar": _formatted,
    "repeat": _repeated,
    "space": _spaces,
    "format_string": _printed,
    "printf": _printed,
    "format_number": lambda _call, parts: _DOUBLE_DIGITS + parts[1],
    "overlay": lambda _call, parts: parts[0] + parts[1],
    "base64": lambda _call, parts: 2 * parts[0] + 4,
    "to_base32": lambda _call, parts: 2 * parts[0] + 8,
    "encode": lambda _call, parts: _CHARACTER_BYTES * parts[0] + 4,
    "decode": lambda call, parts: 3 * parts[0] if len(call.arguments) == 2 else max(parts),
    "url_encode": lambda _call, parts: 3 * parts[0],
    "url_decode": lambda _call, parts: 3 * parts[0],
    "try_url_decode": lambda _call, parts: 3 * parts[0],
    "make_valid_utf8": lambda _call, parts: 3 * parts[0],
    "quote": lambda _call, parts: 2 * parts[0] + 2,
    "mask": lambda _call, parts: _CHARACTER_BYTES * parts[0],
}
