"""The periodic work of one elected worker for all: the sweeper and retention.

The sweeper recovers from the loss of a worker, a message or a client. Retention removes old jobs and results every
hour; no job waits for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import structlog

from service import __version__
from service.config.settings import RetentionSettings, WorkerSettings
from service.data.posted_rows import show_hidden
from service.results.directories import remove_job_directory
from service.results.purge import Limits, purge_with_pauses
from service.store import jobs, leases, workers
from service.store.maintenance import Sweep, is_due, sweep
from service.store.session import Database
from service.store.workers import free_slots
from workers.driver.driver import remove_old_probes

_log = structlog.get_logger(__name__)

_ELECTION = "sweep"
"""The name of the sweeper's election."""

_MAX_POSTPONED_STEPS = 3
"""How many late steps in a row may postpone the end of lost attempts."""

RETENTION_PERIOD_MS = 60 * 60 * 1000
"""The period of retention."""


class Sweeper:
    """Checks all jobs in each step, if this worker is the elected one."""

    def __init__(
        self,
        database: Database,
        worker: str,
        settings: WorkerSettings,
        results: Path,
        announce: Callable[[str, str], bool],
        beat: Callable[[], object],
        connect_seconds: float = 0,
        streams: Path | None = None,
    ) -> None:
        """`announce` sends a job's message and returns whether the broker accepted it. `beat` renews this worker's
        leases. Other workers may need `connect_seconds` to connect to the database before they renew theirs. `streams`
        is the directory of posted rows."""
        self._database = database
        self._worker = worker
        self._results = results
        self._streams = streams
        self._announce = announce
        self._beat = beat
        self._concurrency = settings.concurrency
        self._announce_again_ms = round(settings.ring_again_seconds * 1000)
        self._alive_ms = round(settings.heartbeat_seconds * 3000)
        # After two missed sweeps, another worker is elected.
        self._term_ms = round(settings.sweep_seconds * 2500)
        self._pause_ms = round(settings.sweep_seconds * 2000)
        self._wait_ms = round((settings.heartbeat_seconds + connect_seconds + settings.sweep_seconds) * 1000)
        self._swept_at: int | None = None
        self._failed = False
        self._postponed_steps = 0
        self._postponed_until = 0

    def step(self) -> None:
        """Ends lost attempts, announces jobs again, removes dead workers, and publishes posted rows that a process left
        hidden. Does nothing while another worker is elected."""
        failed, self._failed = self._failed, True
        # First: after a suspension of the machine, this worker's own leases have expired although it is alive.
        self._beat()
        with self._database.write() as session:
            now = self._database.now(session)
            is_late = self._is_late(now, failed)
            found = Sweep()
            is_elected = leases.elect(session, _ELECTION, self._worker, now, self._term_ms)
            if is_elected:
                alive_since = now - self._alive_ms
                found = sweep(
                    session,
                    now,
                    announce_again_ms=self._announce_again_ms,
                    free=free_slots(session, alive_since, self._concurrency),
                    other_versions=workers.has_other_version(session, alive_since, __version__),
                    end_lost=not is_late,
                )
                workers.remove_silent_workers(session, now - workers.KEPT_MS)
                jobs.delete_old_explanations(session, now)
        self._failed = False
        self._follow_up(found)
        if is_elected and self._streams is not None:
            show_hidden(self._database, self._streams)

    def _is_late(self, now: int, failed: bool) -> bool:
        """Whether the other workers need time to renew their leases first: their machine may have been suspended
        together with this one, or they may have lost the database as well. The first step of a worker counts as late,
        since nothing is known about the time before.

        Only a few steps in a row are postponed: lost attempts must be ended even if every step is late.
        """
        since, self._swept_at = self._swept_at, now
        # A clock that was set back counts as a pause: the leases were granted before.
        paused = since is None or not 0 <= now - since <= self._pause_ms
        self._postponed_until = min(self._postponed_until, now + self._wait_ms)
        if (paused or failed) and self._postponed_steps < _MAX_POSTPONED_STEPS:
            self._postponed_steps += 1
            self._postponed_until = now + self._wait_ms
        if now < self._postponed_until:
            return True
        self._postponed_steps = 0
        return False

    def _follow_up(self, found: Sweep) -> None:
        for job_id in found.recovered:
            _log.warning("lost_attempt_recovered", job_id=job_id)
        for _, job_id in found.ended:
            _log.warning("lost_job_ended", job_id=job_id)
            remove_job_directory(self._results, job_id)
        for job_id, queue in found.announce:
            # While the broker does not respond, each try takes seconds. A later sweep announces the rest.
            if not self._announce(job_id, queue):
                _log.warning("announcements_deferred", jobs=len(found.announce))
                break

    def resign(self) -> None:
        """Gives up the election, so that another worker can sweep at once."""
        with self._database.write() as session:
            leases.resign(session, _ELECTION, self._worker)


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
            if not is_due(session, self._worker, now, RETENTION_PERIOD_MS):
                return
        probes = remove_old_probes(self._results, self._clock() - RETENTION_PERIOD_MS / 1000)
        if probes:
            _log.info("probes_removed", directories=probes)
        limits = Limits.of(self._settings)
        removed = purge_with_pauses(self._database, self._results, self._streams, limits, self._may_continue)
        if not removed.is_nothing:
            _log.info("retention_applied", **asdict(removed))
