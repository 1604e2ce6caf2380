"""The share of rows that a condition keeps: from the sample, otherwise the third that System R assumed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from service.sql.expressions.analysis import is_standard
from service.sql.expressions.nodes import Connective, Expression, columns_of
from service.sql.expressions.scalar import Scalar, render
from workers.engine.plan.joined_aggregate import joined_aggregate
from workers.engine.plan.nodes import Aggregate, Filter, Node
from workers.engine.plan.traversal import walk_up
from workers.engine.statistics.model import Statistics

UNKNOWN_CONDITION = 1 / 3
"""Share of the rows that a condition without statistics keeps (Selinger et al., 1979)."""


@dataclass(frozen=True)
class Terms:
    """The terms of one condition's AND that are on one table. Their selectivity is measured together, since they may
    depend on each other. `columns` are the emitted names in them.
    """

    terms: tuple[Expression, ...]
    columns: frozenset[str]

    @property
    def text(self) -> str:
        """Their text, which identifies them."""
        return " AND ".join(render(term) for term in self.terms)


def conditions_of(plan: Node) -> tuple[Scalar, ...]:
    """Returns the conditions of all filters of `plan`, and of those that aggregation below joins would add."""
    return tuple(dict.fromkeys(condition for node in walk_up(plan) for condition in _conditions_at(node)))


def _conditions_at(node: Node) -> Iterator[Scalar]:
    if isinstance(node, Filter):
        yield node.condition
    over = joined_aggregate(node) if isinstance(node, Aggregate) else None
    if over is not None:
        yield from (part.condition for part in (over.join.left, over.join.right) if isinstance(part, Filter))


def terms_by_table(condition: Scalar, table_of: Mapping[str, str]) -> tuple[dict[str, Terms], int]:
    """Returns the terms of `condition` for each table, by alias, and the number of terms on no table or on several.

    `table_of` has the alias of each emitted column. A condition that no query may contain is one unknown term.
    """
    tree = condition.tree
    if not is_standard(tree):
        return {}, 1
    parts = tree.terms if isinstance(tree, Connective) and tree.operator == "AND" else (tree,)
    found: dict[str, list[Expression]] = {}
    unknown = 0
    for part in parts:
        aliases = {table_of.get(name) for name in columns_of(part)}
        alias = aliases.pop() if len(aliases) == 1 else None
        if alias is None:
            unknown += 1
        else:
            found.setdefault(alias, []).append(part)
    grouped = {
        alias: Terms(tuple(terms), frozenset(name for term in terms for name in columns_of(term)))
        for alias, terms in found.items()
    }
    return grouped, unknown


def combined(shares: list[float | None], unknown: int) -> float | None:
    """Returns the share that a condition keeps if the terms on its tables keep `shares`, assumed to be independent; all
    unknown terms count as one condition. None if all are unknown.
    """
    known = [share for share in shares if share is not None]
    if not known:
        return None
    return math.prod(known) * (UNKNOWN_CONDITION if unknown or len(known) < len(shares) else 1.0)


def share_of(condition: Scalar, statistics: Statistics) -> float:
    """Returns the estimated share of the rows that `condition` keeps, 0 to 1."""
    return statistics.selectivities.get(condition.sql, UNKNOWN_CONDITION)
