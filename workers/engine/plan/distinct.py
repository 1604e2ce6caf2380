"""Which sets of values an aggregate's DISTINCT calls tell apart."""

from __future__ import annotations

from service.spec.scalar import Scalar
from workers.engine.plan.algebra import is_distinct
from workers.engine.plan.nodes import Aggregate, Call

GROUPING_SETS = "Spark copies the rows for each of the grouping sets: its own plan stays."
"""Why an aggregate with grouping sets is left as it is."""


def distinct_sets(node: Aggregate) -> tuple[tuple[Scalar, ...], ...]:
    """The arguments of the calls for which DISTINCT matters, once for each set of them, in order of appearance.

    COUNT(DISTINCT a) and SUM(DISTINCT a) FILTER (…) share one set, as COUNT(DISTINCT a, b) and COUNT(DISTINCT b, a) do.
    """
    found: dict[frozenset[str], tuple[Scalar, ...]] = {}
    for call in node.calls:
        if is_distinct(call):
            found.setdefault(distinct_set_of(call), call.arguments)
    return tuple(found.values())


def spark_expands(node: Aggregate) -> bool:
    """Whether Spark copies rows (`Expand`) to tell the DISTINCT values apart, and shuffles the copies by group and
    value, however the rows were parted before: for several sets of values, and for any with a FILTER.
    """
    filtered = any(is_distinct(call) and call.filter is not None for call in node.calls)
    return filtered or len(distinct_sets(node)) > 1


def distinct_set_of(call: Call) -> frozenset[str]:
    """What tells the set of a distinct call from others: the texts of its arguments."""
    return frozenset(argument.sql for argument in call.arguments)


def bucket_refusal(value: Scalar) -> str | None:
    """Why `value` cannot be told apart per bucket of its hash, as a sentence; None where equal values hash alike."""
    if value.type is None or not value.type.is_groupable:
        return f"The type of {value} is not one whose equal values are known to have equal hashes."
    if value.type.nests_fractions:
        return f"{value} has fractions inside, of which equal ones (-0.0 and 0.0) may have different hashes."
    return None
