"""Arguments of scalar functions that must be literals within limits.

A large number of digits, characters or repetitions would make Spark write values that fill the memory, some of them
while it plans. A format decides the type or the length of the result.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from service.sql.expressions.aggregate_parameters import MAX_PERCENTAGES, MAX_SKETCH_SIZE, MIN_SKETCH_SIZE
from service.sql.expressions.nodes import Boolean, Call, Expression, Interval, Negation, Null, Number, String
from service.sql.types.data_types import MAX_PRECISION, DataType, TypeName
from service.sql.types.document_functions import DOCUMENT_GROUPS
from service.sql.types.function_results import of_number_format
from service.sql.types.functions import MAX_PADDED_LENGTH, digits_are_bounded, padding_is_bounded
from service.sql.types.signatures import Arguments, Types, literal_integer

MAX_FORMAT_LENGTH = 100
"""The maximum number of characters of a format of numbers, and of a width or precision in a format of strings."""

_SPECIFIER = re.compile(r"%(?:%|n|(?:\d+\$)?[-#+ 0,(<]*(?P<width>\d+)?(?:\.(?P<precision>\d+))?[a-zA-Z]{1,2})")


@dataclass(frozen=True)
class Literal:
    """What the argument at `place` must be: `is_valid` decides, the sentence `text` says it."""

    place: int
    text: str
    is_valid: Callable[[Expression], bool]


def _length(node: Expression) -> bool:
    length = literal_integer(node)
    return length is not None and length <= MAX_PADDED_LENGTH


def _digits_or_format(node: Expression) -> bool:
    digits = literal_integer(node)
    if digits is not None:
        return digits <= MAX_PRECISION
    return isinstance(node, String) and len(node.value) <= MAX_FORMAT_LENGTH


def _number_format(node: Expression) -> bool:
    return isinstance(node, String) and of_number_format(node.value) is not None


def _positive(node: Expression) -> bool:
    place = literal_integer(node)
    return place is not None and place > 0


def _character(node: Expression) -> bool:
    return isinstance(node, String) and len(node.value) == 1


def _length_of_time(node: Expression) -> bool:
    return isinstance(node, Interval)


def _format(node: Expression) -> bool:
    return isinstance(node, String) and len(node.value) <= MAX_FORMAT_LENGTH


def _printf_format(node: Expression) -> bool:
    return isinstance(node, String) and widths_in(node.value) is not None


def widths_in(format_: str) -> int | None:
    """Returns the sum of the widths and precisions in a format of `format_string`; None if one is not supported.

    >>> widths_in("%5.2f%%"), widths_in("%999999999d")
    (7, None)
    """
    total, at = 0, 0
    while (start := format_.find("%", at)) >= 0:
        found = _SPECIFIER.match(format_, start)
        if found is None:
            return None
        for number in (found["width"], found["precision"]):
            if number is not None and (len(number) > 3 or int(number) > MAX_FORMAT_LENGTH):
                return None
            total += int(number or 0)
        at = found.end()
    return total


def _text(node: Expression) -> bool:
    return isinstance(node, String)


def _size(node: Expression) -> bool:
    size = literal_integer(node)
    return size is not None and MIN_SKETCH_SIZE <= size <= MAX_SKETCH_SIZE


def _truth(node: Expression) -> bool:
    return isinstance(node, Boolean)


def _number(node: Expression) -> bool:
    return isinstance(node.operand if isinstance(node, Negation) else node, Number)


def _numbers(node: Expression) -> bool:
    if isinstance(node, Call) and node.name == "array":
        return 1 <= len(node.arguments) <= MAX_PERCENTAGES and all(map(_number, node.arguments))
    return _number(node)


def _share(node: Expression) -> bool:
    return isinstance(node, Number) and float(node.text) <= 1


def _shares(node: Expression) -> bool:
    return _numbers(node) and all(map(_share, node.arguments if isinstance(node, Call) else (node,)))


_LENGTH = f"an integer literal of at most {MAX_PADDED_LENGTH}"
_FORMAT = f"a string literal of at most {MAX_FORMAT_LENGTH} characters"
_NUMBER_FORMAT = "a string literal such as '999,990.00'"
_DIGITS = f"an integer literal of at most {MAX_PRECISION}, or {_FORMAT}"
_PRINTF_FORMAT = f"a string literal with widths and precisions of at most {MAX_FORMAT_LENGTH}, such as '%5.2f'"
_LITERALS: dict[str, tuple[Literal, ...]] = {
    "repeat": (Literal(1, f"The number of repetitions of repeat must be {_LENGTH}.", _length),),
    "space": (Literal(0, f"The length of space must be {_LENGTH}.", _length),),
    "format_number": (Literal(1, f"The digits of format_number must be {_DIGITS}.", _digits_or_format),),
    "mask": tuple(
        Literal(place, "The replacements of mask must be string literals of one character, or NULL.", _character)
        for place in range(1, 5)
    ),
    "regexp_replace": (Literal(3, "The position of regexp_replace must be an integer literal from 1.", _positive),),
    **{
        name: (Literal(1, f"The path of {name} must be a string literal, such as 'a/b'.", _text),)
        for name in DOCUMENT_GROUPS["XML and CSV"]
        if name.startswith("xpath")
    },
    "theta_union": (
        Literal(
            2,
            f"The size of theta_union must be an integer literal from {MIN_SKETCH_SIZE} to {MAX_SKETCH_SIZE}, the "
            "base-2 logarithm of its entries.",
            _size,
        ),
    ),
    "hll_union": (Literal(2, "The third argument of hll_union must be TRUE or FALSE.", _truth),),
    **{
        f"kll_sketch_get_{part}_{type_}": (Literal(1, f"The {noun} must be {text}, or an array of them.", is_valid),)
        for part, noun, text, is_valid in (
            ("quantile", "rank of a quantile", "a number literal from 0 to 1", _shares),
            ("rank", "value of a rank", "a number literal", _numbers),
        )
        for type_ in ("bigint", "float", "double")
    },
    "time_bucket": (Literal(0, "time_bucket begins with an interval, such as INTERVAL '15' MINUTE.", _length_of_time),),
    **{
        name: (Literal(1, f"The format of {name} must be {_NUMBER_FORMAT}.", _number_format),)
        for name in ("to_number", "try_to_number")
    },
    **{name: (Literal(1, f"The format of {name} must be {_FORMAT}.", _format),) for name in ("to_char", "to_varchar")},
    **{
        name: (Literal(0, f"The format of {name} must be {_PRINTF_FORMAT}.", _printf_format),)
        for name in ("format_string", "printf")
    },
}
_TEXTS_OF_BYTES = frozenset({"base64", "hex", "utf-8"})


def escape_fault(operator: str, pattern: Expression, escape: str | None) -> str | None:
    """Returns what is wrong with the escapes in a pattern of LIKE or ILIKE that is a literal; None if nothing is: Spark
    fails for each row if a character other than `%`, `_` and the escape itself follows an escape.

    >>> escape_fault("LIKE", String("50!%"), "!")
    >>> escape_fault("LIKE", String("a!-"), "!")
    'In the pattern of LIKE, the escape ! stands before -. Write it before %, _ or !: !! is the character itself.'
    """
    if operator == "RLIKE" or not isinstance(pattern, String):
        return None
    sign = escape or "\\"
    characters = iter(pattern.value)
    for character in characters:
        if character != sign:
            continue
        after = next(characters, None)
        if after not in {"%", "_", sign}:
            where = f"before {after}" if after is not None else "at the end"
            shown = sign * 2 if sign != "\\" else sign * 4
            return (
                f"In the pattern of {operator}, the escape {sign} stands {where}. Write it before %, _ or {sign}: "
                f"{shown} is the character itself."
            )
    return None


def refused_literal(name: str, types: Types, arguments: Arguments) -> str | None:
    """Returns a sentence that says which literal a call of the function `name` needs; None if nothing is wrong."""
    if not padding_is_bounded(name, arguments):
        return f"The length of {name} must be an integer literal of at most {MAX_PADDED_LENGTH}."
    if not digits_are_bounded(name, arguments):
        return f"The digits of {name} must be an integer literal from -{MAX_PRECISION} to {MAX_PRECISION}."
    for literal in _LITERALS.get(name, ()):
        given = arguments[literal.place] if literal.place < len(arguments) else Null()
        if not isinstance(given, Null) and not literal.is_valid(given):
            return literal.text
    return _refused_format(name, types[0], arguments[1]) if name in {"to_char", "to_varchar"} else None


def _refused_format(name: str, type_: DataType | None, format_: Expression) -> str | None:
    if type_ is None or not isinstance(format_, String):
        return None
    if type_.name is TypeName.BINARY and format_.value.lower() not in _TEXTS_OF_BYTES:
        return f"The format of {name} for BINARY must be 'base64', 'hex' or 'utf-8'."
    if (type_.is_numeric or type_.name is TypeName.STRING) and of_number_format(format_.value) is None:
        return f"The format of {name} for numbers must be {_NUMBER_FORMAT}."
    return None
