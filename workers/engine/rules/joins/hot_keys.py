"""Finds the keys that make one task of a join slow, by their rows on both sides and in the output."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from service.contract.options import SkewSettings
from service.contract.query import JoinKind
from service.sql.expressions.scalar import Scalar
from service.sql.joins import Side
from workers.engine.plan.expressions import identity_of
from workers.engine.plan.nodes import (
    Aggregate,
    Filter,
    Join,
    MultisetOperation,
    Node,
    Project,
    Recursion,
    Scan,
    StepRows,
    Union,
    Values,
    columns_below,
    columns_of,
    inputs_of,
    join_input,
    join_keys,
    names_of,
    scanned_columns,
)
from workers.engine.plan.traversal import walk_up
from workers.engine.rules.cost import input_tasks, parses_text
from workers.engine.rules.joins.skew_rewrite import PRESERVED_SIDES
from workers.engine.rules.joins.strategy_cost import hashed_bytes
from workers.engine.statistics.cardinality import (
    KeyProfile,
    bytes_per_row,
    estimate_rows,
    label_of,
    original_of,
    profile_of,
    share_before_join,
)
from workers.engine.statistics.model import KeySketch, Statistics, once_per_node
from workers.engine.statistics.partitioning import is_broadcast

MEMORY_PARTS = 8
"""The broadcast rows of hot keys may use a task's memory divided by this number: the rest is for everything else, and a
sample may have missed half of the rows."""


@dataclass(frozen=True)
class KeyLoad:
    """The rows of one join key on both sides, and its values as literals; None if it has no exact literals."""

    value: str
    left: float
    right: float
    literals: tuple[Scalar, ...] | None

    def rows(self, side: Side) -> float:
        """Returns its rows on one side."""
        return self.left if side is Side.LEFT else self.right


@dataclass(frozen=True)
class JoinProfile:
    """How the rows of a join are distributed over its keys.

    `sides` has the distribution per side, `loads` the rows of each hot key, `row_bytes` the bytes per row. `nulls` are
    the rows with a NULL key that the join keeps, `tasks` the number of tasks that read a side. `is_even`: in the
    sample, the rows of a key are in all files of the side. `broadcast_limit` is in bytes of hashed rows; a hashed row
    has `hashed_bytes`. `shuffled_below` are the rows that joins below shuffle each time that they are computed;
    `text_sides` are the sides that read text files.
    """

    kind: JoinKind
    sides: Mapping[Side, KeyProfile]
    loads: tuple[KeyLoad, ...]
    row_bytes: Mapping[Side, float]
    nulls: Mapping[Side, float]
    tasks: Mapping[Side, int]
    is_even: Mapping[Side, bool]
    hashed_bytes: Mapping[Side, float]
    broadcast_limit: float
    slots: int
    shuffled_below: float = 0.0
    text_sides: frozenset[Side] = frozenset()

    @property
    def rows(self) -> float:
        """Rows of both sides."""
        return sum(side.rows for side in self.sides.values())

    def emitted(self, left: float, right: float) -> float:
        """Returns the rows that the join emits for a key with these numbers of rows."""
        match self.kind:
            case JoinKind.LEFT_SEMI:
                return left if right else 0.0
            case JoinKind.LEFT_ANTI:
                return 0.0 if right else left
            case _:
                kept = PRESERVED_SIDES.get(self.kind, ())
                return max(left * right, left if Side.LEFT in kept else 0.0, right if Side.RIGHT in kept else 0.0)

    def out(self, load: KeyLoad) -> float:
        """Returns the rows that the join emits for a hot key."""
        return self.emitted(load.left, load.right)

    def handled(self, load: KeyLoad) -> float:
        """Returns the rows that the task of a hot key reads, sorts and emits."""
        return 2 * (load.left + load.right) + self.out(load)

    @property
    def other_rows(self) -> float:
        """Rows of both sides whose keys are not hot."""
        return sum(side.other_rows for side in self.sides.values())

    @property
    def other_out(self) -> float:
        """Rows that the join emits for keys that are not hot."""
        left, right = self.sides[Side.LEFT], self.sides[Side.RIGHT]
        widest = max(left.other_values, right.other_values, 1.0)
        return self.emitted(left.other_rows / widest, right.other_rows / widest) * widest

    @property
    def emitted_rows(self) -> float:
        """Rows that the join emits."""
        return self.other_out + sum(self.out(load) for load in self.loads)


@once_per_node
def join_profile(join: Join, statistics: Statistics, above: tuple[Scalar, ...] = ()) -> JoinProfile | None:
    """Returns the profile of `join`; None if a key is not a column, or one side has no statistics for its keys.

    `above` are conditions above the join; Spark evaluates those on one side before the join. A split join below counts
    as the join that it replaces.
    """
    join = replace(join, left=original_of(join.left, statistics), right=original_of(join.right, statistics))
    inputs = {side: join_input(join, side) for side in Side}
    sides: dict[Side, KeyProfile] = {}
    sketches: dict[Side, KeySketch] = {}
    for side in Side:
        names = _key_columns(join, side)
        profile = profile_of(inputs[side], names, statistics) if names else None
        sketch = _sketch_of(inputs[side], names, statistics) if names else None
        if profile is None or sketch is None:
            return None
        sides[side] = profile.scaled(share_before_join(inputs[side], above, statistics))
        sketches[side] = sketch
    return JoinProfile(
        kind=join.kind,
        sides=sides,
        loads=_loads(sides, sketches),
        row_bytes={side: bytes_per_row(inputs[side], statistics) for side in Side},
        nulls={side: _nulls(join, side, sides[side], sketches[side]) for side in Side},
        tasks={side: input_tasks(inputs[side], statistics) for side in Side},
        is_even={side: statistics.is_adaptive and sketches[side].representative for side in Side},
        hashed_bytes={side: hashed_bytes(inputs[side], statistics) for side in Side},
        broadcast_limit=statistics.task_memory / MEMORY_PARTS,
        slots=max(1, statistics.slots),
        shuffled_below=sum(rows_shuffled_by_joins(inputs[side], statistics) for side in Side),
        text_sides=frozenset(side for side in Side if parses_text(inputs[side], statistics)),
    )


@once_per_node
def rows_shuffled_by_joins(node: Node, statistics: Statistics) -> float:
    """Returns the rows that the joins of `node` shuffle each time that it is computed."""
    joins = (part for part in walk_up(node) if isinstance(part, Join) and not is_broadcast(part, statistics))
    return float(sum(estimate_rows(one, statistics) or 0 for join in joins for one in inputs_of(join)))


def _key_columns(join: Join, side: Side) -> tuple[str, ...] | None:
    names = columns_of(join_keys(join, side))
    return names if names is not None and len(names) == len(join.keys) else None


def _sketch_of(node: Node, columns: tuple[str, ...], statistics: Statistics) -> KeySketch | None:
    """Returns the sketch of the table columns that `node` emits as `columns`."""
    match node:
        case Scan():
            return statistics.keys.get(columns)
        case Project():
            renamed = columns_below(node.items, columns)
            return _sketch_of(node.input, renamed, statistics) if renamed else None
        case Join():
            side = node.left if set(columns) <= names_of(node.left) else node.right
            return _sketch_of(side, columns, statistics)
        case Aggregate() | Union() | MultisetOperation() | Values() | Recursion() | StepRows():
            return None
        case _:
            return _sketch_of(node.input, columns, statistics)


def _loads(sides: Mapping[Side, KeyProfile], sketches: Mapping[Side, KeySketch]) -> tuple[KeyLoad, ...]:
    """Returns the rows of each hot key. Literals identify a value, since the files of each side may have another text
    for it.
    """
    literals = {side: _literals(sketch) for side, sketch in sketches.items()}
    named: dict[str, tuple[str, tuple[Scalar, ...] | None]] = {}
    rows: dict[Side, dict[str, float]] = {side: {} for side in Side}
    nulls = frozenset[str]().union(*(profile.nulls for profile in sides.values()))
    for side in Side:
        for label, count in sides[side].hot:
            if label in nulls:
                continue
            values = literals[side].get(label) or literals[side.other].get(label)
            # The text of a key without a literal may equal that of a literal by chance. This is only an estimate.
            identity = label if values is None else identity_of(values)
            named.setdefault(identity, (label, values))
            rows[side][identity] = rows[side].get(identity, 0.0) + count
    even = {side: profile.even_rows for side, profile in sides.items()}
    left, right = rows[Side.LEFT], rows[Side.RIGHT]
    return tuple(
        KeyLoad(label, left.get(identity, even[Side.LEFT]), right.get(identity, even[Side.RIGHT]), values)
        for identity, (label, values) in named.items()
    )


def _literals(sketch: KeySketch) -> Mapping[str, tuple[Scalar, ...]]:
    """Returns the literals of the hot keys by label, without labels of two keys: long texts are truncated."""
    labels = [label_of(key) for key in sketch.hot_keys]
    found = zip(labels, sketch.literals or (None,) * len(labels), strict=True)
    return {label: values for label, values in found if values is not None and labels.count(label) == 1}


def _nulls(join: Join, side: Side, profile: KeyProfile, sketch: KeySketch) -> float:
    if side not in PRESERVED_SIDES.get(join.kind, ()) or join.null_safe:
        return 0.0
    return sketch.null_share * profile.rows


def hot_key_loads(profile: JoinProfile, skew: SkewSettings) -> tuple[KeyLoad, ...]:
    """Returns the keys that would keep one task busy: those with more rows than `skew.factor` times the other keys'
    rows per slot, and at least `skew.threshold` bytes, on one side or in the output.
    """
    emitted = profile.emitted_rows
    width = sum(profile.row_bytes.values())
    return tuple(
        load
        for load in profile.loads
        if _is_hot(profile.out(load), emitted, width, profile.slots, skew)
        or any(
            _is_hot(load.rows(side), profile.sides[side].rows, profile.row_bytes[side], profile.slots, skew)
            for side in Side
        )
    )


def filtered_by_key(join: Join, statistics: Statistics, above: tuple[Scalar, ...]) -> bool:
    """Whether one of the conditions `above`, or one below the join, is on a key, and so may remove a hot key. The
    conditions by which a split join below divides its rows do not count.
    """
    join = replace(join, left=original_of(join.left, statistics), right=original_of(join.right, statistics))
    keys = origins_of(join, (name for key in join.keys for scalar in key for name in scalar.columns))
    below = (origins_of(node.input, node.condition.columns) for node in walk_up(join) if isinstance(node, Filter))
    return any(not keys.isdisjoint(names) for names in (*(origins_of(join, one.columns) for one in above), *below))


def origins_of(node: Node, names: Iterable[str]) -> frozenset[str]:
    """Returns the columns `names` of `node`, and the table columns from which they come."""
    given = frozenset(names)
    return given.union(*(scanned_columns(node, (name,)) or () for name in given))


def sides_with_hot_nulls(profile: JoinProfile, skew: SkewSettings) -> tuple[Side, ...]:
    """Returns the sides with a hot NULL key: they keep many such rows, and all are hashed to one task."""
    return tuple(
        side
        for side, rows in profile.nulls.items()
        if _is_hot(rows, profile.sides[side].rows, profile.row_bytes[side], profile.slots, skew)
    )


def sides_keeping_nulls(profile: JoinProfile) -> tuple[Side, ...]:
    """Returns the sides that keep rows with a NULL key, even if they are few."""
    return tuple(side for side in Side if profile.nulls[side])


def _is_hot(rows: float, of_all: float, row_bytes: float, slots: int, skew: SkewSettings) -> bool:
    return rows > skew.factor * max(of_all - rows, 0.0) / slots and rows * row_bytes >= max(skew.threshold, 1)


def frequent_keys(profile: JoinProfile) -> tuple[KeyLoad, ...]:
    """Returns the keys with more rows of a side, or of the output, than a task has on average, with two tasks per slot;
    without such a key, the key with the most work. A forced strategy handles these keys.
    """
    least = 1 / (2 * profile.slots)
    emitted = profile.emitted_rows
    nameable = [load for load in profile.loads if load.literals is not None]
    found = tuple(
        load
        for load in nameable
        if profile.out(load) > least * emitted
        or any(load.rows(side) > least * profile.sides[side].rows for side in Side)
    )
    most = max(nameable, key=lambda load: profile.handled(load), default=None)
    return found or (() if most is None else (most,))
