"""The commands `explain`, `plan`, `metrics`, `skew` and `profile`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from service.cli.options import (
    AsJson,
    Columns,
    JobFile,
    JobId,
    KeyFile,
    Name,
    Parameters,
    ReadOptions,
    Schemas,
    Settings,
    Sql,
    Tables,
    Url,
    open_session,
)
from service.cli.terminal import CliError, ExitCode, prints_errors, program

if TYPE_CHECKING:
    from service.cli.session import Output, Session
    from service.client.problem_text import Source
    from service.client.responses import Document, Profile, ProfiledTable

ShowSql = Annotated[bool, typer.Option("--show-sql", help="Show the SQL before and after the rules.")]
ShowPhysical = Annotated[bool, typer.Option("--show-physical", help="Show Spark's physical plan.")]


@prints_errors
def explain(
    file: JobFile = None,
    sql: Sql = None,
    table: Tables = None,
    schema: Schemas = None,
    column: Columns = None,
    read: ReadOptions = None,
    param: Parameters = None,
    settings: Settings = None,
    name: Name = None,
    show_sql: ShowSql = False,
    show_physical: ShowPhysical = False,
    url: Url = None,
    key_file: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Plan a job without running it.

    Shows each rule's decision and reason, the alternatives that it compared, and the resulting plan.
    """
    from service.cli.job_input import CommandLine, read_job

    given = CommandLine(
        file, sql, settings or (), name, table or (), schema or (), read or (), param or (), column or ()
    )
    job_input = read_job(given)
    with open_session(url, key_file, as_json) as session:
        document = session.service.explain(job_input.spec, job_input.source)
        _show_plan(session.output, document, show_sql, show_physical)


@prints_errors
def plan(
    job_id: JobId,
    show_sql: ShowSql = False,
    show_physical: ShowPhysical = False,
    url: Url = None,
    key_file: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Show the plan of a job, in the form of `explain`."""
    with open_session(url, key_file, as_json) as session:
        _show_plan(session.output, session.service.plan(session.service.full_id(job_id)), show_sql, show_physical)


def _show_plan(output: Output, document: Document, show_sql: bool, show_physical: bool) -> None:
    from functools import partial

    from service.cli.display import show_plan
    from service.contract.reports import PlanReport

    output.show(document, PlanReport, partial(show_plan, with_sql=show_sql, with_physical=show_physical))


Slots = Annotated[
    int | None,
    typer.Option(min=1, help="Estimate savings for this many slots.", show_default="the slots that the job ran on"),
]


@prints_errors
def metrics(
    job_id: JobId, slots: Slots = None, url: Url = None, key_file: KeyFile = None, as_json: AsJson = False
) -> None:
    """Show the metrics of a job's run."""
    from service.cli.display import show_metrics
    from service.client.responses import RunMetrics

    with open_session(url, key_file, as_json) as session:
        session.output.show(session.service.metrics(session.service.full_id(job_id), slots), RunMetrics, show_metrics)


@prints_errors
def skew(
    job_id: JobId, slots: Slots = None, url: Url = None, key_file: KeyFile = None, as_json: AsJson = False
) -> None:
    """Show whether a job was skewed, and what to change.

    Lists the hot keys, the time lost and the setting that would help.
    """
    from service.cli.connection import read
    from service.cli.display import show_skew
    from service.client.responses import RunMetrics

    with open_session(url, key_file, as_json) as session:
        document = session.service.metrics(session.service.full_id(job_id), slots)
        if as_json:
            session.output.document(document.get("skew"))
        else:
            show_skew(session.output, read(RunMetrics, document))


@prints_errors
def profile(
    table: Annotated[
        str, typer.Argument(metavar="TABLE", help="FORMAT:PATH, or a path whose extension is its format.")
    ],
    keys: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY[,KEY2]...", help="Columns of a key, separated by commas: at least one key. Repeatable."
        ),
    ] = None,
    slots: Annotated[
        int | None,
        typer.Option(min=1, help="Number of task slots of the cluster.", show_default="the worker's slots"),
    ] = None,
    schema: Annotated[str | None, typer.Option(metavar="DDL", help="Columns of a CSV or JSON table.")] = None,
    read: Annotated[
        list[str] | None, typer.Option(metavar="OPTION=VALUE", help="Read option, such as header=true. Repeatable.")
    ] = None,
    exact: Annotated[
        bool, typer.Option("--exact", help="Count all rows with jobs instead of reading a sample.")
    ] = False,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=1000, help="Maximum values per key.")] = 10,
    url: Url = None,
    key_file: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Find the hot keys of a table.

    Reads a sample, which is fast; --exact counts all rows.
    """
    if not keys:
        raise CliError(
            "which columns are the key?",
            f"Write them after the table, separated by commas: {program()} profile {table} customer_id",
            code=ExitCode.USAGE,
        )
    if exact and slots is not None:
        raise CliError("--slots does not apply to --exact", "Leave one of them out.", code=ExitCode.USAGE)
    from service.cli.exact_profile import exact_profile
    from service.cli.job_input import given_tables
    from service.client.problem_text import Source
    from service.client.responses import Profile

    name = "t"
    schemas = () if schema is None else (f"{name}={schema}",)
    source = given_tables([f"{name}={table}"], schemas, [f"{name}.{option}" for option in read or ()])[name]
    wanted = [_columns(key) for key in keys]
    with open_session(url, key_file, as_json) as session:
        if exact:
            document = exact_profile(session, source, wanted, limit)
        else:
            body = {"table": source, "keys": wanted, **({} if slots is None else {"slots": slots})}
            written = {f"/keys/{place}": f"the key {key}" for place, key in enumerate(keys)}
            document = _profile(session, body, Source("", written={**written, "/table": f"the table {table}"}))
        session.output.show(document, Profile, lambda output, found: _show_profile(output, table, found, limit))


def _profile(session: Session, body: dict[str, Any], source: Source) -> Document:
    try:
        return session.service.profile(body, source)
    except CliError as error:
        if error.code is not ExitCode.NOT_FOUND:
            raise
        # A service of an older version does not have this path.
        raise CliError(error.message, "--exact works with this service: it submits jobs.", code=error.code) from None


def _show_profile(output: Output, table: str, found: Profile, limit: int) -> None:
    """Prints the size of the table, and for each key its most frequent values and the advice."""
    output.say(f"{table}: {_size(found.table)}" if found.table.rows is not None else table, "bold")
    for key in found.keys:
        about = "" if key.sampled_rows >= key.rows else "about "
        nulls = f", {key.null_share:.1%} NULL" if key.null_share else ""
        sampled = f"; from a sample of {key.sampled_rows:,} rows" if about else ""
        if about and not key.sampled_rows:
            output.heading(", ".join(key.columns))
            output.say(key.advice)
            continue
        output.heading(f"{', '.join(key.columns)}: {about}{key.distinct_keys:,} values{nulls}{sampled}")
        if key.hot_keys:
            output.table(
                ("value", "share", f"rows{about and ', about'}"),
                [(hot.value, f"{hot.share:.1%}", f"{hot.estimated_rows:,}") for hot in key.hot_keys[:limit]],
                numbers=("share", "rows", "rows, about"),
                indent=2,
            )
        else:
            output.say("  No value is frequent.")
        if key.advice:
            output.say(key.advice)


def _columns(key: str) -> list[str]:
    columns = [column.strip() for column in key.split(",")]
    if not all(columns):
        raise CliError(f"invalid key {key!r}", "Write COLUMN, or COLUMN,COLUMN.", code=ExitCode.USAGE)
    return columns


def _size(table: ProfiledTable) -> str:
    from service.client.text import amount, size

    parts: Sequence[str] = (
        f"{'' if table.rows_are_exact else 'about '}{amount(table.rows or 0, 'row')}",
        "" if table.files is None else amount(table.files, "file"),
        "" if table.bytes is None else size(table.bytes),
    )
    return ", ".join(part for part in parts if part)
