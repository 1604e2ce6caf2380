"""Caches the statistics of a table's files, for later queries over the same files."""

from __future__ import annotations

import pickle
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from workers.engine.statistics.model import KeySketch, OrderedKey, ValueRange

MAX_FILE_SETS = 256
"""File sets in the cache. The least recently used ones are dropped."""

MAX_BYTES = 8 << 20
"""Bytes of all file sets together, as pickles. In memory, they take about six times as much."""

MAX_SHARE = 8
"""One file set may have this part of all bytes. Its own oldest sketches and conditions are dropped beyond that."""

MAX_SKETCHES = 1024
MAX_CONDITIONS = 2048
MAX_ORDERS = 256
"""Limits of one file set, besides its bytes. The queries of TPC-DS have more than a hundred conditions on its dates. If
the cache had fewer, a worker that runs these queries in turn would read all conditions again and again."""

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")

SketchKey = tuple[tuple[str, str], ...]
"""Columns by their names in the files, each with its declared type, which is also the type of a hot key's literals."""

OrderSketchKey = tuple[SketchKey, tuple[str, str]]
"""The columns of a key, and an order column, as in `SketchKey`."""


@dataclass(frozen=True)
class KnownTable:
    """The statistics of one file set, without any of its rows. A sketch is None if there can be none.

    `sketches` have the names of the columns in the files. `kept` has the share of rows that terms of a condition keep
    and the number of unknown terms, by a digest of their text and columns. `columns` are those that were read, `ranges`
    those of them that have a range. `widths` has the bytes of a text column's value in memory, None if not known.
    `orders` has the order of the rows of hot keys.
    `kept_ranges` has the ranges of keys of integers among the rows that the terms keep, by the digest in `kept`.
    """

    rows: int
    rows_are_exact: bool
    sketches: Mapping[SketchKey, KeySketch | None] = field(default_factory=dict)
    ranges: Mapping[str, ValueRange] = field(default_factory=dict)
    kept: Mapping[str, tuple[float | None, int]] = field(default_factory=dict)
    columns: frozenset[str] = frozenset()
    widths: Mapping[str, float | None] = field(default_factory=dict)
    orders: Mapping[OrderSketchKey, tuple[OrderedKey, ...]] = field(default_factory=dict)
    kept_ranges: Mapping[str, Mapping[str, tuple[int, int]]] = field(default_factory=dict)

    def merged_with(self, later: KnownTable) -> KnownTable:
        """Returns the statistics of both; those of `later` win."""
        return replace(
            later,
            sketches=_merged(self.sketches, later.sketches),
            ranges={**self.ranges, **later.ranges},
            kept=_merged(self.kept, later.kept),
            columns=self.columns | later.columns,
            widths={**self.widths, **later.widths},
            orders=_merged(self.orders, later.orders),
            kept_ranges=_merged(self.kept_ranges, later.kept_ranges),
        )


def _merged(earlier: Mapping[_Key, _Value], later: Mapping[_Key, _Value]) -> dict[_Key, _Value]:
    """Returns both, with all items of `later` at the end."""
    return {**{key: value for key, value in earlier.items() if key not in later}, **later}


class StatisticsCache:
    """Statistics of tables by file set. Safe to share between threads.

    If two threads miss the same file set, both read it, and the later result stays. The results are equal.
    """

    def __init__(self, max_file_sets: int = MAX_FILE_SETS, max_bytes: int = MAX_BYTES) -> None:
        self._max_file_sets = max_file_sets
        self._max_bytes = max_bytes
        self._known: OrderedDict[str, tuple[KnownTable, int]] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def get(self, file_set: str | None) -> KnownTable | None:
        """Returns the statistics of the file set; None if there are none, or if `file_set` is None."""
        with self._lock:
            if file_set is None or file_set not in self._known:
                return None
            self._known.move_to_end(file_set)
            return self._known[file_set][0]

    def put(self, file_set: str | None, known: KnownTable) -> None:
        """Adds `known` to the statistics of the file set. Does nothing if `file_set` is None."""
        if file_set is None:
            return
        earlier = self.get(file_set)
        # Without the lock, since it may take some time. What another thread adds meanwhile is lost, and read again.
        known = _limited(known if earlier is None else earlier.merged_with(known), self._max_bytes // MAX_SHARE)
        size = _size(known)
        with self._lock:
            before = self._known.pop(file_set, None)
            if before is not None:
                self._bytes -= before[1]
            self._known[file_set] = (known, size)
            self._bytes += size
            while len(self._known) > self._max_file_sets or self._bytes > self._max_bytes:
                self._bytes -= self._known.popitem(last=False)[1][1]

    def __len__(self) -> int:
        return len(self._known)


def _size(statistics: object) -> int:
    # Several times faster than the length of `repr`.
    return len(pickle.dumps(statistics, pickle.HIGHEST_PROTOCOL))


def _limited(known: KnownTable, max_bytes: int) -> KnownTable:
    """Returns `known` without the oldest sketches, conditions and orders above the limits."""
    sketches = list(known.sketches.items())[-MAX_SKETCHES:]
    kept = list(known.kept.items())[-MAX_CONDITIONS:]
    sizes = [_size(sketch) for sketch in sketches]
    while sketches and sum(sizes) > max_bytes // 2:
        del sketches[0], sizes[0]
    lengths = [len(text) for text, _ in kept]
    while kept and sum(lengths) > max_bytes // 2:
        del kept[0], lengths[0]
    orders = list(known.orders.items())[-MAX_ORDERS:]
    lengths = [_size(order) for order in orders]
    while orders and sum(lengths) > max_bytes // 2:
        del orders[0], lengths[0]
    names = {text for text, _ in kept}
    ranges = {text: found for text, found in known.kept_ranges.items() if text in names}
    return replace(known, sketches=dict(sketches), kept=dict(kept), orders=dict(orders), kept_ranges=ranges)
