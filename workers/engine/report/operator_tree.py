"""A plan of ours and Spark's own as trees of the same kind, to be laid beside each other.

A spot is an operator that makes rows of its own (a scan, a join, a union, aggregates that follow each other) with
everything above it that filters, sorts, moves or renames its rows.

Whether a plan of ours and Spark's own are the same tree of spots over the same tables.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Generic, TypeVar

from service.contract.reports import OperatorMetrics
from workers.engine.plan.nodes import (
    Aggregate,
    Deduplicate,
    Exchange,
    Expand,
    Filter,
    Join,
    Limit,
    Node,
    Project,
    Scan,
    Sort,
    Union,
    inputs_of,
)
from workers.engine.plan.traversal import id_of, with_ids

T = TypeVar("T")

MOST_SPOTS = 1_000
"""Spots of one plan; what an exchange is used again for counts again."""


class Kind(Enum):
    """What makes the rows of a spot."""

    SCAN = auto()
    JOIN = auto()
    AGGREGATE = auto()
    UNION = auto()
    EXPAND = auto()
    OTHER = auto()


@dataclass(frozen=True)
class Spot(Generic[T]):
    """`above` from the top down to `members`, of which there are several where aggregates follow each other: they, and
    what is between them, from the top down too.
    """

    kind: Kind
    above: tuple[T, ...]
    members: tuple[T, ...]
    inputs: tuple[Spot[T], ...]

    def walk(self) -> Iterator[Spot[T]]:
        """This one, then those below it, left first."""
        yield self
        for each in self.inputs:
            yield from each.walk()


@dataclass(frozen=True)
class Numbered:
    """A node of a plan with its id in the plan's report."""

    id: int
    node: Node
    inputs: tuple[Numbered, ...]

    def walk(self) -> Iterator[Numbered]:
        """Every node of the tree, inputs before the node that reads them."""
        for each in self.inputs:
            yield from each.walk()
        yield self


class TooManySpotsError(Exception):
    """The plan is too large to be gone through."""


def numbered(plan: Node) -> Numbered:
    """The plan with the ids of its nodes, which are those of its report."""

    def with_id(node: Node) -> Numbered:
        return Numbered(id_of(node), node, tuple(with_id(child) for child in inputs_of(node)))

    return with_id(with_ids(plan))


_ABOVE = (Filter, Project, Sort, Exchange, Limit)
_BETWEEN = (Project, Sort, Exchange)
_KINDS: dict[type, Kind] = {
    Scan: Kind.SCAN,
    Join: Kind.JOIN,
    Aggregate: Kind.AGGREGATE,
    Deduplicate: Kind.AGGREGATE,
    Union: Kind.UNION,
    Expand: Kind.EXPAND,
}


def spots_of_plan(top: Numbered) -> Spot[Numbered]:
    """The spots of a plan of ours."""
    above = _chain(top, _ABOVE)
    made = above[-1].inputs[0] if above else top
    kind = _KINDS.get(type(made.node), Kind.OTHER)
    members: tuple[Numbered, ...] = (made,)
    last = made
    while kind is Kind.AGGREGATE:
        between = _chain(last.inputs[0], _BETWEEN)
        below = between[-1].inputs[0] if between else last.inputs[0]
        if _KINDS.get(type(below.node)) is not Kind.AGGREGATE:
            break
        members += (*between, below)
        last = below
    inputs = tuple(spots_of_plan(each) for each in last.inputs)
    if kind is Kind.UNION:
        inputs = tuple(_flattened(inputs, lambda one: isinstance(one.node, Project)))
    return Spot(kind, above, members, inputs)


def _chain(top: Numbered, types: tuple[type, ...]) -> tuple[Numbered, ...]:
    """`top` and what is below it, one by one, as long as they are of these types."""

    def down() -> Iterator[Numbered]:
        current = top
        while isinstance(current.node, types):
            yield current
            current = current.inputs[0]

    return tuple(down())


def _flattened(inputs: Sequence[Spot[T]], is_passed: Callable[[T], bool]) -> Iterator[Spot[T]]:
    """The inputs of a union, and those of unions directly below it in their place, as Spark unites them."""
    for each in inputs:
        if each.kind is Kind.UNION and all(is_passed(one) for one in each.above):
            yield from each.inputs
        else:
            yield each


JOINS = frozenset(
    {"SortMergeJoin", "BroadcastHashJoin", "ShuffledHashJoin", "BroadcastNestedLoopJoin", "CartesianProduct"}
)
EXCHANGES = frozenset({"Exchange", "BroadcastExchange"})
LIMITS = frozenset({"LocalLimit", "GlobalLimit", "CollectLimit"})
TOP = "TakeOrderedAndProject"
MOVES = EXCHANGES | {"AQEShuffleRead", "ReusedExchange"}
WRITES = frozenset({"Execute InsertIntoHadoopFsRelationCommand", "WriteFiles"})
_AGGREGATES = frozenset({"HashAggregate", "ObjectHashAggregate", "SortAggregate"})
_PHYSICAL_BETWEEN = MOVES | {"Project", "Sort", "ColumnarToRow"}
_PHYSICAL_ABOVE = _PHYSICAL_BETWEEN | LIMITS | WRITES | {"Filter", TOP}
_COPIES = "Expand"


def name_of(operator: OperatorMetrics) -> str:
    """Spark's name, without what it adds to that of a join whose hot partitions it has parted."""
    return operator.operator.partition("(")[0]


def is_aggregate(operator: OperatorMetrics) -> bool:
    """Whether it puts rows of a group together."""
    return name_of(operator) in _AGGREGATES


def spots_of_operators(operators: Sequence[OperatorMetrics]) -> Spot[OperatorMetrics]:
    """The spots of Spark's operators, the first of which is the top. Raises TooManySpotsError."""
    by_id = {each.id: each for each in operators}
    left = iter(range(MOST_SPOTS))

    def make(top: OperatorMetrics) -> Spot[OperatorMetrics]:
        if next(left, None) is None:
            raise TooManySpotsError
        above, made = _down(top, by_id, _PHYSICAL_ABOVE)
        kind = _kind_of(made)
        members: tuple[OperatorMetrics, ...] = (made,)
        last = made
        while kind is Kind.AGGREGATE and len(last.inputs) == 1:
            between, below = _down(by_id[last.inputs[0]], by_id, _PHYSICAL_BETWEEN)
            if not is_aggregate(below) and name_of(below) != _COPIES:
                break
            members += (*between, below)
            last = below
            if name_of(below) == _COPIES:
                break
        inputs = tuple(make(by_id[each]) for each in last.inputs)
        if kind is Kind.UNION:
            inputs = tuple(_flattened(inputs, lambda one: name_of(one) == "Project"))
        return Spot(kind, above, members, inputs)

    return make(operators[0])


def _down(
    top: OperatorMetrics, by_id: Mapping[int, OperatorMetrics], names: frozenset[str]
) -> tuple[tuple[OperatorMetrics, ...], OperatorMetrics]:
    """`top` and what is below it as long as it has these names and one input; and the first that has not."""
    passed = []
    while name_of(top) in names and len(top.inputs) == 1:
        passed.append(top)
        top = by_id[top.inputs[0]]
    return tuple(passed), top


def _kind_of(operator: OperatorMetrics) -> Kind:
    name, inputs = name_of(operator), len(operator.inputs)
    if name.startswith("Scan ") and not inputs:
        return Kind.SCAN
    if name in JOINS and inputs == 2:
        return Kind.JOIN
    if name in _AGGREGATES and inputs == 1:
        return Kind.AGGREGATE
    if name == "Union":
        return Kind.UNION
    return Kind.EXPAND if name == "Generate" and inputs == 1 else Kind.OTHER


Files = Mapping[str, Sequence[str]]
"""Paths of a table's files, by the table's name."""


def agree(ours: Spot[Numbered], sparks: Spot[OperatorMetrics], files: Files) -> bool:
    """Whether both are the same tree of kinds over the same tables."""
    scans = [each.members[0].node for each in ours.walk() if each.kind is Kind.SCAN]
    tables = Counter(each.table for each in scans if isinstance(each, Scan))
    joins = [each.members[0].node for each in ours.walk() if each.kind is Kind.JOIN]
    # Joins without keys are put into another order, which shows by their tables alone.
    if any(isinstance(each, Join) and not each.keys for each in joins) and tables.total() > len(tables):
        return False
    return _are_alike(ours, sparks, files, len(tables) > 1)


def _are_alike(ours: Spot[Numbered], sparks: Spot[OperatorMetrics], files: Files, several: bool) -> bool:
    if ours.kind is not sparks.kind or ours.kind is Kind.OTHER or len(ours.inputs) != len(sparks.inputs):
        return False
    made = ours.members[0].node
    if isinstance(made, Scan) and not _reads(made, sparks.members[0], files.get(made.table, ()), several):
        return False
    return all(_are_alike(one, other, files, several) for one, other in zip(ours.inputs, sparks.inputs, strict=True))


_LOCATION = re.compile(r"Location: \w+ ?\((?:\d+) paths\)\[(.*?)(\.\.\.|, |\])")
_COLUMNS = re.compile(r"^\S+ \w+ \[(.*?)\] Batched")
_COLUMN = re.compile(r"(?:^|,)([^#,]+)#\d+L?(?=,|$)")
_SCHEME = re.compile(r"^[a-z0-9]+:/+|^/+")


def _reads(node: Scan, operator: OperatorMetrics, paths: Sequence[str], several: bool) -> bool:
    """Whether an operator may be the scan of this table: it reads no other columns, and no other files."""
    columns = _COLUMNS.search(operator.detail)
    if columns is not None:
        read = {name.lower() for name in _COLUMN.findall(columns[1])}
        if node.columns and not read <= {name.lower() for _, name in node.columns}:
            return False
    location = _LOCATION.search(operator.detail)
    if location is None or not paths:
        return not several
    shown, is_cut = _SCHEME.sub("", location[1]), location[2] == "..."
    known = [_SCHEME.sub("", path) for path in paths]
    return any(path.startswith(shown) if is_cut else path == shown for path in known)
