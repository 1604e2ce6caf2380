"""`evenkeel result`: the rows of a job."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from service.cli.client.options import AsJson, JobId, KeyFile, Url
from service.cli.errors import CliError, ExitCode, told_plainly

if TYPE_CHECKING:
    from service.cli.client.answers import ResultPage
    from service.cli.client.output import Output
    from service.cli.client.session import Session

MEDIA_TYPES = {
    "csv": "text/csv",
    "arrow": "application/vnd.apache.arrow.stream",
    "parquet": "application/vnd.apache.parquet",
}
FORMATS = ("table", "json", *MEDIA_TYPES)
_ROWS = 20


@told_plainly
def result(
    job_id: JobId,
    format: Annotated[  # noqa: A002 - what the option is called
        str | None,
        typer.Option(
            metavar="|".join(FORMATS), help="`table` shows the first rows.", show_default="table, or as FILE ends"
        ),
    ] = None,
    file: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="Write to FILE, whole or not at all.")
    ] = None,
    rows: Annotated[int, typer.Option("--rows", "-n", min=1, max=10_000, help="How many rows a table shows.")] = _ROWS,
    keep_formulas: Annotated[
        bool, typer.Option(help="CSV: leave texts as they are that a spreadsheet would run as formulas.")
    ] = False,
    url: Url = None,
    key_file: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Show the rows of a job, or write them to a file."""
    from service.cli.client.session import opened

    form = _format(format, file, as_json=as_json)
    with opened(url, key_file, as_json=as_json) as session:
        if form == "table":
            _show(session, job_id, rows)
        else:
            _load(session, job_id, form, file, {"csv_formulas": "keep"} if keep_formulas else {})


def _format(given: str | None, file: Path | None, *, as_json: bool) -> str:
    if given is not None and given.lower() not in FORMATS:
        raise CliError(f"there is no format {given!r}", f"Formats are {', '.join(FORMATS)}.", code=ExitCode.USAGE)
    form = given.lower() if given else None
    if file is not None:
        ending = file.suffix.lower().removeprefix(".")
        form = form or (ending if ending in FORMATS else None)
        if form in (None, "table"):
            raise CliError(
                "a file takes json, csv, arrow or parquet", "Give --format, or an ending of these.", code=ExitCode.USAGE
            )
        return str(form)
    if as_json and form not in (None, "json"):
        raise CliError(f"--json and --format {form} are two answers", "Leave one out, or give -o.", code=ExitCode.USAGE)
    return "json" if as_json else form or "table"


def _load(session: Session, job_id: str, form: str, file: Path | None, parameters: dict[str, str]) -> None:
    from service.cli.amounts import size
    from service.cli.client.downloads import chunks_of, json_chunks, pour, save

    service, output = session.service, session.output
    begin = (
        json_chunks(service, job_id)
        if form == "json"
        else chunks_of(service, job_id, MEDIA_TYPES[form], parameters if form == "csv" else {})
    )
    if file is None:
        pour(service, begin, as_text=form in {"json", "csv"})
        return
    written = save(service, begin, file)
    if output.as_json:
        output.document({"file": str(file), "format": form, "bytes": written})
    else:
        output.note(f"Wrote {file} ({size(written)}).")


def _show(session: Session, job_id: str, rows: int) -> None:
    from service.cli.client.answers import ResultPage, read

    page = read(ResultPage, session.service.result_page(job_id, rows))
    show_rows(session.output, page)
    more = page.total_rows - len(page.rows)
    if more > 0:
        session.output.note(f"… and {more:,} more of {page.total_rows:,} rows: --rows, or -o FILE for all.")
    elif not page.rows:
        session.output.note("The result has no rows.")


_NUMBERS = ("BIGINT", "INT", "SMALLINT", "TINYINT", "DOUBLE", "FLOAT", "DECIMAL")


def show_rows(output: Output, page: ResultPage) -> None:
    """Rows under the names of their columns, numbers to the right."""
    numbers = [column.name for column in page.columns if str(column.type).upper().startswith(_NUMBERS)]
    rows = [[_cell(value) for value in row] for row in page.rows]
    output.table([column.name for column in page.columns], rows, numbers=numbers)


def _cell(value: object) -> str:
    import json

    if value is None:
        return "NULL"
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False)
