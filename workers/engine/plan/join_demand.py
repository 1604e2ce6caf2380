"""What is demanded of a join, told apart from what a rule has chosen for it."""

from __future__ import annotations

from dataclasses import replace

from service.spec.strategies import JoinLocal, JoinShip, JoinSkew
from workers.engine.plan.nodes import Join

Demand = tuple[JoinShip, JoinLocal]

NOTHING: Demand = (JoinShip.AUTO, JoinLocal.AUTO)
"""No demand: how the join runs is the rules' to choose."""


def demand_of(join: Join, ship: JoinShip, local: JoinLocal) -> Demand:
    """What the query demands of `join`, and where it does not, the settings, which have `ship` and `local`."""
    own = join.strategy
    own_ship, own_local = (own.ship, own.local) if own.demanded is None else own.demanded
    return ship if own_ship is JoinShip.AUTO else own_ship, local if own_local is JoinLocal.AUTO else own_local


def skew_of(join: Join, skew: JoinSkew) -> JoinSkew:
    """What is to be done about the hot keys of `join`, in a query whose settings have `skew`."""
    own = join.strategy.skew
    return skew if own is JoinSkew.AUTO else own


def with_choice(join: Join, ship: JoinShip, local: JoinLocal, demanded: Demand) -> Join:
    """`join` as a rule wants it to run, which keeps what was demanded of it."""
    return replace(join, strategy=replace(join.strategy, ship=ship, local=local, demanded=demanded))


def demand_text(ship: JoinShip, local: JoinLocal) -> str:
    """A demand for a sentence: `REPARTITION with SORT_MERGE`."""
    return " with ".join(way.value for way in (ship, local) if way.value != JoinShip.AUTO.value)
