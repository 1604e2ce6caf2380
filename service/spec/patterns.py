"""Patterns that texts are matched with: written out in the query, so that they can be looked at before it runs."""

from __future__ import annotations

from service.spec.dialect import Text
from service.spec.regular_expressions import MAX_LENGTH, PatternError, check_regular_expression
from service.spec.tree import Call, Expression, Like, Null, String, position_of, walk

_OF_PATTERNS = frozenset({"regexp_replace", "regexp_extract"})
"""Functions whose second argument is a regular expression."""

_MAX_WILDCARDS = 12


def check_patterns(tree: Expression, source: Text) -> None:
    """Looks at every pattern in the resolved `tree`.

    Raises SpecError `unsupported_construct` for a regular expression that is no string literal, and for a pattern that
    could take too long over some texts. A LIKE may have its pattern from a column.
    """
    for node in walk(tree):
        if isinstance(node, Like) and node.operator != "RLIKE":
            _check_like(node, source)
        elif isinstance(node, Like):
            _check_regular_expression(node.pattern, "RLIKE", position_of(node), source)
        elif isinstance(node, Call) and node.name in _OF_PATTERNS:
            _check_regular_expression(node.arguments[1], node.name, node.at, source)


def _check_regular_expression(pattern: Expression, what: str, at: int | None, source: Text) -> None:
    if isinstance(pattern, Null):
        return
    if not isinstance(pattern, String):
        hint = "Write the pattern as a string literal: it is looked at before the job runs."
        raise source.unsupported(f"{what} with a pattern that is computed", at=at, hint=hint)
    try:
        check_regular_expression(pattern.value)
    except PatternError as error:
        raise source.error("unsupported_construct", f"The pattern of {what} {error}.", at=at) from None


def _check_like(node: Like, source: Text) -> None:
    if not isinstance(node.pattern, String):
        return
    pattern = node.pattern.value
    if len(pattern) > MAX_LENGTH or pattern.count("%") > _MAX_WILDCARDS:
        detail = f"A pattern of {node.operator} has at most {MAX_LENGTH} characters and {_MAX_WILDCARDS} signs %."
        raise source.error("unsupported_construct", detail, at=position_of(node))
