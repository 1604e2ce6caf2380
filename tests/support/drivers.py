"""Drivers that record cancellations, for tests without Spark."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field


@dataclass
class Cancelled:
    """A driver that records the tags of cancelled Spark jobs."""

    tags: list[str] = field(default_factory=list)

    def cancel(self, tag: str) -> None:
        """See `Driver`."""
        self.tags.append(tag)


class Hung(Cancelled):
    """A driver that does not respond."""

    def cancel(self, tag: str) -> None:
        """See `Driver`."""
        super().cancel(tag)
        threading.Event().wait()
