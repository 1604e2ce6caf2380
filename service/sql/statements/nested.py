"""How the queries inside a SELECT are compiled, and the SELECT without them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sqlglot import exp

from service.contract.problems import SpecError
from service.contract.query import CODE, QueryRef
from service.sql.statements.tables.from_clause import JoinedTable, Sources

_UNKNOWN = frozenset({"unknown_table", "unknown_column"})


@dataclass(frozen=True)
class Nested:
    """How subqueries are compiled: `compile` returns the compiled query of a tree, whose pointer is given below that of
    the SELECT; `sources` reads FROM of a subquery, to resolve its names; `alias` returns an unused alias; `constructs`
    is that of `Origins`.
    """

    compile: Callable[[exp.Expr, str], QueryRef]
    sources: Callable[[exp.Select], Sources]
    alias: Callable[[], str]
    constructs: set[str]


@dataclass(frozen=True)
class Unnested:
    """A SELECT without subqueries in its expressions, and its tables, which include those of its subqueries. `later`
    are joins with the rows of its groups: subqueries of a SELECT with aggregates.
    """

    select: exp.Select
    sources: Sources
    later: tuple[JoinedTable, ...] = ()


def error_of(first: SpecError, second: SpecError) -> SpecError:
    """Returns the error to raise if the `first` and the `second` way to compile a query fail.

    It is `second` for a query that exceeds a limit the second way, and for one that the second way refuses if the first
    does not know its outer columns.
    """
    is_unknown = first.code in _UNKNOWN and second.code == "unsupported_construct"
    return second if second.code == CODE or is_unknown else first
