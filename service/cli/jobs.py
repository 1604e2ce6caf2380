"""The commands `submit`, `jobs`, `job`, `cancel`, `stop`, `resume`, `delete`, `workers` and `whoami`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from service.cli.options import (
    AsJson,
    CancelOnInterrupt,
    Columns,
    JobFile,
    JobId,
    KeyFile,
    Name,
    Parameters,
    ReadOptions,
    ResultOutput,
    Schemas,
    Settings,
    Sql,
    Tables,
    Url,
    Wait,
    open_session,
)
from service.cli.terminal import prints_errors, program

if TYPE_CHECKING:
    from service.cli.session import Output, Session
    from service.client.responses import Document, Worker, WorkerList


@prints_errors
def submit(
    file: JobFile = None,
    sql: Sql = None,
    table: Tables = None,
    schema: Schemas = None,
    column: Columns = None,
    read: ReadOptions = None,
    param: Parameters = None,
    settings: Settings = None,
    name: Name = None,
    wait: Wait = False,
    rows: ResultOutput = None,
    cancel_on_interrupt: CancelOnInterrupt = False,
    idempotency_key: Annotated[
        str | None,
        typer.Option(
            "--idempotency-key",
            metavar="TEXT",
            help="Submitting again with the same text within 24 hours returns the same job.",
            show_default="generated",
        ),
    ] = None,
    url: Url = None,
    key_file: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Submit a job, given as FILE or as SQL with tables, and print its id.

    With --wait, prints its rows; the id goes to standard error.
    """
    from service.cli.connection import read as validated
    from service.cli.display import show_end
    from service.cli.job_input import CommandLine, read_job
    from service.cli.results import result_target, write_result
    from service.cli.terminal import CliError, ExitCode
    from service.cli.waiting import wait as wait_for
    from service.client.requests import new_idempotency_key
    from service.client.responses import Job

    if rows is not None and not wait:
        raise CliError("-o needs --wait: there are no rows yet", "Add --wait.", code=ExitCode.USAGE)
    if rows is not None and as_json:
        raise CliError("--json prints the job, -o prints its rows", "Leave one out.", code=ExitCode.USAGE)
    target = result_target(rows)
    given = CommandLine(
        file, sql, settings or (), name, table or (), schema or (), read or (), param or (), column or ()
    )
    job_input = read_job(given)
    key = idempotency_key or new_idempotency_key()
    with open_session(url, key_file, as_json) as session:
        output = session.output
        try:
            document, is_replayed = session.service.submit(job_input.spec, source=job_input.source, idempotency_key=key)
        except KeyboardInterrupt:
            raise CliError(
                "interrupted; the job may have been accepted",
                f"To find out, submit it again with --idempotency-key {key}",
                code=ExitCode.INTERRUPTED,
            ) from None
        except CliError as error:
            if error.code is not ExitCode.UNREACHABLE:
                raise
            advice = f"{error.advice}\n  To submit it again without a second job, add --idempotency-key {key}"
            raise CliError(error.message, advice.strip(), code=error.code) from None
        job = validated(Job, document)
        if is_replayed:
            output.note("A job was submitted with this key before; no second job was created.")
        if not wait:
            if as_json:
                output.document(document)
            else:
                output.plain(job.id)
                output.note(f"Wait for it:  {program()} job {job.id} --wait")
            return
        if not as_json:
            # Print the id now, so that the user has it if the wait is interrupted.
            output.note(f"Job {job.id}")
        ended = wait_for(session, job.id, cancel_on_interrupt=cancel_on_interrupt)
        has_rows = validated(Job, ended).result is not None
        if has_rows and not as_json:
            write_result(session, job.id, target)
        show_end(session, ended, job_input.source, has_shown_rows=has_rows)


@prints_errors
def jobs(
    status: Annotated[
        list[str] | None,
        typer.Option(help="Only jobs in this state, such as RUNNING. Repeatable.", show_default=False),
    ] = None,
    name: Annotated[str, typer.Option(help="Only jobs whose name starts with this text.", show_default=False)] = "",
    queue: Annotated[
        str | None, typer.Option(help="Only jobs in this queue: short, long or stream.", show_default=False)
    ] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=0, help="Maximum number of jobs; 0 for all.")] = 20,
    cursor: Annotated[
        str, typer.Option(help="Pagination cursor: `next_cursor` of the previous JSON.", show_default=False)
    ] = "",
    url: Url = None,
    key_file: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """List jobs, newest first."""
    from service.cli.connection import read
    from service.cli.display import show_jobs
    from service.client.responses import JobPage

    filters = {
        **({"status": [one.upper() for one in status]} if status else {}),
        **({"name": name} if name else {}),
        **({"queue": queue.lower()} if queue else {}),
    }
    with open_session(url, key_file, as_json) as session:
        document = session.service.jobs(filters, limit, cursor)
        if as_json:
            session.output.document(document)
            return
        page = read(JobPage, document)
        show_jobs(session.output, page.jobs)
        if page.next_cursor:
            session.output.note(f"There are more jobs: use --limit {limit * 5}, or --limit 0 for all.")


@prints_errors
def job(
    job_id: JobId,
    wait: Wait = False,
    cancel_on_interrupt: CancelOnInterrupt = False,
    url: Url = None,
    key_file: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Show the state of a job, or wait for it to end."""
    from service.cli.display import show_end, show_job
    from service.cli.waiting import wait as wait_for
    from service.client.responses import Job

    with open_session(url, key_file, as_json) as session:
        job_id = session.service.full_id(job_id)
        if wait:
            show_end(session, wait_for(session, job_id, cancel_on_interrupt=cancel_on_interrupt))
        else:
            session.output.show(session.service.job(job_id), Job, show_job)


@prints_errors
def cancel(job_id: JobId, url: Url = None, key_file: KeyFile = None, as_json: AsJson = False) -> None:
    """Cancel a job."""
    with open_session(url, key_file, as_json) as session:
        _print_status(session, session.service.cancel(session.service.full_id(job_id)))


@prints_errors
def stop(job_id: JobId, url: Url = None, key_file: KeyFile = None, as_json: AsJson = False) -> None:
    """Stop a streaming job after its current mini-batch.

    `resume` continues after that mini-batch.
    """
    with open_session(url, key_file, as_json) as session:
        _print_status(session, session.service.stop(session.service.full_id(job_id)))


@prints_errors
def resume(
    job_id: JobId,
    begin: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="checkpoint|scratch",
            help="Resume after the last mini-batch, or start from scratch without state.",
        ),
    ] = "checkpoint",
    settings: Settings = None,
    url: Url = None,
    key_file: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Resume a stopped streaming job."""
    from service.cli.job_input import given_settings

    body = {"from": begin, "settings": given_settings(settings or ())}
    with open_session(url, key_file, as_json) as session:
        _print_status(session, session.service.resume(session.service.full_id(job_id), body))


@prints_errors
def delete(job_id: JobId, url: Url = None, key_file: KeyFile = None, as_json: AsJson = False) -> None:
    """Delete a job that has ended, with its result.

    Its plan, metrics and events are deleted too.
    """
    with open_session(url, key_file, as_json) as session:
        job_id = session.service.full_id(job_id)
        session.service.delete(job_id)
        if as_json:
            session.output.document({"deleted": job_id})
        else:
            session.output.note(f"Deleted {job_id}.")


def _print_status(session: Session, document: Document) -> None:
    from service.client.responses import Job

    def display(output: Output, job: Job) -> None:
        output.plain(job.status)
        if not job.is_at_rest:
            output.note(f"Wait for it:  {program()} job {job.id} --wait")

    session.output.show(document, Job, display)


_STYLES = (("READY", "green"), ("UNAVAILABLE", "red"), ("SILENT", "red"), ("DRAINING", "yellow"), ("STARTING", "cyan"))


@prints_errors
def workers(url: Url = None, key_file: KeyFile = None, as_json: AsJson = False) -> None:
    """List the workers of the service and what each is running."""
    from service.client.responses import WorkerList

    with open_session(url, key_file, as_json) as session:
        session.output.show(session.service.workers(), WorkerList, _show_workers)


def _show_workers(output: Output, found: WorkerList) -> None:
    from service.client.text import size

    if not found.workers:
        output.note("No worker has sent a heartbeat within the last hour.")
        return
    rows = [
        (
            worker.id,
            worker.status,
            ",".join(worker.queues),
            _jobs(worker),
            worker.slots,
            None if worker.memory_bytes is None else size(worker.memory_bytes),
        )
        for worker in found.workers
    ]
    head = ("worker", "status", "queues", "jobs", "slots", "memory")
    output.table(head, rows, numbers=("jobs", "slots", "memory"), whole=("status",), styles=_STYLES)
    for worker in found.workers:
        if worker.unavailable_reason:
            output.say(f"{worker.id}: {worker.unavailable_reason}", "red")


@prints_errors
def whoami(url: Url = None, key_file: KeyFile = None, as_json: AsJson = False) -> None:
    """Show the address of the service and the identity of your API key."""
    from service.cli.connection import read
    from service.client.responses import Me

    with open_session(url, key_file, as_json) as session:
        document = session.service.me()
        if as_json:
            session.output.document(document)
            return
        me = read(Me, document)
        session.output.pairs(
            (
                ("service", session.service.connection.url),
                ("tenant", me.tenant),
                ("scopes", " ".join(me.scopes)),
                ("key", me.key_id or "none required"),
            )
        )


def _jobs(worker: Worker) -> str:
    running = len(worker.jobs) + worker.other_jobs
    return str(running) if worker.concurrency is None else f"{running} of {worker.concurrency}"
