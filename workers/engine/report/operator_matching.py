"""Which of Spark's aggregate operators that follow each other run which of our aggregates.

What Spark's operators counted, by the nodes of our plan that they run.

Spark moves conditions, drops what is not needed and runs one node by several operators, so the two plans are laid
beside each other spot by spot (`workers.engine.report.operator_tree`), and nothing is told unless all spots agree: the
same kinds in the same order down to the same tables. Even then an operator may put out other rows than the node that it
runs, and no rows are told

- below a condition, which Spark moves down past what it does not depend on;
- below an inner or semi join, and on the side of an outer or anti join of which it drops rows: Spark adds there that
  the keys are not NULL, and what it infers from the other side;
- where Spark may have stopped early (below a LIMIT, or on a side of a join that is read in step with the other), or
  run a side several times, until something below has taken all rows once: a sort, or an exchange.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum

from service.contract.query import JoinKind
from service.contract.reports import NodeFigures, OperatorMetrics, OperatorReport
from workers.engine.plan.aggregates import distinct_sets, spark_expands
from workers.engine.plan.nodes import Aggregate, Exchange, Filter, Join, Limit, Node, Project, Sort
from workers.engine.report.operator_tree import (
    EXCHANGES,
    LIMITS,
    MOVES,
    TOP,
    Files,
    Kind,
    Numbered,
    Spot,
    TooManySpotsError,
    agree,
    is_aggregate,
    name_of,
    numbered,
    spots_of_operators,
    spots_of_plan,
)

_FUNCTIONS = re.compile(r"functions=\[(.*)", re.DOTALL)


def _mode(operator: OperatorMetrics) -> str | None:
    """Which part of an aggregate it is: `final` (or the whole), `inner`, or `none` where it has no functions."""
    match = _FUNCTIONS.search(operator.detail)
    if match is None:
        return None
    if match[1].startswith("]"):
        return "none"
    return "inner" if match[1].startswith(("partial_", "merge_")) else "final"


def aggregate_groups(made: Sequence[Node], members: Sequence[OperatorMetrics]) -> list[list[OperatorMetrics]] | None:
    """Spark's operators by the aggregate of ours that they run, each group with what brings it the rows of the next
    operator at that one's head; None where they cannot be told apart.

    Of one with calls the first operator is its last part; the others have parts of the calls, or none where they tell
    distinct values apart. One without calls has an operator without functions, or two.
    """
    if len(made) == 1:
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
    for place, node in enumerate(made):
        is_last = place == len(made) - 1
        taken = _taken(node, [mode for mode, _ in parts], None if is_last else made[place + 1])
        if taken is None:
            return None
        groups.append([each for _, part in parts[:taken] for each in part])
        parts = parts[taken:]
    groups[-1] += moved
    return None if parts else groups


def _taken(node: Node, modes: Sequence[str], following: Node | None) -> int | None:
    """How many operators of these parts, from the top down, run `node`; None where it cannot be told."""
    if not isinstance(node, Aggregate) or not node.calls:
        # One that follows without calls too could have any of them.
        if following is not None and not (isinstance(following, Aggregate) and following.calls):
            return None
        length = _length(modes, {"none"})
        return length if 1 <= length <= 2 else None
    if not modes or modes[0] != "final":
        return None
    if spark_expands(node) or node.grouping_sets:
        # Copies are put together in the middle, too.
        return len(modes) if following is None else None
    if not distinct_sets(node):
        return 1 + _length(modes[1:], {"inner"})
    if following is not None and not (isinstance(following, Aggregate) and following.calls):
        return None
    return 1 + _length(modes[1:], {"inner", "none"})


def _length(modes: Sequence[str], wanted: set[str]) -> int:
    return next((place for place, mode in enumerate(modes) if mode not in wanted), len(modes))


def figures_of(plan: Node, operators: Sequence[OperatorMetrics], files: Files) -> OperatorReport:
    """`operators`, the first the top one, with the node of `plan` that each runs, and what they tell of the nodes.

    Nodes of which nothing is known are left out.
    """
    if not operators or any("Subquery" in each.operator for each in operators):
        return OperatorReport(operators=tuple(operators))
    top = numbered(plan)
    found = _Found({each.id: each for each in operators})
    try:
        ours, sparks = spots_of_plan(top), spots_of_operators(operators)
    except TooManySpotsError:
        return OperatorReport(operators=tuple(operators))
    if agree(ours, sparks, files):
        _Laying(found).lay(ours, sparks, _State())
    else:
        found.rows[top.id] = _rows_at((*sparks.above, sparks.members[0]), Trust.ALL)
    return found.report()


@dataclass
class _Found:
    """Rows by node, and the nodes of operators; an operator that runs two, of which Spark used it again, is the first
    one's.
    """

    operators: dict[int, OperatorMetrics]
    rows: dict[int, int | None] = field(default_factory=dict)
    node_of: dict[int, int] = field(default_factory=dict)

    def own(self, operator: OperatorMetrics, node: Numbered | None) -> None:
        if node is not None:
            self.node_of.setdefault(operator.id, node.id)

    def report(self) -> OperatorReport:
        told = tuple(each.model_copy(update={"node": self.node_of.get(each.id)}) for each in self.operators.values())
        nodes = sorted({*self.node_of.values(), *(node for node, rows in self.rows.items() if rows is not None)})
        return OperatorReport(
            operators=told,
            nodes=tuple(
                NodeFigures(
                    id=node,
                    rows=self.rows.get(node),
                    bytes=_sum(each.bytes for each in told if each.node == node),
                    time_ms=_sum(each.time_ms for each in told if each.node == node),
                )
                for node in nodes
            ),
        )


def _sum(values: Iterator[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


class Trust(IntEnum):
    """What must have taken all rows for the count of an operator below to be that of all its rows, once."""

    ALL = 0
    """Nothing: whatever is above takes all rows."""
    SORT = 1
    """A sort, or what groups rows."""
    EXCHANGE = 2
    """What writes rows for another stage to read."""


@dataclass(frozen=True)
class _State:
    """`filtered`: conditions may have come down to here. `trust`: see there."""

    filtered: bool = False
    trust: Trust = Trust.ALL


def _rows_at(operators: Sequence[OperatorMetrics], trust: Trust) -> int | None:
    """Rows that come out at the top of `operators`, of which each takes the rows of the next."""
    for each in operators:
        name = name_of(each)
        if name in EXCHANGES:
            return each.rows
        if name in LIMITS or name == TOP:
            return None
        if name == "Sort":
            trust = Trust.ALL if trust is Trust.SORT else trust
        elif each.rows is not None and name not in {"ColumnarToRow", *MOVES}:
            return each.rows if trust is Trust.ALL else None
    return None


def _trust_below(operators: Sequence[OperatorMetrics], trust: Trust) -> Trust:
    for each in operators:
        name = name_of(each)
        if name in EXCHANGES or (name in {"Sort", TOP} and trust is Trust.SORT):
            trust = Trust.ALL
        elif name in LIMITS:
            trust = max(trust, Trust.SORT)
    return trust


_KEEPS_LEFT = frozenset({JoinKind.LEFT, JoinKind.FULL, JoinKind.LEFT_ANTI, JoinKind.CROSS})
_KEEPS_RIGHT = frozenset({JoinKind.RIGHT, JoinKind.FULL, JoinKind.CROSS})
_TRUST_BELOW_JOIN = {"BroadcastHashJoin": Trust.ALL, "SortMergeJoin": Trust.SORT}


@dataclass(frozen=True)
class _Laying:
    """Goes down two trees of spots that agree."""

    found: _Found

    def lay(
        self, ours: Spot[Numbered], sparks: Spot[OperatorMetrics], state: _State, parent: Numbered | None = None
    ) -> None:
        """Tells what it can of a spot and those below it; `parent` is what takes its rows."""
        self._own_above(ours, sparks, parent)
        below = self._rows_above(ours, sparks, state)
        match ours.kind:
            case Kind.SCAN:
                self._scan(ours, sparks, below)
            case Kind.AGGREGATE:
                self._aggregates(ours, sparks, below)
            case Kind.JOIN:
                self._join(ours, sparks, below)
            case _:
                self.found.own(sparks.members[0], ours.members[0])
                for one, other in zip(ours.inputs, sparks.inputs, strict=True):
                    self.lay(one, other, below, ours.members[0])
                if ours.kind is Kind.UNION and not below.filtered and not _is_cut(ours.above):
                    self._union(ours)

    def _union(self, ours: Spot[Numbered]) -> None:
        """Spark counts no rows of a union: they are those of its inputs."""
        parts = [self.found.rows.get((each.above or each.members)[0].id) for each in ours.inputs]
        known = [part for part in parts if part is not None]
        if len(known) == len(parts):
            self._tell((*ours.above, ours.members[0]), sum(known))

    def _tell(self, nodes: Sequence[Numbered], rows: int | None) -> None:
        for each in nodes:
            if self.found.rows.get(each.id) is None:
                self.found.rows[each.id] = rows

    def _rows_above(self, ours: Spot[Numbered], sparks: Spot[OperatorMetrics], state: _State) -> _State:
        """Tells the rows of what is above the members, and of the first of these; gives what holds for it."""
        chain = (*ours.above, ours.members[0])
        cut = next((place for place, each in enumerate(chain) if isinstance(each.node, Filter | Limit)), len(chain) - 1)
        physical = (*sparks.above, sparks.members[0])
        if not state.filtered:
            self._tell(chain[: cut + 1], _rows_at(physical, state.trust))
        filtered, trust = state.filtered, _trust_below(sparks.above, state.trust)
        for each in ours.above:
            if isinstance(each.node, Limit):
                filtered = False
            elif isinstance(each.node, Filter) and not _is_of_calls(each.node, ours):
                filtered = True
        if cut < len(chain) - 1 and not filtered and ours.kind is not Kind.UNION:
            lowest = max(place for place, each in enumerate(chain) if isinstance(each.node, Filter | Limit))
            made = sparks.members[0]
            self._tell(chain[lowest + 1 :], made.rows if trust is Trust.ALL else None)
        return _State(filtered, trust)

    def _scan(self, ours: Spot[Numbered], sparks: Spot[OperatorMetrics], state: _State) -> None:
        operator, node = sparks.members[0], ours.members[0]
        self.found.own(operator, node)
        # Rows read, whatever a condition is to leave of them.
        self.found.rows[node.id] = operator.rows if state.trust is not Trust.EXCHANGE else None

    def _join(self, ours: Spot[Numbered], sparks: Spot[OperatorMetrics], state: _State) -> None:
        operator, made = sparks.members[0], ours.members[0]
        self.found.own(operator, made)
        node = made.node
        if not isinstance(node, Join):
            raise TypeError(node)
        trust = max(state.trust, _TRUST_BELOW_JOIN.get(operator.operator.strip(), Trust.EXCHANGE))
        # A join that knows that it puts out nothing may not ask for the rows of a side.
        trust = trust if operator.rows else Trust.EXCHANGE
        for place, keeps in enumerate((_KEEPS_LEFT, _KEEPS_RIGHT)):
            filtered = state.filtered or node.kind not in keeps or (node.kind is JoinKind.CROSS and bool(node.residual))
            self.lay(ours.inputs[place], sparks.inputs[place], _State(filtered, trust), made)

    def _aggregates(self, ours: Spot[Numbered], sparks: Spot[OperatorMetrics], state: _State) -> None:
        made = [each for each in ours.members if not isinstance(each.node, Project | Sort | Exchange)]
        groups = aggregate_groups([each.node for each in made], sparks.members) or []
        for place, (node, group) in enumerate(zip(made, groups, strict=False)):
            for each in group:
                self.found.own(each, node)
            if place:
                self._between(ours, made[place - 1], node, group, state)
        lowest = made[-1].node
        trust = _trust_below(sparks.members, state.trust)
        if trust is Trust.SORT and isinstance(lowest, Aggregate) and lowest.calls:
            trust = Trust.ALL
        is_whole = isinstance(lowest, Aggregate) and not lowest.keys
        below = replace(state, trust=trust, filtered=state.filtered and not is_whole)
        self.lay(ours.inputs[0], sparks.inputs[0], below, made[-1])

    def _between(
        self,
        ours: Spot[Numbered],
        upper: Numbered,
        node: Numbered,
        group: Sequence[OperatorMetrics],
        state: _State,
    ) -> None:
        """Tells the rows of an aggregate below another, and of what is between the two, which puts out the same."""
        first = ours.members.index(upper) + 1
        between = ours.members[first : ours.members.index(node)]
        moved = [each for each in between if isinstance(each.node, Exchange)]
        # What brings the rows of the lower one stands at its head.
        for each in group:
            if is_aggregate(each):
                break
            if self.found.node_of.get(each.id) == node.id:
                del self.found.node_of[each.id]
                if name_of(each) in MOVES:
                    self.found.own(each, moved[0] if len(moved) == 1 else upper)
        if not state.filtered:
            # What groups rows has taken all of them, once it was asked for any.
            self._tell(
                (*between, node), _rows_at(group, Trust.EXCHANGE if state.trust is Trust.EXCHANGE else Trust.ALL)
            )

    def _own_above(self, ours: Spot[Numbered], sparks: Spot[OperatorMetrics], parent: Numbered | None) -> None:
        def only(kind: type) -> Numbered | None:
            found = [each for each in ours.above if isinstance(each.node, kind)]
            return found[0] if len(found) == 1 else None

        sort, limit, sent = only(Sort), only(Limit), only(Exchange)
        for each in sparks.above:
            name = name_of(each)
            if name == "Filter":
                self.found.own(each, only(Filter))
            elif name == "Project":
                self.found.own(each, only(Project))
            elif name == TOP or name in LIMITS:
                self.found.own(each, limit)
            elif name == "Sort":
                self.found.own(each, sort or parent)
            elif name in MOVES:
                is_order = "rangepartitioning" in each.detail
                self.found.own(each, sort if is_order else sent or parent)


def _is_cut(above: Sequence[Numbered]) -> bool:
    return any(isinstance(each.node, Filter | Limit) for each in above)


def _is_of_calls(node: Filter, ours: Spot[Numbered]) -> bool:
    """Whether a condition is about nothing but what the aggregate below it has called: it cannot be moved down."""
    made = ours.members[0].node
    if not isinstance(made, Aggregate):
        return False
    outputs = {call.output.name for call in made.calls}
    below = [each.node for each in ours.above]
    columns = set(node.condition.columns)
    for each in below[below.index(node) + 1 :]:
        if isinstance(each, Project):
            items = {item.name: item.expression.columns for item in each.items}
            columns = {name for column in columns for name in items.get(column, (column,)) or (column,)}
    return bool(columns) and columns <= outputs
