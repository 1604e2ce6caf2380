"""How far a job is: a bar on a terminal, a line for every state and quarter elsewhere.

Waiting for a job: until it rests, or somebody interrupts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from service.client.operations import JobState, Service
from service.client.responses import Document, Job, JobSummary, read
from service.client.session import Session
from service.client.terminal import CliError, ExitCode, safe_line, shortened
from service.contract.enums import JobStatus

_WAITS = {
    "slot": "until a worker is free",
    "worker": "no worker listens to its queue",
    "tenant": "until another of your jobs ends",
    "retry": "to be tried again",
}


@contextmanager
def shown_progress(console: Console, say: Callable[[str], None]) -> Iterator[Callable[[JobSummary], None]]:
    """While entered, shows the job that is handed to the given function as it stands: on the console where that is a
    terminal, else by `say`."""
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

        def see(job: JobSummary) -> None:
            total, done, text = _progress(job)
            state = shortened(safe_line(job.status), 20)
            bar.update(task, description=state, total=total, completed=done, done=text)

        yield see


class _LineByLine:
    """Progress for logs: a line for every state and every quarter of the tasks."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._said: tuple[str, int, str] | None = None

    def __call__(self, job: JobSummary) -> None:
        total, done, text = _progress(job)
        now = (job.status, 4 * done // total if total else 0, job.waiting_for or "")
        if now != self._said:
            self._said = now
            self._say(f"  {job.status} {text}".rstrip())


def _progress(job: JobSummary) -> tuple[int | None, int, str]:
    """Tasks in all (None while unknown), tasks done, and both as text."""
    if job.at_rest:
        return 1, 1, ""
    if job.waiting_for:
        return None, 0, _WAITS.get(job.waiting_for, shortened(safe_line(job.waiting_for), 30))
    progress = job.progress
    if progress is None or progress.tasks_total == 0:
        return None, 0, ""
    return progress.tasks_total, progress.tasks_done, f"{progress.tasks_done}/{progress.tasks_total} tasks"


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
    from service.client.terminal import StopSignals

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
