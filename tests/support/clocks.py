"""Clocks whose time only tests change."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy.orm import Session


@dataclass
class ManualClock:
    """A database's clock, in milliseconds."""

    ms: int = 1_000_000

    def __call__(self, _session: Session) -> int:
        return self.ms

    def seconds(self) -> float:
        """The same time in seconds, for code that reads a clock of the process."""
        return self.ms / 1000


@dataclass
class ManualSeconds:
    """A clock of the process, in seconds."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now
