"""The rule `prune_union_branches`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from service.contract.query import JoinKind
from service.sql.expressions.analysis import columns_by_name, conjuncts_of
from service.sql.expressions.nodes import (
    Boolean,
    Cast,
    Column,
    Comparison,
    Connective,
    Expression,
    InList,
    Negation,
    Null,
    Number,
    String,
    conjuncts,
)
from service.sql.expressions.scalar import Scalar
from service.sql.joins import ONE_SIDED
from service.sql.types.data_types import UNKNOWN as UNKNOWN_OF_TABLE
from workers.engine.plan.expressions import all_of
from workers.engine.plan.nodes import (
    UNKNOWN,
    Aggregate,
    Deduplicate,
    Filter,
    Generate,
    Join,
    Limit,
    Named,
    Node,
    Project,
    Sort,
    Union,
    inputs_of,
    names_of,
    output_of,
)
from workers.engine.plan.traversal import transform_up, with_inputs
from workers.engine.rules.rule import Match, RuleContext, Skip

Value = str | int | bool | None
"""A constant; None is NULL."""

_BOTH = (True, True)
_FILTERED_SIDES = {
    JoinKind.INNER: _BOTH,
    JoinKind.CROSS: _BOTH,
    JoinKind.LEFT_SEMI: _BOTH,
    JoinKind.LEFT: (False, True),
    JoinKind.LEFT_ANTI: (False, True),
    JoinKind.RIGHT: (True, False),
    JoinKind.FULL: (False, False),
}
"""For the left and the right side: whether rows that cannot meet the join's condition do not affect its result."""

_KEPT_SIDES = {JoinKind.LEFT: (True, False), JoinKind.RIGHT: (False, True), JoinKind.FULL: (False, False)}
"""For the left and the right side: whether the join emits only their values, never NULLs instead."""


@dataclass(frozen=True)
class Requirement:
    """A condition requires that `column`, by its name in that condition, is one of `values`."""

    column: str
    values: frozenset[Value]

    def admits(self, value: Value) -> bool:
        """Whether the constant may meet it. Values of different types are not compared."""
        is_comparable = value is None or all(type(one) is type(value) for one in self.values)
        return not is_comparable or value in self.values

    def is_met_by(self, value: Value) -> bool:
        """Whether the constant is known to meet it."""
        return value is not None and any(one == value and type(one) is type(value) for one in self.values)


Required = Mapping[str, tuple[Requirement, ...]]
"""The requirements of conditions above, by column."""


class PruneUnionBranches:
    """Drops the branches of a UNION where a condition above it is true for no row.

    >>> first, second = (Scan(name, name, ((Field(f"{name}.n", BIGINT), "n"),)) for name in ("web", "shop"))
    >>> def branch(scan, kind):
    ...     n = Named(column(f"{scan.alias}.n", BIGINT), "t.n")
    ...     return Project(scan, (Named(literal(kind, STRING), "t.kind"), n))
    >>> both = Union((branch(first, "web"), branch(second, "shop")))
    >>> before = Filter(both, compose("{0} = 'shop'", (column("t.kind", STRING),), BOOLEAN))
    >>> print(text_of(before))
    Filter t.kind = 'shop'
      Union 2 inputs
        Project 'web' AS t.kind, web.n AS t.n
          Scan web AS web [web.n]
        Project 'shop' AS t.kind, shop.n AS t.n
          Scan shop AS shop [shop.n]
    >>> ctx = RuleContext(JobSettings(), Statistics({}, {}, slots=4))
    >>> print(text_of(PruneUnionBranches().rewrite(Match(before, "PRUNED", ""), ctx)))
    Project 'shop' AS t.kind, shop.n AS t.n
      Scan shop AS shop [shop.n]

    A common table expression is often a UNION of several sources, each with a constant that names it, and is read
    several times, for one source each time. Spark drops such branches too, but only after it analysed all of them, and
    after the other rules counted their rows. The rule also removes terms of the condition that all rows of the
    remaining branches meet.

    Fires when:
        - a condition of WHERE, HAVING or ON requires, by `=` or IN, that a column is one of some constants; and
        - the column is another constant, or NULL, in a branch of a UNION below. Joins, projections, DISTINCT, sorts,
          other conditions and group keys may be between the condition and the UNION.

    Does not fire when:
        - the column, or the value that it is compared with, is computed, or the two constants have different types;
        - only Spark can determine the type of a column of the UNION: it depends on all branches;
        - LIMIT, or an aggregate that does not group by the column, is between the condition and the UNION;
        - the condition is in ON, and the join also emits the rows of that side without a partner: this is in the trace.

    Why the result is the same:
        The condition excludes every row of the branch. A row of an outer join that loses its partners has NULL in the
        column, and the condition excludes it too. If all branches could be dropped, the first one is kept. A row of a
        dropped branch can no longer raise an error; the same is true when Spark drops the branch.

    Settings read:
        none
    """

    name = "prune_union_branches"

    def match(self, node: Node, ctx: RuleContext) -> Match[Filter | Join] | Skip | None:
        """Returns None, without a trace, if no branch is dropped."""
        if not isinstance(node, Filter | Join):
            return None
        pruning = _Pruning()
        if _pruned(node, pruning) is not node:
            return Match(node, "PRUNED", pruning.reason())
        return _refusal(node, ctx.above) if isinstance(node, Join) else None

    def rewrite(self, match: Match[Filter | Join], ctx: RuleContext, /) -> Node:
        """Returns the node over the remaining branches."""
        del ctx
        return _pruned(match.node, _Pruning())


def without_excluded_branches(plan: Node) -> Node:
    """Returns `plan` after the rule was applied to all of its nodes."""
    return transform_up(plan, lambda node: _pruned(node, _Pruning()) if isinstance(node, Filter | Join) else node)


def _refusal(node: Join, above: tuple[Scalar, ...]) -> Skip | None:
    """Returns a skip if the condition of a join excludes branches that must still be read; None if it excludes none, or
    if a condition above the join excludes them too.
    """
    pruning = _Pruning()
    _pruned(replace(node, kind=JoinKind.INNER), pruning)
    if not pruning.dropped or any(_dropped_by(condition, node) for condition in above):
        return None
    return Skip(
        f"The condition in ON excludes {pruning.branches()}, but the join is {node.kind.name}: it also emits rows that "
        "have no partner."
    )


def _dropped_by(condition: Scalar, node: Node) -> bool:
    pruning = _Pruning()
    pruning.prune(node, _required_by(condition))
    return bool(pruning.dropped)


def _pruned(node: Filter | Join, pruning: _Pruning) -> Node:
    """Returns `node` without the branches that its own condition excludes; the same object if there are none."""
    if isinstance(node, Filter):
        below = pruning.prune(node.input, _required_by(node.condition))
        if not pruning.dropped:
            return node
        rest = _unmet(node.condition, (below,))
        return below if rest is None else replace(node, input=below, condition=rest)
    if node.residual is None:
        return node
    required = _required_by(node.residual)
    left, right = (
        pruning.prune(side, required) if is_filtered else side
        for side, is_filtered in zip(inputs_of(node), _FILTERED_SIDES[node.kind], strict=True)
    )
    if not pruning.dropped:
        return node
    return replace(node, left=left, right=right, residual=_unmet(node.residual, (left, right)))


@dataclass
class _Pruning:
    """Drops branches, counts them, and collects the columns of the conditions that exclude them."""

    dropped: int = 0
    columns: frozenset[str] = frozenset()

    def branches(self) -> str:
        """Returns the number of dropped branches in words."""
        return "1 branch of a UNION" if self.dropped == 1 else f"{self.dropped} branches of UNION"

    def reason(self) -> str:
        """Returns the reason why they are not read, as a sentence."""
        is_or_are, them = ("is", "it") if self.dropped == 1 else ("are", "them")
        columns = ", ".join(sorted(self.columns))
        return f"{self.branches()} {is_or_are} not read: the condition on {columns} excludes {them}."

    def prune(self, node: Node, required: Required) -> Node:
        """Returns `node` without the branches in which no row meets the requirements; the same object if there are
        none.
        """
        required = {name: needed for name, needed in required.items() if name in names_of(node)}
        if not required:
            return node
        if isinstance(node, Union):
            return self._of_union(node, required)
        below = zip(inputs_of(node), _required_below(node, required), strict=True)
        return with_inputs(node, tuple(self.prune(child, needed) for child, needed in below))

    def _of_union(self, node: Union, required: Required) -> Node:
        kept = list(node.inputs)
        if all(_is_typed(branch) for branch in node.inputs):
            excluding = [_excluding(branch, required) for branch in node.inputs]
            kept = [branch for branch, column in zip(node.inputs, excluding, strict=True) if column is None]
            kept = kept or [node.inputs[0]]
            self.dropped += len(node.inputs) - len(kept)
            self.columns |= {column for column in excluding if column is not None}
        pruned = tuple(self.prune(branch, required) for branch in kept)
        if len(pruned) == 1:
            return pruned[0]
        return with_inputs(node, pruned) if len(pruned) == len(node.inputs) else replace(node, inputs=pruned)


def _is_typed(node: Node) -> bool:
    return all(field.type not in (UNKNOWN, UNKNOWN_OF_TABLE) for field in output_of(node))


def _required_below(node: Node, required: Required) -> tuple[Required, ...]:
    """Returns for each input of `node` the requirements on its rows that follow from those on the rows of `node`."""
    match node:
        case Project():
            return (_renamed(node.items, required),)
        case Aggregate() if not node.grouping_sets:
            return (_renamed(node.keys, required),)
        case Filter() | Sort() | Deduplicate():
            return (required,)
        case Generate():
            return ({name: needed for name, needed in required.items() if name in names_of(node.input)},)
        case Join():
            return (required, {} if node.kind in ONE_SIDED else required)
        case _:
            return tuple({} for _ in inputs_of(node))


def _renamed(items: tuple[Named, ...], required: Required) -> Required:
    below: dict[str, tuple[Requirement, ...]] = {}
    for item in items:
        column = item.expression.column
        if column is not None and item.name in required:
            below[column] = (*below.get(column, ()), *required[item.name])
    return below


def _excluding(node: Node, required: Required) -> str | None:
    """Returns the column of a requirement that no row of `node` meets; None if a row may meet all requirements."""
    for item in _items(node):
        constant = _constant(item.expression) if item.name in required else None
        if constant is not None:
            for requirement in required[item.name]:
                if not requirement.admits(constant.value):
                    return requirement.column
    # If no input row meets the requirements, none of those that LIMIT keeps does.
    below = (required,) if isinstance(node, Limit) else _required_below(node, required)
    found = (_excluding(child, needed) for child, needed in zip(inputs_of(node), below, strict=True) if needed)
    return next((column for column in found if column is not None), None)


def _unmet(condition: Scalar, inputs: tuple[Node, ...]) -> Scalar | None:
    """Returns the terms of `condition` that some rows of `inputs` may not meet; None if all rows meet all terms."""
    fields = tuple(field for node in inputs for field in output_of(node))
    terms = conjuncts_of(condition, columns_by_name(fields))
    return all_of(term for term in terms if not _is_met(term, inputs))


def _is_met(term: Scalar, inputs: tuple[Node, ...]) -> bool:
    if isinstance(term.tree, Connective):
        return False
    required = _required_by(term)
    return bool(required) and all(
        any(_meets(node, name, requirement) for node in inputs)
        for name, requirements in required.items()
        for requirement in requirements
    )


def _meets(node: Node, name: str, requirement: Requirement) -> bool:
    """Whether column `name` is known to meet the requirement in all rows of `node`."""
    if name not in names_of(node):
        return False
    match node:
        case Union():
            return all(_meets(branch, name, requirement) for branch in node.inputs)
        case Join():
            sides = zip(inputs_of(node), _KEPT_SIDES.get(node.kind, _BOTH), strict=True)
            return any(_meets(side, name, requirement) for side, is_kept in sides if is_kept)
        case Project() | Aggregate():
            item = next((item for item in _items(node) if item.name == name), None)
            if item is None or (isinstance(node, Aggregate) and node.grouping_sets):
                return False
            constant, column = _constant(item.expression), item.expression.column
            if constant is not None:
                return requirement.is_met_by(constant.value)
            return column is not None and _meets(node.input, column, requirement)
        case Filter() | Sort() | Deduplicate() | Limit():
            return _meets(node.input, name, requirement)
        case _:
            return False


def _items(node: Node) -> tuple[Named, ...]:
    return node.items if isinstance(node, Project) else node.keys if isinstance(node, Aggregate) else ()


@dataclass(frozen=True)
class _Constant:
    value: Value


def _constant(expression: Scalar) -> _Constant | None:
    return None if expression.columns else _constant_of(expression.tree)


def _constant_of(tree: Expression) -> _Constant | None:
    """Returns the value of a constant expression; None for other expressions, and for types that are not compared."""
    match tree:
        case Null():
            return _Constant(None)
        case Boolean(value) | String(value):
            return _Constant(value)
        case Number(text) if tree.is_integer:
            return _Constant(int(text))
        case Negation(Number(text) as number) if number.is_integer:
            return _Constant(-int(text))
        case Cast(operand, type_):
            # Branches of a UNION are cast to a common type.
            known = _constant_of(operand)
            is_same = known is not None and (known.value is None or (type_.is_integral and type(known.value) is int))
            return known if is_same else None
        case _:
            return None


def _required_by(condition: Scalar) -> Required:
    """Returns the requirements of a condition on the columns that it compares with constants."""
    required: dict[str, tuple[Requirement, ...]] = {}
    for term in conjuncts(condition.tree):
        match term:
            case Comparison("=", Column(name), other) | Comparison("=", other, Column(name)):
                items: tuple[Expression, ...] = (other,)
            case InList(Column(name), items):
                pass
            case _:
                continue
        constants = [_constant_of(item) for item in items]
        known = [constant for constant in constants if constant is not None]
        if len(known) == len(items):
            # Nothing equals NULL.
            values = frozenset(constant.value for constant in known if constant.value is not None)
            required[name] = (*required.get(name, ()), Requirement(name, values))
    return required
