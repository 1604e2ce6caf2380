"""The cases of the streaming benchmark: their queries, streams and targets against Flink.

Streams are directories of CSV files without a header, with `ROWS_OF_A_FILE` rows each, generated with fixed seeds.
`scale` multiplies the number of files and rows, but not of keys and values, so that a longer input updates the same
state more often.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pc

ROWS_OF_A_FILE = 100_000
USERS = 100_000
HOT_USER = 7
COUNTRIES = ("de", "fr", "jp", "us", "br", "in", "cn", "gb")

Random = np.random.Generator
Columns = dict[str, Any]


@dataclass(frozen=True)
class Stream:
    """A stream. `columns` are declared as in SQL, for Spark and for Flink. `make` returns the columns of a file for a
    generator, the number of the first row and the number of rows. If `scaled`, a larger scale has more files.
    """

    columns: str
    rows: int
    make: Callable[[Random, int, int], Columns]
    scaled: bool = True

    def files(self, scale: float) -> int:
        """Returns the number of files at this scale."""
        rows = self.rows * scale if self.scaled else self.rows
        return max(1, round(rows / ROWS_OF_A_FILE))


@dataclass(frozen=True)
class Case:
    """A case. `streams` are named as in `sql`, and described in `tables`; the rows of the stream `main` count.

    `target` is the required ratio of Evenkeel to Flink's best setting on RocksDB; None without a requirement.
    """

    name: str
    about: str
    target: float | None
    sql: str
    streams: tuple[str, ...]
    tables: Mapping[str, Stream] = field(default_factory=lambda: STREAMS)

    @property
    def main(self) -> str:
        return self.streams[0]

    def rows(self, scale: float) -> int:
        """Returns the number of rows of all streams."""
        return sum(self.tables[name].files(scale) * ROWS_OF_A_FILE for name in self.streams)


def _events(keys: int, values: int) -> Stream:
    """`k` is 0 in 60 % of the rows; `v` and its string `s` are uniform and independent of `k`; `a` is -1000 to 1000."""

    def make(random: Random, _start: int, count: int) -> Columns:
        key = np.where(random.random(count) < 0.6, 0, 1 + random.integers(0, keys, count))
        value = random.integers(0, values, count)
        text = np.char.add("visitor-", np.char.zfill(value.astype(str), 8))
        return {"k": key, "v": value, "s": text, "a": random.integers(-1000, 1001, count)}

    return Stream("k BIGINT, v BIGINT, s STRING, a BIGINT", 4_000_000, make)


def _orders(random: Random, start: int, count: int) -> Columns:
    """Half of the orders belong to one user, who ordered from every category."""
    users = np.where(random.random(count) < 0.5, HOT_USER, random.integers(0, USERS, count))
    category = np.char.add("category-", random.integers(0, 1000, count).astype(str))
    price = random.integers(100, 1000, count)
    cents = np.char.zfill((price % 100).astype(str), 2)
    text = np.char.add(np.char.add((price // 100).astype(str), "."), cents)
    return {"uid": users, "oid": np.arange(start, start + count), "category": category, "price": text}


def _users(_random: Random, start: int, count: int) -> Columns:
    ids = np.arange(start, start + count)
    name = np.char.add("user ", ids.astype(str))
    zipped = np.char.zfill((ids * 7919 % 100_000).astype(str), 5)
    return {"uid": ids, "name": name, "country": np.array(COUNTRIES)[ids % len(COUNTRIES)], "zcode": zipped}


STREAMS: Mapping[str, Stream] = {
    "events": _events(keys=1_000, values=200_000),
    "sparse": _events(keys=100_000, values=10_000_000),
    "orders": Stream("uid BIGINT, oid BIGINT, category STRING, price DECIMAL(3, 2)", 4_000_000, _orders),
    "users": Stream("uid BIGINT, name STRING, country STRING, zcode STRING", USERS, _users, scaled=False),
}

_JOIN = "FROM orders o JOIN users u ON o.uid = u.uid GROUP BY o.uid"

CASES = (
    Case(
        "plain",
        "SUM, COUNT by key, 60 % on one key",
        1.0,
        "SELECT k, SUM(a) AS total, COUNT(a) AS n FROM events GROUP BY k",
        ("events",),
    ),
    Case(
        "distinct_bigint",
        "COUNT(DISTINCT bigint) by key, 60 % on one key",
        1.5,
        "SELECT k, COUNT(DISTINCT v) AS n FROM events GROUP BY k",
        ("events",),
    ),
    Case(
        "distinct_string",
        "COUNT(DISTINCT string) by key, 60 % on one key",
        1.0,
        "SELECT k, COUNT(DISTINCT s) AS n FROM events GROUP BY k",
        ("events",),
    ),
    Case(
        "mixed",
        "COUNT(DISTINCT bigint), COUNT, SUM by key, 60 % on one key",
        1.5,
        "SELECT k, COUNT(DISTINCT v) AS d, COUNT(a) AS n, SUM(a) AS total FROM events GROUP BY k",
        ("events",),
    ),
    Case(
        "article_1",
        "orders JOIN users, COUNT by user, half of the orders of one user",
        4.0,
        f"SELECT o.uid, COUNT(o.oid) AS n {_JOIN}",
        ("orders", "users"),
    ),
    Case(
        "article_2",
        "orders JOIN users, COUNT(DISTINCT category) by user, half of the orders of one user",
        4.0,
        f"SELECT o.uid, COUNT(DISTINCT o.category) AS n {_JOIN}",
        ("orders", "users"),
    ),
    Case(
        "distinct_sparse",
        "COUNT(DISTINCT bigint) by key, nearly every value of a key is new",
        None,
        "SELECT k, COUNT(DISTINCT v) AS n FROM sparse GROUP BY k",
        ("sparse",),
    ),
)

FLINK_SETTINGS: Mapping[str, Mapping[str, str]] = {
    "none": {},
    "two-phase, 2 s / 5000": {
        "table.exec.mini-batch.enabled": "true",
        "table.exec.mini-batch.allow-latency": "2 s",
        "table.exec.mini-batch.size": "5000",
        "table.optimizer.agg-phase-strategy": "TWO_PHASE",
    },
    "two-phase, 2 s / 50000": {
        "table.exec.mini-batch.enabled": "true",
        "table.exec.mini-batch.allow-latency": "2 s",
        "table.exec.mini-batch.size": "50000",
        "table.optimizer.agg-phase-strategy": "TWO_PHASE",
    },
    "split, incremental, 2 s / 50000": {
        "table.exec.mini-batch.enabled": "true",
        "table.exec.mini-batch.allow-latency": "2 s",
        "table.exec.mini-batch.size": "50000",
        "table.optimizer.agg-phase-strategy": "TWO_PHASE",
        "table.optimizer.distinct-agg.split.enabled": "true",
        "table.optimizer.incremental-agg-enabled": "true",
    },
}
"""Flink's settings, from none of its optimizations to all."""


def generate(tables: Mapping[str, Stream], name: str, root: Path, scale: float) -> Path:
    """Returns the directory of the stream's files, which are generated unless complete."""
    return generate_files(tables, name, root, tables[name].files(scale), ROWS_OF_A_FILE)


def generate_files(tables: Mapping[str, Stream], name: str, root: Path, files: int, rows: int) -> Path:
    """Does so for this number of files, of so many rows each."""
    stream = tables[name]
    seed = list(tables).index(name)
    label = f"{name}-{files}" if rows == ROWS_OF_A_FILE else f"{name}-{files}-{rows}"
    folder = root / label
    if folder.is_dir():
        return folder
    unfinished = root / f".{label}"
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    for number in range(files):
        made = stream.make(np.random.default_rng([5, seed, number]), number * rows, rows)
        options = pc.WriteOptions(include_header=False, quoting_style="none")
        pc.write_csv(pa.table(made), unfinished / f"{number:05d}.csv", options)
    unfinished.rename(folder)
    return folder
