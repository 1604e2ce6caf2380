"""Finds SQL and structured queries that only workers of version 12 or 13 of the job format support.

SQL is not parsed here, so the answers for it are upper bounds. A false positive only means that the job waits for a
newer worker.
"""

from __future__ import annotations

import re

from .query import JoinKind, Query, UnionRef, ValuesRef, queries_in, sources_in

_WORDS = re.compile(r"\b(?:offset|fetch|values|natural|pivot|unpivot|recursive)\b", re.IGNORECASE)
_DESCRIBE = re.compile(r"\A\s*desc(?:ribe)?\b|\A\s*(?:--|/\*).*?\bdesc", re.IGNORECASE | re.DOTALL)
_CHANGED_WINDOW = re.compile(r"\(\s*(?!partition\b|order\b)\w+\s+(?:partition|order|rows|range)\b", re.IGNORECASE)
"""A named window with more clauses."""
_ALL = re.compile(r"\ball\b", re.IGNORECASE)
_UNION_ALL = re.compile(r"\bunion\s+all\b", re.IGNORECASE)
"""The only ALL that earlier versions know."""
_SELECT = re.compile(r"\bselect\b", re.IGNORECASE)
_FROM = re.compile(r"(\(\s*\w+\s+|\bdistinct\s+)?\bfrom\b", re.IGNORECASE)
"""FROM of a query, or, with the group, of EXTRACT and similar functions, or of IS DISTINCT FROM."""
_LIMIT_AND_OFFSET = re.compile(r"\blimit\s+[^\s(),]+\s*,", re.IGNORECASE)
_STAR = re.compile(r"(?:\bselect(?:\s+(?:distinct|all))?|,|\.)\s*\*", re.IGNORECASE)
_SEVERAL_TABLES = re.compile(r"\bjoin\b|\bfrom\s+[^\s(),]+(?:\s+[^\s(),]+){0,2}\s*,", re.IGNORECASE)
_DERIVED_AND_OTHERS = re.compile(r"\)\s*+(?:\w++(?:\s++\w++)?+)?+\s*+,")
"""A derived table and a comma, after FROM."""
_LISTS = re.compile(r"\bfrom\b|(?=\bselect\b)", re.IGNORECASE)
"""Where the columns of SELECT begin and end."""
_JOIN = re.compile(r"\bjoin\b", re.IGNORECASE)
_CROSS_JOIN = re.compile(r"\bcross\s+join\b", re.IGNORECASE)
_ON = re.compile(
    r"\bon\b(.*?)(?=\b(?:join|where|group|having|order|limit|window|qualify|union|intersect|except|minus)\b|\Z)",
    re.IGNORECASE | re.DOTALL,
)
_USING = re.compile(r"\busing\b", re.IGNORECASE)
_EQUALITY = re.compile(r"\b(\w+)`?\.`?\w+`?\s*=\s*`?(?!\1\b)\w+`?\.`?\w+")
"""An equality of columns of two tables."""
_EXISTS = re.compile(r"\bexists\b", re.IGNORECASE)
_NOT = re.compile(r"\bnot\b", re.IGNORECASE)
_IN = re.compile(r"\bin\s*\(\s*select\b", re.IGNORECASE)
"""EXISTS and NOT IN may have no equality with the outer query."""


_NEW_IN_13 = re.compile(r"[&^~]|(?<!\|)\|(?!\|)|<<|>>|\blateral\s*\(|\brecursive\b", re.IGNORECASE)
"""Bitwise operators, LATERAL before a query, and recursive queries."""


def is_of_version_13(sql: str | None, query: Query | None) -> bool:
    """Whether workers of version 12 may refuse the query of a job, which is either SQL or a structure."""
    return _NEW_IN_13.search(sql or "" if query is None else query.model_dump_json()) is not None


def is_of_version_12(sql: str | None, query: Query | None) -> bool:
    """Whether workers of version 11 may refuse the query of a job, which is either SQL or a structure."""
    if query is not None:
        return any(map(_is_new, (each for each, _ in queries_in(query))))
    sql = sql or ""
    words = (_WORDS, _DESCRIBE, _CHANGED_WINDOW, _EXISTS, _LIMIT_AND_OFFSET)
    return (
        any(found.search(sql) is not None for found in words)
        or _count(_ALL, sql) > _count(_UNION_ALL, sql)
        or _may_repeat_names(sql)
        or (_NOT.search(sql) is not None and _IN.search(sql) is not None)
        or _count(_SELECT, sql) > sum(1 for found in _FROM.finditer(sql) if found[1] is None)
        or _may_join_without_equality(sql)
    )


def _count(pattern: re.Pattern[str], sql: str) -> int:
    return sum(1 for _ in pattern.finditer(sql))


def _may_repeat_names(sql: str) -> bool:
    """Whether the columns of a star, or of several, may have equal names."""
    if _STAR.search(sql) is None:
        return False
    from_ = _FROM.search(sql)
    return (
        _SEVERAL_TABLES.search(sql) is not None
        or (from_ is not None and _DERIVED_AND_OTHERS.search(sql, from_.end()) is not None)
        or any(_count(_STAR, part) > 1 for part in _LISTS.split(sql))
    )


def _may_join_without_equality(sql: str) -> bool:
    conditions = [found[1] for found in _ON.finditer(sql)]
    with_condition = len(conditions) + _count(_USING, sql) + _count(_CROSS_JOIN, sql)
    return _count(_JOIN, sql) > with_condition or not all(map(_EQUALITY.search, conditions))


def _is_new(query: Query) -> bool:
    return (
        query.offset > 0
        or any(not join.on and join.kind is not JoinKind.CROSS for join in query.joins)
        or any(
            isinstance(source, ValuesRef) or (isinstance(source, UnionRef) and source.kind != "union_all")
            for source in sources_in(query)
        )
    )
