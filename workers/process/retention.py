"""Retention: one worker at a time removes old jobs and results every hour, for all workers. No job waits for it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import structlog

from service.config.settings import RetentionSettings
from service.results.purge import Limits, purge_politely
from service.store.maintenance import is_due
from service.store.session import Database
from workers.driver.driver import remove_old_probes

_log = structlog.get_logger(__name__)

EVERY_MS = 60 * 60 * 1000
"""The period of retention."""


class RetentionStep:
    """Removes, once per period, the jobs and results whose retention is over, and the probes of workers that were
    killed."""

    def __init__(
        self,
        database: Database,
        worker: str,
        settings: RetentionSettings,
        results: Path,
        streams: Path,
        may_continue: Callable[[], bool],
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`may_continue` is called between batches; if it returns False, because the worker stops, the next worker
        removes the remaining ones. `clock` returns seconds since the epoch, as file times have them."""
        self._database = database
        self._worker = worker
        self._settings = settings
        self._results = results
        self._streams = streams
        self._may_continue = may_continue
        self._clock = clock

    def step(self) -> None:
        """Returns at once if retention is not due, otherwise after everything was removed."""
        with self._database.write() as session:
            now = self._database.now(session)
            if not is_due(session, self._worker, now, EVERY_MS):
                return
        probes = remove_old_probes(self._results, self._clock() - EVERY_MS / 1000)
        if probes:
            _log.info("probes_removed", directories=probes)
        limits = Limits.of(self._settings)
        removed = purge_politely(self._database, self._results, self._streams, limits, self._may_continue)
        if not removed.is_nothing:
            _log.info("retention_applied", **asdict(removed))
