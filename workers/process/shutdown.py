"""Shuts a worker down: gracefully after a request in the database, or within a limited time after a signal."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable

import structlog
from sqlalchemy.exc import SQLAlchemyError

from service.contract import problems
from service.contract.enums import AttemptStatus
from service.store.attempts import Claim
from workers.jobs.attempt import RunningAttempts, StopReason
from workers.jobs.cancellation import cancel_stopped
from workers.jobs.outcome import HandBack

_log = structlog.get_logger(__name__)

_HAND_BACK_SECONDS = 3.0
_DATABASE_WAIT_SECONDS = 5.0
"""The total time that the worker waits for an unavailable database if runners do not end."""
_EXIT_SECONDS = 15.0
_FORCED_EXIT_SECONDS = 5.0
"""How long the process may take to end after everything was closed."""
_CHECK_SECONDS = 0.5
"""The time between two checks for an order while jobs end."""


def end_this_process() -> None:
    """Sends the signal that an operator would send. Celery stops as usual, and the process ends with 0."""
    os.kill(os.getpid(), signal.SIGTERM)


def force_exit(worker: str) -> None:
    """Ends this process with exit code 0 after some seconds, unless it has ended before. The interpreter waits for each
    thread that is not a daemon, even if it hangs. To be called after the worker was closed.
    """

    def end() -> None:
        time.sleep(_FORCED_EXIT_SECONDS)
        _log.error("worker_exit_forced", worker=worker)
        os._exit(0)

    threading.Thread(target=end, name="force-exit", daemon=True).start()


class Shutdown:
    """Waits in a thread for the request or the order to shut down, and then ends the worker.

    After a request (`request`), the worker accepts no further jobs, and its process ends when its running jobs have
    ended. After an order (`order`, at any time), they have `drain_seconds`. A job that has not ended by then is handed
    back to the queue, and the attempt does not count.
    """

    def __init__(
        self,
        worker: str,
        running_attempts: RunningAttempts,
        drain_seconds: float,
        *,
        hand_back: Callable[[Claim, HandBack, float], None],
        kill_driver: Callable[[], None],
        stop_taking: Callable[[], None],
        end_process: Callable[[], None] = end_this_process,
    ) -> None:
        """`hand_back` is called with the number of seconds that it may wait for an unavailable database; then it raises
        the error of the database. `stop_taking` stops the consumption, announces the jobs of waiting messages
        again, and may raise.
        """
        self._worker = worker
        self._running_attempts = running_attempts
        self._drain_seconds = drain_seconds
        self._hand_back = hand_back
        self._kill_driver = kill_driver
        self._stop_taking = stop_taking
        self._end_process = end_process
        self._requested = threading.Event()
        self._ordered = threading.Event()
        self._closed = threading.Event()

    def start(self) -> None:
        """Starts the thread."""
        threading.Thread(target=self._shut_down, name="drain", daemon=True).start()

    @property
    def is_requested(self) -> bool:
        """Whether a shutdown was requested or ordered."""
        return self._requested.is_set()

    def request(self) -> None:
        """Requests a shutdown when the jobs have ended. Returns at once. A second call changes nothing."""
        self._requested.set()

    def order(self) -> None:
        """Orders a shutdown within `drain_seconds`. Returns at once; safe in a signal handler."""
        self._ordered.set()
        self._requested.set()

    def wait_for_order(self, timeout: float) -> bool:
        """Waits at most `timeout` seconds. Returns whether a shutdown was ordered."""
        return self._ordered.wait(timeout)

    def finish(self) -> None:
        """Called when everything is closed: the process then ends normally, or `force_exit` ends it."""
        self._closed.set()

    def _shut_down(self) -> None:
        self._requested.wait()
        self._running_attempts.refuse()
        # In another thread, so that an unavailable database or broker does not use up the drain time.
        threading.Thread(target=self._stop_consuming, name="stop-consuming", daemon=True).start()
        if not self._ordered.is_set():
            self._wait_for_jobs()
        if not self._running_attempts.wait_until_empty(self._drain_seconds):
            self._hand_back_all()
        self._force_exit()

    def _stop_consuming(self) -> None:
        try:
            self._stop_taking()
        except Exception:  # noqa: BLE001 - the sweeper finds the jobs of lost messages
            _log.warning("consumption_not_stopped", exc_info=True)

    def _wait_for_jobs(self) -> None:
        _log.info("worker_draining", worker=self._worker, jobs=len(self._running_attempts.all()))
        while not self._running_attempts.wait_until_empty(_CHECK_SECONDS):
            if self._ordered.is_set():
                return
        if not self._ordered.is_set():
            _log.info("worker_drained", worker=self._worker)
            self._end_process()

    def _hand_back_all(self) -> None:
        self._running_attempts.close()
        for attempt in self._running_attempts.all():
            attempt.stop(StopReason.WORKER_STOPPING)
        # In another thread: a JVM that hangs must not delay the jobs that do not wait for it.
        threading.Thread(
            target=cancel_stopped, args=(self._running_attempts.all(),), name="cancel", daemon=True
        ).start()
        if not self._running_attempts.wait_until_empty(_HAND_BACK_SECONDS):
            self._hand_back_remaining()

    def _hand_back_remaining(self) -> None:
        """Hands back the jobs of threads that do not end, because they wait for a driver or a disk that hangs."""
        until = time.monotonic() + _DATABASE_WAIT_SECONDS
        for attempt in self._running_attempts.all():
            if attempt.reason is StopReason.WORKER_STOPPING:
                given = HandBack(AttemptStatus.CANCELLED, problems.handed_back(self._worker))
                try:
                    self._hand_back(attempt.claim, given, max(0.0, until - time.monotonic()))
                except SQLAlchemyError:
                    _log.warning("hand_back_failed", job_id=attempt.claim.job_id, exc_info=True)
        self._kill_driver()

    def _force_exit(self) -> None:
        """Ends the process that was ordered to end, even if one of its threads does not end."""
        if not self._closed.wait(_EXIT_SECONDS):
            _log.error("worker_exit_forced", worker=self._worker)
            os._exit(1)
