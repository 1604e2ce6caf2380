"""Waiting for a job: until it rests, or somebody interrupts."""

from __future__ import annotations

import time
from collections.abc import Callable

from service.cli.client.answers import Document, Job, read
from service.cli.client.service import JobState, Service
from service.cli.client.session import Session
from service.cli.errors import CliError, ExitCode
from service.spec.status import JobStatus

WAIT_SECONDS = 10
_LEAST_SECONDS = 0.1
_SAME_SECONDS = 1.0
"""How long a job is left alone where the service says at once that it is the same: it grants no waits."""

_ENDS = {
    JobStatus.SUCCEEDED: ExitCode.OK,
    JobStatus.STOPPED: ExitCode.OK,
    JobStatus.FAILED: ExitCode.FAILED,
    JobStatus.CANCELLED: ExitCode.CANCELLED,
    JobStatus.TIMED_OUT: ExitCode.TIMED_OUT,
    JobStatus.CRASHED: ExitCode.CRASHED,
}


def follow(
    service: Service,
    job_id: str,
    see: Callable[[Job], None],
    *,
    wait_seconds: int = WAIT_SECONDS,
) -> Document:
    """Waits until the job rests; `see` gets it with every change, and after each wait."""
    known: JobState | None = None
    job: Job | None = None
    while job is None or not job.at_rest:
        asked_at = time.monotonic()
        state = service.job_after(job_id, known, wait_seconds)
        took = time.monotonic() - asked_at
        if state is not None:
            known = state
            job = read(Job, state.document)
        if job is not None:
            see(job)
            if not job.at_rest:
                least = _LEAST_SECONDS if state is not None else _SAME_SECONDS
                time.sleep(max(0.0, least - took))
    assert known is not None  # noqa: S101 - it has been seen
    return known.document


def wait(session: Session, job_id: str, *, cancel_on_interrupt: bool = False) -> Document:
    """The job once it rests, with its progress shown meanwhile. Raises CliError where somebody interrupts."""
    from service.cli.client.progress import shown_progress
    from service.cli.signals import StopSignals

    output = session.output
    try:
        with StopSignals(), shown_progress(output.errors, output.note) as show:
            return follow(session.service, job_id, show)
    except KeyboardInterrupt:
        if not cancel_on_interrupt:
            raise CliError(
                "interrupted; the job goes on",
                f"Wait again: evenkeel job {job_id} --wait\n  Cancel it:  evenkeel cancel {job_id}",
                code=ExitCode.INTERRUPTED,
            ) from None
    except CliError as error:
        if error.code is not ExitCode.UNREACHABLE:
            raise
        advice = f"The job goes on without that. Wait again: evenkeel job {job_id} --wait"
        raise CliError(error.message, advice, code=error.code) from None
    output.note("Cancelling the job; Ctrl-C again does not wait for that.")
    return _cancelled(session, job_id)


def exit_code(job: Job) -> ExitCode:
    """What tells a script how a job that was waited for ended."""
    if job.status == JobStatus.STOPPED and job.error is not None:
        return ExitCode.FAILED
    try:
        return _ENDS.get(JobStatus(job.status), ExitCode.FAILED)
    except ValueError:  # a state of a newer service
        return ExitCode.FAILED


def _cancelled(session: Session, job_id: str) -> Document:
    try:
        document = session.service.cancel(job_id)
    except CliError as error:
        if error.code is not ExitCode.CONFLICT:
            raise
        # It has ended meanwhile.
        return session.service.job(job_id)
    if read(Job, document).at_rest:
        return document
    return follow(session.service, job_id, lambda _job: None)
