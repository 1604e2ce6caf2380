"""Trees of segments, by which one of our plans is compared with Spark's physical plan.

A segment is an operator that produces new rows (a scan, a join, a union, consecutive aggregates), together with the
operators above it that filter, sort, move or rename these rows. `segments_of_plan` and `segments_of_operators` build
the two trees; `agree` checks that both have the same segments over the same tables.
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
    Generate,
    Join,
    Limit,
    Node,
    Project,
    Scan,
    Sort,
    Union,
    Values,
    WindowFunctions,
    inputs_of,
)
from workers.engine.plan.traversal import id_of, with_ids

MAX_SEGMENTS = 1_000
"""The most segments of one plan. Those below a reused exchange are counted for each use."""

# Names of Spark's operators.
JOINS = frozenset(
    {"SortMergeJoin", "BroadcastHashJoin", "ShuffledHashJoin", "BroadcastNestedLoopJoin", "CartesianProduct"}
)
EXCHANGES = frozenset({"Exchange", "BroadcastExchange"})
LIMITS = frozenset({"LocalLimit", "GlobalLimit", "CollectLimit"})
TOP = "TakeOrderedAndProject"
COLLECT = "Collect"
"""The name under which the rows of a collected result are shown. Spark has no operator for it."""
MOVES = EXCHANGES | {"AQEShuffleRead", "ReusedExchange"}
_AGGREGATES = frozenset({"HashAggregate", "ObjectHashAggregate", "SortAggregate"})
_WRITES = frozenset({"Execute InsertIntoHadoopFsRelationCommand", "WriteFiles", COLLECT})
_EXPAND = "Expand"
_WINDOWS = frozenset({"Window", "WindowGroupLimit"})

# What a segment may have between two of its aggregates, and above its members.
_OPERATORS_BETWEEN = MOVES | {"Project", "Sort", "ColumnarToRow"}
_OPERATORS_ABOVE = _OPERATORS_BETWEEN | LIMITS | _WRITES | {"Filter", TOP}
_NODES_BETWEEN = (Project, Sort, Exchange)
_NODES_ABOVE = (Filter, Project, Sort, Exchange, Limit)

# Parts of the text that Spark prints for a scan.
_LOCATION = re.compile(r"Location: \w+ ?\((?:\d+) paths\)\[(.*?)(\.\.\.|, |\])")
_COLUMNS = re.compile(r"^\S+ \w+ \[(.*?)\] Batched")
_COLUMN = re.compile(r"(?:^|,)([^#,]+)#\d+L?(?=,|$)")
_SCHEME = re.compile(r"^[a-z0-9]+:/+|^/+")

Files = Mapping[str, Sequence[str]]
"""Paths of a table's files, by the table's name."""

T = TypeVar("T")


class Kind(Enum):
    """What produces the rows of a segment."""

    SCAN = auto()
    VALUES = auto()
    JOIN = auto()
    AGGREGATE = auto()
    UNION = auto()
    EXPAND = auto()
    WINDOW = auto()
    OTHER = auto()


_KINDS: dict[type, Kind] = {
    Scan: Kind.SCAN,
    Values: Kind.VALUES,
    Join: Kind.JOIN,
    Aggregate: Kind.AGGREGATE,
    Deduplicate: Kind.AGGREGATE,
    Union: Kind.UNION,
    Expand: Kind.EXPAND,
    Generate: Kind.EXPAND,
    WindowFunctions: Kind.WINDOW,
}


@dataclass(frozen=True)
class Segment(Generic[T]):
    """The operators of a segment: those `above`, then the `members`, each from the top down. Only consecutive
    aggregates, or calls with OVER, are several members, together with the operators between them.
    """

    kind: Kind
    above: tuple[T, ...]
    members: tuple[T, ...]
    inputs: tuple[Segment[T], ...]

    def walk(self) -> Iterator[Segment[T]]:
        """Yields this segment, then those below it, left first."""
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
        """Yields every node of the tree, inputs before the node that reads them."""
        for each in self.inputs:
            yield from each.walk()
        yield self


class TooManySegmentsError(Exception):
    """A plan has more than `MAX_SEGMENTS`."""


def numbered(plan: Node) -> Numbered:
    """Returns the plan with the ids that its nodes have in its report."""

    def with_id(node: Node) -> Numbered:
        return Numbered(id_of(node), node, tuple(with_id(child) for child in inputs_of(node)))

    return with_id(with_ids(plan))


def segments_of_plan(top: Numbered) -> Segment[Numbered]:
    """Returns the segments of one of our plans."""
    above, first = _nodes_down(top, _NODES_ABOVE)
    kind = _KINDS.get(type(first.node), Kind.OTHER)
    members: tuple[Numbered, ...] = (first,)
    last = first
    while kind in {Kind.AGGREGATE, Kind.WINDOW}:
        between, below = _nodes_down(last.inputs[0], _NODES_BETWEEN)
        if _KINDS.get(type(below.node)) is not kind:
            break
        members += (*between, below)
        last = below
    inputs = tuple(segments_of_plan(each) for each in last.inputs)
    if kind is Kind.UNION:
        inputs = tuple(_flattened(inputs, lambda one: isinstance(one.node, Project)))
    return Segment(kind, above, members, inputs)


def _nodes_down(top: Numbered, types: tuple[type, ...]) -> tuple[tuple[Numbered, ...], Numbered]:
    """Returns `top` and the nodes below it that are of these types, and the first other node."""
    passed = []
    while isinstance(top.node, types):
        passed.append(top)
        top = top.inputs[0]
    return tuple(passed), top


def _flattened(inputs: Sequence[Segment[T]], is_passed: Callable[[T], bool]) -> Iterator[Segment[T]]:
    """Yields the inputs of a union. A union directly below it is replaced by its inputs, as in Spark's plan."""
    for each in inputs:
        if each.kind is Kind.UNION and all(is_passed(one) for one in each.above):
            yield from each.inputs
        else:
            yield each


def name_of(operator: OperatorMetrics) -> str:
    """Returns Spark's name, without what Spark adds to the name of a join whose skewed partitions it has split."""
    return operator.operator.partition("(")[0]


def is_aggregate(operator: OperatorMetrics) -> bool:
    """Whether the operator is a part of an aggregate, local or global."""
    return name_of(operator) in _AGGREGATES


def segments_of_operators(operators: Sequence[OperatorMetrics]) -> Segment[OperatorMetrics]:
    """Returns the segments of Spark's operators, the first of which is the top. Raises TooManySegmentsError."""
    by_id = {each.id: each for each in operators}
    left = iter(range(MAX_SEGMENTS))

    def segment(top: OperatorMetrics) -> Segment[OperatorMetrics]:
        if next(left, None) is None:
            raise TooManySegmentsError
        above, first = _operators_down(top, by_id, _OPERATORS_ABOVE)
        kind = _kind_of(first)
        members: tuple[OperatorMetrics, ...] = (first,)
        last = first
        while kind is Kind.AGGREGATE and len(last.inputs) == 1 and name_of(last) != _EXPAND:
            between, below = _operators_down(by_id[last.inputs[0]], by_id, _OPERATORS_BETWEEN)
            if not is_aggregate(below) and name_of(below) != _EXPAND:
                break
            members += (*between, below)
            last = below
        while kind is Kind.WINDOW:
            between, below = _operators_down(by_id[last.inputs[0]], by_id, _OPERATORS_BETWEEN)
            if _kind_of(below) is not kind:
                break
            members += (*between, below)
            last = below
        inputs = tuple(segment(by_id[each]) for each in last.inputs)
        if kind is Kind.UNION:
            inputs = tuple(_flattened(inputs, lambda one: name_of(one) == "Project"))
        return Segment(kind, above, members, inputs)

    return segment(operators[0])


def _operators_down(
    top: OperatorMetrics, by_id: Mapping[int, OperatorMetrics], names: frozenset[str]
) -> tuple[tuple[OperatorMetrics, ...], OperatorMetrics]:
    """Returns `top` and the operators below it that have these names and one input, and the first other operator."""
    passed = []
    while name_of(top) in names and len(top.inputs) == 1:
        passed.append(top)
        top = by_id[top.inputs[0]]
    return tuple(passed), top


def _kind_of(operator: OperatorMetrics) -> Kind:
    name, inputs = name_of(operator), len(operator.inputs)
    if name.startswith("Scan ") and not inputs:
        return Kind.SCAN
    if name == "LocalTableScan" and not inputs:
        return Kind.VALUES
    if name in JOINS and inputs == 2:
        return Kind.JOIN
    if name in _AGGREGATES and inputs == 1:
        return Kind.AGGREGATE
    if name == "Union":
        return Kind.UNION
    if name in _WINDOWS and inputs == 1:
        return Kind.WINDOW
    return Kind.EXPAND if name == "Generate" and inputs == 1 else Kind.OTHER


def agree(ours: Segment[Numbered], sparks: Segment[OperatorMetrics], files: Files) -> bool:
    """Whether both trees have segments of the same kinds over the same tables."""
    scans = [each.members[0].node for each in ours.walk() if each.kind is Kind.SCAN]
    tables = Counter(each.table for each in scans if isinstance(each, Scan))
    joins = [each.members[0].node for each in ours.walk() if each.kind is Kind.JOIN]
    # Spark reorders joins without keys, which can be detected only if all their tables differ.
    if any(isinstance(each, Join) and not each.keys for each in joins) and tables.total() > len(tables):
        return False
    return _are_alike(ours, sparks, files, len(tables) > 1)


def _are_alike(ours: Segment[Numbered], sparks: Segment[OperatorMetrics], files: Files, several: bool) -> bool:
    if ours.kind is not sparks.kind or ours.kind is Kind.OTHER or len(ours.inputs) != len(sparks.inputs):
        return False
    first = ours.members[0].node
    if isinstance(first, Scan) and not _reads(first, sparks.members[0], files.get(first.table, ()), several):
        return False
    return all(_are_alike(one, other, files, several) for one, other in zip(ours.inputs, sparks.inputs, strict=True))


def _reads(node: Scan, operator: OperatorMetrics, paths: Sequence[str], several: bool) -> bool:
    """Whether an operator may be the scan of this table: it reads no other columns and no other files. `several`: the
    query has several tables.
    """
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
