"""Which groups of calls with OVER are computed in parts, and what that costs. `rewrite.py` has the plans.

The unit is that of `workers.engine.rules.cost`. Spark sends each row to the task of its partition, sorts it there (3),
and computes the calls (1): n rows on s tasks cost n/s, plus 4 for each row of the busiest task. In parts:

    ranges         the same with the hot partitions distributed; the totals of the ranges; a look-up for each row.
                   DENSE_RANK counts distinct values (2); LAG and LEAD sort the hot partitions once more (3)
    joined back    an aggregate of all rows; a look-up for each row; no row is sent or sorted
    hot ones       the same for the hot partitions, and Spark's window for the others
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from service.contract.options import SkewSettings
from service.sql.expressions.scalar import Scalar
from workers.engine.plan.nodes import Aggregate, Node, WindowFunctions, columns_of, scanned_columns
from workers.engine.plan.traversal import walk_up
from workers.engine.rules.cost import (
    FEW_ENTRIES_ROW,
    PARSED,
    Cost,
    hot_group,
    hottest_task,
    input_tasks,
    key_profile,
    parses_text,
    two_phase,
)
from workers.engine.rules.joins.hot_keys import rows_shuffled_by_joins
from workers.engine.rules.joins.skew_cost import RESCAN, TASKS_PER_SLOT
from workers.engine.rules.joins.strategy_cost import SORTED, broadcast_limit, hashed_bytes
from workers.engine.rules.windows.neighbours import OffsetCall
from workers.engine.rules.windows.rewrite import InRanges, JoinedBack, WindowPlan
from workers.engine.rules.windows.running import CallGroup, RunningCall
from workers.engine.statistics.cardinality import KeyProfile, bytes_per_row, estimate_rows, label_of, profile_of
from workers.engine.statistics.groups import profile_of_groups
from workers.engine.statistics.model import KeySketch, OrderedKey, Statistics
from workers.engine.statistics.partitioning import is_partitioned_by

COMPUTED = 1.0
"""The cost of a row in the window's operator."""
LOOKED_UP = 0.5
"""The cost of finding a row's carry or aggregate in a small hash table."""
DISTINCT_COUNTED = 2.0
"""The cost of a row of a range whose distinct order keys are counted: it is sent by its keys."""
UNEVEN = 1.15
"""Ranges of a sample differ in size, and their hashes put several of them into one task."""
FEW_GROUPS = 100_000
"""The most partitions whose aggregates are all broadcast: an estimate may be ten times too low."""


@dataclass(frozen=True)
class PlannedGroup:
    """A group with the plan for it, the cost of Spark's own window and that of the plan, and its most frequent key.

    `hottest` and `hot_share` describe the partition with the most rows; `is_hot`: it is hot by the settings.
    """

    plan: WindowPlan
    native: Cost
    cost: Cost
    hottest: str
    hot_share: float
    is_hot: bool


def planned_group(
    node: WindowFunctions, group: CallGroup, statistics: Statistics, skew: SkewSettings
) -> PlannedGroup | str:
    """Returns the plan for a group without a refusal, or a sentence that says why there is none."""
    profile = _profile(node.input, group.partition_by, statistics)
    if profile is None or not profile.hot:
        return "There are no statistics for the partition keys: it is not known which partitions are hot."
    slots = max(1, statistics.slots)
    is_hot = hot_group(profile, skew, slots, bytes_per_row(node.input, statistics)) is not None
    native = _native(node.input, group, profile, statistics)
    literals = _literals(node.input, group.partition_by, statistics)
    found = [(key, rows) for label, rows in profile.hot if (key := literals.get(label)) is not None]
    hot = [(key, rows) for key, rows in found if rows > profile.rows / (2 * slots)] or found[:1]
    if group.running:
        made = _ranges(node.input, group, hot, profile, statistics)
    else:
        made = _joined_back(node.input, group, hot, profile, statistics)
    if isinstance(made, str):
        return made
    plan, cost = made
    label, rows = profile.hot[0]
    return PlannedGroup(plan, native, cost, label, rows / profile.rows if profile.rows else 0.0, is_hot)


def _profile(rows: Node, keys: tuple[Scalar, ...], statistics: Statistics) -> KeyProfile | None:
    if keys:
        columns = columns_of(keys)
        if columns is None:
            return None
        return profile_of(rows, columns, statistics) or profile_of_groups(rows, columns, statistics)
    count = estimate_rows(rows, statistics)
    return None if count is None else KeyProfile(float(count), 1.0, (("", float(count)),))


def _sketch(rows: Node, keys: tuple[Scalar, ...], statistics: Statistics) -> KeySketch | None:
    columns = scanned_columns(rows, columns_of(keys))
    return statistics.keys.get(columns) if columns else None


def _literals(rows: Node, keys: tuple[Scalar, ...], statistics: Statistics) -> dict[str, tuple[Scalar, ...]]:
    """Returns the literals of the hot keys by label, as far as there are any."""
    if not keys:
        return {"": ()}
    sketch = _sketch(rows, keys, statistics)
    if sketch is None:
        return {}
    labels = [label_of(key) for key in sketch.hot_keys]
    pairs = zip(labels, sketch.literals or (None,) * len(labels), strict=True)
    return {label: values for label, values in pairs if values is not None and labels.count(label) == 1}


def _sent(rows: Node, group: CallGroup, statistics: Statistics) -> bool:
    return not group.partition_by or not is_partitioned_by(rows, group.partition_by, statistics)


def _native(rows: Node, group: CallGroup, profile: KeyProfile, statistics: Statistics) -> Cost:
    slots = max(1, statistics.slots)
    sent = profile.rows if _sent(rows, group, statistics) else 0.0
    hottest = hottest_task(profile, slots)
    return Cost(sent / slots + (SORTED + COMPUTED) * hottest, sent, hottest)


def _read_again(rows: Node, profile: KeyProfile, statistics: Statistics) -> float:
    """Returns the cost of computing the input a second time, on all slots."""
    slots = max(1, statistics.slots)
    row = PARSED if parses_text(rows, statistics) else RESCAN
    joined = 2 * rows_shuffled_by_joins(rows, statistics) / slots
    grouped = next((part for part in walk_up(rows) if isinstance(part, Aggregate)), None)
    if grouped is None:
        return row * profile.rows / slots + joined
    below = key_profile(grouped.input, (key.expression for key in grouped.keys), statistics)
    if below is None:
        return row * (estimate_rows(grouped.input, statistics) or 0) / slots + joined
    again = two_phase(below, slots, input_tasks(grouped.input, statistics)).slowest
    return row * below.rows / slots + again + joined


def _ranges(
    rows: Node,
    group: CallGroup,
    hot: Sequence[tuple[tuple[Scalar, ...], float]],
    profile: KeyProfile,
    statistics: Statistics,
) -> tuple[WindowPlan, Cost] | str:
    columns = scanned_columns(rows, columns_of(group.partition_by)) if group.partition_by else ()
    ordered = scanned_columns(rows, (group.order_column,))
    if columns is None or ordered is None:
        return "A key of the window is not a column of a table: its values are not known before the run."
    known = {key.literals: key for key in statistics.orders.get((columns, ordered[0]), ())}
    split = [(key, rows_) for literals, rows_ in hot if (key := known.get(literals)) is not None and key.boundaries]
    if not split:
        return "No partition has enough different values of the order column in the sample."
    slots = max(1, statistics.slots)
    tasks = max(16, TASKS_PER_SLOT * slots)
    keys = tuple(_with_fewer_boundaries(key, tasks) for key, _ in split)
    moved = sum(rows_ for _, rows_ in split)
    largest = max(
        rows_ * max(key.top_share, 2 / (len(key.boundaries) + 1)) for key, (_, rows_) in zip(keys, split, strict=True)
    )
    handled = {rows_ for _, rows_ in split}
    left = [rows_ for _, rows_ in profile.hot if rows_ not in handled]
    rest = max([0.0, *left])
    hottest = max(UNEVEN * profile.rows / slots, rest + (profile.rows - rest) / slots, largest)
    again, of_row, looked_up = _for_other_ranges(group)
    totals = again * _read_again(rows, profile, statistics) + of_row * moved / slots
    slowest = totals + profile.rows / slots
    slowest += (SORTED + COMPUTED) * hottest + looked_up * LOOKED_UP * profile.rows / slots
    return InRanges(group, keys, tasks), Cost(slowest, profile.rows, hottest)


def _for_other_ranges(group: CallGroup) -> tuple[int, float, int]:
    """Returns how often the input is read again for what the ranges need of each other, the cost of a hot row in these
    reads, and the number of look-ups of each row.
    """
    sides = {call.is_before for call in group.running if isinstance(call, OffsetCall)}
    parts = [part for call in group.running if isinstance(call, RunningCall) for part in call.parts]
    counted = DISTINCT_COUNTED * sum(bool(part.distinct) for part in parts)
    reads = len(sides) + bool(parts)
    return reads, (FEW_ENTRIES_ROW if parts else 0.0) + counted + SORTED * len(sides), reads


def _with_fewer_boundaries(key: OrderedKey, ranges: int) -> OrderedKey:
    """Returns `key` with the boundaries of at most so many ranges."""
    count = len(key.boundaries)
    if count < ranges:
        return key
    places = sorted({number * (count + 1) // ranges for number in range(1, ranges)} - {0})
    return OrderedKey(key.literals, tuple(key.boundaries[place - 1] for place in places), key.top_share)


def _joined_back(
    rows: Node,
    group: CallGroup,
    hot: Sequence[tuple[tuple[Scalar, ...], float]],
    profile: KeyProfile,
    statistics: Statistics,
) -> tuple[WindowPlan, Cost] | str:
    slots = max(1, statistics.slots)
    if _are_few(rows, profile, statistics):
        part = profile.rows / slots
        slowest = _read_again(rows, profile, statistics) + (FEW_ENTRIES_ROW + LOOKED_UP) * part
        return JoinedBack(group), Cost(slowest + 2 * profile.distinct, profile.distinct * slots, part)
    if not hot:
        return "The keys of the hot partitions cannot be written as literals."
    moved = sum(rows_ for _, rows_ in hot)
    rest = KeyProfile(profile.rows - moved, profile.distinct, ())
    others = _native(rows, group, rest, statistics)
    slowest = 2 * _read_again(rows, profile, statistics) + (FEW_ENTRIES_ROW + LOOKED_UP) * moved / slots
    plan = JoinedBack(group, tuple(key for key, _ in hot))
    return plan, Cost(slowest + others.slowest, others.shuffled, max(others.hottest_task, moved / slots))


def _are_few(rows: Node, profile: KeyProfile, statistics: Statistics) -> bool:
    """Whether the aggregates of all partitions can be broadcast, even if they are twice as many."""
    size = 2 * profile.distinct * hashed_bytes(rows, statistics)
    return profile.distinct <= FEW_GROUPS and size <= broadcast_limit(statistics)
