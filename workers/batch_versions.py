"""Which versions of the followed tables each mini-batch runs with: decided once, before it begins, whoever tries it.

    <streams>/<job>/g<generation>/versions/<number of the mini-batch>.json

A mini-batch that was cut short comes again, perhaps after its sink took it. Run with another version, it would bring
rows into the state that the sink never saw, and both would differ for ever. So the first attempt that begins one writes
down what it runs it with, in a file that no other can replace; all others follow it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from workers.durable_files import create, make_directory

_FENCE = "fence-"

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
        return max(self._decided(), default=None)

    def of(self, batch_id: int) -> dict[str, Use] | None:
        """What was decided of a mini-batch, by table; None where nothing was, or it is forgotten. Raises OSError."""
        try:
            told = json.loads(self._path(batch_id).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        return {table: Use(use["version"], use["since"]) for table, use in told.items()}

    def decide(self, batch_id: int, versions: Mapping[str, int]) -> dict[str, Use]:
        """What the mini-batch runs with: `versions`, unless another attempt was first. Durable when it returns.

        Raises OSError.
        """
        before = self.of(batch_id - 1) or {}
        uses = {}
        for table, version in versions.items():
            known = before.get(table)
            uses[table] = known if known is not None and known.version == version else Use(version, batch_id)
        told = {table: {"version": use.version, "since": use.since} for table, use in uses.items()}
        if not create(self._path(batch_id), json.dumps(told)):
            return self.of(batch_id) or uses
        for old in self._decided():
            if old <= batch_id - KEPT:
                self._path(old).unlink(missing_ok=True)
        return uses

    def _decided(self) -> list[int]:
        return [int(path.stem) for path in self._directory.glob("[0-9]*.json") if path.stem.isdecimal()]

    def _path(self, batch_id: int) -> Path:
        return self._directory / f"{batch_id}.json"
