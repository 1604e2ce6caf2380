"""How the groups of an aggregate are distributed over the values of some of its keys.

`profile_of` has the groups over all keys, which have a row each. Over some of them, a value with many rows has many
groups, but fewer than rows. The other keys are assumed to be drawn from the same T values in each row. Then a value
with r rows has T * (1 - (1 - 1/T)^r) groups (as in `workers.engine.rules.cost.distinct_in_share`), and T is the
number for which the groups of all values add up to the estimate.
"""

from __future__ import annotations

import math

from workers.engine.plan.nodes import Aggregate, Node, Project, columns_below
from workers.engine.statistics.cardinality import KeyProfile, estimate_rows, profile_of
from workers.engine.statistics.model import Statistics

_STEPS = 60
"""Bisections of the logarithm of T."""


def profile_of_groups(node: Node, columns: tuple[str, ...], statistics: Statistics) -> KeyProfile | None:
    """Returns how the groups of an aggregate, or of projections of one, are distributed over `columns`, some of its
    keys; None for other nodes, and without statistics.
    """
    if isinstance(node, Project):
        below = columns_below(node.items, columns)
        if node.replaces is not None:
            return profile_of_groups(node.replaces, columns, statistics)
        return profile_of_groups(node.input, below, statistics) if below else None
    if not isinstance(node, Aggregate) or node.grouping_sets:
        return None
    keys, groups = columns_below(node.keys, columns), estimate_rows(node, statistics)
    rows = profile_of(node.input, keys, statistics) if keys else None
    return None if rows is None or groups is None else grouped(rows, float(groups))


def grouped(rows: KeyProfile, groups: float) -> KeyProfile:
    """Returns the distribution of `groups` groups whose rows are distributed as `rows`."""
    low, high = 0.0, math.log(max(rows.rows, 1.0)) + 10.0
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if _total(rows, math.exp(middle)) < groups else (low, middle)
    hot = tuple((value, _drawn(count, math.exp(low))) for value, count in rows.hot)
    total = max(groups, sum(count for _, count in hot))
    return KeyProfile(total, min(rows.distinct, total), hot, rows.nulls, rows.hot_at_most)


def _total(rows: KeyProfile, values: float) -> float:
    hot = sum(_drawn(count, values) for _, count in rows.hot)
    return hot + rows.other_values * _drawn(rows.even_rows, values)


def _drawn(rows: float, values: float) -> float:
    """Returns the expected number of different values in `rows` draws from `values`."""
    return -values * math.expm1(rows * math.log1p(-1 / values)) if values > 1 else min(rows, 1.0)
