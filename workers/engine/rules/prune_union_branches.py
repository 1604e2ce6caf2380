"""The rule `prune_union_branches`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from service.spec.query import JoinKind
from service.spec.scalar import Scalar
from service.spec.scalar_trees import read_scalar
from service.spec.tree import Boolean, Cast, Comparison, Connective, Expression, InList, Name, Negation, Null, Number
from service.spec.tree import String as Text
from workers.engine.plan.nodes import Aggregate, Deduplicate, Filter, Join, Named, Node, Project, Sort, Union, inputs_of
from workers.engine.plan.schema import ONE_SIDED, names_of
from workers.engine.plan.transform import transform_up, with_inputs
from workers.engine.rules.rule import Match, RuleContext, Skip

Value = str | int | bool | None
"""A constant; None is NULL."""

Allowed = Mapping[str, tuple[frozenset[Value], ...]]
"""By column: sets of constants, of each of which the column's value must be one."""

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
"""Of the left and the right side: whether a row for which the join's condition is never true changes nothing."""


class PruneUnionBranches:
    """Drops the branches of a UNION in which a condition can be true of no row.

    >>> first, second = (Scan(name, name, ((Field(f"{name}.n", BIGINT), "n"),)) for name in ("web", "shop"))
    >>> def branch(scan, kind):
    ...     n = Named(column(f"{scan.alias}.n", BIGINT), "t.n")
    ...     return Project(scan, (Named(Scalar(f"'{kind}'", (), STRING), "t.kind"), n))
    >>> both = Union((branch(first, "web"), branch(second, "shop")))
    >>> before = Filter(both, Scalar("`t.kind` = 'shop'", ("t.kind",), BOOLEAN))
    >>> print(text_of(before))
    Filter t.kind = 'shop'
      Union 2 inputs
        Project 'web' AS t.kind, web.n AS t.n
          Scan web AS web [web.n]
        Project 'shop' AS t.kind, shop.n AS t.n
          Scan shop AS shop [shop.n]
    >>> ctx = RuleContext(JobSettings(), Statistics({}, {}, slots=4))
    >>> print(text_of(PruneUnionBranches().rewrite(Match(before, "PRUNED", ""), ctx)))
    Filter t.kind = 'shop'
      Project 'shop' AS t.kind, shop.n AS t.n
        Scan shop AS shop [shop.n]

    A common table expression that unites several sources, each with a constant that names it, is often read several
    times, for one source each time. Spark drops such branches too, but after it has analysed all of them, and after the
    other rules have counted their rows.

    Fires when:
        - a condition of WHERE, HAVING or ON requires, by `=` or IN, that a column is one of some constants; and
        - the column is another constant, or NULL, in a branch of a UNION below. Joins, projections, DISTINCT, sorts,
          other conditions and group keys may stand between the condition and the UNION.

    Does not fire when:
        - the column, or what it is compared with, is computed, or the two constants are of different types;
        - LIMIT, or an aggregate that does not group by the column, stands between the condition and the UNION;
        - the condition is in ON, and the join emits the rows of that side that have no partner: it says so then.

    Why the result is the same:
        The condition leaves out every row of the branch. A row of an outer join that has lost its partners has NULL in
        the column, and the condition leaves it out too. One branch stays where all could be dropped.

    Settings read:
        none
    """

    name = "prune_union_branches"

    def match(self, node: Node, ctx: RuleContext) -> Match[Filter | Join] | Skip | None:
        """As the class says; None, untraced, where no branch is dropped."""
        del ctx
        if not isinstance(node, Filter | Join):
            return None
        pruning = _Pruning()
        if _prune_below(node, pruning) is not node:
            return Match(node, "PRUNED", pruning.reason())
        return _refusal(node) if isinstance(node, Join) else None

    def rewrite(self, match: Match[Filter | Join], ctx: RuleContext, /) -> Node:
        """The node over the branches that are left."""
        del ctx
        return _prune_below(match.node, _Pruning())


def without_excluded_branches(plan: Node) -> Node:
    """`plan` as the rule leaves it."""
    return transform_up(plan, lambda node: _prune_below(node, _Pruning()) if isinstance(node, Filter | Join) else node)


def _refusal(node: Join) -> Skip | None:
    """Why branches that the condition of a join excludes are read; None where it excludes none."""
    pruning = _Pruning()
    _prune_below(replace(node, kind=JoinKind.INNER), pruning)
    if not pruning.dropped:
        return None
    return Skip(
        f"The condition in ON excludes {pruning.branches()}, but the join is {node.kind.name}: it also emits rows that "
        "have no partner."
    )


def _prune_below(node: Filter | Join, pruning: _Pruning) -> Node:
    """`node` with the branches dropped that its own condition excludes."""
    if isinstance(node, Filter):
        return with_inputs(node, (pruning.prune(node.input, _allowed_by(node.condition)),))
    if node.residual is None:
        return node
    allowed = _allowed_by(node.residual)
    sides = zip(inputs_of(node), _FILTERED_SIDES[node.kind], strict=True)
    return with_inputs(node, tuple(pruning.prune(side, allowed) if filtered else side for side, filtered in sides))


@dataclass
class _Pruning:
    """Drops branches; counts them, and collects the columns of the conditions that exclude them."""

    dropped: int = 0
    columns: frozenset[str] = frozenset()

    def branches(self) -> str:
        """How many branches were dropped, in words."""
        return "1 branch of a UNION" if self.dropped == 1 else f"{self.dropped} branches of UNION"

    def reason(self) -> str:
        """Why they are not read, as a sentence."""
        is_or_are, them = ("is", "it") if self.dropped == 1 else ("are", "them")
        columns = " and ".join(sorted(self.columns))
        return f"{self.branches()} {is_or_are} not read: the condition on {columns} excludes {them}."

    def prune(self, node: Node, allowed: Allowed) -> Node:
        """`node` without branches whose rows all have another value in a column of `allowed`; the same object where
        there are none.
        """
        allowed = {name: sets for name, sets in allowed.items() if name in names_of(node)}
        if not allowed:
            return node
        if isinstance(node, Union):
            return self._of_union(node, allowed)
        return with_inputs(
            node,
            tuple(
                self.prune(child, below)
                for child, below in zip(inputs_of(node), _allowed_below(node, allowed), strict=True)
            ),
        )

    def _of_union(self, node: Union, allowed: Allowed) -> Node:
        excluded = [_excluding(branch, allowed) for branch in node.inputs]
        kept = [branch for branch, column in zip(node.inputs, excluded, strict=True) if column is None]
        kept = kept or [node.inputs[0]]
        self.dropped += len(node.inputs) - len(kept)
        if len(kept) < len(node.inputs):
            self.columns |= {column for column in excluded if column is not None}
        pruned = tuple(self.prune(branch, allowed) for branch in kept)
        if len(pruned) == 1:
            return pruned[0]
        return with_inputs(node, pruned) if len(pruned) == len(node.inputs) else replace(node, inputs=pruned)


def _allowed_below(node: Node, allowed: Allowed) -> tuple[Allowed, ...]:
    """For each input of `node`: what its rows must have so that the rows of `node` have what is allowed."""
    match node:
        case Project():
            return (_renamed(node.items, allowed),)
        case Aggregate() if not node.grouping_sets:
            return (_renamed(node.keys, allowed),)
        case Filter() | Sort() | Deduplicate():
            return (allowed,)
        case Join():
            return (allowed, {} if node.kind in ONE_SIDED else allowed)
        case _:
            return tuple({} for _ in inputs_of(node))


def _renamed(items: tuple[Named, ...], allowed: Allowed) -> Allowed:
    below: dict[str, tuple[frozenset[Value], ...]] = {}
    for item in items:
        column = item.expression.column
        if column is not None and item.name in allowed:
            below[column] = (*below.get(column, ()), *allowed[item.name])
    return below


def _excluding(node: Node, allowed: Allowed) -> str | None:
    """The column whose value in all rows of `node` is one that is not allowed; None where there may be other rows."""
    items = node.items if isinstance(node, Project) else node.keys if isinstance(node, Aggregate) else ()
    for item in items:
        if item.name in allowed and not item.expression.columns and not _may_be(item.expression, allowed[item.name]):
            return item.name
    if isinstance(node, Aggregate) and node.grouping_sets:
        return None
    for child, below in zip(inputs_of(node), _allowed_below(node, allowed), strict=True):
        column = _excluding(child, below) if below else None
        if column is not None:
            above = (item.name for item in items if item.expression.column == column)
            return next(above, column)
    return None


def _may_be(constant: Scalar, sets: tuple[frozenset[Value], ...]) -> bool:
    """Whether the constant may be in all of the sets. Values of different types are not compared."""
    tree = read_scalar(constant)
    value = None if tree is None else _value_of(tree)
    if value is None:
        return True
    return all(value.value in values for values in sets if value.is_comparable_with(values))


@dataclass(frozen=True)
class _Known:
    value: Value

    def is_comparable_with(self, values: frozenset[Value]) -> bool:
        return self.value is None or all(type(value) is type(self.value) for value in values)


def _value_of(tree: Expression) -> _Known | None:
    """The constant that a tree is; None for what is no constant or of a type whose values are not compared here."""
    match tree:
        case Null():
            return _Known(None)
        case Boolean(value) | Text(value):
            return _Known(value)
        case Number(text) if tree.is_integer:
            return _Known(int(text))
        case Negation(Number(text) as number) if number.is_integer:
            return _Known(-int(text))
        case Cast(operand, type_):
            # A constant that gives the branches of a UNION one type.
            known = _value_of(operand)
            is_same = known is not None and (known.value is None or (type_.is_integral and type(known.value) is int))
            return known if is_same else None
        case _:
            return None


def _allowed_by(condition: Scalar) -> Allowed:
    """What a condition requires of columns that it compares with constants."""
    tree = read_scalar(condition)
    allowed: dict[str, tuple[frozenset[Value], ...]] = {}
    for term in () if tree is None else _terms(tree):
        match term:
            case Comparison("=", Name(_, name), other) | Comparison("=", other, Name(_, name)):
                items: tuple[Expression, ...] = (other,)
            case InList(Name(_, name), items):
                pass
            case _:
                continue
        known = [_value_of(item) for item in items]
        if all(value is not None for value in known):
            # Nothing equals NULL.
            values = frozenset(value.value for value in known if value is not None and value.value is not None)
            allowed[name] = (*allowed.get(name, ()), values)
    return allowed


def _terms(tree: Expression) -> Iterator[Expression]:
    """The terms of an AND, also of those inside it; the whole tree where it is none."""
    if isinstance(tree, Connective) and tree.operator == "AND":
        for term in tree.terms:
            yield from _terms(term)
    else:
        yield tree
