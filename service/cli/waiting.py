"""Waits for jobs and shows their progress: as a bar on a terminal, otherwise as a line for each state and quarter."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from service.cli.connection import read
from service.cli.operations import Service
from service.cli.session import Session
from service.cli.terminal import CliError, ExitCode, StopSignals, program
from service.client import operations
from service.client.operations import WAIT_SECONDS
from service.client.progress import progress_of
from service.client.responses import Document, Job, JobSummary
from service.client.text import safe_line, shortened
from service.contract.enums import JobStatus

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
            total, done, text = progress_of(job)
            state = shortened(safe_line(job.status), 20)
            bar.update(task, description=state, total=total, completed=done, done=text)

        yield show


class _LineByLine:
    """Writes a line for each state and for each quarter of the tasks."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._last: tuple[str, int, str] | None = None

    def __call__(self, job: JobSummary) -> None:
        total, done, text = progress_of(job)
        now = (job.status, 4 * done // total if total else 0, job.waiting_for or "")
        if now != self._last:
            self._last = now
            self._say(f"  {job.status} {text}".rstrip())


def follow(
    service: Service, job_id: str, show: Callable[[Job], None], *, wait_seconds: float = WAIT_SECONDS
) -> Document:
    """Waits until the job has ended or is STOPPED. Calls `show` with it after each change and after each wait."""
    ended = service.connection.run(lambda exchange: operations.ended(exchange, job_id, show, wait_seconds=wait_seconds))
    return ended.document


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
                f"Wait again: {program()} job {job_id} --wait\n  Cancel it:  {program()} cancel {job_id}",
                code=ExitCode.INTERRUPTED,
            ) from None
    except CliError as error:
        if error.code is not ExitCode.UNREACHABLE:
            raise
        advice = f"The job continues. Wait again: {program()} job {job_id} --wait"
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
