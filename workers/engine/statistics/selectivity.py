"""Which share of the rows a condition keeps: as the sample tells, else the third that System R assumed."""

from __future__ import annotations

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
"""Share of the rows that a condition keeps when nothing is known of it (Selinger et al., 1979)."""


@dataclass(frozen=True)
class Terms:
    """The terms of one condition's AND that are about one table, and are true together more or less often than each
    alone would tell. `columns` are the emitted names in them.
    """

    terms: tuple[Expression, ...]
    columns: frozenset[str]

    @property
    def text(self) -> str:
        """What tells them from others."""
        return " AND ".join(render(term) for term in self.terms)


def conditions_of(plan: Node) -> tuple[Scalar, ...]:
    """The conditions of every filter of `plan`, and of those that aggregating below a join would put in, each once."""
    return tuple(dict.fromkeys(condition for node in walk_up(plan) for condition in _conditions_at(node)))


def _conditions_at(node: Node) -> Iterator[Scalar]:
    if isinstance(node, Filter):
        yield node.condition
    over = joined_aggregate(node) if isinstance(node, Aggregate) else None
    if over is not None:
        yield from (part.condition for part in (over.join.left, over.join.right) if isinstance(part, Filter))


def terms_by_table(condition: Scalar, table_of: Mapping[str, str]) -> tuple[dict[str, Terms], int]:
    """The terms of `condition` for each table, by alias, and how many are about none of them, or several.

    `table_of` has the alias of each emitted column. A condition that no query may have is one unknown term.
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
    """The share that a condition keeps whose tables' terms keep `shares`, taken as independent of each other; all that
    is unknown counts as one condition. None where nothing is known.
    """
    known = [share for share in shares if share is not None]
    if not known:
        return None
    made = 1.0
    for share in known:
        made *= share
    return made * (UNKNOWN_CONDITION if unknown or len(known) < len(shares) else 1.0)


def share_of(condition: Scalar, statistics: Statistics) -> float:
    """The share of the rows that `condition` is estimated to keep, 0 to 1."""
    return statistics.selectivities.get(condition.sql, UNKNOWN_CONDITION)
