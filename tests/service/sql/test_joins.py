"""Which pairs of ship and local strategy there are; `tests/conformance/test_join_strategies.py` asks Spark itself."""

from __future__ import annotations

import itertools

import pytest

from service.contract.options import JoinLocal, JoinShip
from service.contract.query import JoinKind
from service.sql.joins import refusal_of_local, refusal_of_pair, refusal_of_ship

SHIPS = [ship for ship in JoinShip if ship is not JoinShip.AUTO]
LOCALS = [local for local in JoinLocal if local is not JoinLocal.AUTO]


def test_five_of_nine_pairs_exist() -> None:
    pairs = [pair for pair in itertools.product(SHIPS, LOCALS) if refusal_of_pair(*pair) is None]
    assert pairs == [
        (JoinShip.REPARTITION, JoinLocal.SORT_MERGE),
        (JoinShip.REPARTITION, JoinLocal.HASH_LEFT),
        (JoinShip.REPARTITION, JoinLocal.HASH_RIGHT),
        (JoinShip.BROADCAST_LEFT, JoinLocal.HASH_LEFT),
        (JoinShip.BROADCAST_RIGHT, JoinLocal.HASH_RIGHT),
    ]


@pytest.mark.parametrize("ship", JoinShip)
def test_auto_goes_with_everything(ship: JoinShip) -> None:
    assert refusal_of_pair(ship, JoinLocal.AUTO) is None


@pytest.mark.parametrize(
    ("kind", "refused"),
    [
        (JoinKind.INNER, set()),
        (JoinKind.LEFT, {JoinShip.BROADCAST_LEFT}),
        (JoinKind.RIGHT, {JoinShip.BROADCAST_RIGHT}),
        (JoinKind.FULL, {JoinShip.BROADCAST_LEFT, JoinShip.BROADCAST_RIGHT}),
        (JoinKind.LEFT_SEMI, {JoinShip.BROADCAST_LEFT, JoinLocal.HASH_LEFT}),
        (JoinKind.LEFT_ANTI, {JoinShip.BROADCAST_LEFT, JoinLocal.HASH_LEFT}),
    ],
)
def test_each_kind_has_its_ways(kind: JoinKind, refused: set[JoinShip | JoinLocal]) -> None:
    ships = {ship for ship in SHIPS if refusal_of_ship(kind, ship, True) is not None}
    locals_ = {local for local in LOCALS if refusal_of_local(kind, local, True) is not None}
    assert ships | locals_ == refused


def test_without_a_key_there_is_nothing_to_part_hash_or_merge_by() -> None:
    ships = [ship for ship in SHIPS if refusal_of_ship(JoinKind.CROSS, ship, False) is None]
    assert ships == [JoinShip.BROADCAST_LEFT, JoinShip.BROADCAST_RIGHT]
    assert all(refusal_of_local(JoinKind.CROSS, local, False) for local in LOCALS)
    assert refusal_of_local(JoinKind.CROSS, JoinLocal.AUTO, False) is None
