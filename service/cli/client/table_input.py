"""Tables as they are named on the command line."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from service.cli.client.safe_text import safe_line
from service.cli.client.setting_input import plain_value
from service.cli.errors import CliError, ExitCode

_FORMATS = ("parquet", "csv", "json")
_ENDINGS = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".csv": "csv",
    ".tsv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
}


_FLAGS = frozenset({"header", "multi_line"})
"""The options of reading that are no texts: `--read t.null_value=0` is the text 0."""


def table_source(text: str) -> dict[str, Any]:
    """`format:path`, or a path whose ending tells the format; `stream:name` for posted rows. Raises CliError.

    >>> table_source("parquet:flights/")
    {'format': 'parquet', 'path': 'flights/'}
    >>> table_source("s3a://lake/users.csv")
    {'format': 'csv', 'path': 's3a://lake/users.csv'}
    >>> table_source("stream:clicks")
    {'format': 'stream', 'stream': 'clicks'}
    """
    head, colon, rest = text.partition(":")
    if colon and rest and head in _FORMATS:
        return {"format": head, "path": rest}
    if colon and rest and head == "stream":
        return {"format": "stream", "stream": rest}
    ending = next((known for known in _ENDINGS if text.lower().endswith(known)), None)
    if ending is None:
        raise CliError(
            f"{safe_line(text)!r} does not tell its format",
            f"Write FORMAT:PATH; formats are {', '.join(_FORMATS)} and stream.",
            code=ExitCode.USAGE,
        )
    source: dict[str, Any] = {"format": _ENDINGS[ending], "path": text}
    return source | {"options": {"delimiter": "\t"}} if ending == ".tsv" else source


def given_tables(tables: Iterable[str], schemas: Iterable[str], options: Iterable[str]) -> dict[str, dict[str, Any]]:
    """The tables of `--table`, with the columns of `--schema` and the options of `--read`. Raises CliError."""
    found: dict[str, dict[str, Any]] = {}
    for text in tables:
        name, source = parted(text, "--table", "NAME=FORMAT:PATH")
        if name in found:
            raise CliError(f"--table gives {safe_line(name)!r} twice", code=ExitCode.USAGE)
        found[name] = table_source(source)
    for text in schemas:
        name, ddl = parted(text, "--schema", "NAME=DDL")
        _of(found, name, "--schema")["schema"] = ddl
    for text in options:
        place, value = parted(text, "--read", "NAME.OPTION=VALUE")
        name, dot, option = place.rpartition(".")
        if not dot:
            raise CliError(
                f"--read {safe_line(text)!r} names no table", "Write NAME.OPTION=VALUE.", code=ExitCode.USAGE
            )
        _of(found, name, "--read").setdefault("options", {})[option] = plain_value(value) if option in _FLAGS else value
    return found


def parted(text: str, option: str, form: str) -> tuple[str, str]:
    """What stands before and after the first `=`. Raises CliError where either is missing."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip() or not value:
        raise CliError(f"{option} {safe_line(text)!r} cannot be read", f"Write {option} {form}.", code=ExitCode.USAGE)
    return name.strip(), value


def _of(tables: dict[str, dict[str, Any]], name: str, option: str) -> dict[str, Any]:
    if name not in tables:
        known = ", ".join(map(safe_line, tables)) or "none"
        raise CliError(
            f"{option} is about the table {safe_line(name)!r}, which --table does not give",
            f"It gives {known}.",
            code=ExitCode.USAGE,
        )
    return tables[name]
