"""What the planner knows before the run: numbers only. `workers.engine.spark.statistics` gathers them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from service.spec.reports import HotKey


@dataclass(frozen=True)
class TableSize:
    """Size of one table. `rows` is exact where file footers tell it, else estimated from bytes."""

    alias: str
    files: int
    bytes: int
    rows: int
    rows_are_exact: bool


@dataclass(frozen=True)
class KeySketch:
    """One key of one table, from a bounded sample spread over its files.

    `distinct_keys` is an estimate for the whole table; `hot_keys` are in descending order of share. `representative` is
    False where the files are sorted by the key and the sample has only the beginnings of what is sorted.
    """

    alias: str
    columns: tuple[str, ...]
    sampled_rows: int
    distinct_in_sample: int
    distinct_keys: int
    null_share: float
    hot_keys: tuple[HotKey, ...]
    representative: bool = True


@dataclass(frozen=True)
class Statistics:
    """Everything known of one query's tables.

    `tables` is by alias; `keys` is by the tuple of emitted column names (`("o.uid",)`, all of one table).
    `slots` is the number of tasks that run at once; `elapsed_ms` what gathering took.
    """

    tables: Mapping[str, TableSize]
    keys: Mapping[tuple[str, ...], KeySketch]
    slots: int
    elapsed_ms: int = 0
