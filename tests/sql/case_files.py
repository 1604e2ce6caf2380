"""Reads and writes the files of SQL cases. `tests/sql/test_cases.py` describes the format."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from service.sql.types.data_types import Schema
from tests.sql.values import columns_of, values_of

HERE = Path(__file__).parent
CASES = HERE / "cases"
TABLES = HERE / "tables"

RESULT = "----"
"""The line between what a block gives and what it expects."""

KINDS = frozenset({"query", "fails", "refused", "accepted", "bound", "rendered"})
"""What a case says of its SQL."""

IN_SPARK = frozenset({"query", "fails"})
"""The kinds that Spark runs."""

ARGUMENTS = {"query": ("", "ordered"), "accepted": ("",), "bound": ("",), "rendered": ("",)}
"""By kind, what may follow it on its line. The other kinds take a code."""

FIRES = "fires"
"""Names the rules that rewrite the query under the settings that are forced."""

SPARKS = "in_spark"
"""Names the SQL that plain Spark runs instead, where Spark fails on that of the case."""


class CaseFileError(Exception):
    """A file of cases that cannot be read: where, and why."""

    def __init__(self, path: Path, line: int, why: str) -> None:
        super().__init__(f"{path}:{line}: {why}")


@dataclass(frozen=True)
class Table:
    """A table: its columns, its rows, and what a job says of it in addition to its path (`role`, `event_time`)."""

    schema: Schema
    rows: tuple[tuple[Any, ...], ...] = ()
    source: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Case:
    """A block of a file: what is said of one SQL text."""

    path: Path
    line: int
    """The line of `kind`, from 1."""
    kind: str
    argument: str
    """What follows `kind` on its line."""
    sql: str
    expected: tuple[str, ...]
    """The lines below `----`."""
    settings: Mapping[str, Any]
    tables: Mapping[str, Table]
    last: int
    """The last line of the SQL, from 1."""
    about: str = ""
    """What its comment says."""

    def __str__(self) -> str:
        return f"{self.path.relative_to(CASES).as_posix()}:{self.line}"


def all_cases() -> list[Case]:
    """The cases of all files."""
    return [case for path in sorted(CASES.rglob("*.test")) for case in cases_of(path)]


def texts_of(name: str) -> list[str]:
    """The SQL of the cases of the file `name` in `tests/sql/cases`, each on one line, which is safe for SQL
    without comments.
    """
    return [" ".join(case.sql.split()) for case in cases_of(CASES / f"{name}.test")]


def named_texts(name: str) -> dict[str, str]:
    """The SQL of each case of the file, by the comment above it. Raises CaseFileError where two have the same."""
    found: dict[str, str] = {}
    for case, text in zip(cases_of(CASES / f"{name}.test"), texts_of(name), strict=True):
        if case.about in found or not case.about:
            raise CaseFileError(case.path, case.line, "the case needs a comment of its own: its name")
        found[case.about] = text
    return found


def cases_of(path: Path) -> list[Case]:
    """The cases of a file. Raises CaseFileError."""
    return list(_Reader(path).cases())


@cache
def tables_of(name: str) -> Mapping[str, Table]:
    """The tables of the file `name` in `tests/sql/tables`."""
    reader = _Reader(TABLES / f"{name}.test")
    if unexpected := list(reader.cases()):
        raise CaseFileError(reader.path, unexpected[0].line, "a file of tables has no case")
    return reader.tables


def rewritten(path: Path, found: Mapping[int, tuple[str, tuple[str, ...]]]) -> str:
    """The text of the file, with other arguments and expectations of the cases on these lines."""
    lines = path.read_text(encoding="utf-8").splitlines()
    for case in reversed(cases_of(path)):
        if case.line not in found:
            continue
        argument, expected = found[case.line]
        old = 1 + len(case.expected) if lines[case.last : case.last + 1] == [RESULT] else 0
        lines[case.last : case.last + old] = [RESULT, *expected] if expected else []
        lines[case.line - 1] = f"{case.kind} {argument}".strip()
    return "\n".join(lines) + "\n"


class _Reader:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.tables: dict[str, Table] = {}
        self._settings: dict[str, Any] = {}

    def cases(self) -> Iterator[Case]:
        for start, lines in _blocks(self.path):
            begin = next((number for number, line in enumerate(lines) if not line.startswith("#")), len(lines))
            about = " ".join(line.lstrip("# ") for line in lines[:begin])
            rest = lines[begin:]
            settings: dict[str, Any] = {}
            while rest and rest[0].startswith("set "):
                settings.update(self._setting(start + begin, rest.pop(0)))
                begin += 1
            if not rest:
                self._settings.update(settings)
                continue
            kind, _, argument = rest[0].partition(" ")
            if kind == "tables":
                self._settings.update(settings)
                self._take_tables(start + begin, argument, rest)
            elif kind == "table":
                self.tables[argument] = self._table(start + begin, rest[1:], settings)
            elif kind in KINDS:
                yield replace(self._case(start + begin, kind, argument, rest[1:], settings), about=about)
            else:
                known = ", ".join(sorted({"table", "tables", *KINDS}))
                raise CaseFileError(self.path, start + begin, f"{kind!r} begins no block; there are {known}")

    def _setting(self, line: int, text: str) -> dict[str, Any]:
        name, equals, value = text.removeprefix("set ").partition(" = ")
        if not equals:
            raise CaseFileError(self.path, line, "write `set name = value`")
        try:
            return {name: yaml.safe_load(value)}
        except yaml.YAMLError as error:
            raise CaseFileError(self.path, line, f"the value is not YAML: {error}") from None

    def _take_tables(self, line: int, name: str, rest: list[str]) -> None:
        if len(rest) > 1:
            raise CaseFileError(self.path, line + 1, "an empty line is missing below `tables`")
        if not (TABLES / f"{name}.test").is_file():
            raise CaseFileError(self.path, line, f"there is no tests/sql/tables/{name}.test")
        self.tables = dict(tables_of(name))

    def _table(self, line: int, body: list[str], source: Mapping[str, Any]) -> Table:
        given, rows = _parted(body)
        try:
            schema = columns_of(" ".join(given))
        except ValueError as error:
            raise CaseFileError(self.path, line + 1, str(error)) from None
        read = []
        for number, row in enumerate(rows, line + len(given) + 2):
            try:
                read.append(values_of(row, schema))
            except ValueError as error:
                raise CaseFileError(self.path, number, str(error)) from None
        return Table(schema, tuple(read), source)

    def _case(self, line: int, kind: str, argument: str, body: list[str], settings: Mapping[str, Any]) -> Case:
        given, expected = _parted(body)
        if not given:
            raise CaseFileError(self.path, line, "the SQL is missing")
        allowed = ARGUMENTS.get(kind)
        if allowed is not None and argument not in allowed:
            raise CaseFileError(self.path, line, f"{argument!r} says nothing after `{kind}`")
        if FIRES in settings and kind not in IN_SPARK:
            raise CaseFileError(self.path, line, f"`set {FIRES}` says nothing of `{kind}`, which makes no plan")
        if not self.tables and kind != "rendered":
            raise CaseFileError(self.path, line, "`tables` or `table` has to come before it")
        return Case(
            self.path,
            line,
            kind,
            argument,
            "\n".join(given),
            tuple(expected),
            {**self._settings, **settings},
            dict(self.tables),
            line + len(given),
        )


def _blocks(path: Path) -> Iterator[tuple[int, list[str]]]:
    """The blocks of a file, which empty lines separate, each with the number of its first line."""
    block: list[str] = []
    lines = path.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate([*lines, ""], 1):
        if line.strip():
            block.append(line)
        elif block:
            yield number - len(block), block
            block = []


def _parted(lines: list[str]) -> tuple[list[str], list[str]]:
    at = lines.index(RESULT) if RESULT in lines else len(lines)
    return lines[:at], lines[at + 1 :]
