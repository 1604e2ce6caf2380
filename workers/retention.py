"""Removes old jobs and results every hour. One worker at a time does it for all; no job waits for it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import structlog

from service.jobs.purge_jobs import Limits, purge_politely
from service.settings import RetentionSettings
from service.store.retention import is_due
from service.store.session import Database
from workers.engine.spark.probes import remove_old_probes

_log = structlog.get_logger(__name__)

EVERY_MS = 60 * 60 * 1000


class RetentionStep:
    """One step asks whether it is time, and then removes everything that has been kept for long enough, and what
    workers left that were killed while their executors wrote a probe."""

    def __init__(
        self,
        database: Database,
        worker: str,
        settings: RetentionSettings,
        results: Path,
        streams: Path,
        goes_on: Callable[[], bool],
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`goes_on` is asked between batches: a worker that stops leaves the rest to the next one. `clock` is that of
        the files: seconds since the epoch."""
        self._database = database
        self._worker = worker
        self._settings = settings
        self._results = results
        self._streams = streams
        self._goes_on = goes_on
        self._clock = clock

    def step(self) -> None:
        """Does nothing while it is not time; else returns when everything is removed."""
        with self._database.write() as session:
            now = self._database.now(session)
            if not is_due(session, self._worker, now, EVERY_MS):
                return
        probes = remove_old_probes(self._results, self._clock() - EVERY_MS / 1000)
        if probes:
            _log.info("probes_removed", directories=probes)
        removed = purge_politely(self._database, self._results, self._streams, Limits.of(self._settings), self._goes_on)
        if not removed.is_nothing:
            _log.info("retention_applied", **asdict(removed))
