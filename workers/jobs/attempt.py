"""The state of an attempt, and the registry of the attempts that this worker runs.

The thread that runs the job and the other threads of the worker share both.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum

from service.contract.reports import Progress
from service.sql.failed_expressions import QueryExpressions
from service.sql.types.data_types import Field
from service.store.attempts import Claim
from workers.driver.driver import Driver


class StopReason(StrEnum):
    """Why an attempt must stop before its query ends."""

    CANCELLED = "cancelled"
    TIMED_OUT = "timed_out"
    LEASE_LOST = "lease_lost"
    DRIVER_LOST = "driver_lost"
    DRIVER_ENDED = "driver_ended"
    """This worker ended the driver because of other attempts."""
    WORKER_STOPPING = "worker_stopping"
    STOP_REQUESTED = "stop_requested"
    RESULT_TOO_LARGE = "result_too_large"


def reason_of_loss(driver: Driver) -> StopReason:
    """Returns the reason to stop the attempts of a driver that has ended: DRIVER_ENDED if this worker ended it."""
    return StopReason.DRIVER_ENDED if driver.ended else StopReason.DRIVER_LOST


class AttemptStopped(Exception):  # noqa: N818 - a request to stop, not an error
    """Raised by `Attempt.check` in the thread of the attempt, once it must stop."""


class Attempt:
    """One attempt at a job. One thread runs it; other threads may stop it.

    `deadline` is the time by `clock` at which the job's time limit is exceeded.
    """

    def __init__(self, claim: Claim, deadline: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.claim = claim
        self.streams = False
        """Whether it runs mini-batches. It is then stopped between two of them, if there is time for that."""
        self.deadline = deadline
        self.tag = f"evenkeel-{claim.job_id}-{claim.fence}"
        """The tag of all its Spark jobs, by which they are cancelled."""
        self.run_tag = self.tag
        """The tag of the Spark jobs of its last run, by which they are measured."""
        self.driver: Driver | None = None
        self.expressions: QueryExpressions | None = None
        """The expressions of the job's query, once its tables are known, to say which of them failed."""
        self.columns: Sequence[tuple[Field, ...]] = ()
        """The columns that a planned batch job reads of each of its text tables, to say which of them failed."""
        self.progress = Progress()
        self._clock = clock
        self._reason: StopReason | None = None
        self._stopped_at = 0.0
        self._settled = False
        self._database_waits = 0
        self._database_wait_ended_at = 0.0
        self._waiting: list[threading.Event] = []
        self._lock = threading.Lock()

    @property
    def reason(self) -> StopReason | None:
        """Why the attempt must stop; None while it may continue. Spark's errors do not show this reason."""
        return self._reason

    def seconds_since_stop(self) -> float:
        """Returns the seconds since `stop`; 0 before."""
        return 0.0 if self._reason is None else self._clock() - self._stopped_at

    @property
    def is_settled(self) -> bool:
        """Whether it does not need its driver any more."""
        return self._settled

    @property
    def is_without_driver(self) -> bool:
        """Whether it must stop because its driver has ended or is about to end."""
        return self._reason in {StopReason.DRIVER_LOST, StopReason.DRIVER_ENDED}

    @contextmanager
    def waiting_for_database(self) -> Iterator[None]:
        """Inside, the attempt waits for the database, which may be unavailable, and not for the driver."""
        with self._lock:
            self._database_waits += 1
        try:
            yield
        finally:
            with self._lock:
                self._database_waits -= 1
                self._database_wait_ended_at = self._clock()

    def unresponsive_for(self) -> float:
        """Returns for how many seconds it may have waited for its driver since `stop`. A driver that does not respond
        is ended, since other attempts need it. Returns 0 while it waits for the database, and after it has ended.
        """
        with self._lock:
            if self._reason is None or self._settled or self._database_waits:
                return 0.0
            return self._clock() - max(self._stopped_at, self._database_wait_ended_at)

    def stop(self, reason: StopReason) -> bool:
        """Makes the attempt stop. The first reason is kept; returns False if there was one or the attempt has ended."""
        with self._lock:
            if self._settled or self._reason is not None:
                return False
            self._stopped_at = self._clock()
            self._reason = reason
            for event in self._waiting:
                event.set()
            return True

    def set_on_stop(self, event: threading.Event) -> None:
        """Sets the event as soon as the attempt must stop; at once if it must stop already."""
        with self._lock:
            self._waiting.append(event)
            if self._reason is not None:
                event.set()

    def settle(self) -> None:
        """Marks the attempt as ended, before its end is published: `stop` has no effect any more."""
        with self._lock:
            self._settled = True

    @property
    def ends_gracefully(self) -> bool:
        """Whether it must stop, but its Spark jobs may finish: `StreamAttempt` stops it between two mini-batches."""
        return self._reason is StopReason.STOP_REQUESTED or (
            self.streams and self._reason is StopReason.WORKER_STOPPING
        )

    def check(self) -> None:
        """Raises AttemptStopped once the attempt must stop. Called between steps that cannot be interrupted."""
        if self._reason is not None:
            raise AttemptStopped(self._reason.value)


@dataclass(frozen=True, eq=False)
class AbandonedPlanning:
    """The planning of an attempt that has ended, in a thread that has not ended yet. Its result is discarded."""

    attempt: Attempt
    thread: threading.Thread


class AbandonedPlannings:
    """The plannings that still run after their attempts have ended. Safe to share between threads.

    With `most` of them, the worker claims no further job. Each thread that runs jobs can still add one more then.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._plannings: list[AbandonedPlanning] = []
        self._lock = threading.Lock()

    def add(self, planning: AbandonedPlanning) -> None:
        """Adds a planning. It is removed when its thread has ended."""
        with self._lock:
            self._plannings.append(planning)

    def all(self) -> tuple[AbandonedPlanning, ...]:
        """Returns the plannings whose thread has not ended."""
        with self._lock:
            self._plannings = [planning for planning in self._plannings if planning.thread.is_alive()]
            return tuple(self._plannings)

    @property
    def are_too_many(self) -> bool:
        """Whether the worker must not claim a further job."""
        return len(self.all()) >= self._most


class RunningAttempts:
    """The attempts that this worker runs. Safe to share between threads.

    `most_abandoned` is the limit of `abandoned`, the plannings that still run after their attempts have ended.
    """

    def __init__(self, most_abandoned: int = 4) -> None:
        self.abandoned = AbandonedPlannings(most_abandoned)
        self._attempts: set[Attempt] = set()
        self._kept: set[Attempt] = set()
        self._taking = 0
        self._refusing = False
        self._closed = False
        self._changed = threading.Condition()

    @property
    def closed(self) -> bool:
        """Whether the worker takes no more jobs."""
        return self._refusing

    def refuse(self) -> None:
        """Takes no further jobs. The running attempts continue, and so does one whose job is being claimed.

        Stops the streams of `keep`, which do not end by themselves.
        """
        with self._changed:
            self._refusing = True
            for attempt in self._kept:
                attempt.stop(StopReason.WORKER_STOPPING)
            self._changed.notify_all()

    def close(self) -> None:
        """Called when the drain time is over: an attempt whose job is still being claimed stops as it begins."""
        with self._changed:
            self._refusing = self._closed = True
            self._changed.notify_all()

    @contextmanager
    def taking(self) -> Iterator[None]:
        """Inside, the calling thread may claim a job, so `wait_until_empty` waits for it."""
        with self._changed:
            self._taking += 1
        try:
            yield
        finally:
            with self._changed:
                self._taking -= 1
                self._changed.notify_all()

    @contextmanager
    def holding(self, attempt: Attempt) -> Iterator[None]:
        """Registers the attempt while inside. Stops it at once if the worker is closing."""
        with self._changed:
            self._attempts.add(attempt)
            if self._closed:
                attempt.stop(StopReason.WORKER_STOPPING)
        try:
            yield
        finally:
            with self._changed:
                if attempt not in self._kept:
                    self._attempts.discard(attempt)
                self._changed.notify_all()

    def keep(self, attempt: Attempt) -> None:
        """Called inside `holding`: the attempt stays registered after its thread has left, until `release`.

        A worker that drains does not wait for such an attempt to end: it is stopped when the drain begins, or now.
        """
        with self._changed:
            self._kept.add(attempt)
            if self._refusing:
                attempt.stop(StopReason.WORKER_STOPPING)

    def release(self, attempt: Attempt) -> None:
        """Removes an attempt of `keep` that has ended."""
        with self._changed:
            self._kept.discard(attempt)
            self._attempts.discard(attempt)
            self._changed.notify_all()

    def kept(self) -> tuple[Attempt, ...]:
        """Returns the attempts of `keep`, which continue without their thread."""
        with self._changed:
            return tuple(self._kept)

    def all(self) -> tuple[Attempt, ...]:
        """Returns the registered attempts."""
        with self._changed:
            return tuple(self._attempts)

    def wait_until_empty(self, timeout: float) -> bool:
        """Waits at most `timeout` seconds. Returns whether no attempt runs and no thread may still claim one."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._attempts and not self._taking, timeout)

    def wait_until_closed(self, timeout: float) -> bool:
        """Waits at most `timeout` seconds. Returns whether the worker takes no more jobs."""
        with self._changed:
            return self._changed.wait_for(lambda: self._refusing, timeout)
