"""What is known of a table's keys, and what a shuffle by each would come to."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from service.jobs.profile_query import alias
from service.spec.options import SkewSettings
from service.spec.profiles import KeyProfile, ProfiledTable, ProfileReport, ProfileRequest
from service.spec.reports import KeyStatistics, PlanReport, TableStatistics

_THRESHOLDS = SkewSettings()


def profile_of(request: ProfileRequest, plan: PlanReport, slots: int) -> ProfileReport:
    """What the plan of the request's query tells, for `slots` tasks."""
    # Each alias stands for one key; those of a union's branches stand below a name for where they are.
    sizes = plan.tables[0]
    table = ProfiledTable(files=sizes.files, bytes=sizes.bytes, rows=sizes.rows, rows_are_exact=sizes.rows_are_exact)
    found = {known.table.rpartition("/")[2]: known for known in plan.keys if known.columns}
    keys = [_key_profile(columns, found.get(alias(place)), sizes, slots) for place, columns in enumerate(request.keys)]
    return ProfileReport(table=table, keys=tuple(keys), statistics_ms=plan.statistics_ms)


def task_rows(rows: int, distinct: int, hot: Sequence[int], slots: int) -> tuple[int, int]:
    """Rows of the hottest and of the median task of a shuffle by a key to `slots` tasks.

    `hot` are the rows of the hottest keys. A key is whole on one task; hot keys go to the emptiest task, largest first
    (longest processing time first; Graham, 1969), and all others are spread evenly over as many tasks as there are
    keys: the best that hashing can come to, so that what is told here is no bad luck.
    """
    tasks = max(1, min(slots, distinct))
    others = max(rows - sum(hot), 0)
    # So many tasks may be the hot keys' own, where there are no others.
    loads = [others / tasks] * tasks
    heapq.heapify(loads)
    for count in sorted(hot, reverse=True):
        heapq.heapreplace(loads, loads[0] + count)
    loads.sort()
    return round(loads[-1]), round(loads[(len(loads) - 1) // 2])


def _key_profile(
    columns: tuple[str, ...], known: KeyStatistics | None, table: TableStatistics, slots: int
) -> KeyProfile:
    if known is None or not known.sampled_rows:
        return _unknown(columns, table, slots)
    rows = [hot.estimated_rows for hot in known.hot_keys]
    hottest, median = task_rows(known.rows, known.distinct_keys, rows, slots)
    over_median = hottest / median if median else 1.0
    over_even = hottest * slots / known.rows if known.rows else 1.0
    hot_bytes = hottest * table.bytes / max(table.rows, 1)
    skewed = max(over_median, over_even) > _THRESHOLDS.factor and hot_bytes >= _THRESHOLDS.threshold
    return KeyProfile(
        columns=columns,
        rows=known.rows,
        rows_are_exact=known.rows_are_exact,
        sampled_rows=known.sampled_rows,
        distinct_keys=known.distinct_keys,
        null_share=known.null_share,
        hot_keys=known.hot_keys,
        slots=slots,
        busy_tasks=min(slots, known.distinct_keys),
        rows_on_hottest_task=hottest,
        rows_on_median_task=median,
        max_over_median=round(over_median, 2),
        max_over_even=round(over_even, 2),
        skewed=skewed,
        advice=_advice(columns, known, over_median, over_even, skewed=skewed, slots=slots),
    )


def _unknown(columns: tuple[str, ...], table: TableStatistics, slots: int) -> KeyProfile:
    even = round(table.rows / slots)
    return KeyProfile(
        columns=columns,
        rows=table.rows,
        rows_are_exact=table.rows_are_exact,
        sampled_rows=0,
        distinct_keys=0,
        null_share=0,
        hot_keys=(),
        slots=slots,
        busy_tasks=slots if table.rows else 0,
        rows_on_hottest_task=even,
        rows_on_median_task=even,
        max_over_median=1.0,
        max_over_even=1.0,
        skewed=False,
        advice="No row of it could be sampled, so nothing is known of this key.",
    )


def _advice(
    columns: tuple[str, ...], known: KeyStatistics, over_median: float, over_even: float, *, skewed: bool, slots: int
) -> str:
    name = ", ".join(columns)
    hot = known.hot_keys
    subject = f"{name} is {hot[0].value} in {hot[0].share:.1%} of the rows" if hot else f"No value of {name} stands out"
    if known.distinct_keys < slots:
        values = "value" if known.distinct_keys == 1 else "values"
        subject += f" and has about {known.distinct_keys:,} {values} for {slots:,} tasks"
    if over_median >= over_even:
        told = f"{subject}: the hottest task gets {over_median:.1f} times the rows of others"
    else:
        told = f"{subject}: the hottest task gets {over_even:.1f} times what each would if all had a share"
    if max(over_median, over_even) <= _THRESHOLDS.factor:
        return f"{told}, nothing needs to change."
    if not skewed:
        return f"{told}, but too few for that to matter."
    return (
        f"{told}. Aggregate by it in two phases (agg_phase), count its distinct values in buckets "
        "(distinct_split.enabled), join by it with the hot keys apart (join.skew ISOLATE); left to auto, these are "
        "chosen where they pay."
    )
