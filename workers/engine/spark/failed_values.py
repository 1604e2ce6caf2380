"""Describes an expression that failed at run time: which one, where it stands, why, and what to write instead."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from service.contract.problems import Issue
from service.contract.query import AggregateFunction
from service.sql.expressions.nodes import Aggregate, Arithmetic, Call, Cast, Element, Expression
from service.sql.failed_expressions import Occurrence, QueryExpressions

CODES = frozenset(
    {
        "arithmetic_overflow",
        "divide_by_zero",
        "invalid_cast",
        "invalid_index",
        "invalid_map_key",
        "invalid_function_argument",
    }
)
NO_XML = "INVALID_XML_DOCUMENT"
"""Our own condition for an error of Spark that has none: an `xpath` function got a text that is no XML."""

_CAST = re.compile(r"The value (.+?) of the type \"([^\"]+)\" cannot be cast to \"([^\"]+)\"", re.DOTALL)
_PARSED = re.compile(r"Text ('.*?') could not be parsed", re.DOTALL)
_INDEX = re.compile(r"The index (-?\d+) is out of bounds\. The array has (\d+) elements")
_KEY = re.compile(r"Duplicate map key (.+?) was found", re.DOTALL)
_NAME = re.compile(r"`(\w+)`")
_FUNCTIONS = {
    "CANNOT_DECODE_URL": ("url_decode",),
    "INVALID_FORMAT": ("to_number", "to_char", "to_varchar"),
    "INVALID_URL": ("parse_url",),
}
"""The functions that fail with a condition whose message does not name them."""
_TRIED = frozenset(
    {"aes_decrypt", "make_interval", "make_timestamp", "parse_url", "to_binary", "to_number", "url_decode"}
)
"""Functions `f` for which `try_f` gives NULL instead of an error."""
_MAKE_MAPS = ("map", "map_from_arrays", "map_from_entries", "map_concat", "transform_keys", "str_to_map")
_DATE_PARTS = "DATETIME_FIELD_OUT_OF_BOUNDS"
_CANNOT_PARSE = "CANNOT_PARSE_TIMESTAMP"
_OF_OPERATORS = frozenset({"ARITHMETIC_OVERFLOW", "BINARY_ARITHMETIC_OVERFLOW"})
_MOST_PLACES = 5
_MOST_SHOWN = 120

_GENERAL = {
    "divide_by_zero": "Divide by NULLIF(y, 0), which gives NULL for these rows.",
    "invalid_cast": "Write TRY_CAST(x AS type), which gives NULL for these values.",
    "arithmetic_overflow": "Cast to a wider type before it, such as DECIMAL(38, 0) or DOUBLE.",
    "invalid_index": "Write get(a, i), which counts from 0 and gives NULL for such rows.",
    "invalid_map_key": "Leave out such keys, or give NULL for such rows with CASE.",
    "invalid_function_argument": "Leave such rows out with WHERE, or give NULL for them with CASE.",
}
_OF_FUNCTIONS = {
    "CANNOT_DECODE_URL": "A text is no encoded part of a URL",
    "HLL_UNION_DIFFERENT_LG_K": "Two sketches have different precisions",
    "INVALID_FORMAT": "A value does not match the format",
    "INVALID_REGEXP_REPLACE": "A pattern or replacement is not valid",
    "INVALID_TIMEZONE": "A text is no time zone",
    "INVALID_URL": "A text is no URL",
    "INVALID_UTF8_STRING": "Bytes are no UTF-8 text",
    "NEGATIVE_VALUES_IN_FREQUENCY_EXPRESSION": "A frequency is negative",
    NO_XML: "A text is no XML document",
    "VECTOR_DIMENSION_MISMATCH": "Two vectors have different lengths",
}
"""What is wrong with the value of a function, by condition."""
_WIDEST = "DECIMAL(38, 0)"


@dataclass(frozen=True)
class Failure:
    """A value for which an expression failed. `fragment` is the expression in the text that Spark got; empty if Spark
    does not name it. `message` is Spark's.
    """

    code: str
    condition: str
    fragment: str
    message: str


def describe(failure: Failure, expressions: QueryExpressions | None) -> tuple[str, tuple[Issue, ...]]:
    """Returns a sentence for the client, and an issue for each place of the expression; none if it is not known."""
    found = _found(failure, expressions) if expressions is not None else ()
    if not found:
        shown = f" in {_short(failure.fragment.replace('`', ''))}" if failure.fragment else ""
        return f"{_what(failure)}{shown}. {_GENERAL[failure.code]}", ()
    if len({one.text for one in found}) == 1:
        first = found[0]
        places = "" if len(found) == 1 else f" The query has it in {len(found)} places."
        detail = f"{_what(failure)} in {_short(first.text)}.{places} {_remedy(failure, first)}"
        return detail, tuple(_issue(failure, one, detail) for one in found[:_MOST_PLACES])
    detail = f"{_what(failure)} in one of the expressions listed. {_GENERAL[failure.code]}"
    issues = (
        _issue(failure, one, f"It may be {_short(one.text)}. {_remedy(failure, one)}") for one in found[:_MOST_PLACES]
    )
    return detail, tuple(issues)


def _issue(failure: Failure, one: Occurrence, detail: str) -> Issue:
    return Issue(code=failure.code, detail=detail, pointer=one.pointer, line=one.line, column=one.column)


def _found(failure: Failure, expressions: QueryExpressions) -> Sequence[Occurrence]:
    if failure.fragment:
        is_of_operator = failure.code == "divide_by_zero" or failure.condition in _OF_OPERATORS
        return expressions.named(failure.fragment, in_casts=is_of_operator)
    cast = _CAST.search(failure.message)
    if cast is not None:
        return expressions.casts_to(cast[3])
    if failure.condition.startswith(_CANNOT_PARSE):
        return expressions.calls_of("to_date", "to_timestamp")
    if failure.condition.startswith(_DATE_PARTS):
        return expressions.calls_of("make_date")
    if failure.condition == NO_XML:
        return expressions.calls_that_begin("xpath")
    if failure.code == "invalid_function_argument":
        named = (name.lower() for name in _NAME.findall(failure.message))
        return expressions.calls_of(*_FUNCTIONS.get(failure.condition.partition(".")[0], named))
    if failure.code == "invalid_map_key":
        return expressions.calls_of(*_MAKE_MAPS)
    return expressions.calls_of("sum", "avg") if failure.code == "arithmetic_overflow" else ()


def _what(failure: Failure) -> str:
    cast = _CAST.search(failure.message)
    if cast is not None:
        value = _short(cast[1]) if cast[2] == "STRING" else re.sub(r"(?<=\d)(?:L|S|Y|D|BD)$", "", _short(cast[1]))
        is_number = failure.code == "arithmetic_overflow"
        return f"The {cast[2]} {value} {'does not fit into' if is_number else 'cannot be cast to'} {cast[3]}"
    parsed = _PARSED.search(failure.message)
    if parsed is not None:
        return f"The text {_short(parsed[1])} does not match the pattern"
    if failure.condition.startswith(_DATE_PARTS):
        return "A year, month or day is out of range"
    index, key = _INDEX.search(failure.message), _KEY.search(failure.message)
    if index is not None:
        return f"There is no element {index[1]} among {index[2]}"
    if key is not None:
        return f"The key {_short(key[1])} is twice in a map"
    if failure.code == "invalid_function_argument":
        return _of_function(failure.condition)
    return {
        "invalid_index": "The first element has the index 1, not 0,",
        "invalid_map_key": "A key of a map is NULL",
        "divide_by_zero": "There is a division by zero",
        "invalid_cast": "A value cannot be converted",
        "arithmetic_overflow": "A number does not fit into its type",
    }[failure.code]


def _of_function(condition: str) -> str:
    known = _OF_FUNCTIONS.get(condition.partition(".")[0])
    if known is not None:
        return known
    return "Bytes are no sketch of the right kind" if "SKETCH_BUFFER" in condition else "A value is not valid"


def _remedy(failure: Failure, one: Occurrence) -> str:
    """Returns the way out with the client's own expression; each is SQL that the service accepts."""
    suggestion = _suggestion(failure, one.tree, one.operands)
    return _GENERAL[failure.code] if suggestion is None else suggestion


def _suggestion(failure: Failure, tree: Expression, operands: tuple[str, ...]) -> str | None:
    if not operands or max(map(len, operands)) > _MOST_SHOWN:
        return None
    target = _CAST.search(failure.message)
    match tree:
        case Cast(_, type_):
            return f"Write TRY_CAST({_bare(operands[0])} AS {type_}), which gives NULL for such values."
        case Arithmetic(("/" | "%" | "DIV") as operator) if failure.code == "divide_by_zero":
            return f"Write {operands[0]} {operator} NULLIF({_bare(operands[1])}, 0), which gives NULL for such rows."
        case Arithmetic(operator) if failure.code == "arithmetic_overflow":
            return f"Write CAST({_bare(operands[0])} AS {_WIDEST}) {operator} {operands[1]}, or cast to DOUBLE."
        case Aggregate(AggregateFunction.SUM | AggregateFunction.AVG as function, _, distinct):
            inner = f"{'DISTINCT ' if distinct else ''}"
            if failure.code == "arithmetic_overflow":
                return f"Write {function.value}({inner}CAST({operands[0]} AS {_WIDEST})), or cast to DOUBLE."
            if target is not None:
                return (
                    f"Write {function.value}({inner}TRY_CAST({operands[0]} AS {target[3]})), which skips other values."
                )
        case Call("to_date" | "date") if len(operands) == 1:
            return f"Write TRY_CAST({operands[0]} AS DATE), which gives NULL for such values."
        case Call("to_timestamp" | "timestamp") if len(operands) == 1:
            return f"Write TRY_CAST({operands[0]} AS TIMESTAMP), which gives NULL for such values."
        case Call("to_date" | "to_timestamp"):
            return "Correct the pattern, or leave such rows out with WHERE."
        case Element() if len(operands) == 2:
            return f"Write get({_bare(operands[0])}, {_bare(operands[1])}), which gives NULL for such rows."
        case Call("element_at") if len(operands) == 2:
            of, index = operands
            found = f"CASE WHEN abs({index}) BETWEEN 1 AND size({of}) THEN element_at({of}, {index}) END"
            return f"Write {found}, which gives NULL for such rows."
        case Call("map") if len(operands) == 2 and failure.condition == "NULL_MAP_KEY":
            key, value = operands
            return f"Write CASE WHEN {key} IS NOT NULL THEN map({key}, {value}) END, which gives NULL for such rows."
        case Call("elt"):
            return "Use CASE with the values that the index may have; it gives NULL for others."
        case Call(name) if failure.code == "invalid_function_argument" and name in _TRIED:
            return f"Write try_{name}({', '.join(operands)}), which gives NULL for such values."
        case Call("make_date"):
            return "Leave such rows out with WHERE, or give NULL for them with CASE."
        case _ if target is not None and failure.code == "invalid_cast":
            return f"Write TRY_CAST(x AS {target[3]}) for the text in it, which gives NULL for such values."
    return None


def _bare(operand: str) -> str:
    """Returns the operand without parentheses around the whole of it."""
    if not (operand.startswith("(") and operand.endswith(")")):
        return operand
    depth = 0
    for index, character in enumerate(operand):
        depth += (character == "(") - (character == ")")
        if depth == 0 and index < len(operand) - 1:
            return operand
    return operand[1:-1].strip()


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _MOST_SHOWN else f"{text[: _MOST_SHOWN - 1]}…"
