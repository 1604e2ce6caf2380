"""The cases of the batch benchmark: their queries, tables and targets.

Tables are generated file by file with fixed seeds. `scale` multiplies rows and numbers of keys; a small number of
groups stays the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

FILES = 8
ROWS_OF_A_GROUP = 1 << 16
"""Rows of a row group. A task reads whole row groups, so this allows tasks for hundreds of slots."""

HOT_SHARE = 0.3
Random = np.random.Generator
Columns = dict[str, Any]
Make = Callable[[Random, int, int, int], Columns]
"""Returns the columns of a file for: a generator, the file's number, the number of its first row, and its rows."""


@dataclass(frozen=True)
class Table:
    """A table with `rows` rows in `FILES` files. `whole_file` is a file with a single row group, read by a single
    task.
    """

    rows: int
    make: Callable[[float], Make]
    whole_file: int | None = None


@dataclass(frozen=True)
class Case:
    """A case. `target` is the required factor against plain Spark."""

    name: str
    about: str
    target: str
    sql: str
    tables: Mapping[str, Table]


def ints(random: Random, high: float, count: int) -> Any:
    """Returns uniform BIGINTs below `high`."""
    return random.integers(0, max(1, round(high)), count)


def hot(random: Random, keys: float, share: float, count: int) -> Any:
    """Returns uniform keys from 1, and key 0 with the given share."""
    return np.where(random.random(count) < share, 0, 1 + ints(random, keys, count))


def _pairs(groups: float | None, keys: float, **values: float) -> Callable[[float], Make]:
    """Returns a table with `k` from `groups` (not scaled) or `keys` (scaled), and uniform columns below the bounds."""

    def scaled(scale: float) -> Make:
        def make(random: Random, _file: int, _start: int, count: int) -> Columns:
            key = ints(random, groups or keys * scale, count)
            return {"k": key, **{name: ints(random, high * scale, count) for name, high in values.items()}}

        return make

    return scaled


def _three(scale: float) -> Make:
    def make(random: Random, _file: int, _start: int, count: int) -> Columns:
        sessions = ints(random, 500_000 * scale, count)
        return {
            "k": ints(random, 20, count),
            "a": ints(random, 5_000_000 * scale, count),
            "b": ints(random, 100_000, count).astype(np.int32),
            "c": pa.array(sessions).cast(pa.string()),
        }

    return make


def _hot_key(keys: float, share: float, value: str) -> Callable[[float], Make]:
    def scaled(scale: float) -> Make:
        def make(random: Random, _file: int, _start: int, count: int) -> Columns:
            return {"k": hot(random, keys * scale, share, count), value: ints(random, 1000, count)}

        return make

    return scaled


def _one_of_each(value: str) -> Callable[[float], Make]:
    def scaled(_scale: float) -> Make:
        def make(random: Random, _file: int, start: int, count: int) -> Columns:
            return {"k": np.arange(start, start + count), value: ints(random, 1 << 40, count)}

        return make

    return scaled


def _hot_in_one_file(keys: float) -> Callable[[float], Make]:
    """Key 0 has 90 % of the rows of the first file and does not occur in others."""

    def scaled(scale: float) -> Make:
        def make(random: Random, file: int, start: int, count: int) -> Columns:
            key = 1 + ints(random, keys * scale, count)
            return {
                "id": np.arange(start, start + count),
                "k": np.where(random.random(count) < 0.9, 0, key) if file == 0 else key,
                "v": ints(random, 1 << 40, count),
            }

        return make

    return scaled


def _some_of_one_key(hot_rows: int, keys: float, value: str) -> Callable[[float], Make]:
    """The first `hot_rows` rows have key 0, the others uniform keys. The number grows with the root of the scale."""

    def scaled(scale: float) -> Make:
        def make(random: Random, _file: int, start: int, count: int) -> Columns:
            number = np.arange(start, start + count)
            key = np.where(number < hot_rows * scale**0.5, 0, 1 + ints(random, keys * scale, count))
            return {"k": key, "id": number, value: ints(random, 1000, count)}

        return make

    return scaled


def _sparse(scale: float) -> Make:
    values = np.random.default_rng(64).integers(-(2**63), 2**63 - 1, max(1, round(5_000_000 * scale)), np.int64)

    def make(random: Random, _file: int, _start: int, count: int) -> Columns:
        return {"k": ints(random, 20, count), "d": random.choice(values, count)}

    return make


_M = 1_000_000
_SUMS = "SELECT t.k, CAST(SUM(t.v) AS BIGINT) AS s, COUNT(*) AS n FROM t GROUP BY t.k"

CASES = (
    Case(
        "uniform_few_groups",
        "uniform keys, SUM and COUNT, 100 groups",
        ">= 0.97x",
        _SUMS,
        {"t": Table(20 * _M, _pairs(100, 0, v=1000))},
    ),
    Case(
        "uniform_many_groups",
        "uniform keys, SUM and COUNT, 5 M groups",
        ">= 0.97x",
        _SUMS,
        {"t": Table(20 * _M, _pairs(None, 5 * _M, v=1000))},
    ),
    Case(
        "distinct_few_groups",
        "COUNT(DISTINCT bigint), 20 groups, 20 M rows",
        ">= 3x",
        "SELECT t.k, COUNT(DISTINCT t.d) AS n FROM t GROUP BY t.k",
        {"t": Table(20 * _M, _pairs(20, 0, d=5 * _M))},
    ),
    Case(
        "distinct_many_groups",
        "one distinct and sums, 3 M groups, pairs nearly unique",
        ">= 1.5x",
        "SELECT t.k, COUNT(DISTINCT t.d) AS n, CAST(SUM(t.v) AS BIGINT) AS s, COUNT(*) AS c FROM t GROUP BY t.k",
        {"t": Table(20 * _M, _pairs(None, 3 * _M, d=1000 * _M, v=1000))},
    ),
    Case(
        "three_distincts",
        "three distincts (bigint, int, string), 20 groups",
        ">= 3x",
        "SELECT t.k, COUNT(DISTINCT t.a) AS a, COUNT(DISTINCT t.b) AS b, COUNT(DISTINCT t.c) AS c FROM t GROUP BY t.k",
        {"t": Table(20 * _M, _three)},
    ),
    Case(
        "two_distincts_many_groups",
        "two distincts, 3 M groups",
        ">= 2.5x",
        "SELECT t.k, COUNT(DISTINCT t.a) AS a, COUNT(DISTINCT t.b) AS b FROM t GROUP BY t.k",
        {"t": Table(20 * _M, _pairs(None, 3 * _M, a=1000 * _M, b=_M))},
    ),
    Case(
        "join_one_side_hot",
        "join, then aggregate; one side hot (20 M x 3 M rows)",
        ">= 1.5x",
        "SELECT o.k, COUNT(*) AS n, CAST(SUM(o.v) AS BIGINT) AS s, CAST(SUM(u.w) AS BIGINT) AS w "
        "FROM o JOIN u ON u.k = o.k GROUP BY o.k",
        {"o": Table(20 * _M, _hot_key(3 * _M, HOT_SHARE, "v")), "u": Table(3 * _M, _one_of_each("w"))},
    ),
    Case(
        "join_both_sides_hot",
        "join, then aggregate; the same key hot on both sides (2 M x 2 M rows)",
        "< 30 s",
        "SELECT a.k, COUNT(*) AS n, CAST(SUM(a.v) AS BIGINT) AS v, CAST(SUM(b.w) AS BIGINT) AS w "
        "FROM a JOIN b ON a.k = b.k GROUP BY a.k",
        {
            "a": Table(2 * _M, _hot_key(_M / 2, HOT_SHARE, "v")),
            "b": Table(2 * _M, _hot_key(_M / 2, HOT_SHARE, "w")),
        },
    ),
    Case(
        "skewed_join_one_block",
        "skewed join, rows needed, hot key in one map block (32 M x 2 M rows)",
        "hottest <= 1/3; >= 1.2x",
        "SELECT p.id, p.k, p.v, b.w FROM p JOIN b ON b.k = p.k",
        {"p": Table(32 * _M, _hot_in_one_file(2 * _M), whole_file=0), "b": Table(2 * _M, _one_of_each("w"))},
    ),
    Case(
        "skewed_join_many_pairs",
        "skewed join, rows needed, 5,000 x 10,000 rows of one key",
        "hottest <= 1/3; >= 1x",
        "SELECT l.id, r.id AS other, l.v + r.w AS s FROM l JOIN r ON r.k = l.k",
        {
            "l": Table(_M, _some_of_one_key(5_000, _M, "v")),
            "r": Table(2 * _M, _some_of_one_key(10_000, _M, "w")),
        },
    ),
    Case(
        "sparse_bigints",
        "5 M distinct bigints over all 64 bits, 20 groups, 10 M rows",
        ">= 1x",
        "SELECT t.k, COUNT(DISTINCT t.d) AS n FROM t GROUP BY t.k",
        {"t": Table(10 * _M, _sparse)},
    ),
)


def generate(case: Case, directory: Path, scale: float) -> Path:
    """Writes the case's tables below `directory`, once for each scale, and returns their directory."""
    root = directory / f"{case.name}-{scale:g}"
    done = root / "done"
    if not done.exists():
        for number, (name, table) in enumerate(case.tables.items()):
            (root / name).mkdir(parents=True, exist_ok=True)
            _write(root / name, table, scale, seed=number)
        done.touch()
    return root


def _write(directory: Path, table: Table, scale: float, seed: int) -> None:
    make = table.make(scale)
    bounds = [round(table.rows * scale) * file // FILES for file in range(FILES + 1)]
    for file, (start, end) in enumerate(pairwise(bounds)):
        columns = make(np.random.default_rng([2026, seed, file]), file, start, end - start)
        group = end - start if table.whole_file == file else ROWS_OF_A_GROUP
        pq.write_table(pa.table(columns), directory / f"part-{file}.parquet", row_group_size=max(1, group))
