"""Replaces the names that queries in FROM and subqueries get in the plan by what the query has in their place."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from service.contract.problems import SpecError

_OVER = re.compile(r"\$over\d+_*")
"""The column of a call with OVER."""


def with_written_aliases(text: str, written: Mapping[str, str]) -> str:
    """Returns `text` with aliases of the plan replaced by those in the query; `written` has the latter by the former.

    >>> with_written_aliases("a/a.x and a.y", {"a/a": "a"})
    'a.x and a.y'
    """
    text = _OVER.sub("the call with OVER", text)
    if not written:
        return text
    # Only a name with a slash cannot be another word.
    names = (re.escape(name) + ("" if "/" in name else r"(?=\.)") for name in sorted(written, key=len, reverse=True))
    return re.sub(rf"(?<![\w/])(?:{'|'.join(names)})", lambda found: written[found[0]], text)


def without_generated_aliases(text: str, prefix: str) -> str:
    """Returns `text` without the aliases that begin with `prefix`, which no name in the query does.

    >>> without_generated_aliases("derived_1.x and derived_s2.derived_s2_1", "derived")
    'x and a column of the subquery'
    """
    name = re.escape(prefix)
    mismatch = rf"MIN does not take {name}_s\d+\.{name}_s\d+_\d+, which is (.+)\."
    found = re.fullmatch(mismatch, text)
    if found is not None:
        return f"A subquery that is a value cannot return {found[1]}. Select a part of it, such as an element."
    text = re.sub(rf"\b{name}_s\d+\.{name}_s\d+_\d+\b", "a column of the subquery", text)
    text = re.sub(rf"\b{name}_s\d+\.(\w+)", r"\1 of the subquery", text)
    text = re.sub(rf"\b{name}_s\d+\b", "the subquery", text)
    return re.sub(rf"\b{name}(?:_\w+)?\.(?=\S)", "", text)


def changed(error: SpecError, change: Callable[[str], str]) -> SpecError:
    """Returns `error` with each detail changed."""
    return SpecError([issue.model_copy(update={"detail": change(issue.detail)}) for issue in error.issues])
