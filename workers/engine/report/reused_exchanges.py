"""Says how Spark computes subqueries that are used several times and that the plan does not share.

Each use is compiled and planned by itself. Spark computes equal exchanges once (`ReusedExchange`). Whether those of two
uses are equal depends on the conditions, IS NOT NULL for join keys, and columns that Spark moves into each use, so it
is read from Spark's physical plan: the scans below a reused exchange are not in its text.
"""

from __future__ import annotations

from workers.engine.plan.repeated_subqueries import RepeatedSubquery


def use_of(subquery: RepeatedSubquery, physical: str, in_values: frozenset[str] = frozenset()) -> str:
    """Returns a sentence that says how Spark computes the subquery, by the text of a physical plan with reused
    exchanges. `in_values` are the aliases of scans in subqueries that are values, whose plans the text does not show.
    """
    names = f"{', '.join(subquery.names[:-1])} and {subquery.names[-1]}"
    read = [[scan for scan in scans if f" AS {scan}." in physical] for scans in subquery.scans]
    counts = [len(each) for each in read]
    subject = f"{names} are {len(counts)} uses of one subquery"
    if any(not in_values.isdisjoint(scans) for scans in subquery.scans):
        return f"{subject}, some of which are values that are computed before the query. Equal exchanges are reused."
    computed = sum(1 for count in counts if count)
    if not computed:
        return f"{subject}, which Spark does not compute: it knows that there are no rows."
    if computed == 1:
        return f"{subject}, which is computed once: its exchange is reused."
    if computed < len(counts):
        return f"{subject}, which is computed {computed} times; the other uses reuse an exchange."
    why = "Spark applies different conditions or columns in the uses, or uses no exchange in them"
    if min(counts) < max(counts):
        return f"{subject}, which is computed each time, because {why}. Exchanges of some of its tables are reused."
    return f"{subject}, which is computed each time, because {why}."
