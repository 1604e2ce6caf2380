"""Tests that hostile queries are refused at submission: within a bound, with a code and a place in the text.

`hostile_queries.txt` has the queries and describes its format. `python -m tests.service.sql.test_hostile_queries`
writes the codes and places that the front end gives into the file; then read the difference.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from service.contract.job import JobSpec
from service.contract.problems import SpecError
from service.sql.compile import compile_job
from service.sql.ddl import parse_schema

FILE = Path(__file__).with_name("hostile_queries.txt")
SCHEMAS = {
    "t": parse_schema("a BIGINT, b STRING, c DOUBLE, d DECIMAL(10,2), e TIMESTAMP, f BOOLEAN, g BINARY", ""),
    "u": parse_schema("a BIGINT, b STRING", ""),
}

_REPEATED = re.compile(r"<<(\d+)\*(.*?)>>(?!>)", re.DOTALL)
_ESCAPE = re.compile(r"\\(u[0-9a-f]{4}|[0nt\\])")
_ESCAPED = {"0": "\0", "n": "\n", "t": "\t", "\\": "\\"}


@dataclass(frozen=True)
class Hostile:
    """A line of the file: its number, the refusal that it states, and the query as it is written there."""

    line: int
    refusal: str
    written: str

    def __str__(self) -> str:
        return f"line {self.line}"

    @property
    def sql(self) -> str:
        """The query, with its repetitions."""
        text = _ESCAPE.sub(lambda escape: _ESCAPED.get(escape[1]) or chr(int(escape[1][1:], 16)), self.written)
        return _REPEATED.sub(lambda part: "".join(_copies(part[2], int(part[1]))), text)


def _copies(text: str, number: int) -> list[str]:
    return [text.replace("#m", str(copy + 1)).replace("#n", str(copy)) for copy in range(number)]


def queries() -> list[Hostile]:
    """Returns the queries of the file."""
    found = []
    for number, line in enumerate(FILE.read_text(encoding="utf-8").split("\n"), 1):
        refusal, bar, written = line.partition(" | ")
        if bar and not line.startswith("#"):
            found.append(Hostile(number, refusal, written))
    return found


def refusal_of(sql: str) -> str:
    """Returns the code, line and column of the first issue of the query's refusal; "accepted" if it is not refused."""
    tables = {name: {"format": "parquet", "path": f"{name}/"} for name in SCHEMAS}
    try:
        compile_job(JobSpec.model_validate({"tables": tables, "sql": sql}), SCHEMAS)
    except SpecError as error:
        issue = error.issues[0]
        assert issue.pointer == "/sql"
        assert len(issue.detail) < 1_000
        return f"{issue.code} {issue.line}:{issue.column}"
    return "accepted"


QUERIES = queries()


@pytest.mark.withstands(
    "Hostile SQL",
    kind="attack",
    how="nesting, long lists, thousands of joins and common table expressions, expansion of these, invisible "
    "characters, patterns that backtrack, values that grow, statements, code, files and secrets",
    times=288,
    guaranteed="each query is refused at submission, with a code, a line and a column",
)
@pytest.mark.timeout(30)
@pytest.mark.parametrize("query", QUERIES, ids=str)
def test_hostile_query_is_refused_with_its_place(query: Hostile) -> None:
    assert refusal_of(query.sql) == query.refusal
    assert re.fullmatch(r"\w+ \d+:\d+", query.refusal)


def test_the_number_in_the_mark_is_that_of_the_file() -> None:
    assert len({query.written for query in QUERIES}) == 288


def _write() -> None:
    lines = FILE.read_text(encoding="utf-8").split("\n")
    for query in QUERIES:
        lines[query.line - 1] = f"{refusal_of(query.sql)} | {query.written}"
    FILE.write_text("\n".join(lines), encoding="utf-8")


if __name__ == "__main__":
    _write()
