"""`evenkeel profile`: how the keys of a table are spread, before any job."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from service.cli.client.options import AsJson, KeyFile, Url
from service.cli.errors import CliError, ExitCode, told_plainly

if TYPE_CHECKING:
    from service.cli.client.answers import Document, Profile, ProfiledTable
    from service.cli.client.output import Output
    from service.cli.client.session import Session


@told_plainly
def profile(
    table: Annotated[
        str, typer.Argument(metavar="TABLE", help="FORMAT:PATH, or a path whose ending tells its format.")
    ],
    keys: Annotated[
        list[str], typer.Argument(metavar="KEY[,KEY2]...", help="Columns of a key, separated by commas; several keys.")
    ],
    slots: Annotated[
        int | None,
        typer.Option(min=1, help="How many tasks run at once where it matters.", show_default="those of the worker"),
    ] = None,
    schema: Annotated[str | None, typer.Option(metavar="DDL", help="Columns of a CSV or JSON table.")] = None,
    read: Annotated[
        list[str] | None, typer.Option(metavar="OPTION=VALUE", help="How it is read, such as header=true.")
    ] = None,
    exact: Annotated[
        bool, typer.Option("--exact", help="Count all rows, in jobs of their own, in place of a sample.")
    ] = False,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=1000, help="How many values of a key.")] = 10,
    url: Url = None,
    key_file: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Look for the hot keys of a table before any job.

    A sample takes a moment; --exact counts all rows.
    """
    if exact and slots is not None:
        raise CliError("--slots is for samples", "Counted rows are not told by task.", code=ExitCode.USAGE)
    from service.cli.client.answers import Profile
    from service.cli.client.answers import read as understood
    from service.cli.client.exact_profile import exact_profile
    from service.cli.client.session import opened
    from service.cli.client.table_input import given_tables

    name = "t"
    schemas = () if schema is None else (f"{name}={schema}",)
    source = given_tables([f"{name}={table}"], schemas, [f"{name}.{option}" for option in read or ()])[name]
    wanted = [_columns(key) for key in keys]
    with opened(url, key_file, as_json=as_json) as session:
        if exact:
            document = exact_profile(session, source, wanted, limit)
        else:
            body = {"table": source, "keys": wanted, **({} if slots is None else {"slots": slots})}
            document = _asked(session, body)
        if as_json:
            session.output.document(document)
        else:
            show_profile(session.output, table, understood(Profile, document), limit)


def _asked(session: Session, body: dict[str, Any]) -> Document:
    try:
        return session.service.profile(body)
    except CliError as error:
        if error.code is not ExitCode.NOT_FOUND:
            raise
        # An older service, which has no such path.
        raise CliError(error.message, "--exact counts by ordinary jobs.", code=error.code) from None


def show_profile(output: Output, table: str, found: Profile, limit: int) -> None:
    """The size of the table, and of each key its most frequent values and what to think of them."""
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
            output.say("  No value of it is frequent.")
        if key.advice:
            output.say(key.advice)


def _columns(key: str) -> list[str]:
    columns = [column.strip() for column in key.split(",")]
    if not all(columns):
        raise CliError(f"{key!r} is no key", "Write COLUMN, or COLUMN,COLUMN.", code=ExitCode.USAGE)
    return columns


def _size(table: ProfiledTable) -> str:
    from service.cli.amounts import amount, size

    parts: Sequence[str] = (
        f"{'' if table.rows_are_exact else 'about '}{amount(table.rows or 0, 'row')}",
        "" if table.files is None else amount(table.files, "file"),
        "" if table.bytes is None else size(table.bytes),
    )
    return ", ".join(part for part in parts if part)
