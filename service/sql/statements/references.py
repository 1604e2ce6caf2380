"""Names in structured queries: those of columns of queries in FROM, and generated names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import count

from service.contract.query import Query, QueryRef, RecursiveRef, RowsRef, ValuesRef
from service.sql.expressions.nodes import Expression, Name, map_children, position_of
from service.sql.statements.tables.from_clause import Derivation
from service.sql.types.data_types import NULL, Field, Schema

_MAX_UNDERSCORES = 64
"""If a text has more underscores after the word `derived`, generated names get a number instead, to stay short."""


def with_names(tree: Expression, keys: Mapping[Expression, str]) -> Expression:
    """Returns `tree` with the expressions of group keys replaced by their names."""
    if tree in keys:
        return Name(None, keys[tree], position_of(tree))
    return map_children(tree, lambda child: with_names(child, keys))


def absent_from(text: str) -> str:
    """Returns a prefix for generated names of queries that does not occur in the case-folded `text` as one.

    >>> absent_from("select 1 from (select 2 from t)"), absent_from("select k from derived_1")
    ('derived', 'derived__')
    """
    # A look-ahead, because occurrences may overlap: "derivederived" has two.
    runs = [len(run) for run in re.findall("(?=derived(_*))", text)]
    longest = max(runs, default=-1)
    if longest < _MAX_UNDERSCORES:
        return "derived" + "_" * (longest + 1)
    numbers = frozenset(re.findall("derived_([0-9]+)_", text))
    return next(f"derived_{number}_" for number in count(1) if str(number) not in numbers)


def renamed(query: Query, names: tuple[str, ...]) -> Query:
    """Returns `query` with other names of its columns."""
    select = tuple(item.model_copy(update={"name": name}) for item, name in zip(query.select, names, strict=True))
    return query.model_copy(update={"select": select})


def columns_of(ref: Derivation) -> Schema:
    """Returns the columns of a compiled source; their types are not known before the query is bound."""
    if isinstance(ref, ValuesRef):
        return Schema(tuple(Field(name, NULL) for name in ref.names))
    if isinstance(ref, RecursiveRef | RowsRef):
        return Schema(tuple(Field(name, NULL) for name in ref.columns))
    first = ref.query if isinstance(ref, QueryRef) else ref.queries[0]
    names = ref.columns or tuple(item.name for item in first.select)
    return Schema(tuple(Field(name, NULL) for name in names))
