"""A join whose hot keys are salted in one reading of the side that has many rows of them.

The parts of `isolation.py` read both sides anew, which a batch can do. How often a stream is read stands in its
checkpoint, and must be the same each time that it is started, whatever keys are hot by then.
"""

from __future__ import annotations

from dataclasses import replace

from service.spec.scalar import Scalar, column
from service.spec.strategies import JoinLocal, JoinShip, JoinSkew
from service.spec.tree import Number
from service.spec.types import BOOLEAN, INT
from workers.engine.plan.isolation import Side, as_they_are, input_of, is_one_of, keys_of, salt_columns
from workers.engine.plan.nodes import Expand, Filter, Join, JoinStrategy, Named, Node, Project, Union
from workers.engine.plan.scalars import compose, fresh_name
from workers.engine.plan.schema import names_of, output_of

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
        probe: (_with_salt(join, probe, hot, nulls, salts, ours), ours),
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


def _with_salt(
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
