"""Ends a worker on a request through the database, or on an order by a signal."""

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
from service.store.leases import Claim
from workers.jobs.attempt import AttemptsAtHand, StopReason
from workers.jobs.cancellation import cancel_stopped
from workers.jobs.outcome import HandBack

_log = structlog.get_logger(__name__)

_HAND_BACK_SECONDS = 3.0
_AWAY_SECONDS = 5.0
"""For how long in all the worker waits for an unavailable database when runners do not end."""
_EXIT_SECONDS = 15.0
_LAST_SECONDS = 5.0
"""How long the process may take to end once everything is closed."""
_LOOK_SECONDS = 0.5


def end_this_process() -> None:
    """Sends the signal that an operator would send. Celery stops as usual, and the process ends with 0."""
    os.kill(os.getpid(), signal.SIGTERM)


def force_exit(worker: str) -> None:
    """Ends this process with exit code 0 some seconds from now, unless it has ended by itself: the interpreter waits
    for each thread that is no daemon, also for one that hangs. To be called in the process of a closed worker.
    """

    def end() -> None:
        time.sleep(_LAST_SECONDS)
        _log.error("worker_exit_forced", worker=worker)
        os._exit(0)

    threading.Thread(target=end, name="force-exit", daemon=True).start()


class Departure:
    """A thread that waits for the request or the order to leave, and then ends the worker.

    After a request (`ask`), the worker takes no further job, and its running jobs have all the time they need; then its
    process ends. After an order (`order`, at any time), they have `drain_seconds`. A job that has not ended by then is
    handed back to the queue, and the attempt does not count.
    """

    def __init__(
        self,
        worker: str,
        at_hand: AttemptsAtHand,
        drain_seconds: float,
        *,
        hand_back: Callable[[Claim, HandBack, float], None],
        kill_driver: Callable[[], None],
        stop_taking: Callable[[], None],
        end_process: Callable[[], None] = end_this_process,
    ) -> None:
        """`hand_back` is called with the number of seconds that it may wait for an unavailable database; then it raises
        the error of the database. `stop_taking` ends the flow of messages, passes on those that wait here, and may
        fail.
        """
        self._worker = worker
        self._at_hand = at_hand
        self._drain_seconds = drain_seconds
        self._hand_back = hand_back
        self._kill_driver = kill_driver
        self._stop_taking = stop_taking
        self._end_process = end_process
        self._told = threading.Event()
        self._ordered = threading.Event()
        self._closed = threading.Event()

    def start(self) -> None:
        """Starts the thread."""
        threading.Thread(target=self._leave, name="drain", daemon=True).start()

    @property
    def told(self) -> bool:
        """Whether the worker was asked or ordered to leave."""
        return self._told.is_set()

    def ask(self) -> None:
        """Asks the worker to leave when its jobs have ended. Returns at once. A second call changes nothing."""
        self._told.set()

    def order(self) -> None:
        """Orders the worker to leave. Returns at once; safe in a signal handler."""
        self._ordered.set()
        self._told.set()

    def wait_for_order(self, timeout: float) -> bool:
        """Whether the worker was ordered to leave, now or within `timeout` seconds."""
        return self._ordered.wait(timeout)

    def finish(self) -> None:
        """Notes that everything is closed: the process ends by itself now, or `force_exit` ends it."""
        self._closed.set()

    def _leave(self) -> None:
        self._told.wait()
        self._at_hand.refuse()
        # In another thread: an unavailable database or broker must not take the jobs' time.
        threading.Thread(target=self._pass_on, name="pass-on", daemon=True).start()
        if not self._ordered.is_set():
            self._let_jobs_end()
        if not self._at_hand.wait_until_empty(self._drain_seconds):
            self._give_back()
        self._exit_at_last()

    def _pass_on(self) -> None:
        try:
            self._stop_taking()
        except Exception:  # noqa: BLE001 - the sweeper finds the jobs of lost messages
            _log.warning("messages_not_passed_on", exc_info=True)

    def _let_jobs_end(self) -> None:
        _log.info("worker_draining", worker=self._worker, jobs=len(self._at_hand.all()))
        while not self._at_hand.wait_until_empty(_LOOK_SECONDS):
            if self._ordered.is_set():
                return
        if not self._ordered.is_set():
            _log.info("worker_drained", worker=self._worker)
            self._end_process()

    def _give_back(self) -> None:
        self._at_hand.close()
        for attempt in self._at_hand.all():
            attempt.stop(StopReason.WORKER_STOPPING)
        # In another thread: a JVM that hangs must not delay the jobs that do not wait for it.
        threading.Thread(target=cancel_stopped, args=(self._at_hand.all(),), name="cancel", daemon=True).start()
        if not self._at_hand.wait_until_empty(_HAND_BACK_SECONDS):
            self._give_back_what_is_left()

    def _give_back_what_is_left(self) -> None:
        """Hands back the jobs of runners that do not end, because they wait for a driver or a disk that hangs."""
        until = time.monotonic() + _AWAY_SECONDS
        for attempt in self._at_hand.all():
            if attempt.reason is StopReason.WORKER_STOPPING:
                given = HandBack(AttemptStatus.CANCELLED, problems.handed_back(self._worker))
                try:
                    self._hand_back(attempt.claim, given, max(0.0, until - time.monotonic()))
                except SQLAlchemyError:
                    _log.warning("hand_back_failed", job_id=attempt.claim.job_id, exc_info=True)
        self._kill_driver()

    def _exit_at_last(self) -> None:
        """Ends the process that was ordered to end, even if one of its threads does not end."""
        if not self._closed.wait(_EXIT_SECONDS):
            _log.error("worker_exit_forced", worker=self._worker)
            os._exit(1)
