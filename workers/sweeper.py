"""Keeps jobs moving when something was lost: a worker, a message, an asker. One worker at a time does it for all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import structlog

from service import __version__
from service.ingest.recovery import show_hidden
from service.results.directories import remove_job_directory
from service.settings import WorkerSettings
from service.store import jobs, leaders, workers
from service.store.listeners import free_slots
from service.store.session import Database
from service.store.sweeping import Sweep, sweep

_log = structlog.get_logger(__name__)

_TASK = "sweep"
_MOST_WAITS = 3


class Sweeper:
    """One step looks at every job once, if this worker is the one to do it."""

    def __init__(
        self,
        database: Database,
        worker: str,
        settings: WorkerSettings,
        results: Path,
        ring: Callable[[str, str], bool],
        beat: Callable[[], object],
        connect_seconds: float = 0,
        streams: Path | None = None,
    ) -> None:
        """`ring` tells whether the broker took the message; `beat` renews this worker's leases; others may need
        `connect_seconds` to find the database again before they renew theirs; below `streams`, rows were posted."""
        self._database = database
        self._worker = worker
        self._results = results
        self._streams = streams
        self._ring = ring
        self._beat = beat
        self._concurrency = settings.concurrency
        self._ring_again_ms = round(settings.ring_again_seconds * 1000)
        self._alive_ms = round(settings.heartbeat_seconds * 3000)
        # Two missed sweeps hand the task to another worker.
        self._term_ms = round(settings.sweep_seconds * 2500)
        self._pause_ms = round(settings.sweep_seconds * 2000)
        self._wait_ms = round((settings.heartbeat_seconds + connect_seconds + settings.sweep_seconds) * 1000)
        self._swept_at: int | None = None
        self._failed = False
        self._waits = 0
        self._waits_until = 0

    def step(self) -> None:
        """Ends lost attempts, announces jobs again, forgets dead workers, shows rows that a process left hidden; does
        nothing while another leads."""
        failed, self._failed = self._failed, True
        # First of all: after the machine slept, this worker's own leases have run out, and it lives.
        self._beat()
        with self._database.write() as session:
            now = self._database.now(session)
            is_late = self._is_late(now, failed)
            found = Sweep()
            leads = leaders.elect(session, _TASK, self._worker, now, self._term_ms)
            if leads:
                heard_since = now - self._alive_ms
                found = sweep(
                    session,
                    now,
                    ring_again_ms=self._ring_again_ms,
                    free=free_slots(session, heard_since, self._concurrency),
                    other_versions=workers.is_any_of_another_version(session, heard_since, __version__),
                    end_lost=not is_late,
                )
                workers.purge(session, now - workers.KEPT_MS)
                jobs.delete_forgotten_explains(session, now)
        self._failed = False
        self._follow_up(found)
        if leads and self._streams is not None:
            show_hidden(self._database, self._streams)

    def _is_late(self, now: int, failed: bool) -> bool:
        """Whether the others must have their chance first: they slept with this machine, or missed the same database;
        one that has just started cannot know.

        Not for ever: where every step is late, somebody must end what is lost all the same.
        """
        since, self._swept_at = self._swept_at, now
        # Also where the clock went back: leases of the future are then those of before.
        paused = since is None or not 0 <= now - since <= self._pause_ms
        self._waits_until = min(self._waits_until, now + self._wait_ms)
        if (paused or failed) and self._waits < _MOST_WAITS:
            self._waits += 1
            self._waits_until = now + self._wait_ms
        if now < self._waits_until:
            return True
        self._waits = 0
        return False

    def _follow_up(self, found: Sweep) -> None:
        for job_id in found.recovered:
            _log.warning("lost_attempt_recovered", job_id=job_id)
        for _, job_id in found.ended:
            _log.warning("lost_job_ended", job_id=job_id)
            remove_job_directory(self._results, job_id)
        for job_id, queue in found.ring:
            # Each try takes seconds while the broker is silent; the jobs are announced again in their time.
            if not self._ring(job_id, queue):
                _log.warning("ringing_put_off", jobs=len(found.ring))
                break

    def resign(self) -> None:
        """Lets another worker sweep at once."""
        with self._database.write() as session:
            leaders.resign(session, _TASK, self._worker)
