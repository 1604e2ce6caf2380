"""Compiles DESCRIBE into rows of constants: the names and types of a table or of the columns of a query."""

from __future__ import annotations

from collections.abc import Mapping

from sqlglot.tokenizer_core import TokenType

from service.contract.problems import did_you_mean, its_tables, nearest_names
from service.contract.query import VALUES_ROWS, NamedExpression, Query, ValuesRef
from service.sql.expressions.compile_expression import matching
from service.sql.expressions.scalar import string_literal
from service.sql.parser import Text, tokens_of
from service.sql.types.data_types import Schema

_WORDS = frozenset({"DESC", "DESCRIBE"})
_QUERIES = frozenset({"SELECT", "WITH", "VALUES", "("})
_HINT = "Write DESCRIBE and the name of a table or a query."
_ALIAS = "described"
_COLUMNS = ("col_name", "data_type", "comment")


def described_query(source: Text) -> str | None:
    """Returns the query of DESCRIBE QUERY, with spaces in place of the words before it, so that the places of its parts
    stay; None if `source` is another statement. Raises SpecError as `tokens_of` does.
    """
    tokens = tokens_of(source)
    if len(tokens) < 2 or tokens[0].text.upper() not in _WORDS:
        return None
    first = tokens[2 if tokens[1].text.upper() == "QUERY" and len(tokens) > 2 else 1]
    if first.text.upper() not in _QUERIES:
        return None
    return " " * first.start + source.text[first.start :]


def described_table(source: Text, schemas: Mapping[str, Schema]) -> Query | None:
    """Returns the rows of DESCRIBE of a table; None if `source` is another statement.

    Raises SpecError `unknown_table`, `unsupported_construct`.
    """
    tokens = [token for token in tokens_of(source) if token.token_type is not TokenType.SEMICOLON]
    if not tokens or tokens[0].text.upper() not in _WORDS:
        return None
    names = tokens[2 if len(tokens) > 2 and tokens[1].text.upper() == "TABLE" else 1 :]
    if len(names) != 1:
        at = tokens[min(1, len(tokens) - 1)].start
        raise source.unsupported("This form of DESCRIBE", at=at, hint=_HINT)
    name = matching(names[0].text, schemas)
    if name is None:
        suggestions = nearest_names(names[0].text, list(schemas))
        detail = f"The job has no table {names[0].text[:60]}.{did_you_mean(suggestions) or its_tables(list(schemas))}"
        raise source.error("unknown_table", detail, at=names[0].start, suggestions=suggestions)
    if len(schemas[name].fields) > VALUES_ROWS.most:
        raise source.beyond(VALUES_ROWS, len(schemas[name].fields), at=names[0].start)
    return rows_of(schemas[name])


def rows_of(schema: Schema) -> Query:
    """Returns a query whose rows are the names and types of `schema`, as Spark's DESCRIBE returns them."""
    rows = tuple(
        (string_literal(field.name), string_literal(str(field.type).lower()), "CAST(NULL AS STRING)")
        for field in schema.fields
    )
    return Query(
        source=ValuesRef(kind="values", rows=rows, alias=_ALIAS, columns=_COLUMNS),
        select=tuple(NamedExpression(expression=f"{_ALIAS}.{name}", name=name) for name in _COLUMNS),
    )
