"""Statistics that are read while a query runs: for its skew report alone, where nothing was decided by them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from workers.engine.stats.statistics import Statistics

_log = logging.getLogger(__name__)

PATIENCE = 0.5
"""Seconds after the run that are waited for what is not read by then."""


class LateStatistics:
    """What `gather` gives, called in a thread of its own from now on."""

    def __init__(self, gather: Callable[[], Statistics]) -> None:
        self._gather = gather
        self._found: Statistics | None = None
        self._thread = threading.Thread(target=self._run, name="late-statistics", daemon=True)
        self._thread.start()

    def known(self, patience: float = PATIENCE) -> Statistics | None:
        """The statistics; None where they failed, or are not there in `patience` seconds."""
        self._thread.join(patience)
        return self._found

    def _run(self) -> None:
        try:
            self._found = self._gather()
        except Exception:  # noqa: BLE001 - a report without hot keys is no reason to fail
            _log.warning("no statistics for the skew report", exc_info=True)
