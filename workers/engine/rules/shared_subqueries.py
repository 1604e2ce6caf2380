"""Shares subqueries: computes a derived table or common table expression once if it is used several times.

The rows of the first use are kept until the job ends, and the other uses read them. That is cheaper than computing
them again if the subquery reads many rows and emits few. Spark may also reuse an exchange of equal plans, but each
use gets conditions and columns of its own in most queries.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace

from service.sql.expressions.analysis import scalar_from, tree_of
from service.sql.expressions.nodes import Column, columns_of, conjuncts
from service.sql.expressions.scalar import Scalar
from service.sql.types.data_types import Field, known
from workers.engine.plan.nodes import (
    Aggregate,
    Call,
    Filter,
    Join,
    Named,
    Node,
    PlanNode,
    Project,
    Scan,
    Shared,
    Sort,
    WindowFunctions,
    inputs_of,
    output_of,
)
from workers.engine.plan.repeated_subqueries import uses_of_subqueries
from workers.engine.plan.traversal import walk_up, with_inputs
from workers.engine.rules.rule import Match
from workers.engine.statistics.cardinality import estimate_rows
from workers.engine.statistics.model import Statistics

SUBQUERIES = "subqueries"
"""The name in the trace for subqueries that are used several times."""

_LEAST_SAVED_ROWS = 20_000_000
"""Rows that the further uses of a shared subquery would read or join at least. To keep rows costs up to 0.6 s for
queries of TPC-DS at scale factor 1, and Spark computes equal exchanges of the uses only once by itself.
"""

_Pair = tuple[str | None, str | None]

_INPUTS = frozenset({"input", "inputs", "left", "right"})

_MOST_SHARE = 1 / 4
"""The most rows that a shared subquery emits, as a share of those that it reads."""


@dataclass(frozen=True)
class SharedSubquery:
    """A subquery that is shared: its first use, and the reason in one sentence."""

    node: Project
    reason: str

    @property
    def match(self) -> Match[Node]:
        """What the trace has of it."""
        return Match(self.node, "SHARED", self.reason)


def share_subqueries(plan: Node, statistics: Statistics) -> tuple[Node, tuple[SharedSubquery, ...]]:
    """Returns `plan`, one of the builder, with shared subqueries; the same object if none is worth it.

    A subquery is shared if its further uses would read or join at least `_LEAST_SAVED_ROWS`, it emits at most
    `_MOST_SHARE` of the rows that it reads, and one use needs all of them. If a condition restricts every use,
    computing each is cheaper than computing all rows once.
    """
    repeated = uses_of_subqueries(plan)
    restricted = frozenset(_restricted(plan, (), ())) if repeated else frozenset[int]()
    replaced: dict[int, Project] = {}
    shared: dict[tuple[str, ...], SharedSubquery] = {}
    for number, uses in enumerate(repeated, start=1):
        names, nodes = zip(*uses, strict=True)
        first: Project = nodes[0]
        emitted, read = estimate_rows(first.input, statistics), _rows_read(first, statistics)
        if emitted is None or read is None or emitted > read * _MOST_SHARE:
            continue
        if max(read, _most_rows(first, statistics)) * (len(uses) - 1) < _LEAST_SAVED_ROWS:
            continue
        made = [_over_first(node, first, number) for node in nodes]
        if all(id(node) in restricted for node in nodes) or None in made:
            continue
        replaced |= {id(node): over for node, over in zip(nodes, made, strict=True) if over is not None}
        listed = f"{', '.join(names[:-1])} and {names[-1]}"
        reason = (
            f"{listed} are {len(names)} uses of one subquery, which is computed once: of {read:,} rows it emits about "
            f"{emitted:,}, which are kept until the job ends."
        )
        # The branches of a UNION have the same names.
        shared.setdefault(names, SharedSubquery(first, reason))
    return (_with_replaced(plan, replaced), tuple(shared.values())) if replaced else (plan, ())


def _with_replaced(node: Node, replaced: Mapping[int, Project]) -> Node:
    if id(node) in replaced:
        return replaced[id(node)]
    return with_inputs(node, tuple(_with_replaced(child, replaced) for child in inputs_of(node)))


def _rows_read(node: Node, statistics: Statistics) -> int | None:
    """Returns the rows of all tables below `node`; None if one is not known."""
    sizes = [statistics.tables.get(scan.alias) for scan in walk_up(node) if isinstance(scan, Scan)]
    return None if None in sizes else sum(size.rows for size in sizes if size is not None)


def _most_rows(node: Node, statistics: Statistics) -> int:
    """Returns the estimated rows of the largest join below `node`."""
    return max((estimate_rows(each, statistics) or 0 for each in walk_up(node) if isinstance(each, Join)), default=0)


def _restricted(node: Node, conditions: tuple[Scalar, ...], keys: tuple[_Pair, ...]) -> Iterator[int]:
    """Yields the identity of each projection that a condition above restricts, with only joins and filters between.
    `keys` are equal columns of these joins.
    """
    if isinstance(node, Project) and any(_is_on(condition, node, keys) for condition in conditions):
        yield id(node)
    if isinstance(node, Filter):
        conditions = (*conditions, node.condition)
    elif isinstance(node, Join):
        keys = (*keys, *((one.column, other.column) for one, other in node.keys))
    else:
        conditions, keys = (), ()
    for child in inputs_of(node):
        yield from _restricted(child, conditions, keys)


def _is_on(condition: Scalar, node: Project, keys: tuple[_Pair, ...]) -> bool:
    """Whether a term of the condition is on columns of `node` alone that are not computed, or on equal ones, so that
    Spark moves it down.
    """
    below = node.input
    while isinstance(below, Filter | Sort):
        below = below.input
    computed = below.calls if isinstance(below, Aggregate | WindowFunctions) else ()
    names = {call.output.name if isinstance(call, Call) else call.name for call in computed}
    movable: set[str | None] = {item.name for item in node.items if item.expression.column not in {None, *names}}
    for _ in keys:
        movable |= {name for pair in keys if not movable.isdisjoint(pair) for name in pair}
    terms = (columns_of(term) for term in conjuncts(condition.tree))
    return any(columns and movable.issuperset(columns) for columns in terms)


def _over_first(use: Project, first: Project, number: int) -> Project | None:
    """Returns `use` over the shared rows of `first`; None if they do not have equal inputs."""
    renaming = _Renaming()
    if use is not first and not renaming.is_same(use.input, first.input):
        return None
    fields = output_of(use.input)
    columns = {each.name: Column(renaming.names.get(each.name, each.name), known(each.type)) for each in fields}
    items = []
    for item in use.items:
        tree = tree_of(item.expression, columns)
        scalar = None if tree is None else scalar_from(tree)
        if scalar is None:
            return None
        items.append(Named(scalar, item.name))
    return replace(use, input=Shared(first.input, number), items=tuple(items))


@dataclass
class _Renaming:
    """Compares two subqueries that differ at most in the names of columns. `names` maps those of one to the other's."""

    names: dict[str, str] = field(default_factory=dict)
    _back: dict[str, str] = field(default_factory=dict)

    def is_same(self, one: object, other: object) -> bool:
        """Whether both are equal if the columns of `one` are renamed. Fields that do not affect comparisons differ."""
        if type(one) is not type(other):
            return False
        if isinstance(one, tuple) and isinstance(other, tuple):
            return len(one) == len(other) and all(map(self.is_same, one, other))
        if not is_dataclass(one) or not is_dataclass(other):
            return one == other
        if isinstance(one, Scan) and isinstance(other, Scan):
            return one.table == other.table and self.is_same(one.columns, other.columns)
        compared = [each.name for each in fields(one) if each.compare]
        if isinstance(one, Column | Field | Named) and isinstance(other, Column | Field | Named):
            # Names after what they name: an expression uses the names of the input.
            compared.remove("name")
            parts = ((getattr(one, name), getattr(other, name)) for name in compared)
            return all(self.is_same(*pair) for pair in parts) and self._is_same_name(one.name, other.name)
        if isinstance(one, PlanNode):
            # Inputs first, because they define the names.
            compared.sort(key=lambda name: name not in _INPUTS)
        return all(self.is_same(getattr(one, name), getattr(other, name)) for name in compared)

    def _is_same_name(self, one: str, other: str) -> bool:
        return self.names.setdefault(one, other) == other and self._back.setdefault(other, one) == one
