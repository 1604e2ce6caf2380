"""Finds SQL and structured queries that only workers of version 12 or 13 of the job format support.

SQL is not parsed here, so the answers for it are upper bounds. A false positive only means that the job waits for a
newer worker.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from .query import JoinKind, Query, UnionRef, ValuesRef, queries_in, sources_in

_WORD = re.compile(r"\w+")
_NEW_WORDS = frozenset({"offset", "fetch", "values", "natural", "pivot", "unpivot", "recursive", "exists"})
"""EXISTS may have no equality with the outer query."""
_DESCRIBES = frozenset({"desc", "describe"})
_WINDOW_CLAUSES = frozenset({"partition", "order", "rows", "range"})
_DESCRIBE = re.compile(r"\A\s*desc(?:ribe)?\b|\A\s*(?:--|/\*).*?\bdesc", re.IGNORECASE | re.DOTALL)
_CHANGED_WINDOW = re.compile(r"\(\s*(?!partition\b|order\b)\w+\s+(?:partition|order|rows|range)\b", re.IGNORECASE)
"""A named window with more clauses."""
_UNION_ALL = re.compile(r"\bunion\s+all\b", re.IGNORECASE)
_FROM_OF_CALL = re.compile(r"(?:\(\s*\w+|\bdistinct)\s+from\b")
"""FROM of EXTRACT and similar functions, or of IS DISTINCT FROM, in lower case."""
_FROM = re.compile(r"(\(\s*\w+\s+|\bdistinct\s+)?\bfrom\b", re.IGNORECASE)
"""FROM of a query, or, with the group, of EXTRACT and similar functions, or of IS DISTINCT FROM."""
_LIMIT_AND_OFFSET = re.compile(r"\blimit\s+[^\s(),]+\s*,", re.IGNORECASE)
_STAR = re.compile(r"(?:\bselect(?:\s+(?:distinct|all))?|,|\.)\s*\*", re.IGNORECASE)
_SEVERAL_TABLES = re.compile(r"\bjoin\b|\bfrom\s+[^\s(),]+(?:\s+[^\s(),]+){0,2}\s*,", re.IGNORECASE)
_DERIVED_AND_OTHERS = re.compile(r"\)\s*+(?:\w++(?:\s++\w++)?+)?+\s*+,")
"""A derived table and a comma, after FROM."""
_LISTS = re.compile(r"\bfrom\b|(?=\bselect\b)", re.IGNORECASE)
"""Where the columns of SELECT begin and end."""
_CROSS_JOIN = re.compile(r"\bcross\s+join\b", re.IGNORECASE)
_CLAUSE = re.compile(
    r"\b(?:(on)|join|where|group|having|order|limit|window|qualify|union|intersect|except|minus)\b", re.IGNORECASE
)
"""The beginning of a clause, with a group for ON."""
_EQUALITY = re.compile(r"\b(\w+)`?\.`?\w+`?\s*=\s*`?(?!\1\b)\w+`?\.`?\w+")
"""An equality of columns of two tables."""
_IN = re.compile(r"\bin\s*\(\s*select\b", re.IGNORECASE)
"""NOT IN may have no equality with the outer query."""


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
    words = words_of(sql)
    found = frozenset(words)
    return (
        not found.isdisjoint(_NEW_WORDS)
        or (not found.isdisjoint(_DESCRIBES) and _DESCRIBE.search(sql) is not None)
        or (not found.isdisjoint(_WINDOW_CLAUSES) and _CHANGED_WINDOW.search(sql) is not None)
        or ("limit" in found and _LIMIT_AND_OFFSET.search(sql) is not None)
        # The only ALL that earlier versions know is that of UNION ALL.
        or ("all" in found and words.count("all") > _count(_UNION_ALL, sql))
        or _may_repeat_names(sql)
        or ("not" in found and _IN.search(sql) is not None)
        or words.count("select") > words.count("from") - _count(_FROM_OF_CALL, folded(sql))
        or (not found.isdisjoint({"join", "on"}) and _may_join_without_equality(sql, words))
    )


def folded(sql: str) -> str:
    """Returns SQL in lower case, with each letter that is a keyword's in upper case as that letter."""
    return sql.lower() if sql.isascii() else sql.upper().lower()


def words_of(sql: str) -> list[str]:
    """Returns the words of SQL in lower case: names, keywords and numbers, also those in strings and comments."""
    return _WORD.findall(folded(sql))


def _count(pattern: re.Pattern[str], sql: str) -> int:
    return sum(1 for _ in pattern.finditer(sql))


def _may_repeat_names(sql: str) -> bool:
    """Whether the columns of a star, or of several, may have equal names."""
    if "*" not in sql or _STAR.search(sql) is None:
        return False
    from_ = _FROM.search(sql)
    return (
        _SEVERAL_TABLES.search(sql) is not None
        or (from_ is not None and _DERIVED_AND_OTHERS.search(sql, from_.end()) is not None)
        or any(_count(_STAR, part) > 1 for part in _LISTS.split(sql))
    )


def _may_join_without_equality(sql: str, words: list[str]) -> bool:
    conditions = list(_conditions(sql))
    with_condition = len(conditions) + words.count("using")
    with_condition += _count(_CROSS_JOIN, sql) if "cross" in words else 0
    return words.count("join") > with_condition or not all(map(_EQUALITY.search, conditions))


def _conditions(sql: str) -> Iterator[str]:
    """Yields the text of each ON, which ends where another clause begins."""
    start: int | None = None
    for found in _CLAUSE.finditer(sql):
        if start is None and found[1] is not None:
            start = found.end()
        elif start is not None and found[1] is None:
            yield sql[start : found.start()]
            start = None
    if start is not None:
        yield sql[start:]


def _is_new(query: Query) -> bool:
    return (
        query.offset > 0
        or any(not join.on and join.kind is not JoinKind.CROSS for join in query.joins)
        or any(
            isinstance(source, ValuesRef) or (isinstance(source, UnionRef) and source.kind != "union_all")
            for source in sources_in(query)
        )
    )
