"""An attempt in the hands of this worker, and all of them together: what the threads beside the runner work on."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum

from service.contract.reports import Progress
from service.store.leases import Claim
from workers.driver.driver import Driver


class StopReason(StrEnum):
    """Why an attempt is to end before its query does."""

    CANCELLED = "cancelled"
    TIMED_OUT = "timed_out"
    LEASE_LOST = "lease_lost"
    DRIVER_LOST = "driver_lost"
    DRIVER_ENDED = "driver_ended"
    """By this worker, for the work of others."""
    WORKER_STOPPING = "worker_stopping"
    STOP_REQUESTED = "stop_requested"
    RESULT_TOO_LARGE = "result_too_large"


def reason_of_loss(driver: Driver) -> StopReason:
    """Why those attempts are to end whose driver is gone, and that had no part in it."""
    return StopReason.DRIVER_ENDED if driver.ended else StopReason.DRIVER_LOST


class AttemptStopped(Exception):  # noqa: N818 - an order to stop, no error
    """Raised inside the runner at the next step after the attempt was told to stop."""


class Attempt:
    """One try of a job. The runner's thread works on it, other threads may tell it to stop.

    `deadline` is the time by `clock` at which the job's time limit is over.
    """

    def __init__(self, claim: Claim, deadline: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.claim = claim
        self.streams = False
        """Whether it is at mini-batches: it is then ended between two of them, where there is time for that."""
        self.deadline = deadline
        self.tag = f"evenkeel-{claim.job_id}-{claim.fence}"
        """What all its Spark jobs carry, by which they are cancelled."""
        self.run_tag = self.tag
        """What those of its last run carry, by which they are measured."""
        self.driver: Driver | None = None
        self.progress = Progress()
        self._clock = clock
        self._reason: StopReason | None = None
        self._told_at = 0.0
        self._settled = False
        self._aside = 0
        self._back_at = 0.0
        self._waiting: list[threading.Event] = []
        self._lock = threading.Lock()

    @property
    def reason(self) -> StopReason | None:
        """Why it is to stop; None while it is to go on. Spark does not tell, so the runner asks here."""
        return self._reason

    def ignored_for(self) -> float:
        """Seconds since it was told to stop; 0 where it was not."""
        return 0.0 if self._reason is None else self._clock() - self._told_at

    @property
    def is_settled(self) -> bool:
        """Whether it needs its driver no more."""
        return self._settled

    @property
    def is_without_driver(self) -> bool:
        """Whether it is to stop because its driver is gone, or about to be."""
        return self._reason in {StopReason.DRIVER_LOST, StopReason.DRIVER_ENDED}

    @contextmanager
    def aside(self) -> Iterator[None]:
        """What runs inside waits for the database, which may be away, and for nothing of the driver's."""
        with self._lock:
            self._aside += 1
        try:
            yield
        finally:
            with self._lock:
                self._aside -= 1
                self._back_at = self._clock()

    def deaf_for(self) -> float:
        """Seconds for which it may have waited for its driver although it was told to stop: a driver that others use
        is ended for them. 0 while it is at the database, or at nothing any more.
        """
        with self._lock:
            if self._reason is None or self._settled or self._aside:
                return 0.0
            return self._clock() - max(self._told_at, self._back_at)

    def stop(self, reason: StopReason) -> bool:
        """Tells the attempt to end; the first reason stays. True where it is told for the first time and in time."""
        with self._lock:
            if self._settled or self._reason is not None:
                return False
            self._told_at = self._clock()
            self._reason = reason
            for event in self._waiting:
                event.set()
            return True

    def set_on_stop(self, event: threading.Event) -> None:
        """Sets the event as soon as the attempt is to stop; at once where it is to stop already."""
        with self._lock:
            self._waiting.append(event)
            if self._reason is not None:
                event.set()

    def settle(self) -> None:
        """The attempt has come to its end and is about to publish it: nothing can stop it any more."""
        with self._lock:
            self._settled = True

    @property
    def ends_gently(self) -> bool:
        """Whether its Spark jobs may end by themselves: whoever runs it sees to its end."""
        return self._reason is StopReason.STOP_REQUESTED or (
            self.streams and self._reason is StopReason.WORKER_STOPPING
        )

    def check(self) -> None:
        """Raises AttemptStopped once the attempt is to end: called between steps that cannot be interrupted."""
        if self._reason is not None:
            raise AttemptStopped(self._reason.value)


@dataclass(frozen=True, eq=False)
class AbandonedPlanning:
    """The planning of an attempt that has ended, in a thread that has not ended yet. Its result is dropped."""

    attempt: Attempt
    thread: threading.Thread


class AbandonedPlannings:
    """The plannings that attempts of this worker have left running. Safe to share between threads.

    `most` is the number of them from which on the worker claims no further job. Each thread that runs jobs can add one
    more after that.
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
        """The plannings whose thread has not ended."""
        with self._lock:
            self._plannings = [planning for planning in self._plannings if planning.thread.is_alive()]
            return tuple(self._plannings)

    @property
    def are_too_many(self) -> bool:
        """Whether the worker must not claim a further job."""
        return len(self.all()) >= self._most


class AttemptsAtHand:
    """The attempts that this worker is at. Safe to share between threads.

    `most_abandoned` is the limit of `abandoned`, the plannings that attempts have left running.
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
        """No further jobs; the attempts at hand go on, and so does one whose job is just being claimed."""
        with self._changed:
            self._refusing = True
            for attempt in self._kept:
                attempt.stop(StopReason.WORKER_STOPPING)
            self._changed.notify_all()

    def close(self) -> None:
        """Time is up: an attempt whose job was just being claimed is told to stop as it begins."""
        with self._changed:
            self._refusing = self._closed = True
            self._changed.notify_all()

    @contextmanager
    def taking(self) -> Iterator[None]:
        """A thread that may come by an attempt inside: there is no telling yet that none is at hand."""
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
        """The attempt is at hand inside; it is told to stop at once where the worker is closing."""
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
        """Inside `holding`: the attempt stays at hand when its thread has left, until it is released.

        A worker that is to leave waits for no end of it: it is told to stop, then or now.
        """
        with self._changed:
            self._kept.add(attempt)
            if self._refusing:
                attempt.stop(StopReason.WORKER_STOPPING)

    def release(self, attempt: Attempt) -> None:
        """An attempt that was kept has ended."""
        with self._changed:
            self._kept.discard(attempt)
            self._attempts.discard(attempt)
            self._changed.notify_all()

    def kept(self) -> tuple[Attempt, ...]:
        """Those at hand that no thread of a runner is at."""
        with self._changed:
            return tuple(self._kept)

    def all(self) -> tuple[Attempt, ...]:
        """Those at hand now."""
        with self._changed:
            return tuple(self._attempts)

    def wait_until_empty(self, timeout: float) -> bool:
        """Whether all of them ended within `timeout` seconds, with the threads that may come by one."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._attempts and not self._taking, timeout)

    def wait_until_closed(self, timeout: float) -> bool:
        """Whether the worker takes no more jobs, now or within `timeout` seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: self._refusing, timeout)
