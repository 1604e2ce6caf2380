"""`evenkeel submit`: posts a job, and waits for it where that is wanted."""

from __future__ import annotations

from typing import Annotated

import typer

from service.cli.client.options import (
    AsJson,
    CancelOnInterrupt,
    JobFile,
    KeyFile,
    Name,
    ReadOptions,
    Schemas,
    Settings,
    Sql,
    Tables,
    Url,
    Wait,
)
from service.cli.errors import told_plainly


@told_plainly
def submit(
    file: JobFile = None,
    sql: Sql = None,
    table: Tables = None,
    schema: Schemas = None,
    read: ReadOptions = None,
    settings: Settings = None,
    name: Name = None,
    wait: Wait = False,
    cancel_on_interrupt: CancelOnInterrupt = False,
    idempotency_key: Annotated[
        str | None,
        typer.Option(
            "--idempotency-key",
            metavar="TEXT",
            help="Submitting again with the same text is the same job, for 24 hours.",
            show_default="one of its own",
        ),
    ] = None,
    url: Url = None,
    key_file: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Submit a job, as FILE or as SQL with tables; print its id."""
    from service.cli.client.answers import Job
    from service.cli.client.answers import read as understood
    from service.cli.client.job_input import Given, read_job
    from service.cli.client.service import new_idempotency_key
    from service.cli.client.session import opened
    from service.cli.client.show_job import tell_end
    from service.cli.client.waiting import wait as wait_for
    from service.cli.errors import CliError, ExitCode

    job_input = read_job(Given(file, sql, settings or (), name, table or (), schema or (), read or ()))
    key = idempotency_key or new_idempotency_key()
    with opened(url, key_file, as_json=as_json) as session:
        output = session.output
        try:
            document, was_there = session.service.submit(job_input.spec, source=job_input.source, idempotency_key=key)
        except KeyboardInterrupt:
            raise CliError(
                "interrupted; the job may have been accepted",
                f"To find out, submit it again with --idempotency-key {key}",
                code=ExitCode.INTERRUPTED,
            ) from None
        except CliError as error:
            if error.code is not ExitCode.UNREACHABLE:
                raise
            advice = f"{error.advice}\n  Should it have been accepted, --idempotency-key {key} makes it no second job."
            raise CliError(error.message, advice.strip(), code=error.code) from None
        job = understood(Job, document)
        if was_there:
            output.note("The same job was submitted with this key before.")
        if not wait:
            if as_json:
                output.document(document)
            else:
                output.plain(job.id)
                output.note(f"Wait for it:  evenkeel job {job.id} --wait")
            return
        if not as_json:
            # At once: whoever is interrupted has it.
            output.plain(job.id)
        ended = wait_for(session, job.id, cancel_on_interrupt=cancel_on_interrupt)
        tell_end(session, ended, job_input.source)
