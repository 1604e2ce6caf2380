"""Builds the job to submit from a file or standard input and the options of the command line.

Files are JSON or YAML 1.2, in which `on` and 2013-01-31 are text. A key that occurs twice in an object is an error.
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

from service.cli.terminal import CliError, ExitCode
from service.client.job_spec import table_source
from service.client.problem_text import Source, excerpt
from service.client.text import safe_line

STDIN = "-"
_MAX_BYTES = 16 << 20
_SPEC_EXTENSIONS = (".yaml", ".yml", ".json")

_INTEGER = re.compile(r"-?\d{1,18}")
_FRACTION = re.compile(r"-?\d+\.\d+")
_YAML_INTEGER = r"-?(?:0|[1-9][0-9]*)"
_JSON_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]{0,99})", re.ASCII)
_JSON_FRACTION = re.compile(r"-?(?:0|[1-9][0-9]{0,99})\.[0-9]{1,99}", re.ASCII)

_FLAGS = frozenset({"header", "multi_line"})
"""Read options that are not text: the value of `--read t.null_value=0` is the text 0."""


@dataclass(frozen=True)
class CommandLine:
    """The arguments and options that describe a job."""

    file: str | None = None
    sql: str | None = None
    settings: Sequence[str] = ()
    name: str | None = None
    tables: Sequence[str] = ()
    schemas: Sequence[str] = ()
    read_options: Sequence[str] = ()
    parameters: Sequence[str] = ()
    columns: Sequence[str] = ()


@dataclass(frozen=True)
class JobInput:
    """The job to submit, and the source of its SQL."""

    spec: dict[str, Any]
    source: Source


def read_job(given: CommandLine) -> JobInput:
    """Builds the job. Raises CliError for input that cannot be read; the service validates the job."""
    spec, label = _base(given)
    if given.sql is not None:
        spec.pop("query", None)
        spec["sql"], label = given.sql, "--sql"
    tables = given_tables(given.tables, given.schemas, given.read_options, given.columns)
    if tables:
        spec["tables"] = {**_mapping(spec, "tables"), **tables}
    settings = given_settings(given.settings)
    if settings:
        spec["settings"] = merged_settings(_mapping(spec, "settings"), settings)
    if given.parameters:
        spec["parameters"] = merged_parameters(_named_parameters(spec), given.parameters)
    if given.name is not None:
        spec["name"] = given.name
    if not spec.get("tables"):
        advice = "Give each one with --table, such as f=parquet:flights/, or in `tables` of FILE."
        raise CliError("the job has no tables", advice, code=ExitCode.USAGE)
    sql = spec.get("sql")
    source = Source(sql if isinstance(sql, str) else "", label, _written(given), has_keys=True)
    return JobInput(spec, source)


def _written(given: CommandLine) -> dict[str, str]:
    """Returns the options that give a job, each by the JSON pointer of what it gives."""
    found = {} if given.name is None else {"/name": f"--name {given.name}"}
    for text in given.tables:
        found[_pointer("tables", _left(text))] = f"--table {text}"
    for text in given.schemas:
        found[_pointer("tables", _left(text), "schema")] = f"--schema {text}"
    for option, texts, field in (("--read", given.read_options, "options"), ("--column", given.columns, "columns")):
        for text in texts:
            name, _, member = _left(text).partition(".")
            found[_pointer("tables", name, field, member)] = f"{option} {text}"
    for text in given.parameters:
        found[_pointer("parameters", _left(text).partition(":")[0].strip())] = f"--param {text}"
    canonical = _canonical_names() if given.settings else {}
    for text in given.settings:
        key = _left(text)
        # The service names a setting as it was sent, or by the fields of its canonical name.
        for path in ([key], canonical.get(key, key).split(".")):
            found[_pointer("settings", *path)] = f"--set {text}"
    return found


def _pointer(*path: str) -> str:
    """Returns the JSON pointer (RFC 6901) of a path of keys."""
    return "".join("/" + part.replace("~", "~0").replace("/", "~1") for part in path)


def _left(text: str) -> str:
    return text.partition("=")[0].strip()


def _base(given: CommandLine) -> tuple[dict[str, Any], str]:
    """Returns the job of FILE, which is empty without FILE, and the name of its SQL for the user."""
    if given.file is None:
        if given.sql is None:
            raise CliError("no job is given", "Give FILE, or --sql and --table.", code=ExitCode.USAGE)
        return {}, "--sql"
    text = _text(given.file)
    label = "standard input" if given.file == STDIN else given.file
    if _is_sql(given.file, text):
        if given.sql is not None:
            raise CliError(f"SQL is given twice, in {label} and --sql", "Leave one of them out.", code=ExitCode.USAGE)
        name = Path(given.file).stem if given.file != STDIN else ""
        return ({"sql": text, "name": name[:200]} if name.isprintable() and name else {"sql": text}), label
    parsed = parsed_document(text, label)
    if not isinstance(parsed, dict):
        raise CliError(
            f"{safe_line(label)} does not contain a job",
            "A job is an object with tables, and sql or query. SQL alone needs --table NAME=PATH.",
            code=ExitCode.USAGE,
        )
    return parsed, f"{label}: sql"


def _is_sql(file: str, text: str) -> bool:
    extension = Path(file).suffix.lower()
    if extension == ".sql" or extension in _SPEC_EXTENSIONS:
        return extension == ".sql"
    first = text.lstrip().partition("\n")[0].lower()
    return first.startswith(("select", "with ", "with\t", "/*", "--", "(")) or first.rstrip() == "with"


def _text(file: str) -> str:
    try:
        if file == STDIN:
            if sys.stdin.isatty():
                sys.stderr.write("Reading the job from the terminal; press Ctrl-D at the end.\n")
            read = sys.stdin.buffer.read(_MAX_BYTES + 1)
        else:
            with Path(file).open("rb") as opened:
                read = opened.read(_MAX_BYTES + 1)
        if len(read) > _MAX_BYTES:
            raise CliError(f"{safe_line(file)} is larger than {_MAX_BYTES >> 20} MiB", code=ExitCode.USAGE)
        return read.decode("utf-8-sig")
    except OSError as error:
        raise CliError(f"{safe_line(file)}: {error.strerror}", code=ExitCode.USAGE) from None
    except UnicodeDecodeError:
        raise CliError(f"{safe_line(file)} is not UTF-8 text", code=ExitCode.USAGE) from None


def _mapping(spec: dict[str, Any], name: str) -> dict[str, Any]:
    found = spec.get(name) or {}
    if not isinstance(found, dict):
        raise CliError(f"{name!r} of the job is not an object", code=ExitCode.USAGE)
    return found


def _named_parameters(spec: dict[str, Any]) -> dict[str, Any]:
    if isinstance(spec.get("parameters"), list):
        advice = "Write names in the SQL instead of ?, or give all values in FILE."
        raise CliError("--param names a parameter, but those of FILE are a list", advice, code=ExitCode.USAGE)
    return _mapping(spec, "parameters")


def merged_parameters(base: Mapping[str, Any], pairs: Iterable[str]) -> dict[str, Any]:
    """Returns the parameters `base`, overridden by those of `--param NAME=VALUE` and `--param NAME:TYPE=VALUE`.

    Without TYPE, a parameter keeps its type in `base`. If it has none, true, false and numbers as JSON writes them are
    converted, and other values remain text. Raises CliError.

    >>> merged_parameters({}, ["n=5", "zip=01234", "d:DATE=2024-01-31", "s="])
    {'n': 5, 'zip': '01234', 'd': {'type': 'DATE', 'value': '2024-01-31'}, 's': ''}
    >>> merged_parameters({"d": {"type": "DATE", "value": "2024-01-31"}, "n": 1}, ["d=2024-02-01"])
    {'d': {'type': 'DATE', 'value': '2024-02-01'}, 'n': 1}
    """
    given: dict[str, Any] = {}
    for pair in pairs:
        left, equals, value = pair.partition("=")
        name, colon, type_ = (part.strip() for part in left.partition(":"))
        if not equals or not name or (colon and not type_):
            raise CliError(
                f"invalid option --param {safe_line(pair)!r}",
                "Write --param NAME=VALUE or --param NAME:TYPE=VALUE.",
                code=ExitCode.USAGE,
            )
        if name in given:
            raise CliError(f"--param gives {safe_line(name)!r} twice", code=ExitCode.USAGE)
        before = base.get(name)
        declared = type_ or (before.get("type") if isinstance(before, Mapping) else None)
        given[name] = {"type": declared, "value": value} if declared else _parameter(value)
    return {**base, **given}


def _parameter(text: str) -> Any:
    if text in {"true", "false"}:
        return text == "true"
    if _JSON_INTEGER.fullmatch(text):
        return int(text)
    return float(text) if _JSON_FRACTION.fullmatch(text) else text


def plain_value(text: str) -> Any:
    """Converts true, false and numbers; other values remain text.

    >>> [plain_value(text) for text in ("true", "16", "4.5", "2s", "AUTO")]
    [True, 16, 4.5, '2s', 'AUTO']
    """
    if text in {"true", "false"}:
        return text == "true"
    if _INTEGER.fullmatch(text):
        return int(text)
    return float(text) if _FRACTION.fullmatch(text) else text


def given_settings(pairs: Iterable[str]) -> dict[str, Any]:
    """Returns the settings of `--set KEY=VALUE`. Raises CliError."""
    found: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            raise CliError(f"invalid option --set {safe_line(pair)!r}", "Write --set KEY=VALUE.", code=ExitCode.USAGE)
        found[key.strip()] = plain_value(value.strip())
    return found


def merged_settings(base: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings `base`, nested or with dotted names, overridden by `given`; both may use aliases.

    Unknown names are kept, so that the service reports them.

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


def given_tables(
    tables: Iterable[str], schemas: Iterable[str], options: Iterable[str], columns: Iterable[str] = ()
) -> dict[str, dict[str, Any]]:
    """Returns the tables of `--table` with the columns of `--schema`, the options of `--read`, and the types of
    `--column`.

    Raises CliError for a text that does not have the form of its option, or names a table that is not in `tables`.
    """
    found: dict[str, dict[str, Any]] = {}
    for text in tables:
        name, source = _name_and_value(text, "--table", "NAME=[FORMAT:]PATH")
        if name in found:
            raise CliError(f"--table defines {safe_line(name)!r} twice", code=ExitCode.USAGE)
        found[name] = table_source(source)
    for text in schemas:
        name, ddl = _name_and_value(text, "--schema", "NAME=DDL")
        _table(found, name, "--schema")["schema"] = ddl
    for text in options:
        name, option, value = _member_and_value(text, "--read", "NAME.OPTION=VALUE")
        read_options = _table(found, name, "--read").setdefault("options", {})
        read_options[option] = plain_value(value) if option in _FLAGS else value
    for text in columns:
        name, column, type_ = _member_and_value(text, "--column", "NAME.COLUMN=TYPE")
        _table(found, name, "--column").setdefault("columns", {})[column] = type_
    return found


def _member_and_value(text: str, option: str, form: str) -> tuple[str, str, str]:
    """Returns the table, its member and the value of `NAME.MEMBER=VALUE`."""
    path, value = _name_and_value(text, option, form)
    name, dot, member = path.partition(".")
    if not dot or not member:
        raise CliError(f"{option} {safe_line(text)!r} does not name a table", f"Write {form}.", code=ExitCode.USAGE)
    return name, member, value


def _name_and_value(text: str, option: str, form: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.strip() or not value:
        raise CliError(f"invalid option {option} {safe_line(text)!r}", f"Write {option} {form}.", code=ExitCode.USAGE)
    return name.strip(), value


def _table(tables: dict[str, dict[str, Any]], name: str, option: str) -> dict[str, Any]:
    if name not in tables:
        known = ", ".join(map(safe_line, tables)) or "none"
        raise CliError(
            f"{option} names the table {safe_line(name)!r}, which no --table defines",
            f"Tables defined with --table: {known}.",
            code=ExitCode.USAGE,
        )
    return tables[name]


class _Loader(yaml.SafeLoader):
    """Reads unquoted scalars as YAML 1.2 does in its JSON schema."""

    # The resolvers of the base class are those of YAML 1.1, in which `on` and `yes` are booleans and `1:30` a number.
    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """Builds a mapping. Raises ConstructorError for a duplicate key."""
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"duplicate key '{key.value}'", key.start_mark)
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
    """Parses YAML or JSON. Raises CliError with the line and column; `label` is the name of the text for the user."""
    if text.lstrip().startswith("{"):
        try:
            return json.loads(text, object_pairs_hook=_object)
        except _DuplicateKeyError as error:
            raise _syntax_error(text, label, str(error)) from None
        except (ValueError, RecursionError) as error:
            if not isinstance(error, json.JSONDecodeError) or label.lower().endswith(".json"):
                line, column = getattr(error, "lineno", None), getattr(error, "colno", None)
                raise _syntax_error(text, label, getattr(error, "msg", str(error)), line, column) from None
            # It may be YAML in flow style.
    try:
        return _Loader(text).get_single_data()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (None, None)
        raise _syntax_error(text, label, error.problem or str(error), line, column) from None
    except (yaml.YAMLError, AttributeError, RecursionError, TypeError, ValueError) as error:
        # Tags such as `!!timestamp` raise these errors for invalid values.
        raise _syntax_error(text, label, " ".join(str(error).split())) from None


class _DuplicateKeyError(Exception):
    pass


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise _DuplicateKeyError(f"duplicate key '{name}'")
        found[name] = value
    return found


def _syntax_error(text: str, label: str, reason: str, line: int | None = None, column: int | None = None) -> CliError:
    place = [] if line is None else [f"{safe_line(label)}:{line}:{column}", *excerpt(text, line, column)]
    return CliError(f"{safe_line(label)} cannot be read: {safe_line(reason)}", "\n  ".join(place), code=ExitCode.USAGE)
