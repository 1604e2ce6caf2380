"""A set of names that only grows, in eight bytes each: a stream takes millions of files in its life."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from heapq import merge

_FEW = 1024
_PART = 8
"""New ones are put to the sorted ones once they are a part of them as large as that."""


class TakenNames:
    """Keeps hashes, by which one in billions is taken for another: enough for what is only told."""

    def __init__(self) -> None:
        self._sorted: array[int] = array("q")
        self._new: set[int] = set()

    def add(self, name: str) -> None:
        """Once is as good as twice."""
        if name in self:
            return
        self._new.add(hash(name))
        if len(self._new) > max(_FEW, len(self._sorted) // _PART):
            self._sorted = array("q", merge(self._sorted, sorted(self._new)))
            self._new = set()

    def __contains__(self, name: str) -> bool:
        hashed = hash(name)
        if hashed in self._new:
            return True
        place = bisect_left(self._sorted, hashed)
        return place < len(self._sorted) and self._sorted[place] == hashed

    def __len__(self) -> int:
        return len(self._sorted) + len(self._new)
