"""Equalities of WHERE as join keys: `FROM a, b WHERE a.k = b.k` is an equi-join, as it is to Spark's optimizer.

Only equalities of two columns move: evaluating them earlier can fail for no row.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, replace
from operator import itemgetter

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
    tables = _Tables(first, steps)
    pairs = _Pairs(tables, (pair for term in (*terms, *_implied(terms)) if (pair := _pair(term)) is not None))
    ordered = _ordered(steps, tables, pairs)
    last_kept = max((index for index, step in enumerate(ordered) if step.join.kind not in _KEEPS_LEFT), default=-1)
    placed, done = {_FIRST}, list[Step]()
    for index, step in enumerate(ordered):
        movable = step.join.kind in _INNER and index >= last_kept
        done.append(replace(step, moved=pairs.between(placed, step.index) if movable else ()))
        placed.add(step.index)
    used = {frozenset(pair) for step in done for pair in step.moved}
    rest = tuple(term for term in terms if (pair := _pair(term)) is None or frozenset(pair) not in used)
    if len(rest) == len(terms):
        return tuple(done), where
    return tuple(done), None if not rest else rest[0] if len(rest) == 1 else Connective("AND", rest)


_FIRST = -1
"""The number of the first table; a joined one has the index of its step."""


class _Tables:
    """Which table a column belongs to."""

    def __init__(self, first: frozenset[str], steps: Sequence[Step]) -> None:
        self._of_column = dict.fromkeys(first, _FIRST)
        for step in steps:
            self._of_column.update(dict.fromkeys(step.columns, step.index))

    def of(self, column: str) -> int | None:
        """The number of the table that has `column`; None where no table of this query has it."""
        return self._of_column.get(column)

    def read_by(self, step: Step) -> set[int | None]:
        """The tables that the condition of `step` reads, its own left out."""
        return {self.of(name) for name in step.reads} - {step.index}


class _Pairs:
    """Equalities between two tables, by table: each is looked at for its own tables alone."""

    def __init__(self, tables: _Tables, pairs: Iterable[Equality]) -> None:
        self._of_table: dict[int, dict[int, list[tuple[int, Equality]]]] = {}
        for number, (one, other) in enumerate(pairs):
            left, right = tables.of(one.name), tables.of(other.name)
            if left is None or right is None or left == right:
                continue
            self._of_table.setdefault(right, {}).setdefault(left, []).append((number, (one, other)))
            self._of_table.setdefault(left, {}).setdefault(right, []).append((number, (other, one)))

    def connect(self, placed: Set[int], table: int) -> bool:
        """Whether an equality connects `table` to one of the tables `placed`."""
        return not placed.isdisjoint(self._of_table.get(table, ()))

    def between(self, placed: Set[int], table: int) -> tuple[Equality, ...]:
        """The equalities between the tables `placed`, on the left, and `table`, in their order in WHERE."""
        found = [pair for left, pairs in self._of_table.get(table, {}).items() if left in placed for pair in pairs]
        return tuple(dict.fromkeys(pair for _, pair in sorted(found, key=itemgetter(0))))


def _ordered(steps: Sequence[Step], tables: _Tables, pairs: _Pairs) -> list[Step]:
    run = next((index for index, step in enumerate(steps) if step.join.kind not in _INNER), len(steps))
    pending, rest = list(steps[:run]), list(steps[run:])
    if any(step.is_told for step in pending):
        return list(steps)
    reads = {step.index: tables.read_by(step) for step in pending}
    placed, ordered = {_FIRST}, list[Step]()
    while pending:
        ready = [step for step in pending if reads[step.index] <= placed]
        joined = (step for step in ready if step.join.kind is not JoinKind.CROSS or pairs.connect(placed, step.index))
        step = next(joined, ready[0])
        pending.remove(step)
        ordered.append(step)
        placed.add(step.index)
    return ordered + rest


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
            in_all = frozenset(first).intersection(*others)
            found += [part for part in first if part in in_all]
    return found
