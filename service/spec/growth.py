"""How long a value can become: Spark computes constants while it plans, in the process that all jobs share.

The bound counts bytes (UTF-8). For constants it is one; a column's values are taken as short texts, so that for them
it limits how many times longer a value can get.
"""

from __future__ import annotations

from collections.abc import Callable

from service.spec.dialect import Text
from service.spec.functions import MAX_PADDED_LENGTH, literal_integer
from service.spec.limits import CONDITIONS, EXPANDED_NODES
from service.spec.tree import (
    Arithmetic,
    Binary,
    Call,
    Case,
    Cast,
    Column,
    Connective,
    Expression,
    NodeCounter,
    Not,
    String,
    children,
    position_of,
    walk,
)
from service.spec.types import DataType, TypeName

MAX_VALUE_BYTES = 1 << 20
COLUMN_BYTES = 256
# The longest decimal, time or hash that is written out; sha2 gives 128 digits.
_SHORT = 128
_CHARACTER_BYTES = 4
# A letter of a date format stands for the name of a time zone at most.
_DATE_PART_BYTES = 32
_TEXTS = {TypeName.STRING, TypeName.BINARY}

_Rule = Callable[[Call, list[int]], int]


def longest(node: Expression, source: Text) -> int:
    """Bytes that a value of the resolved tree `node` has at most.

    Raises SpecError `unsupported_construct` where that is more than MAX_VALUE_BYTES.
    """
    bytes_ = _bytes_of(node, [longest(child, source) for child in children(node)])
    if bytes_ > MAX_VALUE_BYTES:
        what = node.name if isinstance(node, Call) else "||"
        raise source.error(
            "unsupported_construct",
            f"{what} could make a value of more than {MAX_VALUE_BYTES >> 20} MB here, a column's values counted with "
            f"{COLUMN_BYTES} bytes: shorten its constants, or nest fewer calls.",
            at=position_of(node),
        )
    return bytes_


def expanded(tree: Expression, source: Text) -> int:
    """Nodes of the resolved `tree`, each column of a derived table counted as what it stands for: Spark writes these
    out to push a filter down.

    Raises SpecError `query_too_deep` where there are more than EXPANDED_NODES.
    """
    nodes = sum(part.size if isinstance(part, Column) else 1 for part in walk(tree))
    if nodes > EXPANDED_NODES.most:
        raise source.beyond(EXPANDED_NODES, nodes, at=position_of(tree))
    return nodes


def check_replaced(tree: Expression, source: Text) -> None:
    """As `expanded`, for a tree in which names were replaced by trees that it then shares: without walking through
    each of these as often as it is used.
    """
    nodes = NodeCounter().count(tree)
    if nodes > EXPANDED_NODES.most:
        raise source.beyond(EXPANDED_NODES, nodes)


def conditions_in(tree: Expression, source: Text) -> int:
    """How many conditions AND joins at the top of `tree`; NOT turns the OR below it into AND, as Spark does.

    Raises SpecError `query_too_deep` where there, or anywhere inside, AND joins more than CONDITIONS, unless `source`
    is accepted: earlier versions did not have this limit.
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
    """The bytes that a column's values are taken to have."""
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


def _padded(call: Call, _parts: list[int]) -> int:
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
    "lpad": _padded,
    "rpad": _padded,
    "date_format": _formatted,
    "from_unixtime": _formatted,
}
