"""`evenkeel jobs` and `evenkeel job`: what there is, and how one stands."""

from __future__ import annotations

from typing import Annotated

import typer

from service.cli.client.options import AsJson, CancelOnInterrupt, JobId, KeyFile, Url, Wait
from service.cli.errors import told_plainly


@told_plainly
def jobs(
    status: Annotated[
        list[str] | None,
        typer.Option(help="Only jobs in this state, such as RUNNING. May be repeated.", show_default=False),
    ] = None,
    name: Annotated[str, typer.Option(help="Only jobs whose name begins so.", show_default=False)] = "",
    queue: Annotated[
        str | None, typer.Option(help="Only jobs of this queue: short, long or stream.", show_default=False)
    ] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=0, help="How many at most; 0 for all.")] = 20,
    cursor: Annotated[
        str, typer.Option(help="Go on behind a list: `next_cursor` of its JSON.", show_default=False)
    ] = "",
    url: Url = None,
    key_file: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """List jobs, newest first."""
    from service.cli.client.answers import JobPage, read
    from service.cli.client.session import opened
    from service.cli.client.show_job import show_jobs

    filters = {
        **({"status": [one.upper() for one in status]} if status else {}),
        **({"name": name} if name else {}),
        **({"queue": queue.lower()} if queue else {}),
    }
    with opened(url, key_file, as_json=as_json) as session:
        document = session.service.jobs(filters, limit, cursor)
        if as_json:
            session.output.document(document)
            return
        page = read(JobPage, document)
        show_jobs(session.output, page.jobs)
        if page.next_cursor:
            session.output.note(f"There are more: --limit {limit * 5}, or --limit 0 for all.")


@told_plainly
def job(
    job_id: JobId,
    wait: Wait = False,
    cancel_on_interrupt: CancelOnInterrupt = False,
    url: Url = None,
    key_file: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Show how a job stands, or wait for it."""
    from service.cli.client.answers import Job, read
    from service.cli.client.session import opened
    from service.cli.client.show_job import show_job, tell_end
    from service.cli.client.waiting import wait as wait_for

    with opened(url, key_file, as_json=as_json) as session:
        if wait:
            tell_end(session, wait_for(session, job_id, cancel_on_interrupt=cancel_on_interrupt))
            return
        document = session.service.job(job_id)
        if as_json:
            session.output.document(document)
        else:
            show_job(session.output, read(Job, document))
