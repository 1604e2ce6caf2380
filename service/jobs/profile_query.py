"""The query whose plan tells of a table's keys: it groups by each of them.

What a worker knows of those keys is what the profile tells.
"""

from __future__ import annotations

import re

from service.spec.errors import Issue
from service.spec.job import JobSpec
from service.spec.profiles import ProfileRequest

_TABLE = "t"
_KEY = re.compile(r"\bk(\d+)\.")
_IN_QUERY = re.compile(r"^/query(?:/source/queries/(?P<place>\d+))?(?:/group_by/(?P<column>\d+).*|.*)$")


def job_of(request: ProfileRequest) -> JobSpec:
    """The job whose plan tells of the keys: a branch of a UNION ALL for each, under an alias of its own."""
    branches = [
        {
            "source": {"kind": "table", "table": _TABLE, "alias": alias(place)},
            "group_by": [
                {"expression": f"{alias(place)}.{_quoted(column)}", "name": f"c{at}"}
                for at, column in enumerate(columns)
            ],
            "aggregates": [{"function": "COUNT", "arguments": [], "name": "n"}],
            "select": [{"expression": "n", "name": "n"}],
        }
        for place, columns in enumerate(request.keys)
    ]
    query = branches[0]
    if len(branches) > 1:
        union = {"kind": "union_all", "queries": branches, "alias": "u"}
        query = {"source": union, "select": [{"expression": "u.n", "name": "n"}]}
    return JobSpec.model_validate({"name": "profile", "tables": {_TABLE: request.table}, "query": query})


def as_posted(issue: Issue) -> Issue:
    """An issue of the query that was made of the request, told of the request."""
    pointer = issue.pointer or ""
    if not pointer.startswith("/query"):
        return issue.model_copy(update={"pointer": pointer.replace(f"/tables/{_TABLE}", "/table", 1) or None})
    found = _IN_QUERY.match(pointer)
    place = found["place"] if found and found["place"] else "0"
    return issue.model_copy(
        update={
            "pointer": f"/keys/{place}" + (f"/{found['column']}" if found and found["column"] else ""),
            # The names of tables there are the query's own.
            "detail": _KEY.sub("", issue.detail),
            "suggestions": tuple(_KEY.sub("", one) for one in issue.suggestions),
            "line": None,
            "column": None,
        }
    )


def alias(place: int) -> str:
    """What the table is called where it is grouped by the key at this place."""
    return f"k{place}"


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
