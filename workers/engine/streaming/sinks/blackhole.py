"""A sink that keeps nothing but what it was given to count: for measurements and trials."""

from __future__ import annotations

from workers.engine.streaming.sinks.sink import Staged


class BlackholeSink:
    """Reads no file. It forgets when its process ends, and then takes mini-batches that it had before."""

    def __init__(self) -> None:
        self.rows = 0
        self.bytes = 0
        self.batches = 0
        self._last: int | None = None

    def prepare(self) -> None:
        """See `Sink`."""

    def committed(self) -> int | None:
        """See `Sink`."""
        return self._last

    def commit(self, batch_id: int, staged: Staged) -> None:
        """See `Sink`; gives no version."""
        if self._last is not None and self._last >= batch_id:
            return
        self.rows += staged.rows
        self.bytes += staged.bytes
        self.batches += 1
        self._last = batch_id

    def tidy(self) -> None:
        """See `Sink`."""

    def close(self) -> None:
        """See `Sink`."""
