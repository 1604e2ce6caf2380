"""Which versions of the followed tables each mini-batch runs with: decided before it begins.

    <streams>/<job>/g<generation>/versions/<number of the mini-batch>-<fence>.json
    <streams>/<job>/g<generation>/versions/fence-<fence>     of the last attempt

A mini-batch that was cut short comes again, perhaps after its sink took it. Run with another version, it would bring
rows into the state that the sink never saw, and both would differ for ever. So each attempt that begins one writes down
what it runs it with, and an attempt whose sink has the mini-batch follows the decision of the newest before it: older
ones were shut out of the sink before that decided. Where the sink does not have it, the state does not either, and the
next attempt decides anew.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from service.datasets.durable_files import create, make_directory

_FENCE = "fence-"
_DECISION = re.compile(r"([0-9]+)-([0-9]+)\.json")

KEPT = 100
"""Mini-batches of which it is known, as many as Spark tells of; the last one alone can come again."""


@dataclass(frozen=True)
class Use:
    """A version in use, and the first mini-batch in a row that ran with it."""

    version: int
    since: int


class BatchVersions:
    """Those of one checkpoint, in a directory of their own, for the attempt that has the token `fence`."""

    def __init__(self, directory: Path, fence: int) -> None:
        self._directory = directory
        self._fence = fence

    def announce(self) -> None:
        """Tells attempts with older tokens that they are not the last one any more. Raises OSError."""
        make_directory(self._directory)
        (self._directory / f"{_FENCE}{self._fence}").touch()
        for fence in self._announced():
            if fence < self._fence:
                (self._directory / f"{_FENCE}{fence}").unlink(missing_ok=True)

    @property
    def is_overtaken(self) -> bool:
        """Whether an attempt with a newer token was announced. Raises OSError."""
        return max(self._announced(), default=0) > self._fence

    def _announced(self) -> list[int]:
        told = [path.name.removeprefix(_FENCE) for path in self._directory.glob(f"{_FENCE}*")]
        return [int(fence) for fence in told if fence.isdecimal()]

    def newest(self) -> int | None:
        """The last mini-batch that was begun with a decision. Raises OSError."""
        return max((batch_id for batch_id, _ in self._decided()), default=None)

    def of(self, batch_id: int, *, by_earlier: bool = True) -> dict[str, Use] | None:
        """What the last attempt that decided of a mini-batch decided, by table; None where none did, or it is
        forgotten. Without those `by_earlier` attempts, of this one and newer ones alone. Raises OSError.
        """
        fences = [fence for decided, fence in self._decided() if decided == batch_id]
        newest = max(fences, default=None)
        if newest is None or (newest < self._fence and not by_earlier):
            return None
        try:
            told = json.loads(self._path(batch_id, newest).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        return {table: Use(use["version"], use["since"]) for table, use in told.items()}

    def decide(self, batch_id: int, versions: Mapping[str, int]) -> dict[str, Use]:
        """What the mini-batch runs with: `versions`, unless this attempt has decided already, or a newer one. Durable
        when it returns.

        Raises OSError.
        """
        before = self.of(batch_id - 1) or {}
        uses = {}
        for table, version in versions.items():
            known = before.get(table)
            uses[table] = known if known is not None and known.version == version else Use(version, batch_id)
        told = {table: {"version": use.version, "since": use.since} for table, use in uses.items()}
        create(self._path(batch_id, self._fence), json.dumps(told))
        for old, fence in self._decided():
            if old <= batch_id - KEPT:
                self._path(old, fence).unlink(missing_ok=True)
        return self.of(batch_id) or uses

    def _decided(self) -> list[tuple[int, int]]:
        found = (_DECISION.fullmatch(path.name) for path in self._directory.glob("[0-9]*.json"))
        return [(int(decision[1]), int(decision[2])) for decision in found if decision is not None]

    def _path(self, batch_id: int, fence: int) -> Path:
        return self._directory / f"{batch_id}-{fence}.json"
