"""The sentences for values that the models refuse: what to give instead, without the terms of Pydantic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_TEXTS = {
    "model_type": "Give an object.",
    "model_attributes_type": "Give an object.",
    "dict_type": "Give an object.",
    "mapping_type": "Give an object.",
    "list_type": "Give a list.",
    "tuple_type": "Give a list.",
    "set_type": "Give a list.",
    "string_type": "Give a text.",
    "bool_type": "Write true or false.",
    "bool_parsing": "Write true or false.",
    "int_type": "Give a whole number.",
    "int_parsing": "Give a whole number.",
    "int_from_float": "Give a whole number.",
    "int_parsing_size": "The number is too large.",
    "float_type": "Give a number.",
    "float_parsing": "Give a number.",
    "finite_number": "Give a finite number.",
    "datetime_type": "Give a time such as 2026-01-31T12:00:00Z.",
    "datetime_parsing": "Give a time such as 2026-01-31T12:00:00Z.",
    "datetime_from_date_parsing": "Give a time such as 2026-01-31T12:00:00Z.",
    "date_from_datetime_parsing": "Give a date such as 2026-01-31.",
    "date_parsing": "Give a date such as 2026-01-31.",
    "timezone_aware": "Add the time zone, such as Z.",
    "json_invalid": "The value is not JSON.",
    "frozen_instance": "The value cannot be changed.",
}
_FORMATS = {
    "literal_error": "Write {expected}.",
    "enum": "Write {expected}.",
    "greater_than": "Give more than {gt}.",
    "greater_than_equal": "Give at least {ge}.",
    "less_than": "Give less than {lt}.",
    "less_than_equal": "Give at most {le}.",
    "multiple_of": "Give a multiple of {multiple_of}.",
    "union_tag_not_found": "Name its kind in {discriminator}.",
    "union_tag_invalid": "Write {expected_tags} for {discriminator}.",
}
_PATTERNS = {"^[^\\r\\n]$": "Give one character, which is not the end of a line."}
"""By regular expression: what it accepts."""


def text_of(error: Mapping[str, Any]) -> str:
    """Returns the sentence for an error of `ValidationError.errors()`, without the place and the value."""
    kind, context = str(error["type"]), error.get("ctx") or {}
    if kind in _TEXTS:
        return _TEXTS[kind]
    if kind in _FORMATS:
        return _FORMATS[kind].format(**context)
    name = next((part for part in reversed(error["loc"]) if isinstance(part, str) and part != "[key]"), "")
    match kind:
        case "missing" | "missing_argument":
            return f"Add the field '{name}', which is required." if name else "The body is missing."
        case "string_too_short":
            is_empty = context.get("min_length") == 1 and name
            return f"Enter {_with_article(name)}." if is_empty else _at_least(context, "character")
        case "string_too_long":
            return f"Use at most {context['max_length']} characters."
        case "too_short":
            return _at_least(context, "entry" if context.get("min_length") == 1 else "entries")
        case "too_long":
            return f"Give at most {context['max_length']} entries."
        case "string_pattern_mismatch":
            pattern = str(context["pattern"])
            return _PATTERNS.get(pattern, f"Write a text that matches the regular expression {pattern}.")
        case "value_error":
            text = str(error["msg"]).removeprefix("Value error, ")
            return f"{text[:1].upper()}{text[1:]}{'' if text.endswith(('.', '?')) else '.'}"
        case _:
            return str(error["msg"])


def _at_least(context: Mapping[str, Any], counted: str) -> str:
    least = context.get("min_length", 1)
    return f"Give at least {least} {counted}{'s' if counted == 'character' and least != 1 else ''}."


def _with_article(name: str) -> str:
    words = name.replace("_", " ")
    if words in {"sql", "SQL"}:
        return "the SQL"
    return f"an {words}" if words[:1].lower() in "aeio" else f"a {words}"
