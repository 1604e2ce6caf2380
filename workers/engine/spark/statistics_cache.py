"""What is known of a table's files, kept for the next query over the very same files."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from service.data.file_io import version_of
from workers.engine.spark.sources import TableInput
from workers.engine.statistics.model import KeySketch, ValueRange

MAX_FILE_SETS = 256
"""File sets that are kept, those used last."""

MAX_BYTES = 16 << 20
"""Bytes that all of them may take, by the length of their texts."""

MAX_SHARE = 8
"""One file set may take this part of all bytes: it forgets its own oldest sketches and conditions, and no other's."""

MAX_SKETCHES = 64
MAX_CONDITIONS = 128
"""Of one file set."""

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")

SketchKey = tuple[tuple[str, str], ...]
"""Columns under their names in the files, each with its declared type: a hot key's literals are of it."""


@dataclass(frozen=True)
class KnownTable:
    """Numbers of one file set; no rows of it. A sketch is None where there can be none.

    `sketches` have their columns' names in the files. `kept` has the share that terms of a condition keep and how many
    of them are unknown, by their text and columns. `columns` are those that were looked at, `ranges` those of them that
    have one, `widths` bytes of a text of a column in memory, None where no file told.
    """

    rows: int
    rows_are_exact: bool
    sketches: Mapping[SketchKey, KeySketch | None] = field(default_factory=dict)
    ranges: Mapping[str, ValueRange] = field(default_factory=dict)
    kept: Mapping[str, tuple[float | None, int]] = field(default_factory=dict)
    columns: frozenset[str] = frozenset()
    widths: Mapping[str, float | None] = field(default_factory=dict)

    def with_more(self, other: KnownTable) -> KnownTable:
        """Both together, of the same files; what `other` says counts."""
        return replace(
            other,
            sketches=_later(self.sketches, other.sketches),
            ranges={**self.ranges, **other.ranges},
            kept=_later(self.kept, other.kept),
            columns=self.columns | other.columns,
            widths={**self.widths, **other.widths},
        )


def _later(before: Mapping[_Key, _Value], after: Mapping[_Key, _Value]) -> dict[_Key, _Value]:
    """Both, what came later last."""
    return {**{key: value for key, value in before.items() if key not in after}, **after}


class StatisticsCache:
    """Known tables by their files. Safe to share between threads; forgets what was not used for longest.

    Two threads that miss the same files both read them, and the later one's answer stays: they are equal.
    """

    def __init__(self, max_file_sets: int = MAX_FILE_SETS, max_bytes: int = MAX_BYTES) -> None:
        self._max_file_sets = max_file_sets
        self._max_bytes = max_bytes
        self._known: OrderedDict[str, tuple[KnownTable, int]] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def get(self, key: str | None) -> KnownTable | None:
        """What is known of the file set; None where it is not, or has no key."""
        with self._lock:
            if key is None or key not in self._known:
                return None
            self._known.move_to_end(key)
            return self._known[key][0]

    def put(self, key: str | None, known: KnownTable) -> None:
        """Keeps `known` with what is known of the file set already. Nothing happens without a key."""
        if key is None:
            return
        earlier = self.get(key)
        # Outside of the lock, since it may take a while; what another thread adds meanwhile is read again.
        known = _within(known if earlier is None else earlier.with_more(known), self._max_bytes // MAX_SHARE)
        size = len(repr(known))
        with self._lock:
            before = self._known.pop(key, None)
            if before is not None:
                self._bytes -= before[1]
            self._known[key] = (known, size)
            self._bytes += size
            while len(self._known) > self._max_file_sets or self._bytes > self._max_bytes:
                self._bytes -= self._known.popitem(last=False)[1][1]

    def __len__(self) -> int:
        return len(self._known)


def _within(known: KnownTable, max_bytes: int) -> KnownTable:
    """`known` with the sketches and conditions that came last, so many of them as there is room for."""
    sketches = list(known.sketches.items())[-MAX_SKETCHES:]
    kept = list(known.kept.items())[-MAX_CONDITIONS:]
    sizes = [len(repr(sketch)) for sketch in sketches]
    while sketches and sum(sizes) > max_bytes // 2:
        del sketches[0], sizes[0]
    lengths = [len(text) for text, _ in kept]
    while kept and sum(lengths) > max_bytes // 2:
        del kept[0], lengths[0]
    return replace(known, sketches=dict(sketches), kept=dict(kept))


def file_set_of(table: TableInput) -> str | None:
    """What tells the table's files from all others, and how they are read: as their listing found them, or as they are
    now where it told no versions. None where a file has gone or its store does not tell when it was written.
    """
    digest = hashlib.sha256(table.source.model_dump_json(include={"format", "options"}).encode())
    try:
        versions = table.files.versions or map(version_of, table.files.files)
        for file, version in zip(table.files.files, versions, strict=True):
            if version is None:
                return None
            digest.update(f"{file}\0{version}\0".encode(errors="surrogateescape"))
    except OSError:
        return None
    digest.update(repr(table.schema).encode(errors="surrogateescape"))
    return digest.hexdigest()
