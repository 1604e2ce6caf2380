"""A running stream of this worker.

`StreamAttempt.step` is called repeatedly. It stores metrics, follows lookup tables, starts the stream again where that
helps, and returns the verdict once the stream has ended.
"""

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
from service.store.streaming_state import StreamStopReason
from workers.engine.streaming.query import RunningStream, StreamOverError
from workers.engine.streaming.sinks.base import FenceLostError, Sink, SinkError
from workers.engine.streaming.sources import SourceRead
from workers.engine.streaming.stream_plan import StreamPlanError
from workers.jobs.attempt import Attempt
from workers.jobs.outcome import HandBack, LeaseLost, StreamStop, Verdict, verdict_of
from workers.streams.batch_metrics import StreamMetrics
from workers.streams.lookup_table_polling import NotUsed
from workers.streams.lookup_tables import LookupTables, OtherVersionsError, Versions
from workers.streams.state_limit import StateLimitError

_log = structlog.get_logger(__name__)

STOP_SECONDS = 10.0
"""How long to wait for the running mini-batch before it is interrupted. An interrupted one runs again."""

_CONCURRENT = "Multiple streaming jobs detected"
"""In the message of CONCURRENT_STREAM_LOG_UPDATE, and of the same error of a directory's log, which has no condition.
"""

_OF_FILES = frozenset({CODE, StoreUnavailableError.code, "path_outside_data_roots"})
"""Codes of the errors that a check of static tables' files raises. After one of them, no further check is needed."""

_CHANGE_SECONDS = 0.5
"""How long a step waits for the running mini-batch before a change of versions; the next step continues to wait."""

_RESTARTS = 5
_STEADY_SECONDS = 300.0
"""An attempt that ran for this long is considered stable: its job does not crash the driver at once."""


@dataclass(frozen=True)
class Following:
    """The lookup tables that a stream follows. `planned` returns the versions of its current plan."""

    lookup_tables: LookupTables
    planned: Callable[[], Versions]


@dataclass(frozen=True)
class Opened:
    """Everything that is needed to start a stream, and to start it again with the newest versions of its lookup tables.
    `reads` returns the sources of the current plan (`reads_of`).
    """

    sink: Sink
    generation: int
    reads: Callable[[], Sequence[SourceRead]]
    start: Callable[[], RunningStream]
    metrics: StreamMetrics
    ends: bool = True
    """Whether the stream ends once it has read all input. If not, it uses new versions of lookup tables as they appear.
    """
    following: Following | None = None
    release_session: Callable[[], None] = lambda: None
    """Returns the session of the stream for reuse, once the stream has ended."""
    redact: Callable[[str], str | None] = str
    """Returns the part of a message of Spark that clients may see; None if it is internal."""
    check_at_end: Callable[[], None] = lambda: None
    """Checks files that are not checked after each mini-batch. Raises SpecError and StoreUnavailableError."""


class StreamAttempt:
    """One attempt at a stream. The constructor starts the stream. Only one thread at a time may call the methods."""

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
        self._is_changing_versions = False
        self._versions_changed = opened.following is not None
        self._reported: list[dict[str, Any]] = []
        self._running = opened.start()

    def step(self) -> Verdict | None:
        """Stores the stream's metrics, or stops it if the attempt must stop. Returns the verdict on the job once the
        stream has ended, otherwise None.

        Raises the errors of an unavailable database. Nothing is lost then; the next step continues.
        """
        reason = self.attempt.reason
        if reason is None and self._is_changing_versions:
            return self._change_versions()
        if reason is None and self._running.is_active:
            if self._measure():
                self._tidy()
            self._mark_steady()
            self._update_tables()
            return None
        if reason is not None:
            self._stop()
        return self._with_check(self._verdict())

    def close(self) -> None:
        """Called after the verdict: stores the metrics of the last mini-batches, and closes the sink.

        Raises the errors of an unavailable database.
        """
        self._end_checks()
        if not self._is_without_driver:
            try:
                self._measure(at_end=True)
            except Exception as error:
                if fault_of(error) is not None:
                    raise
                _log.warning("stream_not_measured", exc_info=True)
        if self.attempt.reason is None:
            self._tidy()
            self._store_versions()
        self._release()

    def abandon(self) -> None:
        """Stops the stream after an error of its supervision. Another attempt continues after its last mini-batch."""
        self._running.stop()
        self._end_checks()
        self._release()

    def _end_checks(self) -> None:
        if self._opened.following is not None:
            self._opened.following.lookup_tables.end()

    def _release(self) -> None:
        self._opened.sink.close()
        if self._running.has_ended:
            self._opened.release_session()

    def wait(self, seconds: float) -> bool:
        """Waits for the end of the stream, at most `seconds`. Returns whether it has ended."""
        return self._running.wait(seconds)

    def _stop(self) -> None:
        if self.attempt.is_without_driver:
            return
        if self.attempt.ends_gracefully:
            self._running.stop_between_batches(STOP_SECONDS, self._clock)
        else:
            self._running.stop()

    def _verdict(self) -> Verdict | None:
        attempt = self.attempt
        error = None if self._is_without_driver else self._running.error()
        if isinstance(error, FenceLostError):
            return LeaseLost()
        if attempt.reason is not None:
            return _stop_instead_of_failure(verdict_of(error or RuntimeError(attempt.reason.value), attempt))
        if isinstance(error, OtherVersionsError):
            self._is_changing_versions = True
            return None
        if error is None and self._opened.ends:
            return StreamStop(StreamStopReason.CAUGHT_UP)
        if error is None:
            claim = attempt.claim
            return HandBack(AttemptStatus.CRASHED, problems.internal_error(claim.job_id, claim.fence))
        if self._starts_again(error):
            return None
        return stream_verdict(error, attempt, self._opened.redact)

    def _with_check(self, verdict: Verdict | None) -> Verdict | None:
        """Returns the verdict, or a failure if the stream stops and files of its static tables have changed."""
        if not isinstance(verdict, StreamStop):
            return verdict
        code = None if verdict.error is None else verdict.error.code
        if code in _OF_FILES:
            return verdict
        try:
            self._opened.check_at_end()
        except SpecError as error:
            return StreamStop(StreamStopReason.FAILED, problem_of_spec_error(error))
        except StoreUnavailableError as error:
            # The error of a stream that failed takes precedence.
            return (
                verdict
                if code is not None
                else StreamStop(StreamStopReason.FAILED, problems.storage_unavailable(str(error)))
            )
        return verdict

    @property
    def _is_without_driver(self) -> bool:
        """Whether the stream cannot be queried: its driver is lost, or has ended after another request to stop."""
        attempt = self.attempt
        if attempt.reason is None:
            # `DriverWatch` decides first whether the driver is lost.
            return False
        return attempt.is_without_driver or attempt.driver is None or not attempt.driver.is_running()

    def _starts_again(self, error: Exception) -> bool:
        """Starts the stream again if an attempt without a lease wrote the offsets of the next mini-batch, which this
        attempt then runs. Returns whether it did.
        """
        if _CONCURRENT not in str(error) or self._restarts >= _RESTARTS:
            return False
        # The reports of mini-batches are lost with the query that ran them.
        self._measure()
        self._restarts += 1
        _log.warning("stream_started_again", restarts=self._restarts)
        self._running = self._opened.start()
        return True

    def _update_tables(self) -> None:
        following = self._opened.following
        if following is None:
            return
        if not self._opened.ends:
            found = following.lookup_tables.step()
            if found is not None:
                self._is_changing_versions, self._versions_changed = found, True
        self._store_versions()

    def _change_versions(self) -> Verdict | None:
        """Restarts the stream with the versions of its next mini-batch, once no mini-batch is running."""
        if not self._running.end_between_batches(_CHANGE_SECONDS, self._clock):
            # No further mini-batch begins after the running one.
            return None
        error = self._running.error()
        if error is not None and not isinstance(error, OtherVersionsError | StreamOverError):
            self._is_changing_versions = False
            return self._verdict()
        self._measure()
        try:
            self._running = self._restart()
        except Exception as failure:  # noqa: BLE001 - every end of a job is reported to the client
            return stream_verdict(failure, self.attempt, self._opened.redact)
        self._is_changing_versions, self._versions_changed = False, True
        self._tidy()
        return None

    def _restart(self) -> RunningStream:
        """Starts the stream with the newest versions, or with the previous ones if the newest cannot be planned."""
        try:
            return self._opened.start()
        except (SpecError, StreamPlanError) as refused:
            following = self._opened.following
            reason = NotUsed(refused.code, str(refused))
            if following is None or not following.lookup_tables.revert(following.planned(), reason):
                raise
            return self._opened.start()

    def _store_versions(self) -> None:
        following = self._opened.following
        if following is None or not self._versions_changed:
            return
        try:
            report = following.lookup_tables.report(following.planned())
        except (SpecError, OSError):
            # A version or its disk is missing. The mini-batch that needs it fails with an error.
            _log.warning("versions_not_stored", exc_info=True)
            report = self._reported
        if report != self._reported:
            with self.attempt.waiting_for_database(), self._database.write() as session:
                now = self._database.now(session)
                streaming_jobs.save_stream_metric(
                    session, self.attempt.claim, self._opened.generation, streaming_jobs.FOLLOWED, report, now
                )
            self._reported = report
        self._versions_changed = False

    def _mark_steady(self) -> None:
        if self._is_steady or self._clock() - self._begun < _STEADY_SECONDS:
            return
        with self.attempt.waiting_for_database(), self._database.write() as session:
            self._is_steady = streaming_jobs.mark_steady(session, self.attempt.claim, self._database.now(session))

    def _tidy(self) -> None:
        try:
            self._opened.sink.tidy()
            following = self._opened.following
            if following is not None:
                following.lookup_tables.tidy(following.planned())
        except Exception:  # noqa: BLE001 - the result is correct without it, and mini-batches report the error
            _log.warning("sink_not_tidied", exc_info=True)

    def _measure(self, *, at_end: bool = False) -> bool:
        """Stores the metrics since the last call. Returns whether a mini-batch was among them."""
        found = self._running.progress(self._measured)
        opened, claim = self._opened, self.attempt.claim
        report = opened.metrics.measure(found, opened.reads(), at_end=at_end)
        if not report:
            return False
        report = replace(report, measures=tuple(map(self._with_versions, report.measures)))
        with self.attempt.waiting_for_database(), self._database.write() as session:
            report.store(session, claim, opened.generation, self._database.now(session))
        opened.metrics.stored(report)
        if not found:
            return False
        self._measured = found[-1].batch_id
        self._versions_changed = True
        return True

    def _with_versions(self, measures: BatchMeasures) -> BatchMeasures:
        following = self._opened.following
        if following is None:
            return measures
        versions = following.lookup_tables.reported_versions(measures.batch_id)
        return replace(measures, metrics={**measures.metrics, "versions": versions})


def stream_verdict(error: Exception, attempt: Attempt, redact: Callable[[str], str | None] = str) -> Verdict:
    """Returns the verdict for an error that ended a stream or prevented its start. `redact` is as in `verdict_of`."""
    if isinstance(error, FenceLostError):
        return LeaseLost()
    if isinstance(error, SinkError | StreamPlanError | StateLimitError) and attempt.reason is None:
        return StreamStop(StreamStopReason.FAILED, _problem(error))
    return _stop_instead_of_failure(verdict_of(error, attempt, redact))


def _stop_instead_of_failure(verdict: Verdict) -> Verdict:
    """Turns a failure into a stop: a stream that fails keeps its state, and can be resumed once the cause is fixed."""
    if isinstance(verdict, Ending) and verdict.status in {JobStatus.FAILED, JobStatus.TIMED_OUT}:
        return StreamStop(StreamStopReason.FAILED, verdict.error)
    return verdict


def _problem(error: SinkError | StreamPlanError | StateLimitError) -> Problem:
    title = error.code.replace("_", " ").capitalize()
    return Problem(type=f"/problems/{error.code}", title=title, status=422, detail=str(error), code=error.code)
