"""Plans a query over streams by changes: splits it into steps, each of which computes the changes of one operator with
a state (`workers.engine.streaming.changes.steps`). Operators that work row by row are computed between the steps.

The plan emits rows in one of four ways. For a change log, it emits each change. Otherwise, if rows are only added, it
emits new rows. If a query has columns that identify its rows, such as the keys of GROUP BY, it emits changed rows, with
the weight 0 for those that were removed. Other queries count equal rows, and emit the new number of each row as its
weight.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count

from service.contract.query import JoinKind
from service.sql.builtins import CLOCKS
from service.sql.expressions.nodes import Call as CallOf
from service.sql.expressions.nodes import Column, Comparison, Number, Over, walk
from service.sql.expressions.scalar import Scalar, column, render
from service.sql.joins import KEEPS
from service.sql.resolve.stream_join_rules import is_known
from service.sql.types.data_types import BIGINT, BOOLEAN, DOUBLE, DataType, Field
from workers.engine.plan.aggregates import is_distinct
from workers.engine.plan.builder import without_watermarks
from workers.engine.plan.expressions import compose, fresh_name, is_null, typed_null
from workers.engine.plan.nodes import (
    Aggregate,
    Call,
    Deduplicate,
    Exchange,
    Expand,
    Filter,
    Generate,
    Join,
    Limit,
    MultisetOperation,
    Named,
    Node,
    PlanFunction,
    Project,
    Recursion,
    Scan,
    Shared,
    Sort,
    Union,
    WindowFunctions,
    Windows,
    inputs_of,
    names_of,
    output_of,
)
from workers.engine.plan.traversal import walk_up, with_inputs
from workers.engine.plan.validation import check, scalars_of
from workers.engine.streaming.changes.aggregates import (
    FlaggedValues,
    flagged_values,
    grouped,
    is_exact,
    projected,
    replaced_columns,
    share_values,
    without_grouping_sets,
)
from workers.engine.streaming.changes.emitted_rows import logged, newest_rows
from workers.engine.streaming.changes.row_identity import with_keys
from workers.engine.streaming.changes.state_files import WEIGHT
from workers.engine.streaming.changes.steps import (
    ChangePlan,
    ChangesPlanError,
    Port,
    SharedRows,
    Step,
    counted,
    distinct,
    first_rows,
    flagged,
    inner_join,
    recomputed,
)
from workers.engine.streaming.changes.weights import OF_CHANGE, consolidated, leaf, named, rows_of, weighted
from workers.engine.streaming.stream_aggregates import Branch, Contribution, normalised, united_aggregate

FORM = 2
"""The form of the plan of a new query. Form 1 keeps distinct values once for each FILTER."""


def plan_changes(
    built: Node,
    streams: frozenset[str],
    removing: frozenset[str] = frozenset(),
    form: int = FORM,
    *,
    is_log: bool = False,
) -> ChangePlan:
    """Returns the plan of a built query; `streams` are the aliases of streams, and those in `removing` have rows that
    are removed. An existing state needs a plan of the form with which it was made. `is_log`: the plan emits each change
    as a row, with the column `CHANGE_TYPE`. Raises ChangesPlanError.
    """
    if not isinstance(built, Project):
        raise ChangesPlanError("the top node of a query must be its SELECT")
    _check_names_and_clocks(built)
    planner = _Planner(streams, removing, form)
    output = output_of(built)
    top, keys = with_keys(built)
    rows = planner.changes(without_watermarks(top))
    fields = output_of(top)
    if is_log:
        changes = logged(consolidated(weighted(rows.node, fields), fields), fields, output, keys)
        return _checked(planner.plan(changes, output, None, None), output_of(changes))
    if not rows.retracts:
        # Hidden keys would only be needed to replace rows.
        node: Node = Project(rows_of(weighted(rows.node, fields), fields), named(output))
        return _checked(planner.plan(node, output, None, None), output)
    names = frozenset(field.name for field in fields)
    weight = fresh_name(WEIGHT, names)
    if keys is not None:
        node = newest_rows(consolidated(weighted(rows.node, fields), fields), fields, keys, weight)
        return _checked(planner.plan(node, output, keys, weight), (*fields, Field(weight, BIGINT)))
    changes = consolidated(weighted(rows.node, output), output)
    port = planner.port(changes, output, tuple(column(field.name, field.type) for field in output))
    step = planner.add(counted(planner.next, "The result", port))
    node = Project(step.leaf, (*named(output), Named(OF_CHANGE, weight)))
    names_of_output = tuple(field.name for field in output)
    return _checked(planner.plan(node, output, names_of_output, weight), (*output, Field(weight, BIGINT)))


def _check_names_and_clocks(built: Node) -> None:
    """Raises ChangesPlanError for names that steps use, and for functions that return the time."""
    aliases = [node.alias for node in walk_up(built) if isinstance(node, Scan)]
    reserved = next((name for name in (*names_of(built), *aliases) if name.startswith("$")), None)
    if reserved is not None:
        raise ChangesPlanError(f"the name {reserved} is reserved")
    for node in walk_up(built):
        for scalar in scalars_of(node):
            clock = next((each for each in walk(scalar.tree) if isinstance(each, CallOf) and each.name in CLOCKS), None)
            if clock is not None:
                raise ChangesPlanError(f"{clock.name} returns another time in each mini-batch")


def _checked(plan: ChangePlan, output: tuple[Field, ...]) -> ChangePlan:
    check(plan.node, "the planner of changes", output)
    for rows in plan.shared:
        check(rows.node, "the planner of changes")
    for step in plan.steps:
        for node in _nodes_of(step):
            check(node, f"the planner of changes ({step.text})")
    return plan


def _nodes_of(step: Step) -> Sequence[Node]:
    second = () if step.second is None else (step.second.node,)
    return (*(port.changes for port in step.ports), step.result, *second)


# Steps


@dataclass(frozen=True)
class _Changes:
    """A node that emits the columns of an operator and the weight. `retracts`: a weight may be negative.
    `is_single`: no weight is greater than 1.
    """

    node: Node
    retracts: bool
    is_single: bool = False


class _Planner:
    """Plans the steps of one query."""

    def __init__(self, streams: frozenset[str], removing: frozenset[str], form: int) -> None:
        self._streams = streams
        self._removing = removing
        self._form = form
        self._known: dict[Node, _Changes] = {}
        self._names = count()
        self.steps: list[Step] = []
        self.shared: list[SharedRows] = []

    @property
    def next(self) -> int:
        """The number of the next step."""
        return len(self.steps)

    def plan(
        self, node: Node, output: tuple[Field, ...], keys: tuple[str, ...] | None, weight: str | None
    ) -> ChangePlan:
        """Returns the plan whose result `node` emits."""
        # Only these rows are new in form 2.
        form = 2 if self.shared else 1
        return ChangePlan(tuple(self.steps), node, output, keys, weight, form, tuple(self.shared))

    def add(self, step: Step) -> Step:
        """Adds a step."""
        self.steps.append(step)
        return step

    def port(self, changes: Node, fields: tuple[Field, ...], keys: tuple[Scalar, ...]) -> Port:
        """Returns an input of a step, whose task adds up the weights of equal rows. Raises ChangesPlanError for columns
        that a state cannot keep.
        """
        for field in fields:
            if not field.type.is_known:
                raise ChangesPlanError(f"the type of {field.name} is only known when the query runs")
            if not field.type.is_groupable:
                raise ChangesPlanError(f"{field.name} is of {field.type}, and such rows cannot be compared")
        return Port(changes, fields, tuple(map(normalised, keys)))

    def changes(self, node: Node) -> _Changes:
        """Returns the changes of `node`, which reads a stream. Equal nodes have the same steps."""
        if node not in self._known:
            self._known[node] = self._changes(node)
        return self._known[node]

    def _is_streaming(self, node: Node) -> bool:
        return any(isinstance(part, Scan) and part.alias in self._streams for part in walk_up(node))

    def _changes(self, node: Node) -> _Changes:
        match node:
            case Scan():
                weight = Field(WEIGHT, BIGINT)
                removes = node.alias in self._removing
                return _Changes(replace(node, columns=(*node.columns, (weight, WEIGHT))), removes, is_single=True)
            case Project():
                below = self.changes(node.input)
                items = (*node.items, Named(OF_CHANGE, WEIGHT))
                return replace(below, node=replace(node, input=below.node, items=items, replaces=None))
            case Exchange() | Shared():
                return self.changes(node.input)
            case Filter() if isinstance(node.input, WindowFunctions):
                return self._windows(node.input, node)
            case Filter() if (below_names := _below_names(node)) is not None:
                return self.changes(below_names)
            case Filter() | Expand() | Generate() | Windows():
                below = self.changes(node.input)
                return replace(below, node=with_inputs(node, (below.node,)))
            case Union():
                return self._union(node)
            case Aggregate():
                return self._aggregate(node)
            case Deduplicate():
                return self._distinct(node.input, "DISTINCT")
            case Join():
                return self._join(node)
            case WindowFunctions():
                return self._windows(node, None)
            case MultisetOperation():
                return self._multisets(node)
            case Sort() | Limit():
                raise ChangesPlanError("ORDER BY and LIMIT need the complete result, and a stream has no end")
            case Recursion():
                raise ChangesPlanError("each step of a recursive query needs all rows of the one before")
        raise ChangesPlanError(f"{type(node).__name__} is not supported")

    def _union(self, node: Union) -> _Changes:
        if not all(map(self._is_streaming, node.inputs)):
            raise ChangesPlanError("UNION ALL of a stream and a static table is not supported")
        parts = [self.changes(child) for child in node.inputs]
        fields = output_of(node)
        union = Union(tuple(weighted(part.node, fields) for part in parts))
        return _Changes(union, any(part.retracts for part in parts), all(part.is_single for part in parts))

    # Aggregates

    def _aggregate(self, node: Aggregate) -> _Changes:
        if node.grouping_sets:
            return self.changes(without_grouping_sets(node))
        if not node.calls and node.keys:
            return self._distinct(Project(node.input, node.keys), f"DISTINCT {_listed(node.keys)}")
        below = self.changes(node.input)
        text = f"The aggregate by {_listed(node.keys)}" if node.keys else "The aggregate without GROUP BY"
        step = grouped(self.next, text, node, below.node, retracts=below.retracts, is_single=below.is_single)
        if step is not None:
            return self._kept(step, retracts=True)
        united = self._united(node, retracts=below.retracts)
        if united is not None:
            return self.changes(united)
        rows, over = projected(node, frozenset(names_of(node.input)))
        fields = output_of(rows)
        changes = weighted(replace(rows, input=below.node, items=(*rows.items, Named(OF_CHANGE, WEIGHT))), fields)
        keys = tuple(key.expression for key in over.keys)
        port = self.port(changes, fields, keys)
        names = tuple(key.name for key in node.keys)

        def output_keys(made: Node) -> tuple[Scalar, ...]:
            types = {field.name: field.type for field in output_of(made)}
            return tuple(normalised(column(name, types[name])) for name in names)

        return self._kept(
            recomputed(
                self.next,
                text,
                (port,),
                lambda inputs: replace(over, input=inputs[0]),
                is_exact=all(map(is_exact, node.calls)),
                output_keys=output_keys,
            ),
            retracts=True,
        )

    def _united(self, node: Aggregate, *, retracts: bool) -> Node | None:
        """Returns an aggregate without DISTINCT over the distinct values, which are a step of their own; None if that
        is not possible.
        """
        plain = tuple(call for call in node.calls if not is_distinct(call))
        calls = tuple(replace(call, distinct=False) for call in node.calls if is_distinct(call))
        if not calls:
            return None
        probe = Aggregate(node.input, node.keys, calls)
        # The values that a new row adds may be removed, also if the rows themselves are only added.
        rows_below = leaf("$probe", output_of(node.input))
        for some in (calls, plain):
            of_some = replace(probe, calls=some)
            if some and grouped(0, "", of_some, rows_below, retracts=retracts, is_single=True) is None:
                return None
        over, has_flags = node, not retracts and self._form > 1 and share_values(node.calls)
        if has_flags:
            rows, over = projected(node, frozenset(names_of(node.input)))
            has_flags = all(is_known(field.type) for field in output_of(rows))
            over = replace(over, input=self._shared(rows)) if has_flags else node
        taken = names_of(over) | names_of(over.input)

        def distinct_branch(of: Contribution, calls: tuple[Call, ...]) -> tuple[Branch, list[Call]] | None:
            if not has_flags:
                return None
            values = flagged_values(of, calls, taken)
            return values.over(self._flagged(values))

        contribution = Contribution(over.input, tuple(key.expression for key in over.keys), over.calls)
        try:
            return united_aggregate(output_of(over)[: len(over.keys)], (contribution,), taken, distinct_branch)
        except ValueError:
            return None

    def _shared(self, rows: Node) -> Node:
        """Returns a node that reads the changes of `rows`, which several branches of the next step need."""
        below = self.changes(rows)
        fields = output_of(rows)
        read = leaf(f"$rows{self.next}", fields)
        self.shared.append(SharedRows(read.alias, weighted(below.node, fields), self.next))
        return self._leaf(read, replace(below, node=read))

    def _leaf(self, read: Scan, changes: _Changes) -> Node:
        """Returns a node whose changes are `changes`, which `read` reads."""
        node = replace(read, columns=tuple(column for column in read.columns if column[0].name != WEIGHT))
        self._known[node] = changes
        self._streams |= {read.alias}
        return node

    def _flagged(self, values: FlaggedValues) -> Node:
        """Adds the step of distinct values under several conditions, and returns a node that reads its rows."""
        rows = self.changes(values.rows)
        with_flags = weighted(rows.node, values.fields, column(values.flags, BIGINT))
        flags = Call(PlanFunction.BIT_OR, (OF_CHANGE,), Field(WEIGHT, BIGINT))
        changes = Aggregate(with_flags, named(values.fields), (flags,))
        keys = tuple(column(field.name, field.type) for field in values.fields)
        port = self.port(changes, values.fields, keys)
        step = self.add(flagged(self.next, "DISTINCT", port, values.flags))
        return self._leaf(step.leaf, _Changes(step.leaf, retracts=False, is_single=True))

    def _distinct(self, rows: Node, text: str) -> _Changes:
        below = self.changes(rows)
        fields = output_of(rows)
        # Few rows may remain when equal ones are added up before they are sent.
        changes = consolidated(weighted(below.node, fields), fields)
        port = self.port(changes, fields, tuple(column(field.name, field.type) for field in fields))
        return self._kept(distinct(self.next, text, port), retracts=below.retracts, is_single=True)

    def _kept(self, step: Step, *, retracts: bool, is_single: bool = False) -> _Changes:
        return _Changes(self.add(step).leaf, retracts, is_single)

    # Joins

    def _join(self, node: Join) -> _Changes:
        left, right = map(self._is_streaming, (node.left, node.right))
        if left and right:
            return self._join_of_streams(node)
        if node.kind not in _INNER and KEEPS[node.kind] != (left, right):
            raise ChangesPlanError("the join depends on which rows of a static table have no match in the stream")
        if left:
            below = self.changes(node.left)
            return replace(below, node=replace(node, left=below.node))
        below = self.changes(node.right)
        return replace(below, node=replace(node, right=below.node))

    def _join_of_streams(self, node: Join) -> _Changes:
        sides = (self.changes(node.left), self.changes(node.right))
        fields = (output_of(node.left), output_of(node.right))
        keys = _comparable_keys(node)
        text = f"The join by {', '.join(str(key) for key in keys[0])}" if node.keys else "The join without an equality"
        nulls = [None if node.null_safe or not keys[place] else is_null(keys[place]) for place in (0, 1)]
        nodes = [
            side.node if null is None else Filter(side.node, compose("NOT ({0})", (null,), BOOLEAN))
            for side, null in zip(sides, nulls, strict=True)
        ]
        ports = [self.port(weighted(nodes[place], fields[place]), fields[place], keys[place]) for place in (0, 1)]
        retracts = any(side.retracts for side in sides)
        if node.kind in _INNER:
            return self._kept(inner_join(self.next, text, node, ports[0], ports[1]), retracts=retracts)
        step = recomputed(
            self.next,
            text,
            (ports[0], ports[1]),
            lambda inputs: replace(node, left=inputs[0], right=inputs[1], within=None),
            is_exact=True,
        )
        is_monotone = node.kind is JoinKind.LEFT_SEMI
        made = self._kept(step, retracts=retracts or not is_monotone)
        return self._with_null_keys(node, made, sides, nulls)

    def _with_null_keys(
        self, node: Join, made: _Changes, sides: tuple[_Changes, _Changes], nulls: list[Scalar | None]
    ) -> _Changes:
        """Returns the changes of an outer or anti join with its rows that have a NULL key, which match nothing and need
        no state.
        """
        keeps = KEEPS.get(node.kind, (False, False))
        output = output_of(node)
        parts = [weighted(made.node, output)]
        for place, side in enumerate(sides):
            null = nulls[place]
            if null is None or not keeps[place] or (node.kind is JoinKind.LEFT_SEMI):
                continue
            own = names_of(node.left if place == 0 else node.right)
            items = []
            for field in output:
                value = column(field.name, field.type) if field.name in own else typed_null(field.type)
                if value is None:
                    raise ChangesPlanError(
                        f"{field.name} is of {field.type}, which an outer join cannot fill with NULL"
                    )
                items.append(Named(value, field.name))
            parts.append(Project(Filter(side.node, null), (*items, Named(OF_CHANGE, WEIGHT))))
        return made if len(parts) == 1 else replace(made, node=Union(tuple(parts)))

    # Windows and multisets

    def _windows(self, node: WindowFunctions, above: Filter | None) -> _Changes:
        """Plans calls with OVER, one step for each set of partition keys; the last one has the filter `above` it."""
        groups: dict[tuple[str, ...], list[Named]] = {}
        for call in node.calls:
            by = _partition_keys(call)
            if not by:
                raise ChangesPlanError("a call with OVER and without PARTITION BY needs the complete result")
            groups.setdefault(tuple(str(key) for key in by), []).append(call)
        below = self.changes(node.input)
        fields = output_of(node.input)
        nodes = below.node
        for place, calls in enumerate(groups.values()):
            keys = tuple(map(normalised, _partition_keys(calls[0])))
            port = self.port(weighted(nodes, fields), fields, keys)
            last = above if place == len(groups) - 1 else None

            def operator(
                inputs: Sequence[Node], calls: tuple[Named, ...] = tuple(calls), last: Filter | None = last
            ) -> Node:
                made = WindowFunctions(inputs[0], calls)
                return made if last is None else replace(last, input=made)

            text = f"The window by {', '.join(map(str, keys))}"
            if not below.retracts and len(node.calls) == 1 and last is not None and _is_first(last.condition, calls[0]):
                step = first_rows(self.next, text, port, operator, keys)
            else:
                step = recomputed(
                    self.next,
                    text,
                    (port,),
                    operator,
                    is_exact=False,
                    output_keys=lambda _, keys=keys: keys,  # type: ignore[misc]
                )
            self.add(step)
            nodes, fields = step.leaf, step.output
        return _Changes(weighted(nodes, output_of(node)), retracts=True)

    def _multisets(self, node: MultisetOperation) -> _Changes:
        if not all(map(self._is_streaming, inputs_of(node))):
            raise ChangesPlanError("INTERSECT and EXCEPT of a stream and a static table are not supported")
        fields = output_of(node)
        keys = tuple(column(field.name, field.type) for field in fields)
        ports = tuple(self.port(weighted(self.changes(side).node, fields), fields, keys) for side in inputs_of(node))
        step = recomputed(
            self.next,
            node.kind.replace("_", " ").upper(),
            ports,
            lambda inputs: replace(node, left=inputs[0], right=inputs[1]),
            is_exact=True,
        )
        return self._kept(step, retracts=True)


_INNER = frozenset({JoinKind.INNER, JoinKind.CROSS})


_RANKS = frozenset({"ROW_NUMBER", "RANK", "DENSE_RANK"})
_UP_TO = frozenset({"<", "<="})


def _below_names(node: Filter) -> Node | None:
    """Returns a filter of calls with OVER below the projection that names their columns; None for other filters."""
    project = node.input
    if not isinstance(project, Project) or not isinstance(project.input, WindowFunctions):
        return None
    columns = {item.name: item.expression for item in project.items}
    if any(columns[name].column is None for name in node.condition.columns):
        return None
    condition = replaced_columns(node.condition, columns)
    return replace(project, input=Filter(project.input, condition))


def _is_first(condition: Scalar, call: Named) -> bool:
    """Whether `condition` only keeps rows up to a rank, which is `call`: a row that it drops stays dropped when others
    are added.
    """
    tree, rank = condition.tree, call.expression.tree
    if not isinstance(tree, Comparison) or not isinstance(rank, Over) or rank.function.upper() not in _RANKS:
        return False
    if not isinstance(tree.left, Column) or tree.left.name != call.name or not isinstance(tree.right, Number):
        return False
    return tree.operator in _UP_TO or (tree.operator == "=" and tree.right.text == "1")


def _listed(keys: tuple[Named, ...]) -> str:
    return ", ".join(str(key.expression) for key in keys)


def _comparable_keys(join: Join) -> tuple[tuple[Scalar, ...], tuple[Scalar, ...]]:
    """Returns the keys of both sides, with the same types, so that equal keys have the same hash."""
    pairs = [_same_type(left, right) for left, right in join.keys]
    return tuple(left for left, _ in pairs), tuple(right for _, right in pairs)


def _same_type(left: Scalar, right: Scalar) -> tuple[Scalar, Scalar]:
    if left.type is not None and left.type == right.type and left.type.is_groupable and not left.type.nests_fractions:
        return left, right
    wider = _wider(left.type, right.type)
    if wider is None:
        raise ChangesPlanError(f"the keys {left} and {right} have different types")
    one, other = (compose(f"CAST({{0}} AS {wider})", (side,), wider) for side in (left, right))
    return one, other


def _wider(left: DataType | None, right: DataType | None) -> DataType | None:
    if left is None or right is None:
        return None
    if left.is_integral and right.is_integral:
        return BIGINT
    if all(kind.is_integral or kind.is_fractional for kind in (left, right)):
        return DOUBLE
    return None


def _partition_keys(call: Named) -> tuple[Scalar, ...]:
    tree = call.expression.tree
    if not isinstance(tree, Over):
        raise TypeError(f"{call.name} has no OVER")
    found = []
    for key in tree.partition_by:
        if not isinstance(key, Column):
            raise ChangesPlanError(f"PARTITION BY {render(key)} is no column")
        found.append(Scalar(key, key.type))
    return tuple(found)
