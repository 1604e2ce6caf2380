"""When what a sample tells of an aggregate is not enough to give its local phase up."""

from __future__ import annotations

from workers.engine.plan.distinct import distinct_sets
from workers.engine.plan.keys import columns_of
from workers.engine.plan.nodes import Aggregate
from workers.engine.stats.statistics import Statistics

MIN_ROWS = 500_000
"""Rows below which nothing is decided; Flink looks at so many before it gives a local phase up."""

MIN_SAMPLED_ROWS = 4_000
"""Rows of a larger table that a sample must have for a local phase to be given up by it."""


def doubt_of(node: Aggregate, statistics: Statistics) -> str | None:
    """Why the local phase of `node` stays although it seems to be worth nothing, as the end of a sentence."""
    keys = tuple(key.expression for key in node.keys)
    for key in keys:
        if key.type is not None and key.type.is_fractional:
            return f"Spark would keep both phases behind an exchange by {key}, which is a {key.type}"
    for columns in filter(None, (columns_of((*keys, *values)) for values in ((), *distinct_sets(node)))):
        doubt = doubt_of_sample(columns, statistics)
        if doubt is not None:
            return doubt
    return None


def doubt_of_sample(columns: tuple[str, ...], statistics: Statistics) -> str | None:
    """Why what the sample tells of `columns` is not believed, as the end of a sentence; None for unknown columns."""
    sketch = statistics.keys.get(columns)
    if sketch is None:
        return None
    if not sketch.representative:
        return f"the files are sorted by {', '.join(columns)}, and the sample has only the heads of their row groups"
    rows = statistics.tables[sketch.alias].rows
    if sketch.sampled_rows < min(rows, MIN_SAMPLED_ROWS):
        return f"only {sketch.sampled_rows:,} of {rows:,} rows are known"
    return None
