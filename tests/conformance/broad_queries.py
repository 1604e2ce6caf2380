"""What the settings are tried on: queries over the tables of `nasty_tables`, in groups of what they are about.

Each gives the same rows whatever order its input has: extremes and counts of everything, sums of what does not
overflow, LIMIT only behind a total order.
"""

from __future__ import annotations

from tests.sql.case_files import texts_of

GROUPS = {
    name: texts_of(f"broad/{name.replace(' ', '_')}")
    for name in ("distinct", "plain aggregates", "eager", "rows of joins", "whole queries", "nested", "overflows")
}
EAGER, WHOLE_QUERIES, OVERFLOWS = (GROUPS[name] for name in ("eager", "whole queries", "overflows"))
QUERIES = [text for texts in GROUPS.values() for text in texts]
