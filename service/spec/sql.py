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
from service.spec.sql_expansion import check_expansion
from service.spec.sql_origins import Origins
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

_POINTER = "/query"
"""The pointer with which a compiled query is bound."""


@dataclass(frozen=True)
class CompiledSql:
    """A query, and where each of its parts was written in the SQL `text`.

    `unused` are common table expressions that it does not read, below `/unused/<index>`: to be checked, no more.
    """

    query: Query
    text: str
    origins: Origins
    unused: tuple[Query, ...] = ()
    is_accepted: bool = False

    def text_of(self, text: str, pointer: str) -> Text:
        """The `Text` of an expression of `query`, which is not read again, since its tree is known."""
        tree = self.origins.trees.get(pointer.removeprefix(_POINTER))
        return Text(text, pointer, tree, self.text, self.is_accepted)

    def locate(self, issue: Issue) -> Issue:
        """An issue of `query`, bound with `text_of`, as one of the SQL text."""
        if issue.line is not None:
            return issue.model_copy(update={"pointer": "/sql"})
        place = self.origins.place_of((issue.pointer or "").removeprefix(_POINTER))
        line = column = None
        if place is not None:
            line = self.text.count("\n", 0, place) + 1
            column = place - self.text.rfind("\n", 0, place)
        return issue.model_copy(update={"pointer": "/sql", "line": line, "column": column})


def compile_sql(text: str, schemas: Mapping[str, Schema], *, is_accepted: bool = False) -> CompiledSql:
    """The structured query that `text` means over the tables of `schemas`; `is_accepted` as for `Text`.

    Raises SpecError `sql_syntax`, `query_too_deep`, `unsupported_construct`, `unsupported_function`, `unknown_table`,
    `unknown_column`, `ambiguous_column`, `duplicate_table`, at `/sql` with line and column.
    """
    source = Text(text, "/sql", is_accepted=is_accepted)
    _check_statement(source)
    compiler = QueryCompiler(source, schemas)
    tree = _query_of(source)
    if not is_accepted:
        # Earlier versions counted fewer nodes. `compiler` still counts the queries of an accepted text.
        check_expansion(tree, source)
    query = compiler.query(tree, {})
    unused = compiler.unused()
    return CompiledSql(query, text, compiler.origins, unused, is_accepted)


def _check_statement(source: Text) -> None:
    tokens = tokens_of(source)
    if tokens and tokens[0].text.upper() in _STATEMENTS:
        raise source.unsupported(f"The statement {tokens[0].text.upper()}", at=tokens[0].start, hint="Write a SELECT.")


def _query_of(source: Text) -> exp.Expr:
    tree = parse_query(source)
    if not isinstance(tree, exp.Query):
        raise source.unsupported(tree.key.upper(), at=position(tree), hint="Write a SELECT.")
    return tree
