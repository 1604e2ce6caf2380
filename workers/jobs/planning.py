"""Plans a batch job in another thread, and checks after its run that its files did not change.

Nothing can interrupt a thread in a call into the JVM, a system call, or a loop. So the thread that runs the job waits
until its planning has ended or the attempt must stop, and abandons the planning in the second case.
"""

from __future__ import annotations

import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from contextvars import copy_context
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import structlog

from service.contract.job import JobSpec
from service.contract.problems import SpecError
from service.data.file_changes import changed_files
from service.data.file_format import check_all_blocks
from service.data.files import TableFiles, find_table_files, swapped
from service.data.roots import Root, StoreUnavailableError
from service.data.schemas import read_schema
from service.sql.compile import compile_job
from service.sql.failed_expressions import QueryExpressions
from service.sql.resolve.bound import BoundQuery
from workers.driver.driver import Driver
from workers.engine.plan.nodes import Node
from workers.engine.spark.engine import Engine, PlannedQuery
from workers.engine.spark.malformed_records import columns_of_records
from workers.engine.spark.sources import TableInput, scans_of
from workers.engine.spark.statistics_cache import StatisticsCache
from workers.jobs.attempt import AbandonedPlanning, AbandonedPlannings, Attempt, AttemptStopped

_log = structlog.get_logger(__name__)

T = TypeVar("T")

_GRACE_SECONDS = 0.2
"""How long to wait for a planning that must stop, before it is abandoned."""

_IDLE_SECONDS = 60.0
"""How long a thread waits for the next planning. A new thread has to connect to the JVM first."""


def allow_deep_plans() -> None:
    """Raises the limit of Python's recursion. To plan the largest queries that are accepted, of 128 tables, takes 800
    stack frames. The default limit of 1,000 leaves too few for the frames below them.
    """
    sys.setrecursionlimit(5_000)


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

        Raises AttemptStopped shortly after the attempt must stop. If `plan` has not returned by then, its
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
        """Removes the thread if it is idle. Returns False if a planning is about to begin in it."""
        with self._lock:
            if thread not in self._idle:
                return False
            self._idle.remove(thread)
            return True


class _Planning(Generic[T]):
    """One call of `plan`. `woken` is set when it has ended, or when the attempt must stop."""

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
        # A daemon thread: the process ends without waiting for it.
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
    """Whether the thread is waiting for an answer of the JVM."""
    frame = None if thread.ident is None else sys._current_frames().get(thread.ident)
    while frame is not None:
        if str(frame.f_globals.get("__name__", "")).partition(".")[0] == "py4j":
            return True
        frame = frame.f_back
    return False


def labelled(attempt: Attempt, driver: Driver) -> AbstractContextManager[None]:
    """Inside, the Spark jobs of the calling thread have the attempt's tag and the job's name."""
    claim = attempt.claim
    label = f"{claim.name} ({claim.job_id}, attempt {claim.fence})"
    return driver.labelled(attempt.tag, claim.tenant, label)


@dataclass(frozen=True)
class PlannedJob:
    """A batch job that is ready to run, and the engine that runs it. `tables` is by table name."""

    engine: Engine
    planned: PlannedQuery
    tables: dict[str, TableInput]


def plan_batch_job(
    attempt: Attempt, driver: Driver, spec: JobSpec, roots: Sequence[Root], known_files: StatisticsCache
) -> PlannedJob:
    """Plans the job in the calling thread. It writes nothing, since the caller may have abandoned it.

    Raises AttemptStopped at the next step after the attempt must stop, and what `compile_job` and `Engine.plan` raise.
    """
    query, tables = _compile(attempt, spec, roots)
    attempt.check()
    with labelled(attempt, driver):
        attempt.check()
        engine = Engine(driver.session_for_job(), driver.slots, known_files, driver.scans)
        attempt.check()
        try:
            planned = engine.plan(query, tables, spec.settings, crashes=attempt.claim.crashes, check=attempt.check)
            # A stopped attempt may not wait for this thread any longer.
            attempt.check()
        except BaseException:
            engine.close()
            raise
    attempt.columns = columns_of_records(planned.plan, tables)
    return PlannedJob(engine, planned, tables)


def _compile(attempt: Attempt, spec: JobSpec, roots: Sequence[Root]) -> tuple[BoundQuery, dict[str, TableInput]]:
    """Repeats the checks of the submission, since files may have changed. Does not check the settings, since the
    version that accepted the job may have allowed more.
    """
    tables = {}
    for name, source in spec.file_tables.items():
        attempt.check()
        files = find_table_files(name, source, roots)
        check_all_blocks(name, source, files)
        tables[name] = TableInput(source, files, read_schema(name, source, files))
    attempt.check()
    schemas = {name: table.schema for name, table in tables.items()}
    attempt.expressions = QueryExpressions(spec, schemas)
    return compile_job(spec, schemas, is_accepted=True), tables


@contextmanager
def same_files(tables: Mapping[str, TableInput], plan: Node, attempt: Attempt) -> Iterator[None]:
    """Runs the plan inside. Raises SpecError `path_outside_data_roots` if a file has become a link, and `files_changed`
    if a file that the plan reads was written or removed since it was found. Raises them also in place of an error from
    inside, since Spark's error may quote the file. Raises StoreUnavailableError if a store does not answer after a run
    that succeeded.
    """
    is_done = False
    try:
        yield
        is_done = True
    finally:
        problem = next(filter(None, (swapped(table.files) for table in tables.values())), None)
        # A run that was stopped ends with that reason; it does not wait for a store.
        if problem is None and (is_done or attempt.reason is None):
            read = sorted({scan.table for scan in scans_of(plan)})
            changes = (_changed_files(tables[name].files, is_done=is_done) for name in read)
            problem = next(filter(None, changes), None)
        if problem is not None:
            raise problem from None


def _changed_files(files: TableFiles, *, is_done: bool) -> SpecError | None:
    # The error of a failed run takes precedence over that of a store that does not answer after it.
    with nullcontext() if is_done else suppress(StoreUnavailableError):
        return changed_files(files)
    return None
