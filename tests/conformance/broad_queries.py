"""Queries over the tables of `nasty_tables`, in groups by feature, for tests of all settings.

Their results do not depend on the order of the input: they have extremes and counts of everything, sums without
overflow, and LIMIT only after a total order.
"""

from __future__ import annotations

from tests.sql.case_files import texts_of

GROUPS = {
    name: texts_of(f"broad/{name.replace(' ', '_')}")
    for name in (
        "distinct",
        "plain aggregates",
        "eager",
        "rows of joins",
        "whole queries",
        "windows",
        "nested",
        "overflows",
    )
}
EAGER, WHOLE_QUERIES, OVERFLOWS = (GROUPS[name] for name in ("eager", "whole queries", "overflows"))
QUERIES = [text for texts in GROUPS.values() for text in texts]
