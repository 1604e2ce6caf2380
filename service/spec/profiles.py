"""Profiles of keys: what a table's keys look like before any job, and what a shuffle by them would come to.

A worker is asked to plan a query that groups by every key: what it knows of those keys is what the profile tells.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Annotated

from pydantic import Field, field_validator
from pydantic_core import PydanticCustomError

from service.spec.job import JobSpec, TableSource
from service.spec.mode_rules import SCHEMA_REQUIRED, schema_required
from service.spec.model import Frozen, refuse_flag
from service.spec.options import SkewSettings
from service.spec.query import Identifier
from service.spec.reports import HotKey, KeyStatistics, PlanReport, TableStatistics

TABLE = "t"
MAX_KEYS = 16
MAX_COLUMNS = 8
MAX_SLOTS = 100_000
_THRESHOLDS = SkewSettings()


class ProfileRequest(Frozen):
    """A table, and the keys that somebody thinks of grouping or joining it by."""

    table: TableSource
    keys: Annotated[
        tuple[Annotated[tuple[Identifier, ...], Field(min_length=1, max_length=MAX_COLUMNS)], ...],
        Field(min_length=1, max_length=MAX_KEYS, description="Each key as its columns."),
    ] = Field(examples=[[["tailnum"], ["origin", "dest"]]])
    slots: int | None = Field(
        default=None,
        ge=1,
        le=MAX_SLOTS,
        description="Tasks that would share the rows, shuffled by the key; by default those of the largest worker.",
        examples=[200],
    )

    _slots_are_no_flag = field_validator("slots", mode="before")(refuse_flag)

    @field_validator("table")
    @classmethod
    def _is_read_once(cls, table: TableSource) -> TableSource:
        for word in ("role", "event_time", "follow"):
            if getattr(table, word):
                raise PydanticCustomError(
                    "only_for_streams",
                    "'{word}' is for streaming jobs, and a profile reads the files that are there now: remove it.",
                    {"word": word},
                )
        if table.lacks_schema:
            raise PydanticCustomError(SCHEMA_REQUIRED, "{told}", {"told": schema_required(table)})
        return table

    @field_validator("keys")
    @classmethod
    def _names_a_column_once(cls, keys: tuple[tuple[str, ...], ...]) -> tuple[tuple[str, ...], ...]:
        for key in keys:
            if len({column.casefold() for column in key}) < len(key):
                raise PydanticCustomError(
                    "duplicate_column", "The key {key} has a column twice: name it once.", {"key": ", ".join(key)}
                )
        return keys


class ProfiledTable(Frozen):
    """Size of the table."""

    files: int
    bytes: int
    rows: int
    rows_are_exact: bool


class KeyProfile(Frozen):
    """What is known of one key, and how a plain shuffle by it would load its tasks."""

    columns: tuple[str, ...]
    rows: int = Field(description="Rows of the table.")
    rows_are_exact: bool
    sampled_rows: int = Field(
        description="Rows that this was found out from; 0 where none could be sampled: the others say nothing then."
    )
    distinct_keys: int = Field(description="Estimated number of distinct keys.")
    null_share: float = Field(ge=0, le=1)
    hot_keys: tuple[HotKey, ...] = Field(description="The most frequent ones, most frequent first.")
    slots: int = Field(description="Tasks that share the rows.")
    busy_tasks: int = Field(description="Tasks that get any row: no more than there are keys.")
    rows_on_hottest_task: int
    rows_on_median_task: int = Field(description="Of the busy ones.")
    max_over_median: float = Field(description="The hottest task's rows over those of the median one.")
    max_over_even: float = Field(description="The hottest task's rows over an even share of all slots.")
    skewed: bool = Field(
        description="Whether either is more than `skew.factor`, and the rows of the hottest task take at least "
        "`skew.threshold`, by their defaults."
    )
    advice: str = Field(description="One sentence: what the key would do to a job, and which setting helps.")


class ProfileReport(Frozen):
    """Hot keys of a table, from a sample; no row of it was counted one by one."""

    table: ProfiledTable
    keys: tuple[KeyProfile, ...] = Field(description="One for each key asked for, in that order.")
    statistics_ms: int = Field(description="What gathering the statistics took.")


def job_of(request: ProfileRequest) -> JobSpec:
    """The job whose plan tells of the keys: a branch of a UNION ALL for each, under an alias of its own."""
    branches = [
        {
            "source": {"kind": "table", "table": TABLE, "alias": _alias(place)},
            "group_by": [
                {"expression": f"{_alias(place)}.{_quoted(column)}", "name": f"c{at}"}
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
    return JobSpec.model_validate({"name": "profile", "tables": {TABLE: request.table}, "query": query})


def profile_of(request: ProfileRequest, plan: PlanReport, slots: int) -> ProfileReport:
    """What the plan of `job_of(request)` tells, for `slots` tasks."""
    # Each alias stands for one key; those of a union's branches stand below a name for where they are.
    sizes = plan.tables[0]
    table = ProfiledTable(files=sizes.files, bytes=sizes.bytes, rows=sizes.rows, rows_are_exact=sizes.rows_are_exact)
    found = {known.table.rpartition("/")[2]: known for known in plan.keys if known.columns}
    keys = [_key_profile(columns, found.get(_alias(place)), sizes, slots) for place, columns in enumerate(request.keys)]
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


def _alias(place: int) -> str:
    return f"k{place}"


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
