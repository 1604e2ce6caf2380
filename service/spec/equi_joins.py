"""Equalities of WHERE as join keys: `FROM a, b WHERE a.k = b.k` is an equi-join, as it is to Spark's optimizer.

Only equalities of two columns move: evaluating them earlier can fail for no row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from service.spec.query import Join, JoinKind
from service.spec.scalar import Scalar
from service.spec.tree import Column, Comparison, Connective, Expression
from service.spec.types import NUMERIC, TEMPORAL

_INNER = frozenset({JoinKind.INNER, JoinKind.CROSS})
_KEEPS_LEFT = _INNER | {JoinKind.LEFT, JoinKind.LEFT_SEMI, JoinKind.LEFT_ANTI}
"""Joins that a condition on the tables before them may pass."""

Equality = tuple[Column, Column]


@dataclass(frozen=True)
class Step:
    """A join whose expressions are bound. `index` is its place in the query, `columns` are those of the joined table;
    `moved` equalities came from WHERE, the tables before on their left.
    """

    index: int
    join: Join
    alias: str
    columns: frozenset[str]
    keys: tuple[tuple[Scalar, Scalar], ...] = ()
    residual: Scalar | None = None
    moved: tuple[Equality, ...] = ()

    @property
    def kind(self) -> JoinKind:
        """The kind of the join, a cross join with keys being an inner one."""
        return JoinKind.INNER if self.join.kind is JoinKind.CROSS and self.moved else self.join.kind

    @property
    def reads(self) -> frozenset[str]:
        """The columns that its own condition reads."""
        scalars = [side for key in self.keys for side in key]
        scalars += [self.residual] if self.residual is not None else []
        return frozenset(name for scalar in scalars for name in scalar.columns)

    @property
    def is_told(self) -> bool:
        """Whether the caller told how this join is to run."""
        return any(way is not None for way in (self.join.ship, self.join.local, self.join.skew))


def with_equalities(
    first: frozenset[str], steps: Sequence[Step], where: Expression
) -> tuple[tuple[Step, ...], Expression | None]:
    """The joins with the equalities of `where` as keys, and the rest of `where`; `first` are the first table's columns.

    Cross joins of one inner run may change places, so that each table is joined by a key where one connects it to those
    before, in the order that the caller gave otherwise.
    """
    if not any(step.join.kind in _INNER for step in steps):
        return tuple(steps), where
    terms = _terms(where)
    open_ = [pair for term in (*terms, *_implied(terms)) if (pair := _pair(term)) is not None]
    placed, done = first, list[Step]()
    ordered = _ordered(first, steps, open_)
    for index, step in enumerate(ordered):
        later = ordered[index + 1 :]
        moved: list[Equality] = []
        if step.join.kind in _INNER and all(other.join.kind in _KEEPS_LEFT for other in later):
            moved = [turned for pair in open_ if (turned := _turned(pair, placed, step.columns)) is not None]
            open_ = [pair for pair in open_ if _turned(pair, placed, step.columns) is None]
        done.append(replace(step, moved=tuple(dict.fromkeys(moved))))
        placed |= step.columns
    used = {frozenset(pair) for step in done for pair in step.moved}
    rest = tuple(term for term in terms if (pair := _pair(term)) is None or frozenset(pair) not in used)
    if len(rest) == len(terms):
        return tuple(done), where
    return tuple(done), None if not rest else rest[0] if len(rest) == 1 else Connective("AND", rest)


def _ordered(first: frozenset[str], steps: Sequence[Step], pairs: Sequence[Equality]) -> list[Step]:
    run = next((index for index, step in enumerate(steps) if step.join.kind not in _INNER), len(steps))
    pending, rest = list(steps[:run]), list(steps[run:])
    if any(step.is_told for step in pending):
        return list(steps)
    placed, ordered = first, list[Step]()
    while pending:
        ready = [step for step in pending if step.reads <= placed | step.columns]
        joined = (
            step
            for step in ready
            if step.join.kind is not JoinKind.CROSS or any(_turned(pair, placed, step.columns) for pair in pairs)
        )
        step = next(joined, ready[0])
        pending.remove(step)
        ordered.append(step)
        placed |= step.columns
    return ordered + rest


def _turned(pair: Equality, left: frozenset[str], right: frozenset[str]) -> Equality | None:
    one, other = pair
    if one.name in left and other.name in right:
        return one, other
    return (other, one) if other.name in left and one.name in right else None


def _pair(term: Expression) -> Equality | None:
    """Both columns of an equality whose sides Spark compares as they are, or as numbers or times."""
    if not isinstance(term, Comparison) or term.operator != "=":
        return None
    left, right = term.left, term.right
    if not isinstance(left, Column) or not isinstance(right, Column) or left.type is None or right.type is None:
        return None
    names = {left.type.name, right.type.name}
    alike = left.type == right.type or names <= NUMERIC or names <= TEMPORAL
    return (left, right) if alike and left.name != right.name else None


def _terms(tree: Expression) -> tuple[Expression, ...]:
    return tree.terms if isinstance(tree, Connective) and tree.operator == "AND" else (tree,)


def _implied(terms: Sequence[Expression]) -> list[Expression]:
    """What all branches of an OR demand alike: `(a AND x) OR (a AND y)` demands a, and stays as it is beside it."""
    found: list[Expression] = []
    for term in terms:
        if isinstance(term, Connective) and term.operator == "OR":
            first, *others = (_terms(branch) for branch in term.terms)
            found += [part for part in first if all(part in other for other in others)]
    return found
