"""The rule `merge_aggregates`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce

from service.contract.query import JoinKind
from service.sql.expressions.analysis import Columns, cannot_fail, columns_by_name, conjuncts_of, tree_of
from service.sql.expressions.nodes import Column, Expression
from service.sql.expressions.scalar import Scalar, column
from service.sql.types.aggregates import KEEPS_VALUES, ORDER_DEPENDENT
from service.sql.types.data_types import Field, known
from workers.engine.plan.expressions import all_of, any_of, fresh_name
from workers.engine.plan.nodes import (
    Aggregate,
    Call,
    Filter,
    Join,
    Named,
    Node,
    Project,
    Scan,
    inputs_of,
    output_of,
)
from workers.engine.plan.traversal import walk_up, with_inputs
from workers.engine.rules.rule import Match, RuleContext, Skip

_MOST_WIDER = 2
"""How many times the columns of its widest part a merged aggregate may read."""

_NEEDS = (
    "they are merged only if their joins are the same, all of them or none have conditions, no condition or argument "
    "can fail, and no call has DISTINCT, keeps values or depends on their order."
)


class MergeAggregates:
    """Computes aggregates without GROUP BY over the same tables in one aggregate, also if their conditions differ.

    >>> quantity, pieces = (column(f"{alias}.n", BIGINT) for alias in ("s", "s2"))
    >>> def count(alias, condition):
    ...     scan = Scan("sales", alias, ((Field(f"{alias}.n", BIGINT), "n"),))
    ...     call = Call(AggregateFunction.COUNT, (), Field(f"{alias}_count", BIGINT))
    ...     return Aggregate(Filter(scan, condition), (), (call,))
    >>> few = count("s", compose("{0} < 20", (quantity,), BOOLEAN))
    >>> many = count("s2", compose("{0} > 80", (pieces,), BOOLEAN))
    >>> before = Limit(Join(few, many, JoinKind.CROSS, ()), 1)
    >>> ctx = RuleContext(JobSettings(), Statistics({}, {}, slots=4))
    >>> print(text_of(MergeAggregates().rewrite(Match(before, "MERGED", ""), ctx)))
    Limit 1
      Project s_count, s2_count
        Aggregate [COUNT(*) FILTER (WHERE s.n < 20) AS s_count, COUNT(*) FILTER (WHERE s.n > 80) AS s2_count]
          Filter s.n < 20 OR s.n > 80
            Scan sales AS s [s.n]

    A report often has many numbers of the same table: subqueries in SELECT, or derived tables of one row each. Every
    one of them would read the table, and compute its joins, again.

    Fires when:
        - two or more inputs of cross joins are aggregates without GROUP BY, which emit one row each; and
        - they read the same tables with the same joins, under any aliases. Their conditions may differ.

    Does not fire when:
        - a call has DISTINCT, for which Spark would copy every row for each filter, keeps its values, or depends on
          their order; or
        - an argument or a condition can fail, such as a division or a cast: Spark may evaluate it for rows of another
          aggregate; or
        - the aggregates read a derived table, a UNION or other rows than those of tables and joins; or
        - only one of them has a condition, with which Spark may skip files or row groups that the other reads; or
        - together they read more than twice the columns of the widest of them: if Spark skips row groups, the merged
          aggregate would read the additional columns of many more rows.

    Why the result is the same:
        The merged aggregate reads the rows that meet the condition of any of the aggregates. Each call gets the
        condition of its own aggregate as a FILTER, so it sees the same rows as before. An aggregate without GROUP BY
        emits one row for any input, and so does the merged one.

    Settings read:
        none
    """

    name = "merge_aggregates"

    def match(self, node: Node, ctx: RuleContext) -> Match[Node] | Skip | None:
        """Matches the node above the cross joins. Returns None, without a trace, if no two aggregates there read the
        same tables.
        """
        del ctx
        if _is_cross(node):
            return None
        groups = [group for child in inputs_of(node) for group in _groups(_terms(child))]
        if groups:
            return Match(node, "MERGED", " ".join(map(_reason, groups)))
        repeated = [tables for child in inputs_of(node) for tables in _repeated(_terms(child))]
        return Skip(f"Aggregates without GROUP BY read {repeated[0]} separately: {_NEEDS}") if repeated else None

    def rewrite(self, match: Match[Node], ctx: RuleContext, /) -> Node:
        """Returns the node over the cross joins of the merged aggregates and the other inputs."""
        del ctx
        return with_inputs(match.node, tuple(map(_with_merged, inputs_of(match.node))))


def _is_cross(node: Node) -> bool:
    """Whether the node emits all pairs of rows of its inputs."""
    return (
        isinstance(node, Join)
        and node.kind is JoinKind.CROSS
        and replace(node, id=None) == _pairs(node.left, node.right)
    )


@dataclass(frozen=True)
class _Single:
    """An input of a cross join, which emits one row: `items` over `calls`, over the rows of `source` that meet all
    `conditions`.
    """

    node: Node
    items: tuple[Named, ...]
    calls: tuple[Call, ...]
    conditions: tuple[Scalar, ...]
    source: Node


@dataclass
class _Group:
    """Inputs that read the same rows except for their conditions. Their scalars are over the columns of `source`.

    `widest` is the largest number of columns that one of them reads.
    """

    source: Node
    singles: list[_Single]
    widest: int

    def add(self, single: _Single) -> bool:
        """Adds an input. Returns False if it reads other tables, joins them in another way, or should stay alone."""
        names: dict[str, Expression] = {}
        source = _unified(self.source, single.source, names)
        widest = max(self.widest, _width(single.source))
        are_alike = bool(single.conditions) == bool(self.singles[0].conditions)
        if source is None or not are_alike or _width(source) > _MOST_WIDER * widest:
            return False
        self.widest = widest
        conditions = [_renamed(condition, names) for condition in single.conditions]
        calls = [_renamed_call(call, names) for call in single.calls]
        self.source = source
        self.singles.append(replace(single, conditions=tuple(conditions), calls=tuple(calls)))
        return True

    def merged(self) -> Node:
        """Returns the node that emits the columns of all inputs."""
        first, *others = self.singles
        common = [each for each in first.conditions if all(each in other.conditions for other in others)]
        own = [all_of(each for each in single.conditions if each not in common) for single in self.singles]
        wanted = [condition for condition in dict.fromkeys(own) if condition is not None]
        condition = all_of((*common, *([] if None in own else [any_of(wanted)])))
        calls: dict[Call, Call] = {}
        items = [item for single, only in zip(self.singles, own, strict=True) for item in _items(single, only, calls)]
        below = self.source if condition is None else Filter(self.source, condition)
        return Project(Aggregate(below, (), tuple(calls.values())), tuple(items))


def _reason(group: _Group) -> str:
    how = "" if isinstance(group.source, Scan) else " with the same joins"
    read = f"{len(group.singles)} aggregates without GROUP BY read {_tables(group.source)}{how}"
    return f"{read}: one aggregate computes all of them."


def _tables(node: Node) -> str:
    return ", ".join(sorted({scan.table for scan in walk_up(node) if isinstance(scan, Scan)}))


def _repeated(terms: Sequence[Node]) -> list[str]:
    """Returns the tables that two or more of the aggregates without GROUP BY read."""
    counts = Counter(_tables(term) for term in terms if len(terms) > 1 and _aggregate_of(term) is not None)
    return [tables for tables, count in counts.items() if tables and count > 1]


def _aggregate_of(node: Node) -> Aggregate | None:
    """Returns the aggregate without GROUP BY that an input of a cross join is, perhaps below a projection."""
    found = node.input if isinstance(node, Project) else node
    if not isinstance(found, Aggregate) or found != Aggregate(found.input, (), found.calls):
        return None
    return found


def _items(single: _Single, only: Scalar | None, calls: dict[Call, Call]) -> Iterator[Named]:
    """Yields the items of an input whose own condition is `only`, and adds its calls to `calls`. The keys there are the
    calls without the name of their output.
    """
    columns: dict[str, Expression] = {}
    for call in single.calls:
        filtered = replace(call, filter=all_of((call.filter, only)))
        key = replace(filtered, output=replace(call.output, name=""))
        if key not in calls:
            name = fresh_name(call.output.name, frozenset(known.output.name for known in calls.values()))
            calls[key] = replace(filtered, output=replace(call.output, name=name))
        columns[call.output.name] = Column(calls[key].output.name, known(call.output.type))
    for item in single.items:
        yield Named(_renamed(item.expression, columns), item.name)


def _with_merged(node: Node) -> Node:
    """Returns the cross joins below `node` with merged inputs; the same object if there is nothing to merge."""
    terms = _terms(node)
    groups = _groups(terms)
    if not groups:
        return node
    first = {id(group.singles[0].node): group for group in groups}
    merged = {id(single.node) for group in groups for single in group.singles}
    left = [
        first[id(term)].merged() if id(term) in first else term
        for term in terms
        if id(term) in first or id(term) not in merged
    ]
    joined = reduce(_pairs, left)
    if output_of(joined) == output_of(node):
        return joined
    return Project(joined, tuple(Named(column(field.name, known(field.type)), field.name) for field in output_of(node)))


def _pairs(left: Node, right: Node) -> Join:
    return Join(left, right, JoinKind.CROSS, ())


def _terms(node: Node) -> tuple[Node, ...]:
    """Returns the inputs of the cross joins at and directly below `node`; `node` itself if it is none."""
    return (*_terms(node.left), *_terms(node.right)) if isinstance(node, Join) and _is_cross(node) else (node,)


def _groups(terms: Sequence[Node]) -> list[_Group]:
    """Returns the groups of two or more inputs that can be merged."""
    groups: list[_Group] = []
    for single in filter(None, map(_single, terms)) if len(terms) > 1 else ():
        if not any(group.add(single) for group in groups):
            groups.append(_Group(single.source, [single], _width(single.source)))
    return [group for group in groups if len(group.singles) > 1]


def _single(node: Node) -> _Single | None:
    """Returns the parts of an input that can be merged with others; None if it cannot."""
    aggregate = _aggregate_of(node)
    if aggregate is None:
        return None
    below = aggregate.input
    source = below.input if isinstance(below, Filter) else below
    if not all(isinstance(each, Scan | Join) for each in walk_up(source)):
        return None
    columns = columns_by_name(output_of(source))
    conditions = conjuncts_of(below.condition, columns) if isinstance(below, Filter) else ()
    items = node.items if isinstance(node, Project) else tuple(map(_item, output_of(aggregate)))
    outputs = columns_by_name(output_of(aggregate))
    scalars = [*conditions, *(scalar for call in aggregate.calls for scalar in _scalars(call))]
    if not all(_cannot_fail(scalar, columns) for scalar in scalars) or not all(map(_is_plain, aggregate.calls)):
        return None
    if any(tree_of(item.expression, outputs) is None for item in items):
        return None
    return _Single(node, items, aggregate.calls, conditions, source)


def _item(field: Field) -> Named:
    return Named(column(field.name, known(field.type)), field.name)


def _is_plain(call: Call) -> bool:
    return not call.distinct and call.order_by is None and call.function not in KEEPS_VALUES | ORDER_DEPENDENT


def _scalars(call: Call) -> tuple[Scalar, ...]:
    return call.arguments if call.filter is None else (*call.arguments, call.filter)


def _cannot_fail(scalar: Scalar, columns: Columns) -> bool:
    tree = tree_of(scalar, columns)
    return tree is not None and cannot_fail(tree)


def _width(source: Node) -> int:
    return sum(len(scan.columns) for scan in walk_up(source) if isinstance(scan, Scan))


def _unified(first: Node, other: Node, names: dict[str, Expression]) -> Node | None:
    """Returns `first` with the further columns that `other` reads; None if they differ in more than aliases and
    columns. Adds the column of `first` for each column of `other` to `names`.
    """
    if isinstance(first, Scan) and isinstance(other, Scan):
        return _unified_scan(first, other, names) if first.table == other.table else None
    if not isinstance(first, Join) or not isinstance(other, Join):
        return None
    left, right = _unified(first.left, other.left, names), _unified(first.right, other.right, names)
    if left is None or right is None:
        return None
    keys = tuple((_renamed(one, names), _renamed(another, names)) for one, another in other.keys)
    residual = None if other.residual is None else _renamed(other.residual, names)
    is_same = replace(other, left=first.left, right=first.right, keys=keys, residual=residual) == first
    return with_inputs(first, (left, right)) if is_same else None


def _unified_scan(first: Scan, other: Scan, names: dict[str, Expression]) -> Scan | None:
    of_column = {name: field for field, name in first.columns}
    added = []
    for field, name in other.columns:
        if name not in of_column:
            of_column[name] = replace(field, name=f"{first.alias}.{name}")
            added.append((of_column[name], name))
        names[field.name] = Column(of_column[name].name, known(field.type))
    taken = {field.name.casefold() for field, _ in first.columns}
    if any(field.name.casefold() in taken for field, _ in added):
        return None
    return replace(first, columns=(*first.columns, *added)) if added else first


def _renamed_call(call: Call, names: Mapping[str, Expression]) -> Call:
    arguments = tuple(_renamed(argument, names) for argument in call.arguments)
    return replace(call, arguments=arguments, filter=None if call.filter is None else _renamed(call.filter, names))


def _renamed(scalar: Scalar, names: Mapping[str, Expression]) -> Scalar:
    tree = tree_of(scalar, names)
    # Checked in `_single`; a residual with functions of rules differs from all others.
    return scalar if tree is None else replace(scalar, tree=tree)
