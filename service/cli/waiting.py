"""Waits for jobs and shows their progress: as a bar on a terminal, otherwise as a line for each state and quarter."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from service.cli.connection import read
from service.cli.operations import JobState, Service
from service.cli.session import Session
from service.cli.terminal import CliError, ExitCode, StopSignals
from service.client.responses import Document, Job, JobSummary
from service.client.text import safe_line, shortened
from service.contract.enums import JobStatus

WAIT_SECONDS = 10
_MIN_SECONDS = 0.1
_UNCHANGED_SECONDS = 1.0
"""Time between requests if the service responds at once although the job is unchanged, because it limits waits."""

_WAITING_FOR = {
    "slot": "waiting for a free worker, or for Spark to start",
    "worker": "no worker listens to its queue",
    "tenant": "waiting for another of your jobs to end",
    "retry": "waiting to be retried",
}
_EXIT_CODES = {
    JobStatus.SUCCEEDED: ExitCode.OK,
    JobStatus.STOPPED: ExitCode.OK,
    JobStatus.FAILED: ExitCode.FAILED,
    JobStatus.CANCELLED: ExitCode.CANCELLED,
    JobStatus.TIMED_OUT: ExitCode.TIMED_OUT,
    JobStatus.CRASHED: ExitCode.CRASHED,
}


@contextmanager
def shown_progress(console: Console, say: Callable[[str], None]) -> Iterator[Callable[[JobSummary], None]]:
    """Yields a function that shows the progress of a job: on the console if that is a terminal, otherwise by `say`."""
    if not console.is_terminal:
        yield _LineByLine(say)
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description:<10}", markup=False),
        BarColumn(bar_width=None),
        TextColumn("{task.fields[done]}", markup=False),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("QUEUED", total=None, done="")

        def show(job: JobSummary) -> None:
            total, done, text = _progress(job)
            state = shortened(safe_line(job.status), 20)
            bar.update(task, description=state, total=total, completed=done, done=text)

        yield show


class _LineByLine:
    """Writes a line for each state and for each quarter of the tasks."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._last: tuple[str, int, str] | None = None

    def __call__(self, job: JobSummary) -> None:
        total, done, text = _progress(job)
        now = (job.status, 4 * done // total if total else 0, job.waiting_for or "")
        if now != self._last:
            self._last = now
            self._say(f"  {job.status} {text}".rstrip())


def _progress(job: JobSummary) -> tuple[int | None, int, str]:
    """Returns the total number of tasks (None if unknown), the number of finished tasks, and both as text."""
    if job.is_at_rest:
        return 1, 1, ""
    if job.waiting_for:
        return None, 0, _WAITING_FOR.get(job.waiting_for, shortened(safe_line(job.waiting_for), 30))
    progress = job.progress
    if progress is None or progress.tasks_total == 0:
        return None, 0, ""
    return progress.tasks_total, progress.tasks_done, f"{progress.tasks_done}/{progress.tasks_total} tasks"


def follow(service: Service, job_id: str, show: Callable[[Job], None], *, wait_seconds: int = WAIT_SECONDS) -> Document:
    """Waits until the job has ended or is STOPPED. Calls `show` with it after each change and after each wait."""
    known: JobState | None = None
    job: Job | None = None
    while job is None or not job.is_at_rest:
        requested_at = time.monotonic()
        state = service.changed_job(job_id, known, wait_seconds)
        took = time.monotonic() - requested_at
        if state is not None:
            known = state
            job = read(Job, state.document)
        if job is not None:
            show(job)
            if not job.is_at_rest:
                pause = _MIN_SECONDS if state is not None else _UNCHANGED_SECONDS
                time.sleep(max(0.0, pause - took))
    assert known is not None  # noqa: S101 - `job` was read from it
    return known.document


def wait(session: Session, job_id: str, *, cancel_on_interrupt: bool = False) -> Document:
    """Returns the job once it has ended or is STOPPED, and shows its progress until then.

    Raises CliError if it is interrupted, unless that cancels the job.
    """
    output = session.output
    try:
        with StopSignals(), shown_progress(output.errors, output.note) as show:
            return follow(session.service, job_id, show)
    except KeyboardInterrupt:
        if not cancel_on_interrupt:
            raise CliError(
                "interrupted; the job continues",
                f"Wait again: evenkeel job {job_id} --wait\n  Cancel it:  evenkeel cancel {job_id}",
                code=ExitCode.INTERRUPTED,
            ) from None
    except CliError as error:
        if error.code is not ExitCode.UNREACHABLE:
            raise
        advice = f"The job continues. Wait again: evenkeel job {job_id} --wait"
        raise CliError(error.message, advice, code=error.code) from None
    output.note("Cancelling the job. Press Ctrl-C again to stop waiting.")
    return _cancel(session, job_id)


def _cancel(session: Session, job_id: str) -> Document:
    try:
        document = session.service.cancel(job_id)
    except CliError as error:
        if error.code is not ExitCode.CONFLICT:
            raise
        return session.service.job(job_id)  # the job has ended in the meantime
    if read(Job, document).is_at_rest:
        return document
    return follow(session.service, job_id, lambda _job: None)


def exit_code(job: Job) -> ExitCode:
    """Returns the exit code that reports how a job ended."""
    if job.status == JobStatus.STOPPED and job.error is not None:
        return ExitCode.FAILED
    try:
        return _EXIT_CODES.get(JobStatus(job.status), ExitCode.FAILED)
    except ValueError:  # a state of a newer service
        return ExitCode.FAILED
