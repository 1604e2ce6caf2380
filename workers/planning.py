"""Runs the planning of an attempt in another thread, which goes on alone when the attempt must stop.

Nothing can interrupt a thread that is inside a call into the JVM, a call of the operating system, or a loop. So the
thread that runs the job waits for the end of its planning or for the order to stop, whichever comes first.
"""

from __future__ import annotations

import queue
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager
from contextvars import copy_context
from typing import Any, Generic, TypeVar

import structlog

from workers.attempt import AbandonedPlanning, AbandonedPlannings, Attempt, AttemptStopped
from workers.engine.spark.driver import Driver

_log = structlog.get_logger(__name__)

T = TypeVar("T")

_GRACE_SECONDS = 0.2
"""How long a planning that is to stop may take to end by itself."""

_IDLE_SECONDS = 60.0
"""How long a thread waits for the next planning. A new thread has to connect to the JVM first."""


class TooManyPlanningsError(Exception):
    """The worker claims no job until plannings that it has abandoned have ended."""


class PlanningThreads:
    """Reusable threads for plannings. Safe to share between threads."""

    def __init__(self, abandoned: AbandonedPlannings, idle_seconds: float = _IDLE_SECONDS) -> None:
        self._abandoned = abandoned
        self._idle_seconds = idle_seconds
        self._idle: list[_PlanningThread] = []
        self._lock = threading.Lock()

    def run(self, attempt: Attempt, plan: Callable[[], T], discard: Callable[[T], object] = lambda _: None) -> T:
        """Returns what `plan` returns, called in another thread, and raises what it raises.

        Raises AttemptStopped within a moment after the attempt is to stop. If `plan` has not returned by then, its
        thread is added to the abandoned plannings, and `discard` is called in that thread with the unused result.
        `plan` must call `attempt.check` between its steps, and before it changes anything that outlives the attempt.
        """
        planning = _Planning(plan, discard)
        attempt.set_on_stop(planning.woken)
        thread = self._thread()
        thread.begin(planning)
        planning.woken.wait()
        if attempt.reason is not None:
            planning.ended.wait(_GRACE_SECONDS)
        if planning.answer.cancel():
            self._abandoned.add(AbandonedPlanning(attempt, thread))
            _log.warning("planning_abandoned", is_in_jvm_call=is_in_jvm_call(thread))
            raise AttemptStopped(str(attempt.reason))
        return planning.answer.result()

    def _thread(self) -> _PlanningThread:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        thread = _PlanningThread(self._put_back, self._take_out, self._idle_seconds)
        thread.start()
        return thread

    def _put_back(self, thread: _PlanningThread) -> None:
        with self._lock:
            self._idle.append(thread)

    def _take_out(self, thread: _PlanningThread) -> bool:
        """Whether the thread was idle, and no planning is about to begin in it."""
        with self._lock:
            if thread not in self._idle:
                return False
            self._idle.remove(thread)
            return True


class _Planning(Generic[T]):
    """One call of `plan`. `woken` is set when it has ended; others may set it as well."""

    def __init__(self, plan: Callable[[], T], discard: Callable[[T], object]) -> None:
        self.answer: Future[T] = Future()
        self.woken = threading.Event()
        self.ended = threading.Event()
        self._context = copy_context()
        self._plan = plan
        self._discard = discard

    def run(self) -> bool:
        """Plans in the calling thread. Returns whether a thread still waited for the result."""
        return self._context.run(self._run)

    def end(self) -> None:
        """Wakes the waiting thread."""
        self.ended.set()
        self.woken.set()

    def _run(self) -> bool:
        begun = time.monotonic()
        try:
            result = self._plan()
        except BaseException as error:  # noqa: BLE001 - raised in the thread that waits
            if self.answer.set_running_or_notify_cancel():
                self.answer.set_exception(error)
                return True
            _log_late_end(begun, type(error).__name__)
        else:
            if self.answer.set_running_or_notify_cancel():
                self.answer.set_result(result)
                return True
            try:
                self._discard(result)
            except Exception:  # noqa: BLE001 - no thread waits for it
                _log.warning("plan_not_discarded", exc_info=True)
            _log_late_end(begun, None)
        return False


class _PlanningThread(threading.Thread):
    """Plans one attempt after the other. It ends after an abandoned planning, and after a long idle time."""

    def __init__(
        self,
        put_back: Callable[[_PlanningThread], None],
        take_out: Callable[[_PlanningThread], bool],
        idle_seconds: float,
    ) -> None:
        # A daemon: the end of the process does not wait for it.
        super().__init__(name="planning", daemon=True)
        self._given: queue.SimpleQueue[_Planning[Any]] = queue.SimpleQueue()
        self._put_back = put_back
        self._take_out = take_out
        self._idle_seconds = idle_seconds

    def begin(self, planning: _Planning[Any]) -> None:
        """Begins a planning. To be called with a thread that is new or was idle."""
        self._given.put(planning)

    def run(self) -> None:
        """See `Thread`."""
        while True:
            try:
                planning = self._given.get(timeout=self._idle_seconds)
            except queue.Empty:
                if self._take_out(self):
                    return
                continue
            was_waited_for = planning.run()
            if was_waited_for:
                self._put_back(self)
            planning.end()
            if not was_waited_for:
                return
            del planning


def _log_late_end(begun: float, error: str | None) -> None:
    _log.info("abandoned_planning_ended", seconds=round(time.monotonic() - begun, 1), error=error)


def is_in_jvm_call(thread: threading.Thread) -> bool:
    """Whether the thread waits for the answer of the JVM at this moment."""
    frame = None if thread.ident is None else sys._current_frames().get(thread.ident)
    while frame is not None:
        if str(frame.f_globals.get("__name__", "")).partition(".")[0] == "py4j":
            return True
        frame = frame.f_back
    return False


def labelled(attempt: Attempt, driver: Driver) -> AbstractContextManager[None]:
    """Inside, everything that the calling thread runs on Spark carries the attempt's tag and name."""
    claim = attempt.claim
    label = f"{claim.name} ({claim.job_id}, attempt {claim.fence})"
    return driver.labelled(attempt.tag, claim.tenant, label)
