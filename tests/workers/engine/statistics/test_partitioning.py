"""The keys by which rows are known to be partitioned."""

from __future__ import annotations

from dataclasses import replace

import pytest

from service.contract.options import JoinLocal, JoinShip
from service.contract.query import AggregateFunction, JoinKind
from service.sql.expressions.nodes import Expression, Over
from service.sql.expressions.scalar import Scalar, column
from service.sql.types.data_types import BIGINT, DOUBLE, INT, STRING, DataType, Field, TypeName
from tests.support.plan_parts import USERS
from tests.support.scalars import scalar
from workers.engine.plan.expressions import compose
from workers.engine.plan.nodes import (
    Aggregate,
    AggregateRole,
    Call,
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
    Scan,
    Union,
    WindowFunctions,
)
from workers.engine.statistics.model import Statistics, TableSize
from workers.engine.statistics.partitioning import (
    BROADCAST_BYTES,
    broadcast_side,
    is_partitioned_by,
    partitionings_of,
    size_of,
)

ORDERS = Scan("orders", "o", ((Field("o.uid", BIGINT), "uid"), (Field("o.day", BIGINT), "day")))
UID, DAY, USER = column("o.uid", BIGINT), column("o.day", BIGINT), column("u.uid", BIGINT)
LEFT, RIGHT = frozenset({"`o.uid`"}), frozenset({"`u.uid`"})


def sizes(orders: int, users: int) -> Statistics:
    return Statistics({"o": TableSize("o", 1, orders, 1, True), "u": TableSize("u", 1, users, 1, True)}, {}, 4)


LARGE = sizes(BROADCAST_BYTES + 1, BROADCAST_BYTES + 1)


def join(kind: JoinKind, left: Node = ORDERS, right: Node = USERS) -> Join:
    return Join(left, right, kind, ((UID, USER),))


def grouped(source: Node) -> Aggregate:
    return Aggregate(source, (Named(UID, "k"), Named(DAY, "d")), ())


def test_an_exchange_partitions_by_its_keys() -> None:
    assert partitionings_of(Exchange(ORDERS, (UID, DAY)), LARGE) == (frozenset({"`o.uid`", "`o.day`"}),)


@pytest.mark.parametrize(
    "node",
    [
        ORDERS,
        Expand(Exchange(ORDERS, (UID,)), 2, "branch"),
        Union((Exchange(ORDERS, (UID,)), Exchange(ORDERS, (UID,)))),
        MultisetOperation(Exchange(ORDERS, (UID,)), Exchange(ORDERS, (UID,)), "except_all"),
    ],
)
def test_nothing_is_known_of_scans_expands_and_unions(node: Node) -> None:
    assert partitionings_of(node, LARGE) == ()


def windows(source: Node, *partitions: tuple[Expression, ...]) -> WindowFunctions:
    calls = enumerate(Scalar(Over("COUNT", (), keys), BIGINT) for keys in partitions)
    return WindowFunctions(source, tuple(Named(call, f"c{number}") for number, call in calls))


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        (windows(ORDERS, (UID.tree,), (UID.tree,)), (LEFT,)),
        (windows(ORDERS, (UID.tree, DAY.tree)), (frozenset({"`o.uid`", "`o.day`"}),)),
        (windows(ORDERS, (DAY.tree,), (UID.tree,)), ()),
        (windows(ORDERS, ()), ()),
        (windows(ORDERS, (compose("{0} % 2", (UID,), BIGINT).tree,)), ()),
        (windows(Exchange(ORDERS, (UID,)), (UID.tree, DAY.tree), (UID.tree,)), (LEFT,)),
        (windows(Exchange(ORDERS, (UID,)), (DAY.tree,)), (frozenset({"`o.day`"}),)),
        (windows(Exchange(ORDERS, (UID, DAY)), (DAY.tree,), (UID.tree,)), ()),
    ],
)
def test_windows_are_partitioned_by_their_keys(node: Node, expected: tuple[frozenset[str], ...]) -> None:
    assert partitionings_of(node, LARGE) == expected


@pytest.mark.parametrize("source", [ORDERS, Exchange(ORDERS, (UID, DAY))])
@pytest.mark.parametrize("role", AggregateRole)
@pytest.mark.parametrize("phases", Phases)
def test_an_aggregate_is_partitioned_by_its_keys(source: Node, role: AggregateRole, phases: Phases) -> None:
    whole = replace(grouped(source), role=role, phases=phases)
    assert partitionings_of(whole, LARGE) == (frozenset({"`k`", "`d`"}),)
    assert is_partitioned_by(Filter(whole, column("d", BIGINT)), (column("k", BIGINT), column("d", BIGINT)), LARGE)


def test_a_project_renames_the_partitioning_of_an_aggregate() -> None:
    key, day = Named(column("k", BIGINT), "q.uid"), Named(column("d", BIGINT), "q.day")
    assert partitionings_of(Project(grouped(ORDERS), (key, day)), LARGE) == (frozenset({"`q.uid`", "`q.day`"}),)
    assert partitionings_of(Project(grouped(ORDERS), (key,)), LARGE) == ()


def test_an_aggregate_keeps_a_partitioning_by_some_of_its_keys() -> None:
    assert partitionings_of(grouped(Exchange(ORDERS, (UID,))), LARGE) == (frozenset({"`k`"}),)
    assert partitionings_of(grouped(join(JoinKind.INNER)), LARGE) == (frozenset({"`k`"}),)
    by_day = replace(grouped(Exchange(ORDERS, (UID,))), keys=(Named(DAY, "d"),))
    assert partitionings_of(by_day, LARGE) == (frozenset({"`d`"}),)


def test_rows_that_spark_copies_for_distinct_values_are_shuffled_by_all_keys() -> None:
    counted = Call(AggregateFunction.COUNT, (DAY,), Field("days", BIGINT), distinct=True, filter=DAY)
    expanded = replace(grouped(Exchange(ORDERS, (UID,))), calls=(counted,))
    assert partitionings_of(expanded, LARGE) == (frozenset({"`k`", "`d`"}),)


def test_nothing_is_known_of_grouping_sets_and_of_one_row() -> None:
    by_sets = replace(grouped(Exchange(ORDERS, (UID,))), grouping_sets=((0, 1), ()))
    assert partitionings_of(by_sets, LARGE) == ()
    assert partitionings_of(replace(by_sets, keys=(), grouping_sets=()), LARGE) == ()


@pytest.mark.parametrize("other", [DOUBLE, DataType(TypeName.OTHER), None])
def test_keys_that_spark_normalizes_give_no_partitioning(other: DataType | None) -> None:
    keys = (Named(UID, "k"), Named(column("o.rate", other), "r"))
    assert partitionings_of(replace(grouped(ORDERS), keys=keys), LARGE) == ()
    by_uid = replace(grouped(Exchange(ORDERS, (UID,))), keys=keys)
    assert partitionings_of(by_uid, LARGE) == (frozenset({"`k`"}),)


def test_a_broadcast_join_keeps_the_partitioning_of_an_aggregate() -> None:
    small = sizes(BROADCAST_BYTES + 1, BROADCAST_BYTES)
    joined = Join(grouped(ORDERS), USERS, JoinKind.INNER, ((column("k", BIGINT), USER),))
    assert partitionings_of(joined, small) == (frozenset({"`k`", "`d`"}),)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (JoinKind.INNER, (LEFT, RIGHT)),
        (JoinKind.LEFT, (LEFT,)),
        (JoinKind.RIGHT, (RIGHT,)),
        (JoinKind.FULL, ()),
        (JoinKind.LEFT_SEMI, (LEFT,)),
        (JoinKind.LEFT_ANTI, (LEFT,)),
    ],
)
def test_a_join_of_large_sides_is_partitioned_by_the_keys_it_keeps(
    kind: JoinKind, expected: tuple[frozenset[str], ...]
) -> None:
    assert partitionings_of(join(kind), LARGE) == expected


@pytest.mark.parametrize("kind", [JoinKind.INNER, JoinKind.LEFT, JoinKind.LEFT_SEMI])
def test_a_small_right_side_is_broadcast_and_the_left_keeps_its_partitioning(kind: JoinKind) -> None:
    small = sizes(BROADCAST_BYTES + 1, BROADCAST_BYTES)
    assert partitionings_of(join(kind), small) == ()
    assert partitionings_of(join(kind, left=Exchange(ORDERS, (DAY,))), small) == (frozenset({"`o.day`"}),)


def test_an_outer_join_cannot_broadcast_the_side_it_keeps() -> None:
    small = sizes(BROADCAST_BYTES, BROADCAST_BYTES + 1)
    assert partitionings_of(join(JoinKind.LEFT), small) == (LEFT,)
    assert partitionings_of(join(JoinKind.RIGHT), small) == ()


@pytest.mark.parametrize("other", [INT, None])
def test_keys_of_different_types_are_hashed_under_a_cast(other: DataType | None) -> None:
    mixed = Join(ORDERS, USERS, JoinKind.INNER, ((UID, column("u.uid", other)),))
    assert partitionings_of(mixed, LARGE) == ()


def test_null_safe_keys_give_no_partitioning() -> None:
    assert partitionings_of(replace(join(JoinKind.INNER), null_safe=True), LARGE) == ()


def test_unknown_sizes_give_no_partitioning() -> None:
    assert partitionings_of(join(JoinKind.INNER), Statistics({}, {}, 4)) == ()


def test_filters_keep_a_partitioning_and_projects_rename_it() -> None:
    partitioned = Limit(Filter(Exchange(ORDERS, (UID,)), DAY), 3)
    assert partitionings_of(partitioned, LARGE) == (LEFT,)
    assert partitionings_of(Project(partitioned, (Named(UID, "id"),)), LARGE) == (frozenset({"`id`"}),)
    assert partitionings_of(Project(partitioned, (Named(DAY, "day"),)), LARGE) == ()


def test_some_of_the_keys_are_enough() -> None:
    assert is_partitioned_by(Exchange(ORDERS, (UID,)), (UID, DAY), LARGE)
    assert not is_partitioned_by(Exchange(ORDERS, (UID, DAY)), (UID,), LARGE)


def test_sizes_of_joins_are_products_as_in_spark() -> None:
    known = sizes(6, 7)
    assert size_of(join(JoinKind.INNER), known) == 42
    assert size_of(join(JoinKind.LEFT_SEMI), known) == 6
    assert size_of(Filter(ORDERS, DAY), known) == 6


@pytest.mark.parametrize(
    ("known", "ship", "stays"), [("u", JoinShip.BROADCAST_RIGHT, "o"), ("o", JoinShip.BROADCAST_LEFT, "u")]
)
def test_a_small_side_is_broadcast_although_the_other_size_is_unknown(known: str, ship: JoinShip, stays: str) -> None:
    """The two functions decided this in two ways: rows of the other side were taken to be anywhere."""
    statistics = Statistics({known: TableSize(known, 1, 10, 1, True)}, {}, 4)
    sides: dict[str, Node] = {"o": Exchange(ORDERS, (UID,)), "u": Exchange(USERS, (USER,))}
    node = join(JoinKind.INNER, sides["o"], sides["u"])
    assert broadcast_side(node, statistics) is ship
    assert partitionings_of(node, statistics) == ({"o": LEFT, "u": RIGHT}[stays],)


@pytest.mark.parametrize(
    ("kind", "users", "ship"),
    [
        (JoinKind.CROSS, 10, JoinShip.BROADCAST_RIGHT),
        (JoinKind.CROSS, BROADCAST_BYTES + 1, JoinShip.BROADCAST_LEFT),
        (JoinKind.FULL, 10, None),
    ],
)
def test_the_kind_decides_which_small_side_is_broadcast(kind: JoinKind, users: int, ship: JoinShip | None) -> None:
    node = replace(join(kind), keys=() if kind is JoinKind.CROSS else ((UID, USER),))
    assert broadcast_side(node, sizes(10, users)) is ship


@pytest.mark.parametrize(
    "strategy", [JoinStrategy(ship=JoinShip.REPARTITION), JoinStrategy(local=JoinLocal.SORT_MERGE)], ids=str
)
def test_spark_broadcasts_no_side_of_a_join_with_a_strategy(strategy: JoinStrategy) -> None:
    small = sizes(10, 10)
    node = replace(join(JoinKind.INNER), strategy=strategy)
    assert broadcast_side(node, small) is None
    assert partitionings_of(node, small) == (LEFT, RIGHT)
    # Nor one whose size is not known.
    assert partitionings_of(node, Statistics({}, {}, 4)) == (LEFT, RIGHT)


def test_a_join_is_partitioned_by_all_of_its_keys_or_by_no_known_key() -> None:
    def of(*keys: tuple[Scalar, Scalar], kind: JoinKind = JoinKind.INNER) -> tuple[frozenset[str], ...]:
        return partitionings_of(Join(ORDERS, USERS, kind, keys), LARGE)

    name, unknown = column("u.name", STRING), scalar("`u.x`", None)
    assert of((UID, USER), (DAY, USER)) == (frozenset({"`o.uid`", "`o.day`"}), RIGHT)
    assert of((UID, USER), (DAY, name)) == ()
    assert of((replace(UID, type=None), unknown)) == ()
    assert of() == ()
    for table in "ou":
        assert partitionings_of(join(JoinKind.INNER), Statistics({table: LARGE.tables[table]}, {}, 4)) == ()
