"""Finds SQL and structured queries that only workers of version 12 of the job format support.

SQL is not parsed here, so the answers for it are upper bounds. A false positive only means that the job waits for a
newer worker.
"""

from __future__ import annotations

import re

from .query import Query, queries_in

_WORDS_OF_12 = re.compile(r"\boffset\b|\bfetch\b", re.IGNORECASE)


def is_of_version_12(sql: str | None, query: Query | None) -> bool:
    """Whether workers of version 11 may refuse the query of a job, which is either SQL or a structure."""
    if query is not None:
        return any(each.offset for each, _ in queries_in(query))
    return _WORDS_OF_12.search(sql or "") is not None
