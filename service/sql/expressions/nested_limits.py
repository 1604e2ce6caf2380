"""Limits of the bytes of nested values, for `service.sql.expressions.limits`.

An element counts as ELEMENT_BYTES at least, so the bytes also bound the number of elements that a lambda is applied to.
"""

from __future__ import annotations

from collections.abc import Callable

from service.sql.expressions.nodes import Call, Column, Expression, Lambda, with_variables
from service.sql.types.nested_functions import elements_created

ELEMENT_BYTES = 64
COLUMN_ELEMENTS = 4
"""The elements of an array that is computed from columns count as those of a column's."""
Longest = Callable[[Expression], int]


def bytes_of_call(call: Call, parts: list[int], longest: Longest) -> int | None:
    """Returns the maximum bytes of the result of a function of nested values; None for another function. `parts` are
    those of the arguments, `longest` returns those of any tree.
    """
    match call.name:
        case "array" | "map" | "named_struct" | "arrays_zip" | "array_append" | "array_prepend" | "array_insert":
            return sum(max(part, ELEMENT_BYTES) for part in parts)
        case "array_union" | "map_concat" | "map_from_arrays":
            return sum(parts)
        case "sequence":
            return (elements_created(call.name, call.arguments) or COLUMN_ELEMENTS) * ELEMENT_BYTES
        case "array_repeat":
            return (elements_created(call.name, call.arguments) or 1) * max(parts[0], ELEMENT_BYTES)
        case "split" | "str_to_map" | "json_object_keys" | "from_json":
            # Each character may become an element.
            return parts[0] * ELEMENT_BYTES
        case "regexp_extract_all":
            # So may the place before each character, and the end.
            return (2 * parts[0] + 1) * ELEMENT_BYTES
        case "array_join":
            return parts[0] * (1 + max(parts[1:]))
        case "to_json":
            # A control character becomes \uXXXX.
            return parts[0] * 6
        case "transform" | "transform_keys" | "transform_values":
            return _elements(parts[0]) * max(parts[1], ELEMENT_BYTES) + parts[0] * (call.name != "transform")
        case "zip_with" | "map_zip_with":
            return _elements(parts[0] + parts[1]) * max(parts[2], ELEMENT_BYTES) + parts[0]
        case "aggregate" | "reduce":
            return _folded(call, parts, longest)
        case _:
            return None


def _elements(bytes_: int) -> int:
    return max(bytes_ // ELEMENT_BYTES, 1)


def _folded(call: Call, parts: list[int], longest: Longest) -> int:
    """Returns the bytes of the last value of a fold: each step may add bytes, but not multiply them."""
    step = call.arguments[2]
    if not isinstance(step, Lambda):
        return max(parts)
    state = step.parameters[0]

    def after(bytes_: int) -> int:
        return longest(with_variables(step.body, {state: Column(state, None, longest=bytes_)}))

    start = max(parts[1], ELEMENT_BYTES)
    once, twice = after(start), after(2 * start)
    elements = _elements(parts[0])
    if twice - once > start:
        # The value grows exponentially with the number of elements.
        return 1 << 40
    total = start + elements * max(once - start, 0)
    return max(total, *parts)
