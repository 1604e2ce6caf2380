"""Options and arguments that several commands share, and the session that they open.

Imports nothing heavy, so that help is printed at once.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from service.cli.session import Session


def url_option(default: str) -> Any:
    """Returns the option for the service's address. `default` says in the help what is used without it."""
    return typer.Option("--url", metavar="URL", help="Address of the service.", show_default=default)


Url = Annotated[str | None, url_option("EVENKEEL_URL or http://127.0.0.1:8080")]
KeyFile = Annotated[
    Path | None,
    typer.Option(
        "--key-file",
        metavar="FILE",
        help="File with the API key.",
        show_default="EVENKEEL_API_KEY or EVENKEEL_API_KEY_FILE",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on standard output and messages on standard error.")]

JobId = Annotated[
    str,
    typer.Argument(metavar="ID", help="Id of a job, or its first characters (at least four).", show_default=False),
]
ResultOutput = Annotated[
    str | None,
    typer.Option(
        "-o",
        "--output",
        metavar="FORMAT|FILE",
        help="Print the rows in a format (table, markdown, json, csv), or write them to a file (.json, .csv, .arrow, "
        ".parquet), completely or not at all.",
        show_default=False,
    ),
]
Wait = Annotated[bool, typer.Option("--wait", help="Wait until the job has ended; the exit code reports how it ended.")]
CancelOnInterrupt = Annotated[
    bool,
    typer.Option("--cancel-on-interrupt", help="With --wait: Ctrl-C or SIGTERM cancels the job."),
]

JobFile = Annotated[
    str | None,
    typer.Argument(
        metavar="FILE",
        help="A job in YAML or JSON, or its SQL (.sql) with --table; - reads standard input.",
        show_default=False,
    ),
]
Sql = Annotated[
    str | None, typer.Option("--sql", metavar="TEXT", help="SQL text; replaces the SQL of FILE.", show_default=False)
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="A setting, such as agg_phase=TWO_PHASE; overrides FILE. Repeatable.",
        show_default=False,
    ),
]
Parameters = Annotated[
    list[str] | None,
    typer.Option(
        "--param",
        metavar="NAME[:TYPE]=VALUE",
        help="Value of :NAME in the SQL, such as n=5 or day:DATE=2024-01-31; overrides FILE. Repeatable.",
        show_default=False,
    ),
]
Name = Annotated[str | None, typer.Option("--name", help="Name of the job; overrides FILE.", show_default=False)]
Tables = Annotated[
    list[str] | None,
    typer.Option(
        "--table",
        metavar="NAME=[FORMAT:]PATH",
        help="A table, such as f=parquet:flights/ or u=users.csv. Repeatable.",
        show_default=False,
    ),
]
Schemas = Annotated[
    list[str] | None,
    typer.Option(
        "--schema",
        metavar="NAME=DDL",
        help="Columns of a CSV or JSON table, such as u='uid BIGINT, name STRING'.",
        show_default=False,
    ),
]
Columns = Annotated[
    list[str] | None,
    typer.Option(
        "--column",
        metavar="NAME.COLUMN=TYPE",
        help="Type of a column of a CSV, JSON or XML table, such as o.amount='DECIMAL(10,2)'; the others are inferred. "
        "Repeatable.",
        show_default=False,
    ),
]
ReadOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--read",
        metavar="NAME.OPTION=VALUE",
        help="Read option of a CSV or JSON table, such as u.header=true.",
        show_default=False,
    ),
]


def open_session(url: str | None, key_file: Path | None, as_json: bool) -> AbstractContextManager[Session]:
    """Opens a session with the service that the options or the environment name. Raises CliError."""
    from service.cli.session import opened

    return opened(url, key_file, as_json=as_json)
