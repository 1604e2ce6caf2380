"""Rewrites of a join with hot keys. `skew_cost.py` calculates their costs.

`split_join` joins hot keys separately from the rest; rows with a NULL key bypass the join. Equal keys are in the same
part on both sides, so matching rows still meet, and rows without a match are kept once. Each part reads both sides
again.

`salted_in_one_read` reads the side with the hot rows once. Streams need this: the checkpoint records how often a stream
is read, and that must be the same at each start, whichever keys are hot then.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from service.contract.options import JoinLocal, JoinShip, JoinSkew
from service.contract.query import JoinKind
from service.sql.expressions.nodes import Number
from service.sql.expressions.scalar import Scalar, column
from service.sql.joins import ONE_SIDED, Side
from service.sql.types.data_types import BOOLEAN, INT, DataType, Field
from workers.engine.plan.expressions import (
    all_of,
    any_of,
    compose,
    conjunction,
    fresh_name,
    is_not_null,
    is_null,
    typed_null,
)
from workers.engine.plan.nodes import (
    Aggregate,
    Exchange,
    Expand,
    Filter,
    Join,
    JoinStrategy,
    Limit,
    MultisetOperation,
    Named,
    Node,
    Phases,
    Project,
    Union,
    columns_of,
    inputs_of,
    join_input,
    join_keys,
    names_of,
    output_of,
)
from workers.engine.plan.traversal import walk_up

PROBE_SIDES: Mapping[JoinKind, tuple[Side, ...]] = {
    JoinKind.INNER: (Side.LEFT, Side.RIGHT),
    JoinKind.LEFT: (Side.LEFT,),
    JoinKind.LEFT_SEMI: (Side.LEFT,),
    JoinKind.LEFT_ANTI: (Side.LEFT,),
    JoinKind.RIGHT: (Side.RIGHT,),
    JoinKind.FULL: (),
    JoinKind.CROSS: (),
}
"""Sides whose rows of one key may be distributed over several tasks, each with a copy of the other side's rows. The
join must not emit copied rows without a match (an outer join would emit each copy), nor emit only the copied side."""

PRESERVED_SIDES: Mapping[JoinKind, tuple[Side, ...]] = {
    JoinKind.LEFT: (Side.LEFT,),
    JoinKind.LEFT_ANTI: (Side.LEFT,),
    JoinKind.RIGHT: (Side.RIGHT,),
    JoinKind.FULL: (Side.LEFT, Side.RIGHT),
}
"""Sides whose rows without a match are emitted, including those with a NULL key."""


MAX_NESTED_SPLITS = 2
"""The most split joins that may be nested: each part of a join computes everything below it, so the parts multiply."""

_SORTED = JoinStrategy(JoinShip.REPARTITION, JoinLocal.SORT_MERGE, JoinSkew.NONE)
_BROADCAST = {
    Side.LEFT: JoinStrategy(JoinShip.BROADCAST_LEFT, JoinLocal.HASH_LEFT, JoinSkew.NONE),
    Side.RIGHT: JoinStrategy(JoinShip.BROADCAST_RIGHT, JoinLocal.HASH_RIGHT, JoinSkew.NONE),
}
"""By the side that is broadcast."""

ONE = Scalar(Number("1"), INT)
"""The salt of rows whose key is not hot."""


@dataclass(frozen=True)
class HotPart:
    """Hot keys that are joined in the same way. A key has a literal for each key column; no literal is NULL.

    Without `salts`, the other side's rows are broadcast, and the rows of `probe` are distributed round-robin over
    `tasks`, or stay in the tasks that read them (None). With `salts`, the rows of `probe` are shuffled by key and salt,
    and the other side's rows are copied for each salt. `distinct`: only the keys of the other side are broadcast, each
    once; the join must meet `needs_keys_only`.
    """

    keys: tuple[tuple[Scalar, ...], ...]
    probe: Side
    tasks: int | None = None
    salts: int | None = None
    distinct: bool = False


def split_join(join: Join, parts: tuple[HotPart, ...], nulls: tuple[Side, ...]) -> Node:
    """Returns `join` with the keys of `parts` joined separately; rows of the sides `nulls` with a NULL key bypass it.

    At least one of both must be given. Each side of `nulls` must be in `PRESERVED_SIDES` and meet `nulls_can_bypass`.
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
    return Union((rest, *joined, *(_bypassing(join, side) for side in nulls)), replaces=join)


def refusal_of(join: Join) -> str | None:
    """Returns a sentence that says why no key of `join` can be joined separately; None if one can be."""
    if any(left.type is not None and left.type.is_nested for left, _ in join.keys):
        return "A key is an array or a structure, which no rule compares with single values."
    if any(not _have_one_exact_type(left.type, right.type) for left, right in join.keys):
        return "The keys do not have one exact type, so a value of one side cannot be identified on the other side."
    if any(isinstance(part, Aggregate | Limit | MultisetOperation) for part in walk_up(join)):
        return "A side is an aggregate or has a LIMIT: each part of the join would compute it again."
    if _nested_splits(join) >= MAX_NESTED_SPLITS:
        return (
            f"{MAX_NESTED_SPLITS} nested joins below are already split: each part of this join would compute them "
            "again."
        )
    return None


def _nested_splits(node: Node) -> int:
    """Returns the number of nested split joins in `node`."""
    own = isinstance(node, Union) and node.replaces is not None
    return own + max(map(_nested_splits, inputs_of(node)), default=0)


def _have_one_exact_type(left: DataType | None, right: DataType | None) -> bool:
    if left is None or right is None or left.is_fractional:
        return False
    return left == right or (left.is_integral and right.is_integral)


def nulls_can_bypass(join: Join, side: Side) -> bool:
    """Whether rows of `side` with a NULL key can bypass the join: it keeps them, and has NULLs for the other side."""
    if join.null_safe or side not in PRESERVED_SIDES.get(join.kind, ()):
        return False
    return join.kind is JoinKind.LEFT_ANTI or all(
        typed_null(field.type) is not None for field in output_of(join_input(join, side.other))
    )


def needs_keys_only(join: Join) -> bool:
    """Whether the keys of the right side decide which left rows the join emits, and are columns."""
    return join.kind in ONE_SIDED and join.residual is None and columns_of(join_keys(join, Side.RIGHT)) is not None


def salt_columns(join: Join, probe: Side) -> tuple[Scalar, ...]:
    """Returns the probe's columns that are not keys; the hash of their values is the salt."""
    keys = {name for key in join_keys(join, probe) for name in key.columns}
    return tuple(
        column(field.name, field.type)
        for field in output_of(join_input(join, probe))
        if field.name not in keys and field.type.is_atomic
    )


def _rest(join: Join, side: Side, hot: tuple[tuple[Scalar, ...], ...], without_nulls: bool) -> Node:
    """Returns the rows of one side whose keys are not hot."""
    keys = join_keys(join, side)
    not_hot = compose("NOT ({0})", (is_one_of(keys, hot),), BOOLEAN) if hot else None
    kept = all_of((not_hot, is_not_null(keys) if without_nulls else None))
    below = join_input(join, side)
    return below if kept is None else Filter(below, kept)


def _hot(join: Join, side: Side, part: HotPart, earlier: tuple[tuple[Scalar, ...], ...]) -> Node:
    """Returns the part's rows of one side without those of earlier parts: two literals may be the same value."""
    keys = join_keys(join, side)
    kept = is_one_of(keys, part.keys)
    if earlier:
        kept = conjunction(kept, compose("NOT ({0})", (is_one_of(keys, earlier),), BOOLEAN))
    return Filter(join_input(join, side), kept)


def is_one_of(keys: tuple[Scalar, ...], hot: tuple[tuple[Scalar, ...], ...]) -> Scalar:
    """Returns the condition that a key is one of `hot`. It is never NULL: such a row would be in no part."""
    same = (
        all_of(compose("({0}) <=> ({1})", pair, BOOLEAN) for pair in zip(keys, values, strict=True)) for values in hot
    )
    return any_of(one for one in same if one is not None)


def _broadcast(join: Join, part: HotPart, earlier: tuple[tuple[Scalar, ...], ...]) -> Node:
    probe = _hot(join, part.probe, part, earlier)
    if part.tasks is not None:
        # With an explicit number, Spark does not coalesce small partitions, whose join may emit many rows.
        probe = Exchange(probe, (), part.tasks)
    build = _hot(join, part.probe.other, part, earlier)
    if part.distinct:
        keys = dict.fromkeys(join_keys(join, part.probe.other))
        named = tuple(Named(key, key.columns[0]) for key in keys)
        build = Aggregate(build, named, (), phases=Phases.TWO_PHASE)
    left, right = (probe, build) if part.probe is Side.LEFT else (build, probe)
    return replace(join, left=left, right=right, strategy=_BROADCAST[part.probe.other])


def _salted(join: Join, part: HotPart, earlier: tuple[tuple[Scalar, ...], ...]) -> Node:
    salts, (ours, theirs) = part.salts or 1, _salt_and_copy(join)
    probe = _with_salt(join, part.probe, _hot(join, part.probe, part, earlier), salts, ours)
    build = Expand(_hot(join, part.probe.other, part, earlier), salts, theirs.columns[0])
    # Exactly the join's keys, so Spark adds no exchange, and an explicit number, so Spark coalesces nothing.
    probe_rows = Exchange(probe, (*join_keys(join, part.probe), ours), salts)
    build_rows = Exchange(build, (*join_keys(join, part.probe.other), theirs), salts)
    salted = _joined_by_salt(join, part.probe, (probe_rows, ours), (build_rows, theirs), _SORTED)
    return Project(salted, unchanged_columns(output_of(join)))


def _salt_and_copy(join: Join) -> tuple[Scalar, Scalar]:
    """Returns the columns for the salt of the probe's rows, and for the number of a copy of the other side's rows."""
    taken = names_of(join.left) | names_of(join.right)
    return column(fresh_name("$salt", taken), INT), column(fresh_name("$copy", taken), INT)


def _joined_by_salt(
    join: Join, side: Side, probe: tuple[Node, Scalar], build: tuple[Node, Scalar], strategy: JoinStrategy
) -> Join:
    """Returns `join` by its keys and the salts of `probe`, the rows on `side`, and of `build`, those on the other."""
    (left, left_salt), (right, right_salt) = (probe, build) if side is Side.LEFT else (build, probe)
    return replace(join, left=left, right=right, keys=(*join.keys, (left_salt, right_salt)), strategy=strategy)


def _with_salt(
    join: Join, probe: Side, rows: Node, salts: int, name: Scalar, is_salted: Scalar | None = None
) -> Project:
    """Returns `rows` of the join's side `probe` with a salt of 1 to `salts`; where `is_salted` is false, it is 1."""
    columns = salt_columns(join, probe)
    if not columns:
        raise ValueError("there is no column to compute a salt from")
    places = ", ".join(f"{{{index}}}" for index in range(len(columns)))
    # From 1, as Expand counts. Computed from the row, so a repeated task computes the same salt.
    salt = compose(f"CAST(pmod(xxhash64({places}), {salts}) + 1 AS INT)", columns, INT)
    if is_salted is not None:
        salt = compose("IF({0}, {1}, 1)", (is_salted, salt), INT)
    return _with_column(rows, salt, name)


def _with_column(rows: Node, value: Scalar, name: Scalar) -> Project:
    return Project(rows, (*unchanged_columns(output_of(rows)), Named(value, name.columns[0])))


def _bypassing(join: Join, side: Side) -> Node:
    """Returns the rows of one side with a NULL key, as the join emits them."""
    rows = Filter(join_input(join, side), is_null(join_keys(join, side)))
    if join.kind is JoinKind.LEFT_ANTI:
        return rows
    own, other = unchanged_columns(output_of(rows)), tuple(_nulls(output_of(join_input(join, side.other))))
    return Project(rows, (*own, *other) if side is Side.LEFT else (*other, *own))


def _nulls(fields: tuple[Field, ...]) -> Iterator[Named]:
    for field in fields:
        null = typed_null(field.type)
        if null is None:
            raise ValueError(f"there is no NULL of type {field.type}")
        yield Named(null, field.name)


def unchanged_columns(fields: tuple[Field, ...]) -> tuple[Named, ...]:
    """Returns projection items that emit `fields` unchanged."""
    return tuple(Named(column(field.name, field.type), field.name) for field in fields)


def salted_in_one_read(join: Join, probe: Side, hot: tuple[tuple[Scalar, ...], ...], nulls: bool, salts: int) -> Node:
    """Returns `join` by its keys and a salt; `probe` is read once.

    The probe's rows with one of the `hot` keys (a literal for each key column) and, with `nulls`, those with a NULL key
    have a salt of 1 to `salts`, a hash of the row's other columns. All other rows have the salt 1. The other side is
    read twice, and its rows of the hot keys are copied for each salt. The join uses sort-merge; without hot keys it
    keeps its strategy. `probe` must be one of `PROBE_SIDES`. Raises ValueError if its rows have no column but the key.
    """
    ours, theirs = _salt_and_copy(join)
    keys = join_keys(join, probe)
    # A NULL key matches nothing, so any salt is correct.
    tests = [is_one_of(keys, hot)] if hot else []
    tests += [is_null((key,)) for key in keys] if nulls else []
    made = _joined_by_salt(
        join,
        probe,
        (_with_salt(join, probe, join_input(join, probe), salts, ours, any_of(tests)), ours),
        (_copied(join, probe.other, hot, salts, theirs), theirs),
        _SORTED if hot else replace(join.strategy, skew=JoinSkew.NONE),
    )
    return Project(made, unchanged_columns(output_of(join)), replaces=join)


def _copied(join: Join, side: Side, hot: tuple[tuple[Scalar, ...], ...], salts: int, name: Scalar) -> Node:
    rows = join_input(join, side)
    if not hot:
        return _with_column(rows, ONE, name)
    is_hot = is_one_of(join_keys(join, side), hot)
    rest = Filter(rows, compose("NOT ({0})", (is_hot,), BOOLEAN))
    return Union((_with_column(rest, ONE, name), Expand(Filter(rows, is_hot), salts, name.columns[0])))
