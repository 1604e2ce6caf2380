"""`evenkeel cancel`, `stop`, `resume` and `delete`: what is done to one job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from service.cli.client.options import AsJson, JobId, KeyFile, Settings, Url
from service.cli.errors import told_plainly

if TYPE_CHECKING:
    from service.cli.client.answers import Document
    from service.cli.client.session import Session


@told_plainly
def cancel(job_id: JobId, url: Url = None, key_file: KeyFile = None, as_json: AsJson = False) -> None:
    """Cancel a job."""
    from service.cli.client.session import opened

    with opened(url, key_file, as_json=as_json) as session:
        _tell(session, session.service.cancel(job_id))


@told_plainly
def stop(job_id: JobId, url: Url = None, key_file: KeyFile = None, as_json: AsJson = False) -> None:
    """Lay a streaming job to rest.

    It ends its mini-batch at hand first; `resume` goes on behind that.
    """
    from service.cli.client.session import opened

    with opened(url, key_file, as_json=as_json) as session:
        _tell(session, session.service.stop(job_id))


@told_plainly
def resume(
    job_id: JobId,
    begin: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="checkpoint|scratch",
            help="Go on behind the last mini-batch, or begin anew, without state.",
        ),
    ] = "checkpoint",
    settings: Settings = None,
    url: Url = None,
    key_file: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Queue a streaming job that rests."""
    from service.cli.client.session import opened
    from service.cli.client.setting_input import given_settings

    body = {"from": begin, "settings": given_settings(settings or ())}
    with opened(url, key_file, as_json=as_json) as session:
        _tell(session, session.service.resume(job_id, body))


@told_plainly
def delete(job_id: JobId, url: Url = None, key_file: KeyFile = None, as_json: AsJson = False) -> None:
    """Remove a job that has ended, with its result.

    All else that is kept of it goes too: plan, metrics, events.
    """
    from service.cli.client.session import opened

    with opened(url, key_file, as_json=as_json) as session:
        session.service.delete(job_id)
        if as_json:
            session.output.document({"deleted": job_id})
        else:
            session.output.note(f"Deleted {job_id}.")


def _tell(session: Session, document: Document) -> None:
    from service.cli.client.answers import Job, read

    if session.output.as_json:
        session.output.document(document)
        return
    job = read(Job, document)
    session.output.plain(job.status)
    if not job.at_rest:
        session.output.note(f"See how it goes:  evenkeel job {job.id} --wait")
