"""SQL to the structured query, with the places in the text from which each of its parts came.

Names are qualified here, against the tables' schemas; types and grouping are left to `service.spec.binding`, whose
errors `CompiledSql.locate` leads back into the text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sqlglot import exp

from service.spec.dialect import Text, parse_query, tokens_of
from service.spec.errors import Issue
from service.spec.parsing import position
from service.spec.query import Query
from service.spec.sql_query import QueryCompiler
from service.spec.types import Schema

_STATEMENTS = frozenset(
    word
    for words in (
        "ALTER ANALYZE CACHE CALL CLEAR COMMENT COPY CREATE DECLARE DELETE DESC DESCRIBE DROP EXECUTE EXPLAIN EXPORT",
        "GRANT INSERT KILL LOAD MERGE MSCK OPTIMIZE PRAGMA REFRESH REPAIR REPLACE RESET REVOKE SET SHOW TABLE TRUNCATE",
        "UNCACHE UNLOCK UPDATE USE VACUUM",
    )
    for word in words.split()
)


@dataclass(frozen=True)
class CompiledSql:
    """A query and, for each of its parts by JSON pointer, (offset in the part's text, offset in the SQL) pairs.

    `unused` are common table expressions that it does not read, below `/unused/<index>`: to be checked, no more.
    """

    query: Query
    text: str
    origins: Mapping[str, tuple[tuple[int, int], ...]]
    unused: tuple[Query, ...] = ()

    def locate(self, issue: Issue, pointer: str = "/query") -> Issue:
        """An issue of `query` (bound with this `pointer`) as one of the SQL text."""
        marks = self._marks((issue.pointer or "").removeprefix(pointer))
        offset = (issue.column or 1) - 1
        places = [there for here, there in marks if here <= offset] or [there for _, there in marks[:1]]
        line = column = None
        if places:
            line = self.text.count("\n", 0, places[-1]) + 1
            column = places[-1] - self.text.rfind("\n", 0, places[-1])
        return issue.model_copy(update={"pointer": "/sql", "line": line, "column": column})

    def _marks(self, part: str) -> tuple[tuple[int, int], ...]:
        """The pairs of a part, of the first that stands in it, or of the nearest around it; none where none has any."""
        inside = [marks[0][1] for pointer, marks in self.origins.items() if pointer.startswith(f"{part}/")]
        if part not in self.origins and inside:
            return ((0, min(inside)),)
        while part and part not in self.origins:
            part = part.rpartition("/")[0]
        return self.origins.get(part, ())


def compile_sql(text: str, schemas: Mapping[str, Schema]) -> CompiledSql:
    """The structured query that `text` means over the tables of `schemas`.

    Raises SpecError `sql_syntax`, `query_too_deep`, `unsupported_construct`, `unsupported_function`, `unknown_table`,
    `unknown_column`, `ambiguous_column`, `duplicate_table`, at `/sql` with line and column.
    """
    source = Text(text, "/sql")
    _check_statement(source)
    compiler = QueryCompiler(source, schemas)
    query = compiler.query(_query_of(source), {})
    unused = compiler.unused()
    return CompiledSql(query, text, compiler.origins, unused)


def _check_statement(source: Text) -> None:
    tokens = tokens_of(source)
    if tokens and tokens[0].text.upper() in _STATEMENTS:
        raise source.unsupported(f"The statement {tokens[0].text.upper()}", at=tokens[0].start, hint="Write a SELECT.")


def _query_of(source: Text) -> exp.Expr:
    tree = parse_query(source)
    if not isinstance(tree, exp.Query):
        raise source.unsupported(tree.key.upper(), at=position(tree), hint="Write a SELECT.")
    return tree
