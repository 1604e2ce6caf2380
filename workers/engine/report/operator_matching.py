"""Matches Spark's operators with the nodes of our plan that they run, and assigns their figures to the nodes.

Spark moves conditions, drops what is not needed, and runs one node by several operators. So both plans are compared
segment by segment (`workers.engine.report.operator_tree`). Nodes get no figures unless all segments agree: the same
kinds in the same order, down to the same tables. Even then, an operator may emit other rows than the node that it runs.
A node has no row count

- below a condition, because Spark moves conditions down past everything that they do not depend on;
- below an inner or semi join, and on a side of an outer or anti join whose rows may be dropped, because Spark adds
  conditions there: that the keys are not NULL, and what it derives from the other side;
- where Spark may have stopped early (below a LIMIT, or on a side of a join that is read in step with the other side) or
  may have read its input several times, down to the next operator that reads all rows once: a sort or an exchange.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum

from service.contract.query import JoinKind
from service.contract.reports import NodeFigures, OperatorMetrics, OperatorReport
from workers.engine.plan.aggregates import distinct_sets, spark_expands
from workers.engine.plan.nodes import (
    Aggregate,
    Exchange,
    Filter,
    Join,
    Limit,
    Node,
    Project,
    Recursion,
    Sort,
    WindowFunctions,
)
from workers.engine.plan.one_row_joins import value_joins
from workers.engine.plan.traversal import walk_up
from workers.engine.report.operator_tree import (
    EXCHANGES,
    LIMITS,
    MOVES,
    TOP,
    Files,
    Kind,
    Numbered,
    Segment,
    TooManySegmentsError,
    agree,
    is_aggregate,
    name_of,
    numbered,
    segments_of_operators,
    segments_of_plan,
)

_FUNCTIONS = re.compile(r"functions=\[(.*)", re.DOTALL)


class ExactBelow(IntEnum):
    """Below which operator the row count of an operator is the number of all its rows, counted once."""

    HERE = 0
    """Exact already: the operators above read all rows."""
    SORT = 1
    """A sort, or an aggregate with calls."""
    EXCHANGE = 2
    """An exchange, which writes the rows for another stage."""


@dataclass(frozen=True)
class _Context:
    """What the operators above a segment may do with its rows. `filtered`: their conditions may have moved down."""

    filtered: bool = False
    exact: ExactBelow = ExactBelow.HERE


_KEEPS_LEFT = frozenset({JoinKind.LEFT, JoinKind.FULL, JoinKind.LEFT_ANTI, JoinKind.CROSS})
_KEEPS_RIGHT = frozenset({JoinKind.RIGHT, JoinKind.FULL, JoinKind.CROSS})
_EXACT_BELOW_JOIN = {"BroadcastHashJoin": ExactBelow.HERE, "SortMergeJoin": ExactBelow.SORT}


def figures_of(plan: Node, operators: Sequence[OperatorMetrics], files: Files) -> OperatorReport:
    """Returns the operators, each with the node of `plan` that it runs, and the figures of the nodes. The first
    operator is the top one. Nodes without any figure are left out.
    """
    if any(isinstance(node, Recursion) for node in walk_up(plan)):
        # Spark runs each step of a recursive query as an execution of its own, and these are the operators of one.
        return OperatorReport(operators=())
    main = _without_values(operators)
    if not main:
        return OperatorReport(operators=tuple(operators))
    top = numbered(plan)
    top = _without_value_joins(top, value_joins(top.node))
    figures = _Figures({each.id: each for each in operators})
    try:
        ours, sparks = segments_of_plan(top), segments_of_operators(main)
    except TooManySegmentsError:
        return OperatorReport(operators=tuple(operators))
    if agree(ours, sparks, files):
        _Matching(figures).match(ours, sparks, _Context())
    else:
        figures.rows[top.id] = _rows_at((*sparks.above, sparks.members[0]), ExactBelow.HERE)
    return figures.report()


def _without_values(operators: Sequence[OperatorMetrics]) -> list[OperatorMetrics]:
    """Returns the operators without those of subqueries that are values."""
    values = {each.id for each in operators if "Subquery" in each.operator}
    by_id = {each.id: each for each in operators}
    kept, waiting = dict[int, OperatorMetrics](), [each.id for each in operators[:1]]
    while waiting:
        operator = by_id[waiting.pop()]
        if operator.id not in kept and operator.id not in values:
            inputs = tuple(each for each in operator.inputs if each not in values)
            kept[operator.id] = operator.model_copy(update={"inputs": inputs})
            waiting += inputs
    return [kept[each.id] for each in operators if each.id in kept]


def _without_value_joins(node: Numbered, values: frozenset[int]) -> Numbered:
    """Returns the plan without joins whose right side is a value, which Spark runs in no operator."""
    if id(node.node) in values:
        return _without_value_joins(node.inputs[0], values)
    return replace(node, inputs=tuple(_without_value_joins(each, values) for each in node.inputs))


@dataclass
class _Figures:
    """Rows by node, and the node of each operator. A reused exchange is assigned to its first node."""

    operators: dict[int, OperatorMetrics]
    rows: dict[int, int | None] = field(default_factory=dict)
    node_of: dict[int, int] = field(default_factory=dict)

    def assign(self, operator: OperatorMetrics, node: Numbered | None) -> None:
        if node is not None:
            self.node_of.setdefault(operator.id, node.id)

    def set_rows(self, nodes: Sequence[Numbered], rows: int | None) -> None:
        """Sets the rows of those nodes that have none yet."""
        for each in nodes:
            if self.rows.get(each.id) is None:
                self.rows[each.id] = rows

    def report(self) -> OperatorReport:
        operators = tuple(
            each.model_copy(update={"node": self.node_of.get(each.id)}) for each in self.operators.values()
        )
        nodes = sorted({*self.node_of.values(), *(node for node, rows in self.rows.items() if rows is not None)})
        return OperatorReport(
            operators=operators,
            nodes=tuple(
                NodeFigures(
                    id=node,
                    rows=self.rows.get(node),
                    bytes=_sum(each.bytes for each in operators if each.node == node),
                    time_ms=_sum(each.time_ms for each in operators if each.node == node),
                )
                for node in nodes
            ),
        )


def _sum(values: Iterator[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


@dataclass(frozen=True)
class _Matching:
    """Walks down two trees of segments that agree, and collects the figures."""

    figures: _Figures

    def match(
        self,
        ours: Segment[Numbered],
        sparks: Segment[OperatorMetrics],
        context: _Context,
        parent: Numbered | None = None,
    ) -> None:
        """Matches a segment and those below it. `parent` is the node that reads its rows."""
        self._assign_above(ours, sparks, parent)
        below = self._count_above(ours, sparks, context)
        match ours.kind:
            case Kind.SCAN:
                operator, node = sparks.members[0], ours.members[0]
                self.figures.assign(operator, node)
                # The rows read, before any condition.
                self.figures.rows[node.id] = operator.rows if below.exact is not ExactBelow.EXCHANGE else None
            case Kind.AGGREGATE:
                self._match_aggregates(ours, sparks, below)
            case Kind.JOIN:
                self._match_join(ours, sparks, below)
            case Kind.WINDOW:
                self._match_windows(ours, sparks, below)
            case _:
                self.figures.assign(sparks.members[0], ours.members[0])
                for one, other in zip(ours.inputs, sparks.inputs, strict=True):
                    self.match(one, other, below, ours.members[0])
                if ours.kind is Kind.UNION and not below.filtered:
                    self._count_union(ours)

    def _count_union(self, ours: Segment[Numbered]) -> None:
        """Spark counts no rows of a union. They are those of its inputs."""
        if any(isinstance(each.node, Filter | Limit) for each in ours.above):
            return
        parts = [self.figures.rows.get((each.above or each.members)[0].id) for each in ours.inputs]
        known = [part for part in parts if part is not None]
        if len(known) == len(parts):
            self.figures.set_rows((*ours.above, ours.members[0]), sum(known))

    def _count_above(self, ours: Segment[Numbered], sparks: Segment[OperatorMetrics], context: _Context) -> _Context:
        """Sets the rows of the nodes above the members, and of the first member. Returns the context of the latter."""
        chain = (*ours.above, ours.members[0])
        cuts = [place for place, each in enumerate(ours.above) if isinstance(each.node, Filter | Limit)]
        if not context.filtered:
            upper = chain[: cuts[0] + 1] if cuts else chain
            self.figures.set_rows(upper, _rows_at((*sparks.above, sparks.members[0]), context.exact))
        filtered, exact = context.filtered, _exact_below(sparks.above, context.exact)
        for each in ours.above:
            if isinstance(each.node, Limit):
                filtered = False
            elif isinstance(each.node, Filter) and not _is_on_calls(each.node, ours):
                filtered = True
        if cuts and not filtered and ours.kind is not Kind.UNION:
            rows = sparks.members[0].rows if exact is ExactBelow.HERE else None
            self.figures.set_rows(chain[cuts[-1] + 1 :], rows)
        return _Context(filtered, exact)

    def _match_join(self, ours: Segment[Numbered], sparks: Segment[OperatorMetrics], context: _Context) -> None:
        operator, join = sparks.members[0], ours.members[0]
        self.figures.assign(operator, join)
        node = join.node
        if not isinstance(node, Join):
            raise TypeError(node)
        exact = max(context.exact, _EXACT_BELOW_JOIN.get(operator.operator.strip(), ExactBelow.EXCHANGE))
        # If a join can emit no rows, it may not read one of its sides.
        exact = exact if operator.rows else ExactBelow.EXCHANGE
        for place, keeps in enumerate((_KEEPS_LEFT, _KEEPS_RIGHT)):
            has_residual = node.kind is JoinKind.CROSS and bool(node.residual)
            filtered = context.filtered or node.kind not in keeps or has_residual
            self.match(ours.inputs[place], sparks.inputs[place], _Context(filtered, exact), join)

    def _match_windows(self, ours: Segment[Numbered], sparks: Segment[OperatorMetrics], context: _Context) -> None:
        """Spark has an operator for each PARTITION BY and ORDER BY, in any order."""
        nodes = [each for each in ours.members if isinstance(each.node, WindowFunctions)]
        for each in sparks.members if len(nodes) == 1 else ():
            self.figures.assign(each, nodes[0])
        below = _Context(context.filtered, _exact_below(sparks.members, context.exact))
        self.match(ours.inputs[0], sparks.inputs[0], below, nodes[-1])

    def _match_aggregates(self, ours: Segment[Numbered], sparks: Segment[OperatorMetrics], context: _Context) -> None:
        aggregates = [each for each in ours.members if not isinstance(each.node, Project | Sort | Exchange)]
        groups = aggregate_groups([each.node for each in aggregates], sparks.members) or []
        for place, (node, group) in enumerate(zip(aggregates, groups, strict=False)):
            for each in group:
                self.figures.assign(each, node)
            if place:
                self._match_lower_aggregate(ours, aggregates[place - 1], node, group, context)
        lowest = aggregates[-1].node
        exact = _exact_below(sparks.members, context.exact)
        if exact is ExactBelow.SORT and isinstance(lowest, Aggregate) and lowest.calls:
            exact = ExactBelow.HERE
        is_global = isinstance(lowest, Aggregate) and not lowest.keys
        below = _Context(context.filtered and not is_global, exact)
        self.match(ours.inputs[0], sparks.inputs[0], below, aggregates[-1])

    def _match_lower_aggregate(
        self,
        ours: Segment[Numbered],
        upper: Numbered,
        node: Numbered,
        group: Sequence[OperatorMetrics],
        context: _Context,
    ) -> None:
        """Sets the rows of an aggregate below another one, and of the nodes between both, which emit the same rows."""
        first = ours.members.index(upper) + 1
        between = ours.members[first : ours.members.index(node)]
        exchanges = [each for each in between if isinstance(each.node, Exchange)]
        # The group begins with the operators that move the rows of the lower aggregate.
        for each in group:
            if is_aggregate(each):
                break
            if self.figures.node_of.get(each.id) == node.id:
                del self.figures.node_of[each.id]
                if name_of(each) in MOVES:
                    self.figures.assign(each, exchanges[0] if len(exchanges) == 1 else upper)
        if not context.filtered:
            # An aggregate reads all its rows before it emits the first one.
            exact = ExactBelow.EXCHANGE if context.exact is ExactBelow.EXCHANGE else ExactBelow.HERE
            self.figures.set_rows((*between, node), _rows_at(group, exact))

    def _assign_above(self, ours: Segment[Numbered], sparks: Segment[OperatorMetrics], parent: Numbered | None) -> None:
        def only(kind: type) -> Numbered | None:
            found = [each for each in ours.above if isinstance(each.node, kind)]
            return found[0] if len(found) == 1 else None

        sort, limit, exchange = only(Sort), only(Limit), only(Exchange)
        for each in sparks.above:
            name = name_of(each)
            if name == "Filter":
                self.figures.assign(each, only(Filter))
            elif name == "Project":
                self.figures.assign(each, only(Project))
            elif name == TOP or name in LIMITS:
                self.figures.assign(each, limit)
            elif name == "Sort":
                self.figures.assign(each, sort or parent)
            elif name in MOVES:
                is_order = "rangepartitioning" in each.detail
                self.figures.assign(each, sort if is_order else exchange or parent)


def _rows_at(operators: Sequence[OperatorMetrics], exact: ExactBelow) -> int | None:
    """Returns the rows that the first of these operators emits. Each of them reads the rows of the next one."""
    for each in operators:
        name = name_of(each)
        if name in EXCHANGES:
            return each.rows
        if name in LIMITS or name == TOP:
            return None
        if name == "Sort":
            exact = ExactBelow.HERE if exact is ExactBelow.SORT else exact
        elif each.rows is not None and name not in {"ColumnarToRow", *MOVES}:
            return each.rows if exact is ExactBelow.HERE else None
    return None


def _exact_below(operators: Sequence[OperatorMetrics], exact: ExactBelow) -> ExactBelow:
    for each in operators:
        name = name_of(each)
        if name in EXCHANGES or (name in {"Sort", TOP} and exact is ExactBelow.SORT):
            exact = ExactBelow.HERE
        elif name in LIMITS:
            exact = max(exact, ExactBelow.SORT)
    return exact


def _is_on_calls(node: Filter, ours: Segment[Numbered]) -> bool:
    """Whether a condition uses only results of calls of the aggregate below it, so that Spark cannot move it down."""
    aggregate = ours.members[0].node
    if not isinstance(aggregate, Aggregate):
        return False
    outputs = {call.output.name for call in aggregate.calls}
    above = [each.node for each in ours.above]
    columns = set(node.condition.columns)
    for each in above[above.index(node) + 1 :]:
        if isinstance(each, Project):
            items = {item.name: item.expression.columns for item in each.items}
            columns = {name for column in columns for name in items.get(column, (column,)) or (column,)}
    return bool(columns) and columns <= outputs


def aggregate_groups(
    aggregates: Sequence[Node], members: Sequence[OperatorMetrics]
) -> list[list[OperatorMetrics]] | None:
    """Returns Spark's operators by the aggregate that they run, each group with the operators that move its rows at its
    beginning; None if the groups cannot be distinguished.

    The first operator of an aggregate with calls is its final part. The others are partial aggregates, or aggregates
    without functions, which make values distinct. An aggregate without calls has one or two operators, without
    functions.
    """
    if len(aggregates) == 1:
        return [list(members)]
    parts: list[tuple[str, list[OperatorMetrics]]] = []
    moved: list[OperatorMetrics] = []
    for each in members:
        moved.append(each)
        if is_aggregate(each):
            mode = _mode(each)
            if mode is None:
                return None
            parts.append((mode, moved))
            moved = []
    groups = []
    for node, following in zip(aggregates, (*aggregates[1:], None), strict=True):
        number = _number_of_parts(node, [mode for mode, _ in parts], following)
        if number is None:
            return None
        groups.append([each for _, part in parts[:number] for each in part])
        parts = parts[number:]
    groups[-1] += moved
    return None if parts else groups


def _mode(operator: OperatorMetrics) -> str | None:
    """Returns the part of an aggregate: `final` (or the whole), `inner`, or `none` if it has no functions."""
    match = _FUNCTIONS.search(operator.detail)
    if match is None:
        return None
    if match[1].startswith("]"):
        return "none"
    return "inner" if match[1].startswith(("partial_", "merge_")) else "final"


def _number_of_parts(node: Node, modes: Sequence[str], following: Node | None) -> int | None:
    """Returns how many operators with these modes, from the top down, run `node`; None if it is not known."""
    # Without calls, the following aggregate begins with an operator without functions, as this one may end.
    is_ambiguous = following is not None and not (isinstance(following, Aggregate) and following.calls)
    if not isinstance(node, Aggregate) or not node.calls:
        length = _length(modes, {"none"})
        return length if 1 <= length <= 2 and not is_ambiguous else None
    if not modes or modes[0] != "final":
        return None
    if spark_expands(node) or node.grouping_sets:
        # Copies of the rows are aggregated in the middle, too.
        return len(modes) if following is None else None
    if not distinct_sets(node):
        return 1 + _length(modes[1:], {"inner"})
    return None if is_ambiguous else 1 + _length(modes[1:], {"inner", "none"})


def _length(modes: Sequence[str], wanted: set[str]) -> int:
    return next((place for place, mode in enumerate(modes) if mode not in wanted), len(modes))
