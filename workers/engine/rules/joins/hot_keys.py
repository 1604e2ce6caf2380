"""Which keys make one task of a join slow: rows of both sides and of the output, key by key."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from service.contract.options import SkewSettings
from service.contract.query import JoinKind
from service.sql.expressions.scalar import Scalar
from workers.engine.plan.expressions import identity_of
from workers.engine.plan.nodes import (
    Aggregate,
    Filter,
    Join,
    Node,
    Project,
    Scan,
    Union,
    columns_below,
    columns_of,
    inputs_of,
    names_of,
    scanned_columns,
)
from workers.engine.plan.traversal import walk_up
from workers.engine.rules.distinct.aggregate_cost import input_tasks, parses_text
from workers.engine.rules.joins.skew_rewrite import KEEPS, Side
from workers.engine.rules.joins.strategy_cost import hashed_bytes
from workers.engine.statistics.cardinality import (
    KeyProfile,
    bytes_per_row,
    estimate_rows,
    in_one_piece,
    label_of,
    profile_of,
)
from workers.engine.statistics.model import KeySketch, Statistics, once_per_node
from workers.engine.statistics.partitioning import is_broadcast
from workers.engine.statistics.selectivity import share_of

MEMORY_PARTS = 8
"""Into so many parts a task's memory is cut, of which the hot rows that are broadcast may take one: they are held
beside everything else, and a sample may have missed half of them."""


@dataclass(frozen=True)
class Load:
    """One key of a join: its rows on both sides, and its values as literals where it can be named."""

    value: str
    left: float
    right: float
    literals: tuple[Scalar, ...] | None

    def rows(self, side: Side) -> float:
        """Its rows of one side."""
        return self.left if side is Side.LEFT else self.right


@dataclass(frozen=True)
class JoinProfile:
    """What is known of a join: how its sides spread over its keys, rows of both by hot key, and bytes of a row.

    `nulls` has the rows with a NULL key that a side keeps, and `tasks` those that read a side. `even` says that the
    rows of a side lie all over its files, as far as the sample tells. `room` is what may be broadcast, in bytes of
    hashed rows, of which one has `hashed_bytes`. `sent_below` are the rows that joins below send, each time that they
    are computed; `parsed` are the sides that read text files.
    """

    kind: JoinKind
    sides: Mapping[Side, KeyProfile]
    loads: tuple[Load, ...]
    row_bytes: Mapping[Side, float]
    nulls: Mapping[Side, float]
    tasks: Mapping[Side, int]
    even: Mapping[Side, bool]
    hashed_bytes: Mapping[Side, float]
    room: float
    slots: int
    sent_below: float = 0.0
    parsed: frozenset[Side] = frozenset()

    @property
    def rows(self) -> float:
        """Of both sides."""
        return sum(side.rows for side in self.sides.values())

    def emitted(self, left: float, right: float) -> float:
        """Rows that a key of so many rows emits."""
        match self.kind:
            case JoinKind.LEFT_SEMI:
                return left if right else 0.0
            case JoinKind.LEFT_ANTI:
                return 0.0 if right else left
            case _:
                kept = KEEPS.get(self.kind, ())
                return max(left * right, left if Side.LEFT in kept else 0.0, right if Side.RIGHT in kept else 0.0)

    def out(self, load: Load) -> float:
        """Rows that a hot key emits."""
        return self.emitted(load.left, load.right)

    def handled(self, load: Load) -> float:
        """Rows that the task of a hot key reads, sorts and emits."""
        return 2 * (load.left + load.right) + self.out(load)

    @property
    def other_rows(self) -> float:
        """Rows of all keys but the hot ones, of both sides."""
        return sum(side.other_rows for side in self.sides.values())

    @property
    def other_out(self) -> float:
        """Rows that all keys but the hot ones emit."""
        left, right = self.sides[Side.LEFT], self.sides[Side.RIGHT]
        widest = max(left.other_values, right.other_values, 1.0)
        return self.emitted(left.other_rows / widest, right.other_rows / widest) * widest

    @property
    def emitted_rows(self) -> float:
        """Rows that the join emits."""
        return self.other_out + sum(self.out(load) for load in self.loads)


@once_per_node
def join_profile(join: Join, statistics: Statistics, above: tuple[Scalar, ...] = ()) -> JoinProfile | None:
    """None where a key is not a column, or nothing is known of the keys of one side.

    `above` are conditions that Spark filters by before the join, where they are about one side alone. A join in parts
    below counts as the one join that it is.
    """
    join = replace(join, left=in_one_piece(join.left, statistics), right=in_one_piece(join.right, statistics))
    columns = {side: _columns(join, index) for index, side in enumerate(Side)}
    inputs = {Side.LEFT: join.left, Side.RIGHT: join.right}
    sides: dict[Side, KeyProfile] = {}
    sketches: dict[Side, KeySketch] = {}
    for side, names in columns.items():
        profile = profile_of(inputs[side], names, statistics) if names else None
        sketch = _sketch_of(inputs[side], names, statistics) if names else None
        if profile is None or sketch is None:
            return None
        own = (one for one in above if one.columns and names_of(inputs[side]) >= set(one.columns))
        kept = math.prod(share_of(one, statistics) for one in own)
        sides[side], sketches[side] = profile.scaled(kept), sketch
    return JoinProfile(
        kind=join.kind,
        sides=sides,
        loads=_loads(sides, sketches),
        row_bytes={side: bytes_per_row(inputs[side], statistics) for side in Side},
        nulls={side: _nulls(join, side, sides[side], sketches[side]) for side in Side},
        tasks={side: input_tasks(inputs[side], statistics) for side in Side},
        even={side: statistics.is_adaptive and sketches[side].representative for side in Side},
        hashed_bytes={side: hashed_bytes(inputs[side], statistics) for side in Side},
        room=statistics.task_memory / MEMORY_PARTS,
        slots=max(1, statistics.slots),
        sent_below=sum(_sent(inputs[side], statistics) for side in Side),
        parsed=frozenset(side for side in Side if parses_text(inputs[side], statistics)),
    )


@once_per_node
def _sent(node: Node, statistics: Statistics) -> float:
    joins = (part for part in walk_up(node) if isinstance(part, Join) and not is_broadcast(part, statistics))
    return float(sum(estimate_rows(one, statistics) or 0 for join in joins for one in inputs_of(join)))


def _columns(join: Join, index: int) -> tuple[str, ...] | None:
    names = columns_of(key[index] for key in join.keys)
    return names if names is not None and len(names) == len(join.keys) else None


def _sketch_of(node: Node, columns: tuple[str, ...], statistics: Statistics) -> KeySketch | None:
    """The sketch of what `columns` of `node` are in their table."""
    match node:
        case Scan():
            return statistics.keys.get(columns)
        case Project():
            renamed = columns_below(node.items, columns)
            return _sketch_of(node.input, renamed, statistics) if renamed else None
        case Join():
            side = node.left if set(columns) <= names_of(node.left) else node.right
            return _sketch_of(side, columns, statistics)
        case Aggregate() | Union():
            return None
        case _:
            return _sketch_of(node.input, columns, statistics)


def _loads(sides: Mapping[Side, KeyProfile], sketches: Mapping[Side, KeySketch]) -> tuple[Load, ...]:
    """By value, where literals tell it: one value may have another text in the files of each side."""
    literals = {side: _literals(sketch) for side, sketch in sketches.items()}
    named: dict[str, tuple[str, tuple[Scalar, ...] | None]] = {}
    rows: dict[Side, dict[str, float]] = {side: {} for side in Side}
    nulls = frozenset[str]().union(*(profile.nulls for profile in sides.values()))
    for side in Side:
        for label, count in sides[side].hot:
            if label in nulls:
                continue
            values = literals[side].get(label) or literals[side.other].get(label)
            # A text without a literal is not that of a literal, but for one by chance: an estimate, no more.
            identity = label if values is None else identity_of(values)
            named.setdefault(identity, (label, values))
            rows[side][identity] = rows[side].get(identity, 0.0) + count
    even = {side: profile.even_rows for side, profile in sides.items()}
    left, right = rows[Side.LEFT], rows[Side.RIGHT]
    return tuple(
        Load(label, left.get(identity, even[Side.LEFT]), right.get(identity, even[Side.RIGHT]), values)
        for identity, (label, values) in named.items()
    )


def _literals(sketch: KeySketch) -> Mapping[str, tuple[Scalar, ...]]:
    """Of the hot keys, by label; none of a label that two of them have, as long texts may that are cut short."""
    labels = [label_of(key) for key in sketch.hot_keys]
    found = zip(labels, sketch.literals or (None,) * len(labels), strict=True)
    return {label: values for label, values in found if values is not None and labels.count(label) == 1}


def _nulls(join: Join, side: Side, profile: KeyProfile, sketch: KeySketch) -> float:
    if side not in KEEPS.get(join.kind, ()) or join.null_safe:
        return 0.0
    return sketch.null_share * profile.rows


def hot_loads(profile: JoinProfile, skew: SkewSettings) -> tuple[Load, ...]:
    """Keys that would keep one task at work: of input, where one side of a key has more than `skew.factor` times what
    that side's others leave to a slot, or of output, where it emits so much; and `skew.threshold` bytes of it.
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
    """Whether one of these conditions, or one below, is about a key, so that it may be what removes the hot value. What
    tells the parts of a join below apart removes none.
    """
    join = replace(join, left=in_one_piece(join.left, statistics), right=in_one_piece(join.right, statistics))
    keys = _origins(join, (name for key in join.keys for scalar in key for name in scalar.columns))
    below = (_origins(node.input, node.condition.columns) for node in walk_up(join) if isinstance(node, Filter))
    return any(not keys.isdisjoint(names) for names in (*(_origins(join, one.columns) for one in above), *below))


def _origins(node: Node, names: Iterable[str]) -> frozenset[str]:
    """These columns of `node`, and those of tables that they are under another name."""
    given = frozenset(names)
    return given.union(*(scanned_columns(node, (name,)) or () for name in given))


def hot_nulls(profile: JoinProfile, skew: SkewSettings) -> tuple[Side, ...]:
    """The sides that keep so many rows with a NULL key, which are all hashed to one task."""
    return tuple(
        side
        for side, rows in profile.nulls.items()
        if _is_hot(rows, profile.sides[side].rows, profile.row_bytes[side], profile.slots, skew)
    )


def kept_nulls(profile: JoinProfile) -> tuple[Side, ...]:
    """The sides that keep rows with a NULL key, however few."""
    return tuple(side for side in Side if profile.nulls[side])


def _is_hot(rows: float, of_all: float, row_bytes: float, slots: int, skew: SkewSettings) -> bool:
    return rows > skew.factor * max(of_all - rows, 0.0) / slots and rows * row_bytes >= max(skew.threshold, 1)


def standing_out(profile: JoinProfile) -> tuple[Load, ...]:
    """Keys that have more than an even task's share of a side's rows or of the emitted ones, two tasks a slot; the
    one with the most to do where none has. What is joined apart where that is forced.
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
