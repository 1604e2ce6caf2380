"""A job from a file, standard input and options."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from service.cli.client.refusals import Source
from service.cli.client.safe_text import safe_line
from service.cli.client.setting_input import given_settings, merged_settings
from service.cli.client.table_input import given_tables
from service.cli.errors import CliError, ExitCode

STDIN = "-"
_MOST_BYTES = 16 << 20
_SPECS = (".yaml", ".yml", ".json")


@dataclass(frozen=True)
class Given:
    """What stands on the command line."""

    file: str | None = None
    sql: str | None = None
    settings: Sequence[str] = ()
    name: str | None = None
    tables: Sequence[str] = ()
    schemas: Sequence[str] = ()
    read_options: Sequence[str] = ()


@dataclass(frozen=True)
class JobInput:
    """What to post, and where its SQL came from."""

    spec: dict[str, Any]
    source: Source


def read_job(given: Given) -> JobInput:
    """The job that is meant. Raises CliError for what cannot be read; whether it is a good one the service says."""
    spec, label = _base(given)
    if given.sql is not None:
        spec.pop("query", None)
        spec["sql"], label = given.sql, "--sql"
    tables = given_tables(given.tables, given.schemas, given.read_options)
    if tables:
        spec["tables"] = {**_mapping(spec, "tables"), **tables}
    settings = given_settings(given.settings)
    if settings:
        spec["settings"] = merged_settings(_mapping(spec, "settings"), settings)
    if given.name is not None:
        spec["name"] = given.name
    if not spec.get("tables"):
        raise CliError(
            "the job has no tables", "Name each: --table f=parquet:flights/, or tables of FILE.", code=ExitCode.USAGE
        )
    sql = spec.get("sql")
    return JobInput(spec, Source(sql if isinstance(sql, str) else "", label))


def _base(given: Given) -> tuple[dict[str, Any], str]:
    if given.file is None:
        if given.sql is None:
            raise CliError("there is nothing to submit", "Give FILE, or --sql and --table.", code=ExitCode.USAGE)
        return {}, "--sql"
    text = _text(given.file)
    label = "standard input" if given.file == STDIN else given.file
    if _is_sql(given, text):
        if given.sql is not None:
            raise CliError(f"both {label} and --sql give the SQL", "Leave one out.", code=ExitCode.USAGE)
        name = Path(given.file).stem if given.file != STDIN else ""
        return ({"sql": text, "name": name[:200]} if name.isprintable() and name else {"sql": text}), label
    return _parsed(text, label), f"{label}: sql"


def _is_sql(given: Given, text: str) -> bool:
    ending = Path(given.file or "").suffix.lower()
    if ending == ".sql" or ending in _SPECS:
        return ending == ".sql"
    # Standard input, or a file of another name: a job is an object.
    first = text.lstrip().partition("\n")[0].lower()
    return first.startswith(("select", "with ", "with\t", "/*", "--", "(")) or first.rstrip() == "with"


def _text(file: str) -> str:
    try:
        if file == STDIN:
            if sys.stdin.isatty():
                sys.stderr.write("Reading the job from the terminal; Ctrl-D ends it.\n")
            read = sys.stdin.buffer.read(_MOST_BYTES + 1)
        else:
            with Path(file).open("rb") as opened:
                read = opened.read(_MOST_BYTES + 1)
        if len(read) > _MOST_BYTES:
            raise CliError(f"{safe_line(file)} is longer than any job may be", code=ExitCode.USAGE)
        return read.decode("utf-8-sig")
    except OSError as error:
        raise CliError(f"{safe_line(file)}: {error.strerror}", code=ExitCode.USAGE) from None
    except UnicodeDecodeError:
        raise CliError(f"{safe_line(file)} is not text in UTF-8", code=ExitCode.USAGE) from None


def _parsed(text: str, label: str) -> dict[str, Any]:
    from service.cli.client.documents import parsed_document

    parsed = parsed_document(text, label)
    if not isinstance(parsed, dict):
        raise CliError(
            f"{safe_line(label)} is no job",
            "A job is an object: tables, sql or query, and more. SQL alone needs --table NAME=FORMAT:PATH.",
            code=ExitCode.USAGE,
        )
    return parsed


def _mapping(spec: dict[str, Any], name: str) -> dict[str, Any]:
    found = spec.get(name) or {}
    if not isinstance(found, dict):
        raise CliError(f"{name!r} of the job is no object", code=ExitCode.USAGE)
    return found
