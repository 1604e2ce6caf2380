"""A join in parts: its hot keys apart from the rest, rows with a NULL key past the join. The plan alone, not its cost.

Equal keys are in the same part on both sides, so rows that match still meet, and rows without a match are kept once.

A join whose hot keys are salted in one reading of the side that has many rows of them.

The parts of `isolation.py` read both sides anew, which a batch can do. How often a stream is read stands in its
checkpoint, and must be the same each time that it is started, whatever keys are hot by then.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from service.contract.options import JoinLocal, JoinShip, JoinSkew
from service.contract.query import JoinKind
from service.sql.expressions.nodes import Number
from service.sql.expressions.scalar import Scalar, column
from service.sql.types.data_types import BOOLEAN, INT, DataType, Field, TypeName
from workers.engine.plan.expressions import compose, conjunction, fresh_name, typed_null
from workers.engine.plan.nodes import (
    Aggregate,
    Exchange,
    Expand,
    Filter,
    Join,
    JoinStrategy,
    Limit,
    Named,
    Node,
    Project,
    Union,
    inputs_of,
    names_of,
    output_of,
)
from workers.engine.plan.traversal import walk_up


class Side(StrEnum):
    """One input of a join."""

    LEFT = "LEFT"
    RIGHT = "RIGHT"

    @property
    def other(self) -> Side:
        """The opposite input."""
        return Side.RIGHT if self is Side.LEFT else Side.LEFT


PROBES: Mapping[JoinKind, tuple[Side, ...]] = {
    JoinKind.INNER: (Side.LEFT, Side.RIGHT),
    JoinKind.LEFT: (Side.LEFT,),
    JoinKind.LEFT_SEMI: (Side.LEFT,),
    JoinKind.LEFT_ANTI: (Side.LEFT,),
    JoinKind.RIGHT: (Side.RIGHT,),
    JoinKind.FULL: (),
    JoinKind.CROSS: (),
}
"""Sides whose rows of one key may be parted over tasks that each see all rows of the other: no row that is copied may
be kept without a match (an outer join would keep each copy), nor be emitted by itself."""

KEEPS: Mapping[JoinKind, tuple[Side, ...]] = {
    JoinKind.LEFT: (Side.LEFT,),
    JoinKind.LEFT_ANTI: (Side.LEFT,),
    JoinKind.RIGHT: (Side.RIGHT,),
    JoinKind.FULL: (Side.LEFT, Side.RIGHT),
}
"""Sides whose rows without a match are emitted, those with a NULL key among them."""


MOST_PARTED = 2
"""Joins in parts, one above the other, above which no further one is parted: every part of a join computes all that is
below it, so that the parts multiply.
"""


@dataclass(frozen=True)
class HotPart:
    """Hot keys that are joined in one way: each a literal a key column, none of them NULL.

    The rows of `probe` are parted over `tasks`, one after the other, or stay where they are read (None), and the
    other side's are broadcast; or, with `salts`, the probe's are parted by key and salt, and the other's are copied for
    every salt.
    """

    keys: tuple[tuple[Scalar, ...], ...]
    probe: Side
    tasks: int | None = None
    salts: int | None = None


def isolated(join: Join, parts: tuple[HotPart, ...], nulls: tuple[Side, ...]) -> Node:
    """`join` with the keys of `parts` joined apart, and the rows of `nulls` that have a NULL key past the join.

    At least one of both is given; `nulls` are among `KEEPS`, and `can_pass_nulls` of them.
    """
    hot = tuple(key for part in parts for key in part.keys)
    rest = replace(
        join,
        left=_rest(join, Side.LEFT, hot, Side.LEFT in nulls),
        right=_rest(join, Side.RIGHT, hot, Side.RIGHT in nulls),
        strategy=replace(join.strategy, skew=JoinSkew.NONE),
    )
    joined: list[Node] = []
    earlier: tuple[tuple[Scalar, ...], ...] = ()
    for part in parts:
        joined.append((_broadcast if part.salts is None else _salted)(join, part, earlier))
        earlier += part.keys
    return Union((rest, *joined, *(_past(join, side) for side in nulls)), stands_for=join)


def refusal_of(join: Join) -> str | None:
    """Why no key of `join` may be joined apart, as a sentence; None where one may be."""
    if any(not _compared_as_they_are(left.type, right.type) for left, right in join.keys):
        return "The keys are not of one exact type, so that a value of one side cannot be told on the other."
    if any(isinstance(part, Aggregate | Limit) for part in walk_up(join)):
        return "A side is an aggregate or has a LIMIT: each part of the join would compute it again."
    if _parted_below(join) >= MOST_PARTED:
        return (
            f"{MOST_PARTED} joins below, one above the other, are in parts already: each part would compute them again."
        )
    return None


def _parted_below(node: Node) -> int:
    """How many joins in parts stand one above the other in `node`."""
    own = isinstance(node, Union) and node.stands_for is not None
    return own + max(map(_parted_below, inputs_of(node)), default=0)


def _compared_as_they_are(left: DataType | None, right: DataType | None) -> bool:
    if left is None or right is None or left.is_fractional:
        return False
    return left == right or (left.is_integral and right.is_integral)


def can_pass_nulls(join: Join, side: Side) -> bool:
    """Whether rows of `side` with a NULL key can go past the join: it keeps them, and has NULLs for the other side."""
    if join.null_safe or side not in KEEPS.get(join.kind, ()):
        return False
    return join.kind is JoinKind.LEFT_ANTI or all(
        typed_null(field.type) is not None for field in output_of(input_of(join, side.other))
    )


def salt_columns(join: Join, probe: Side) -> tuple[Scalar, ...]:
    """The columns of the probe's rows beside its keys, by whose hash they can be told apart."""
    keys = {name for key in keys_of(join, probe) for name in key.columns}
    return tuple(
        column(field.name, field.type)
        for field in output_of(input_of(join, probe))
        if field.name not in keys and field.type.name is not TypeName.OTHER
    )


def _rest(join: Join, side: Side, hot: tuple[tuple[Scalar, ...], ...], without_nulls: bool) -> Node:
    keys = keys_of(join, side)
    kept = compose("NOT ({0})", (is_one_of(keys, hot),), BOOLEAN) if hot else None
    for key in keys if without_nulls else ():
        kept = conjunction(kept, compose("({0}) IS NOT NULL", (key,), BOOLEAN))
    below = input_of(join, side)
    return below if kept is None else Filter(below, kept)


def _hot(join: Join, side: Side, part: HotPart, earlier: tuple[tuple[Scalar, ...], ...]) -> Node:
    """The part's rows of one side, but those of earlier parts: two literals may be of one value, joined once."""
    keys = keys_of(join, side)
    kept = is_one_of(keys, part.keys)
    if earlier:
        kept = conjunction(kept, compose("NOT ({0})", (is_one_of(keys, earlier),), BOOLEAN))
    return Filter(input_of(join, side), kept)


def is_one_of(keys: tuple[Scalar, ...], hot: tuple[tuple[Scalar, ...], ...]) -> Scalar:
    """Whether a key is one of `hot`. True or false, and never NULL: what is neither hot nor not would be in no part."""
    found: Scalar | None = None
    for values in hot:
        same: Scalar | None = None
        for key, value in zip(keys, values, strict=True):
            same = conjunction(same, compose("({0}) <=> ({1})", (key, value), BOOLEAN))
        if same is not None:
            found = same if found is None else compose("({0}) OR ({1})", (found, same), BOOLEAN)
    if found is None:
        raise ValueError("there is no key to tell apart")
    return found


def _broadcast(join: Join, part: HotPart, earlier: tuple[tuple[Scalar, ...], ...]) -> Node:
    probe = _hot(join, part.probe, part, earlier)
    if part.tasks is not None:
        # A number of partitions of our own: Spark would put small ones together again, however much comes of them.
        probe = Exchange(probe, (), part.tasks)
    build = _hot(join, part.probe.other, part, earlier)
    if part.probe is Side.LEFT:
        return replace(
            join, left=probe, right=build, strategy=_strategy(JoinShip.BROADCAST_RIGHT, JoinLocal.HASH_RIGHT)
        )
    return replace(join, left=build, right=probe, strategy=_strategy(JoinShip.BROADCAST_LEFT, JoinLocal.HASH_LEFT))


def _salted(join: Join, part: HotPart, earlier: tuple[tuple[Scalar, ...], ...]) -> Node:
    taken = names_of(join.left) | names_of(join.right)
    salts = part.salts or 1
    ours = column(fresh_name("$salt", taken), INT)
    theirs = column(fresh_name("$copy", taken), INT)
    probe = _with_salt(_hot(join, part.probe, part, earlier), salt_columns(join, part.probe), salts, ours)
    build = Expand(_hot(join, part.probe.other, part, earlier), salts, theirs.columns[0])
    sides = {part.probe: (probe, ours), part.probe.other: (build, theirs)}
    (left, left_salt), (right, right_salt) = sides[Side.LEFT], sides[Side.RIGHT]
    salted = replace(
        join,
        # Exactly the join's keys, so that Spark joins them as they come, and a number that it keeps to.
        left=Exchange(left, (*keys_of(join, Side.LEFT), left_salt), salts),
        right=Exchange(right, (*keys_of(join, Side.RIGHT), right_salt), salts),
        keys=(*join.keys, (left_salt, right_salt)),
        strategy=_strategy(JoinShip.REPARTITION, JoinLocal.SORT_MERGE),
    )
    return Project(salted, as_they_are(output_of(join)))


def _with_salt(rows: Node, columns: tuple[Scalar, ...], salts: int, salt: Scalar) -> Node:
    if not columns:
        raise ValueError("there is nothing to make a salt of")
    places = ", ".join(f"{{{index}}}" for index in range(len(columns)))
    # From 1, as Expand counts. By the row itself, so that a repeated task gives every row the same one.
    made = compose(f"CAST(pmod(xxhash64({places}), {salts}) + 1 AS INT)", columns, INT)
    return Project(rows, (*as_they_are(output_of(rows)), Named(made, salt.columns[0])))


def _past(join: Join, side: Side) -> Node:
    keys = keys_of(join, side)
    is_null: Scalar | None = None
    for key in keys:
        test = compose("({0}) IS NULL", (key,), BOOLEAN)
        is_null = test if is_null is None else compose("({0}) OR ({1})", (is_null, test), BOOLEAN)
    if is_null is None:
        raise ValueError("a join without keys has no NULL keys")
    rows = Filter(input_of(join, side), is_null)
    if join.kind is JoinKind.LEFT_ANTI:
        return rows
    own, other = as_they_are(output_of(rows)), tuple(_nulls(output_of(input_of(join, side.other))))
    return Project(rows, (*own, *other) if side is Side.LEFT else (*other, *own))


def _nulls(fields: tuple[Field, ...]) -> Iterator[Named]:
    for field in fields:
        null = typed_null(field.type)
        if null is None:
            raise ValueError(f"there is no NULL of type {field.type}")
        yield Named(null, field.name)


def _strategy(ship: JoinShip, local: JoinLocal) -> JoinStrategy:
    return JoinStrategy(ship, local, JoinSkew.NONE)


def input_of(join: Join, side: Side) -> Node:
    """The rows of one side."""
    return join.left if side is Side.LEFT else join.right


def keys_of(join: Join, side: Side) -> tuple[Scalar, ...]:
    """The key's columns on one side."""
    return tuple(key[0 if side is Side.LEFT else 1] for key in join.keys)


def as_they_are(fields: tuple[Field, ...]) -> tuple[Named, ...]:
    """Columns for a projection that only adds others, or leaves some out."""
    return tuple(Named(column(field.name, field.type), field.name) for field in fields)


_SORTED = JoinStrategy(JoinShip.REPARTITION, JoinLocal.SORT_MERGE, JoinSkew.NONE)

ONE = Scalar(Number("1"), INT)
"""The salt of rows that need none."""


def salted(join: Join, probe: Side, hot: tuple[tuple[Scalar, ...], ...], nulls: bool, salts: int) -> Node:
    """`join` by its keys and a salt of 1 to `salts`, a hash of the row's other columns: of the probe's rows with one of
    the `hot` keys, each a literal a key column, and, with `nulls`, of those with a NULL key. All others have 1. The
    other side's rows of the hot keys are copied for every salt; it is read twice, and both are sorted and merged.
    Without hot keys they are joined in whatever way they would have been.

    The probe is a side that such a join may part. Raises ValueError where its rows have nothing but the key.
    """
    taken = names_of(join.left) | names_of(join.right)
    ours, theirs = (column(fresh_name(name, taken), INT) for name in ("$salt", "$copy"))
    sides = {
        probe: (_with_hot_key_salt(join, probe, hot, nulls, salts, ours), ours),
        probe.other: (_copied(join, probe.other, hot, salts, theirs), theirs),
    }
    (left, left_salt), (right, right_salt) = sides[Side.LEFT], sides[Side.RIGHT]
    made = replace(
        join,
        left=left,
        right=right,
        keys=(*join.keys, (left_salt, right_salt)),
        strategy=_SORTED if hot else replace(join.strategy, skew=JoinSkew.NONE),
    )
    return Project(made, as_they_are(output_of(join)), stands_for=join)


def _with_hot_key_salt(
    join: Join, probe: Side, hot: tuple[tuple[Scalar, ...], ...], nulls: bool, salts: int, name: Scalar
) -> Node:
    rows, columns, keys = input_of(join, probe), salt_columns(join, probe), keys_of(join, probe)
    if not columns:
        raise ValueError("there is nothing to make a salt of")
    told = is_one_of(keys, hot) if hot else None
    for key in keys if nulls else ():
        # It matches nothing, whatever its salt.
        is_null = compose("({0}) IS NULL", (key,), BOOLEAN)
        told = is_null if told is None else compose("({0}) OR ({1})", (told, is_null), BOOLEAN)
    if told is None:
        raise ValueError("there is nothing to salt")
    places = ", ".join(f"{{{index}}}" for index in range(1, len(columns) + 1))
    # By the row itself, so that a repeated task gives every row the same one.
    made = f"IF({{0}}, CAST(pmod(xxhash64({places}), {salts}) + 1 AS INT), 1)"
    return Project(rows, (*as_they_are(output_of(rows)), Named(compose(made, (told, *columns), INT), name.columns[0])))


def _copied(join: Join, side: Side, hot: tuple[tuple[Scalar, ...], ...], salts: int, name: Scalar) -> Node:
    rows = input_of(join, side)
    if not hot:
        return Project(rows, (*as_they_are(output_of(rows)), Named(ONE, name.columns[0])))
    told = is_one_of(keys_of(join, side), hot)
    rest = Filter(rows, compose("NOT ({0})", (told,), BOOLEAN))
    return Union(
        (
            Project(rest, (*as_they_are(output_of(rows)), Named(ONE, name.columns[0]))),
            Expand(Filter(rows, told), salts, name.columns[0]),
        )
    )
