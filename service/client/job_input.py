"""Settings as they are given on the command line, and put together with those of a file.

Tables as they are named on the command line.

Files of jobs: JSON, or YAML as version 1.2 has it, where `on` is a word and 2013-01-31 a text; no name twice.

A job from a file, standard input and options.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from service.client.connection import Source, pointed_out
from service.client.terminal import CliError, ExitCode, safe_line

_INTEGER = re.compile(r"-?\d{1,18}")
_FRACTION = re.compile(r"-?\d+\.\d+")


def plain_value(text: str) -> Any:
    """true, false and numbers as such; everything else as text.

    >>> [plain_value(text) for text in ("true", "16", "4.5", "2s", "AUTO")]
    [True, 16, 4.5, '2s', 'AUTO']
    """
    if text in {"true", "false"}:
        return text == "true"
    if _INTEGER.fullmatch(text):
        return int(text)
    return float(text) if _FRACTION.fullmatch(text) else text


def given_settings(pairs: Iterable[str]) -> dict[str, Any]:
    """The settings of `--set KEY=VALUE`, under the names that were given. Raises CliError."""
    found: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            raise CliError(f"--set {safe_line(pair)!r} cannot be read", "Write --set KEY=VALUE.", code=ExitCode.USAGE)
        found[key.strip()] = plain_value(value.strip())
    return found


def merged_settings(base: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """`base`, nested or dotted, with `given` before it, whatever each calls a setting. Names that this version does not
    know are kept for the service to judge.

    >>> merged_settings({"skew": {"factor": 2, "threshold": "1MB"}}, {"skew.factor": 8})
    {'skew.threshold': '1MB', 'skew.factor': 8}
    >>> merged_settings({"table.optimizer.agg-phase-strategy": "AUTO"}, {"agg_phase": "TWO_PHASE"})
    {'agg_phase': 'TWO_PHASE'}
    """
    if not given:
        return dict(base)
    canonical = _canonical_names()
    changed = {canonical.get(key, key) for key in given}
    kept = {key: value for key, value in _dotted(base) if canonical.get(key, key) not in changed}
    return {**kept, **given}


def _dotted(settings: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
    for key, value in settings.items():
        if isinstance(value, Mapping):
            yield from ((f"{key}.{name}", inner) for name, inner in value.items())
        else:
            yield str(key), value


def _canonical_names() -> dict[str, str]:
    from service.contract.options import declared_settings

    return {alias: setting.key for setting in declared_settings() for alias in setting.aliases}


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


_YAML_INTEGER = r"-?(?:0|[1-9][0-9]*)"


class _Loader(yaml.SafeLoader):
    """Reads plain words as JSON would, as far as it has them."""

    # Those of the base class are YAML 1.1's: `on`, `yes` and `1:30` would be a truth and a number.
    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """A mapping whose names differ."""
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"'{key.value}' stands here twice", key.start_mark)
            seen.add(str(key.value))
        return super().construct_mapping(node, deep)


for _tag, _pattern, _first in (
    ("bool", "true|false|True|False|TRUE|FALSE", "tTfF"),
    ("int", _YAML_INTEGER, "-0123456789"),
    ("float", rf"{_YAML_INTEGER}(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?", "-0123456789"),
    ("null", "~|null|Null|NULL|", ["~", "n", "N", ""]),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_pattern})$"), list(_first))


def parsed_document(text: str, label: str) -> Any:
    """What a text of YAML or JSON says; `label` is what its user knows it as. Raises CliError with the place."""
    if text.lstrip().startswith("{"):
        try:
            return json.loads(text, object_pairs_hook=_without_twins)
        except _TwinError as error:
            raise _refusal(text, label, str(error), None, None) from None
        except (ValueError, RecursionError) as error:
            if not isinstance(error, json.JSONDecodeError) or label.lower().endswith(".json"):
                line, column = getattr(error, "lineno", None), getattr(error, "colno", None)
                raise _refusal(text, label, getattr(error, "msg", str(error)), line, column) from None
            # YAML may begin so too.
    try:
        return _Loader(text).get_single_data()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (None, None)
        raise _refusal(text, label, error.problem or str(error), line, column) from None
    except (yaml.YAMLError, AttributeError, RecursionError, TypeError, ValueError) as error:
        # A tag such as `!!timestamp` takes texts that its reader then fails on.
        raise _refusal(text, label, " ".join(str(error).split()), None, None) from None


class _TwinError(Exception):
    pass


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise _TwinError(f"'{name}' stands in one object twice")
        found[name] = value
    return found


def _refusal(text: str, label: str, told: str, line: int | None, column: int | None) -> CliError:
    place = [] if line is None else [f"{safe_line(label)}:{line}:{column}", *pointed_out(text, line, column)]
    return CliError(f"{safe_line(label)} cannot be read: {safe_line(told)}", "\n  ".join(place), code=ExitCode.USAGE)


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
