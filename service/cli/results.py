"""The commands `result` and `events`, with a parser of server-sent events."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from service.cli.options import AsJson, JobId, KeyFile, ResultOutput, Url, open_session
from service.cli.terminal import CliError, ExitCode, prints_errors

if TYPE_CHECKING:
    from service.cli.operations import Service
    from service.cli.session import Output, Session
    from service.client.responses import Document, Event, ResultPage
    from service.client.retries import RetryBudget

MEDIA_TYPES = {
    "csv": "text/csv",
    "arrow": "application/vnd.apache.arrow.stream",
    "parquet": "application/vnd.apache.parquet",
}
SHOWN_FORMATS = ("table", "markdown")
FORMATS = (*SHOWN_FORMATS, "json", *MEDIA_TYPES)
_ROWS = 20
_NUMBERS = ("BIGINT", "INT", "SMALLINT", "TINYINT", "DOUBLE", "FLOAT", "DECIMAL")

_MAX_EVENT_BYTES = 16 << 20
_SILENT_SECONDS = 30.0
"""The service sends a heartbeat every ten seconds; the client reconnects after this long without one."""

_RECONNECT_SECONDS = 0.5
_STABLE_SECONDS = 5.0
"""A stream that was open for longer is not counted as a failure: proxies close idle connections."""


@prints_errors
def result(
    job_id: JobId,
    format: Annotated[  # noqa: A002 - the option's name
        str | None,
        typer.Option(
            metavar="|".join(FORMATS),
            help="`table` and `markdown` show the first rows.",
            show_default="table, or FILE's extension",
        ),
    ] = None,
    output: ResultOutput = None,
    rows: Annotated[int, typer.Option("--rows", "-n", min=1, max=10_000, help="Number of rows in a table.")] = _ROWS,
    keep_formulas: Annotated[
        bool, typer.Option(help="CSV: do not escape text that a spreadsheet would evaluate as a formula.")
    ] = False,
    url: Url = None,
    key_file: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Show the rows of a job, or write them to a file."""
    target = result_target(output, format, as_json=as_json)
    with open_session(url, key_file, as_json) as session:
        write_result(session, session.service.full_id(job_id), target, rows=rows, keep_formulas=keep_formulas)


@dataclass(frozen=True)
class ResultTarget:
    """Where rows go: to `file`, or to standard output if that is None; and in which of FORMATS."""

    form: str
    file: Path | None = None


def result_target(output: str | None, given: str | None = None, *, as_json: bool = False) -> ResultTarget:
    """Returns the target that `-o` names, which is a format or a file, in the format `given` if that is not None.

    Raises CliError for an unknown format, or if the format of the file is unknown.
    """
    if given is not None and given.lower() not in FORMATS:
        raise CliError(f"unknown format {given!r}", f"Formats are {', '.join(FORMATS)}.", code=ExitCode.USAGE)
    form = given.lower() if given else None
    if output is not None and output.lower() in FORMATS and form in (None, output.lower()):
        form, output = output.lower(), None
    if output is not None:
        file = Path(output)
        ending = file.suffix.lower().removeprefix(".")
        form = form or (ending if ending in FORMATS else None)
        if form is None or form in SHOWN_FORMATS:
            raise CliError(
                f"{output!r} is neither a format ({', '.join(FORMATS)}) nor a file whose format is known",
                "The format of a file is json, csv, arrow or parquet: write it as the extension of the file.",
                code=ExitCode.USAGE,
            )
        return ResultTarget(form, file)
    if as_json and form not in (None, "json"):
        raise CliError(
            f"--json conflicts with the format {form}", "Leave one out, or give a file.", code=ExitCode.USAGE
        )
    return ResultTarget("json" if as_json else form or "table")


def write_result(
    session: Session, job_id: str, target: ResultTarget, *, rows: int = _ROWS, keep_formulas: bool = False
) -> None:
    """Writes the rows of a job to `target`; the first `rows` if they are shown as a table."""
    if target.file is None and target.form in SHOWN_FORMATS:
        _show_result(session, job_id, rows, as_markdown=target.form == "markdown")
    else:
        _download(session, job_id, target, {"csv_formulas": "keep"} if keep_formulas else {})


def _download(session: Session, job_id: str, target: ResultTarget, parameters: dict[str, str]) -> None:
    from service.cli.operations import download_as, download_as_json, save, write_to_stdout
    from service.client.text import size

    service, output = session.service, session.output
    form, file = target.form, target.file
    start = (
        download_as_json(service, job_id)
        if form == "json"
        else download_as(service, job_id, MEDIA_TYPES[form], parameters if form == "csv" else {})
    )
    if file is None:
        if form not in {"json", "csv"} and output.is_terminal:
            raise CliError(f"{form} is binary", f"Write it to a file: -o FILE.{form}", code=ExitCode.USAGE)
        write_to_stdout(service, start, as_text=form in {"json", "csv"})
        return
    written = save(service, start, file)
    if output.as_json:
        output.document({"file": str(file), "format": form, "bytes": written})
    else:
        output.note(f"Wrote {file} ({size(written)}).")


def _show_result(session: Session, job_id: str, rows: int, *, as_markdown: bool) -> None:
    from service.cli.connection import read
    from service.client.responses import ResultPage

    page = read(ResultPage, session.service.result_page(job_id, rows))
    if as_markdown:
        _show_markdown(session.output, page)
    else:
        show_rows(session.output, page)
    more = page.total_rows - len(page.rows)
    if more > 0:
        session.output.note(f"… and {more:,} more of {page.total_rows:,} rows: use --rows, or -o FILE for all.")
    elif not page.rows:
        session.output.note("The result has no rows.")


def show_rows(output: Output, page: ResultPage) -> None:
    """Prints rows under the names of their columns; numbers are right-aligned."""
    numbers = [column.name for column in page.columns if str(column.type).upper().startswith(_NUMBERS)]
    rows = [[_cell(value) for value in row] for row in page.rows]
    output.table([column.name for column in page.columns], rows, numbers=numbers)


def _show_markdown(output: Output, page: ResultPage) -> None:
    numbers = {column.name for column in page.columns if str(column.type).upper().startswith(_NUMBERS)}
    lines = [
        [column.name for column in page.columns],
        ["---:" if column.name in numbers else "---" for column in page.columns],
        *([_cell(value) for value in row] for row in page.rows),
    ]
    for line in lines:
        output.plain(f"| {' | '.join(_escaped_for_markdown(cell) for cell in line)} |")


def _escaped_for_markdown(cell: str) -> str:
    return re.sub(r"([\\|<>*_`\[\]])", r"\\\1", cell) if not set(cell) <= set("-:") else cell


def _cell(value: object) -> str:
    import json

    if value is None:
        return "NULL"
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False)


def event_data(chunks: Iterable[bytes]) -> Iterator[str]:
    """Yields the `data` of each complete event; an event that the end of the stream cuts off is left out.

    Raises CliError for an event of more than 16 MiB. Lines end with a line feed, with or without a carriage return.
    """
    data: list[str] = []
    size = 0
    rest = b""
    for chunk in chunks:
        # Not `str.splitlines`: texts in events may contain Unicode line breaks.
        *lines, rest = (rest + chunk).split(b"\n")
        for line in (line.removesuffix(b"\r") for line in lines):
            name, _, value = line.partition(b":")
            if name == b"data":
                size = _checked_size(size + len(value))
                data.append(value.removeprefix(b" ").decode("utf-8", "replace"))
            elif not line and data:
                yield "\n".join(data)
                data, size = [], 0
        _checked_size(size + len(rest))


def _checked_size(size: int) -> int:
    if size > _MAX_EVENT_BYTES:
        raise CliError("the service sent an event that is too long", code=ExitCode.CRASHED)
    return size


@prints_errors
def events(
    job_id: JobId,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Follow until the job has ended, also while it is STOPPED.")
    ] = False,
    after: Annotated[int, typer.Option(min=0, metavar="EVENT", help="Only events after this one.")] = 0,
    url: Url = None,
    key_file: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Show the events of a job, or follow them.

    With --follow --json, prints one object per line.
    """
    from service.cli.connection import read
    from service.client.responses import Event

    with open_session(url, key_file, as_json) as session:
        job_id = session.service.full_id(job_id)
        if follow:
            for document in followed(session.service, job_id, after):
                if as_json:
                    session.output.json_line(document)
                else:
                    _show_event(session.output, read(Event, document))
            return
        found = _all(session.service, job_id, after)
        if as_json:
            session.output.document(found)
            return
        for document in found["events"]:
            _show_event(session.output, read(Event, document))


def followed(service: Service, job_id: str, after: int) -> Iterator[Document]:
    """Yields every event after `after` once, until the job has ended; reconnects as often as necessary.

    Raises CliError if the service stays unreachable.
    """
    import httpx

    budget: RetryBudget | None = None
    while True:
        before, opened_at = after, time.monotonic()
        broken: Exception | None = None
        try:
            with service.event_stream(job_id, after, _SILENT_SECONDS) as response:
                for data in event_data(response.iter_bytes()):
                    event = _parsed(data)
                    if event is not None and event["id"] > after:
                        after = event["id"]
                        yield event
        except httpx.TransportError as error:
            broken = error
        if broken is None:
            # The stream ends with the job and also when the service stops; the next page shows which.
            page, after = _page_after(service, job_id, after)
            yield from page["events"]
            if page["complete"]:
                return
        # The service has answered since: start a new retry budget.
        if budget is None or after > before or time.monotonic() - opened_at > _STABLE_SECONDS:
            budget = service.connection.retry_budget()
        pause = budget.next_pause(_RECONNECT_SECONDS)
        if pause is None:
            raise service.connection.unreachable(broken or ConnectionError("the event stream closes immediately"))
        service.connection.pause(pause, "The event stream was interrupted")


def _all(service: Service, job_id: str, after: int) -> Document:
    found: list[Document] = []
    while True:
        page, last = _page_after(service, job_id, after)
        found += page["events"]
        if page["complete"] or last == after:
            return {"events": found, "last_event_id": last, "complete": bool(page["complete"])}
        after = last


def _page_after(service: Service, job_id: str, after: int) -> tuple[Document, int]:
    """Reads and validates the page after `after`; returns it with the id of its last event."""
    from service.cli.connection import read
    from service.client.responses import EventPage

    document = service.events(job_id, after)
    page = read(EventPage, document)
    return document, max([after, *(event.id for event in page.events)])


def _parsed(data: str) -> Document | None:
    """Parses an event; returns None if `data` is not an event."""
    import json

    try:
        event = json.loads(data)
    except ValueError:
        return None
    return event if isinstance(event, dict) and isinstance(event.get("id"), int) else None


def _show_event(output: Output, event: Event) -> None:
    text = _as_text(event.data)
    output.plain(f"{event.at.astimezone():%Y-%m-%d %H:%M:%S}  {event.type:<9} {text}".rstrip())


def _as_text(data: object) -> str:
    """Formats the data of an event: the state, then name=value pairs, such as `RUNNING tasks_done=3 tasks_total=8`."""
    if not isinstance(data, dict):
        return "" if data is None else str(data)
    status = data.get("status")
    rest = {key: value for key, value in data.items() if key != "status" and value not in (None, "", [], {})}
    flat = " ".join(f"{key}={_value(value)}" for key, value in rest.items())
    return " ".join(part for part in (str(status) if status else "", flat) if part)


def _value(value: object) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value))
    return _as_text(value) if isinstance(value, dict) else str(value)
