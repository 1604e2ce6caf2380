"""SQL to the structured query, with the places in the text from which each of its parts came.

One SELECT over the job's tables is compiled. Its names are qualified here, against the tables' schemas; types and
grouping are left to `service.spec.binding`, whose errors `CompiledSql.locate` leads back into the text. A query that
is more than one SELECT (WITH, UNION, a derived table) is refused where `_select_of` and `sql_from` meet it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sqlglot import exp
from sqlglot.tokenizer_core import TokenType

from service.spec.dialect import Text, parse_query, place_of, tokens_of
from service.spec.errors import Issue
from service.spec.parsing import position
from service.spec.query import Query
from service.spec.sql_from import read_from
from service.spec.sql_select import SelectCompiler
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
_CLAUSES = {
    "with_": "A common table expression (WITH)",
    "offset": "OFFSET",
    "qualify": "QUALIFY",
    "windows": "WINDOW",
    "laterals": "LATERAL VIEW",
    "sort": "SORT BY",
    "cluster": "CLUSTER BY",
    "distribute": "DISTRIBUTE BY",
    "pivots": "PIVOT",
    "into": "INTO",
    "locks": "FOR UPDATE",
    "kind": "AS STRUCT",
    "hint": "A hint",
    "connect": "CONNECT BY",
    "match": "MATCH_RECOGNIZE",
}
_KEYWORDS = {"locks": TokenType.FOR, "kind": TokenType.SELECT, "windows": TokenType.WINDOW}
"""Where the clauses stand whose parts know no place."""
_COMPILED = {"expressions", "from_", "joins", "where", "group", "having", "order", "limit", "distinct"}


@dataclass(frozen=True)
class CompiledSql:
    """A query and, for each of its parts by JSON pointer, (offset in the part's text, offset in the SQL) pairs."""

    query: Query
    text: str
    origins: Mapping[str, tuple[tuple[int, int], ...]]

    def locate(self, issue: Issue, pointer: str = "/query") -> Issue:
        """An issue of `query` (bound with this `pointer`) as one of the SQL text."""
        part = (issue.pointer or "").removeprefix(pointer)
        while part and part not in self.origins:
            part = part.rpartition("/")[0]
        marks = self.origins.get(part, ())
        offset = (issue.column or 1) - 1
        places = [there for here, there in marks if here <= offset] or [there for _, there in marks[:1]]
        line = column = None
        if places:
            line = self.text.count("\n", 0, places[-1]) + 1
            column = places[-1] - self.text.rfind("\n", 0, places[-1])
        return issue.model_copy(update={"pointer": "/sql", "line": line, "column": column})


def compile_sql(text: str, schemas: Mapping[str, Schema]) -> CompiledSql:
    """The structured query that the SELECT `text` means over the tables of `schemas`.

    Raises SpecError `sql_syntax`, `query_too_deep`, `unsupported_construct`, `unsupported_function`, `unknown_table`,
    `unknown_column`, `ambiguous_column`, `duplicate_table`, at `/sql` with line and column.
    """
    source = Text(text, "/sql")
    _check_statement(source)
    select = _select_of(parse_query(source), source)
    compiler = SelectCompiler(source, select, read_from(select, source, schemas))
    return CompiledSql(compiler.query(), text, compiler.origins)


def _check_statement(source: Text) -> None:
    tokens = tokens_of(source)
    if tokens and tokens[0].text.upper() in _STATEMENTS:
        raise source.unsupported(f"The statement {tokens[0].text.upper()}", at=tokens[0].start, hint="Write a SELECT.")
    if tokens and tokens[0].text == "(":
        raise source.unsupported("A query in parentheses", at=tokens[0].start, hint="Write a single SELECT.")


def _select_of(tree: exp.Expr, source: Text) -> exp.Select:
    if isinstance(tree, exp.SetOperation):
        raise source.unsupported(tree.key.upper(), at=position(tree.expression), hint="Write a single SELECT.")
    if not isinstance(tree, exp.Select):
        raise source.unsupported(tree.key.upper(), at=position(tree), hint="Write a single SELECT.")
    for key, value in tree.args.items():
        if value and key not in _COMPILED:
            first = value[0] if isinstance(value, list) else value
            at = position(first) if isinstance(first, exp.Expr) else None
            if at is None and key in _KEYWORDS:
                at = place_of(source, _KEYWORDS[key])
            raise source.unsupported(_CLAUSES.get(key, f"The clause {key.upper()}"), at=at)
    return tree
