"""`evenkeel events`: what happened to a job, and what happens."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from service.cli.client.options import AsJson, JobId, KeyFile, Url
from service.cli.errors import told_plainly

if TYPE_CHECKING:
    from service.cli.client.answers import Document, Event
    from service.cli.client.output import Output
    from service.cli.client.patience import Patience
    from service.cli.client.service import Service

_SILENT_SECONDS = 30.0
"""The service gives a sign of life every ten seconds; after so long without one it is asked anew."""

_BETWEEN_SECONDS = 0.5

_LASTED_SECONDS = 5.0
"""A stream that was open for longer has not failed: proxies end what is silent."""


@told_plainly
def events(
    job_id: JobId,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on until the job has ended; a STOPPED one may be resumed.")
    ] = False,
    after: Annotated[int, typer.Option(min=0, metavar="EVENT", help="Only events behind this one.")] = 0,
    url: Url = None,
    key_file: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Show what happened to a job, or follow it.

    With --follow --json, an object a line.
    """
    from service.cli.client.answers import Event, read
    from service.cli.client.session import opened

    with opened(url, key_file, as_json=as_json) as session:
        if follow:
            for document in followed(session.service, job_id, after):
                if as_json:
                    session.output.json_line(document)
                else:
                    _show(session.output, read(Event, document))
            return
        found = _all(session.service, job_id, after)
        if as_json:
            session.output.document(found)
            return
        for document in found["events"]:
            _show(session.output, read(Event, document))


def followed(service: Service, job_id: str, after: int) -> Iterator[Document]:
    """Every event behind `after` until the job has ended, each once, over as many connections as it takes.

    Raises CliError where the service stays away.
    """
    import httpx

    from service.cli.client.sse import event_data

    patience: Patience | None = None
    while True:
        before, opened_at = after, time.monotonic()
        broken: Exception | None = None
        try:
            with service.event_stream(job_id, after, _SILENT_SECONDS) as answer:
                for data in event_data(answer.iter_bytes()):
                    event = _parsed(data)
                    if event is not None and event["id"] > after:
                        after = event["id"]
                        yield event
        except httpx.TransportError as error:
            broken = error
        if broken is None:
            # It ends with the job, and with the service, which looks the same from here.
            page, after = _rest(service, job_id, after)
            yield from page["events"]
            if page["complete"]:
                return
        # The first stream has begun by now: the service is there.
        if patience is None or after > before or time.monotonic() - opened_at > _LASTED_SECONDS:
            patience = service.connection.patience()
        pause = patience.pause(_BETWEEN_SECONDS)
        if pause is None:
            raise service.connection.unreachable(broken or ConnectionError("the stream of events ends at once"))
        service.connection.rest(pause, "The stream of events broke off")


def _all(service: Service, job_id: str, after: int) -> Document:
    found: list[Document] = []
    while True:
        page, last = _rest(service, job_id, after)
        found += page["events"]
        if page["complete"] or last == after:
            return {"events": found, "last_event_id": last, "complete": bool(page["complete"])}
        after = last


def _rest(service: Service, job_id: str, after: int) -> tuple[Document, int]:
    """A page behind `after`, checked, with the id of its last event."""
    from service.cli.client.answers import EventPage, read

    document = service.events(job_id, after)
    page = read(EventPage, document)
    return document, max([after, *(event.id for event in page.events)])


def _parsed(data: str) -> Document | None:
    """The event, as a document; None for what is no event."""
    import json

    try:
        event = json.loads(data)
    except ValueError:
        return None
    return event if isinstance(event, dict) and isinstance(event.get("id"), int) else None


def _show(output: Output, event: Event) -> None:
    told = _words(event.data)
    output.plain(f"{event.at.astimezone():%Y-%m-%d %H:%M:%S}  {event.type:<9} {told}".rstrip())


def _words(data: object) -> str:
    """`RUNNING`, `tasks_done=3 tasks_total=8`: a state alone, else names and values."""
    if not isinstance(data, dict):
        return "" if data is None else str(data)
    status = data.get("status")
    rest = {key: value for key, value in data.items() if key != "status" and value not in (None, "", [], {})}
    flat = " ".join(f"{key}={_value(value)}" for key, value in rest.items())
    return " ".join(part for part in (str(status) if status else "", flat) if part)


def _value(value: object) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value))
    return _words(value) if isinstance(value, dict) else str(value)
