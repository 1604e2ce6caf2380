"""A stream that this worker runs: looked at every now and then, until there is a verdict on its attempt."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import structlog

from service.contract import problems
from service.contract.enums import AttemptStatus, JobStatus
from service.contract.problems import Problem, SpecError, problem_of_spec_error
from service.data.file_changes import CODE
from service.data.roots import StoreUnavailableError
from service.store import streaming_jobs
from service.store.publication import Ending
from service.store.session import Database, fault_of
from service.store.streaming_jobs import BatchMeasures
from service.store.streaming_state import StoppedBecause
from workers.engine.streaming.micro_batch import StreamOverError
from workers.engine.streaming.query import RunningStream
from workers.engine.streaming.sinks.base import FenceLostError, Sink, SinkError
from workers.engine.streaming.sources import SourceRead
from workers.engine.streaming.stream_plan import StreamPlanError
from workers.jobs.attempt import Attempt
from workers.jobs.outcome import HandBack, LeaseLost, Rest, Verdict, verdict_of
from workers.streams.batch_metrics import StreamMeasuring, tell
from workers.streams.lookup_table_polling import HeldBack
from workers.streams.lookup_tables import Dimensions, OtherVersionsError, Versions

_log = structlog.get_logger(__name__)

STOP_SECONDS = 10.0
"""How long a mini-batch that is under way is waited for. One that is cut short comes again."""

_CONCURRENT = "Multiple streaming jobs detected"
"""Of CONCURRENT_STREAM_LOG_UPDATE, and of what the log of a directory's files says without a condition."""

_OF_FILES = frozenset({CODE, StoreUnavailableError.code, "path_outside_data_roots"})
"""Codes of errors that a check of the files of static tables raises: after one of them, no other check is needed."""

_CHANGE_SECONDS = 0.5
"""How long a look waits for the mini-batch that is under way, before other versions are used; the next look goes on."""

_RESTARTS = 5
_STEADY_SECONDS = 300.0
"""An attempt that ran for so long is not one that its job brings down."""


@dataclass(frozen=True)
class Following:
    """The tables that a stream follows, and `planned`: the versions of them that it was planned with last."""

    dimensions: Dimensions
    planned: Callable[[], Versions]


@dataclass(frozen=True)
class Opened:
    """What a stream needs to be started, and started again: then with the newest versions of the tables that it
    follows. `reads` gives the sources of the plan at hand (`reads_of`).
    """

    sink: Sink
    generation: int
    reads: Callable[[], Sequence[SourceRead]]
    start: Callable[[], RunningStream]
    ends: bool = True
    """Whether it ends by itself, once nothing is new. If not, it takes up tables that it follows as they change."""
    following: Following | None = None
    let_go: Callable[[], None] = lambda: None
    """Lets go of what the stream alone had, once it has ended."""
    measuring: StreamMeasuring | None = None
    """Tells more of its mini-batches than Spark, and how far it is behind."""
    told: Callable[[str], str | None] = str
    """What clients are told of a text of Spark's."""
    check_at_end: Callable[[], None] = lambda: None
    """Checks files that are not checked after each mini-batch. Raises SpecError and StoreUnavailableError."""


class StreamAttempt:
    """One attempt at a stream, which starts with it. One thread at a time calls it."""

    def __init__(
        self, attempt: Attempt, opened: Opened, database: Database, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.attempt = attempt
        self._opened = opened
        self._database = database
        self._clock = clock
        self._measured: int | None = None
        self._restarts = 0
        self._begun = clock()
        self._is_steady = False
        self._changes_over = False
        self._tells_versions = opened.following is not None
        self._told: list[dict[str, Any]] = []
        self._running = opened.start()

    def step(self) -> Verdict | None:
        """Notes how the stream gets on. What is to become of the job, once the stream has ended; else None.

        Raises what the database raises while it is away: nothing is lost by that, and the next step goes on.
        """
        reason = self.attempt.reason
        if reason is None and self._changes_over:
            return self._change_over()
        if reason is None and self._running.is_active:
            if self._measure():
                self._tidy()
            self._note_steadiness()
            self._look_at_tables()
            return None
        if reason is not None:
            self._stop()
        return self._with_check(self._verdict())

    def close(self) -> None:
        """After the verdict: notes what the last mini-batches were, and lets go of the sink.

        Raises what the database raises while it is away.
        """
        self._end_looks()
        if not self._is_without_driver:
            try:
                self._measure(at_end=True)
            except Exception as error:
                if fault_of(error) is not None:
                    raise
                _log.warning("stream_not_measured", exc_info=True)
        if self.attempt.reason is None:
            self._tidy()
            self._tell_versions()
        self._let_go()

    def abandon(self) -> None:
        """Ends the stream where nobody can look at it any more; another attempt goes on from its last mini-batch."""
        self._running.stop()
        self._end_looks()
        self._let_go()

    def _end_looks(self) -> None:
        if self._opened.following is not None:
            self._opened.following.dimensions.end()

    def _let_go(self) -> None:
        self._opened.sink.close()
        if self._running.has_ended:
            self._opened.let_go()

    def wait(self, seconds: float) -> bool:
        """Whether the stream has ended, now or within `seconds`."""
        return self._running.wait(seconds)

    def _stop(self) -> None:
        if self.attempt.is_without_driver:
            return
        if self.attempt.ends_gently:
            self._running.stop_between_batches(STOP_SECONDS, self._clock)
        else:
            self._running.stop()

    def _verdict(self) -> Verdict | None:
        attempt = self.attempt
        error = None if self._is_without_driver else self._running.error()
        if isinstance(error, FenceLostError):
            return LeaseLost()
        if attempt.reason is not None:
            return _resting(verdict_of(error or RuntimeError(attempt.reason.value), attempt))
        if isinstance(error, OtherVersionsError):
            self._changes_over = True
            return None
        if error is None and self._opened.ends:
            return Rest(StoppedBecause.CAUGHT_UP)
        if error is None:
            claim = attempt.claim
            return HandBack(AttemptStatus.CRASHED, problems.internal_error(claim.job_id, claim.fence))
        if self._starts_again(error):
            return None
        return resting_verdict(error, attempt, self._opened.told)

    def _with_check(self, verdict: Verdict | None) -> Verdict | None:
        """The verdict, or a failure where a stream comes to rest and files of its static tables have changed."""
        if not isinstance(verdict, Rest):
            return verdict
        code = None if verdict.error is None else verdict.error.code
        if code in _OF_FILES:
            return verdict
        try:
            self._opened.check_at_end()
        except SpecError as error:
            return Rest(StoppedBecause.FAILED, problem_of_spec_error(error))
        except StoreUnavailableError as error:
            # The error of a stream that failed counts.
            return (
                verdict if code is not None else Rest(StoppedBecause.FAILED, problems.storage_unavailable(str(error)))
            )
        return verdict

    @property
    def _is_without_driver(self) -> bool:
        """Whether there is nobody to ask about the stream: its driver is lost, or ended after another order to stop."""
        attempt = self.attempt
        if attempt.reason is None:
            # Nothing is decided before the driver is given up.
            return False
        return attempt.is_without_driver or attempt.driver is None or not attempt.driver.is_running()

    def _starts_again(self, error: Exception) -> bool:
        """Where an attempt that has lost its lease wrote the plan of the next mini-batch: it is this one's now."""
        if _CONCURRENT not in str(error) or self._restarts >= _RESTARTS:
            return False
        # What is told of mini-batches goes with the query that ran them.
        self._measure()
        self._restarts += 1
        _log.warning("stream_started_again", restarts=self._restarts)
        self._running = self._opened.start()
        return True

    def _look_at_tables(self) -> None:
        following = self._opened.following
        if following is None:
            return
        if not self._opened.ends:
            found = following.dimensions.step()
            if found is not None:
                self._changes_over, self._tells_versions = found, True
        self._tell_versions()

    def _change_over(self) -> Verdict | None:
        """Starts the stream anew, with the versions that its next mini-batch runs with, once none is under way."""
        if not self._running.ends_between_batches(_CHANGE_SECONDS, self._clock):
            # No other one begins after it.
            return None
        error = self._running.error()
        if error is not None and not isinstance(error, OtherVersionsError | StreamOverError):
            self._changes_over = False
            return self._verdict()
        self._measure()
        try:
            self._running = self._started_anew()
        except Exception as failure:  # noqa: BLE001 - every end of a job is told to the client
            return resting_verdict(failure, self.attempt, self._opened.told)
        self._changes_over, self._tells_versions = False, True
        self._tidy()
        return None

    def _started_anew(self) -> RunningStream:
        """With the newest versions, or as it was before where no stream can be planned with them."""
        try:
            return self._opened.start()
        except (SpecError, StreamPlanError) as refused:
            following = self._opened.following
            reason = HeldBack(refused.code, str(refused))
            if following is None or not following.dimensions.go_back(following.planned(), reason):
                raise
            return self._opened.start()

    def _tell_versions(self) -> None:
        following = self._opened.following
        if following is None or not self._tells_versions:
            return
        try:
            told = following.dimensions.told(following.planned())
        except (SpecError, OSError):
            # A version is gone, or its disk: what needs it fails, and says so.
            _log.warning("versions_not_told", exc_info=True)
            told = self._told
        if told != self._told:
            with self.attempt.aside(), self._database.write() as session:
                now = self._database.now(session)
                streaming_jobs.note_followed(session, self.attempt.claim, self._opened.generation, told, now)
            self._told = told
        self._tells_versions = False

    def _note_steadiness(self) -> None:
        if self._is_steady or self._clock() - self._begun < _STEADY_SECONDS:
            return
        with self.attempt.aside(), self._database.write() as session:
            self._is_steady = streaming_jobs.mark_steady(session, self.attempt.claim, self._database.now(session))

    def _tidy(self) -> None:
        try:
            self._opened.sink.tidy()
            following = self._opened.following
            if following is not None:
                following.dimensions.tidy(following.planned())
        except Exception:  # noqa: BLE001 - the result is sound without, and mini-batches tell what is wrong
            _log.warning("sink_not_tidied", exc_info=True)

    def _measure(self, *, at_end: bool = False) -> bool:
        """Stores what there is to tell since the last time; whether that was of a mini-batch."""
        found = self._running.progress(self._measured)
        opened, claim = self._opened, self.attempt.claim
        told = tell(opened.measuring, found, opened.reads(), at_end=at_end)
        if not told:
            return False
        told = replace(told, measures=tuple(map(self._with_versions, told.measures)))
        with self.attempt.aside(), self._database.write() as session:
            told.store(session, claim, opened.generation, self._database.now(session))
        if opened.measuring is not None:
            opened.measuring.stored(told)
        if not found:
            return False
        self._measured = found[-1].batch_id
        self._tells_versions = True
        return True

    def _with_versions(self, measures: BatchMeasures) -> BatchMeasures:
        following = self._opened.following
        if following is None:
            return measures
        versions = following.dimensions.told_of_batch(measures.batch_id)
        return replace(measures, metrics={**measures.metrics, "versions": versions})


def resting_verdict(error: Exception, attempt: Attempt, told: Callable[[str], str | None] = str) -> Verdict:
    """The meaning of what ended a stream, or kept it from starting. `told` is as `verdict_of` takes it."""
    if isinstance(error, FenceLostError):
        return LeaseLost()
    if isinstance(error, SinkError | StreamPlanError) and attempt.reason is None:
        return Rest(StoppedBecause.FAILED, _problem(error))
    return _resting(verdict_of(error, attempt, told))


def _resting(verdict: Verdict) -> Verdict:
    """A stream that fails keeps its state, and may go on once the cause is gone."""
    if isinstance(verdict, Ending) and verdict.status in {JobStatus.FAILED, JobStatus.TIMED_OUT}:
        return Rest(StoppedBecause.FAILED, verdict.error)
    return verdict


def _problem(error: SinkError | StreamPlanError) -> Problem:
    title = error.code.replace("_", " ").capitalize()
    return Problem(type=f"/problems/{error.code}", title=title, status=422, detail=str(error), code=error.code)
