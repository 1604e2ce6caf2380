"""All combinations of settings, from their declared values.

A query's combinations contain only the settings that concern it. Values come from the enums, so that new strategies are
included automatically. A dimension is a choice of one or more settings that belong together.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from itertools import combinations, product
from typing import Any

from service.contract.options import AggPhase, DistinctMethod, JoinLocal, JoinShip, JoinSkew, Toggle

Settings = Mapping[str, Any]

BUCKETS = (1, 2, 1024)
ALL_OFF: Settings = {
    "agg_phase": AggPhase.TWO_PHASE.value,
    "distinct_method": DistinctMethod.NATIVE.value,
    "distinct_split.enabled": Toggle.FALSE.value,
    "incremental_agg": False,
    "eager_aggregation": Toggle.FALSE.value,
    "join.skew": JoinSkew.NONE.value,
    "optimizer.join_reorder": Toggle.FALSE.value,
    "skewed_windows": Toggle.FALSE.value,
}
"""No rewrites: Spark's own plan."""

ALL_FORCED: Settings = {
    "agg_phase": AggPhase.ONE_PHASE.value,
    "distinct_method": DistinctMethod.SPLIT.value,
    "distinct_split.bucket_num": 16,
    "eager_aggregation": Toggle.TRUE.value,
    "join.ship": JoinShip.REPARTITION.value,
    "join.local": JoinLocal.SORT_MERGE.value,
    "join.skew": JoinSkew.SALT.value,
    "optimizer.join_reorder": Toggle.TRUE.value,
    "skew.threshold": 0,
    "skewed_windows": Toggle.TRUE.value,
}
"""As many rewrites as one plan can have; few queries support all of them."""

FORCED_SETS: Mapping[str, Settings] = {
    "split": ALL_FORCED,
    "incremental": {
        "agg_phase": AggPhase.TWO_PHASE.value,
        "distinct_method": DistinctMethod.SPLIT.value,
        "distinct_split.bucket_num": 16,
        "join.ship": JoinShip.REPARTITION.value,
        "join.local": JoinLocal.HASH_RIGHT.value,
        "join.skew": JoinSkew.ISOLATE.value,
        "skew.threshold": 0,
    },
    "bitmap": {
        "distinct_method": DistinctMethod.BITMAP.value,
        "eager_aggregation": Toggle.TRUE.value,
        "join.ship": JoinShip.BROADCAST_RIGHT.value,
    },
    "branches": {
        "agg_phase": AggPhase.ONE_PHASE.value,
        "distinct_method": DistinctMethod.BRANCHES.value,
        "join.ship": JoinShip.BROADCAST_LEFT.value,
    },
}
"""Settings by name; one of them forces each rewrite."""

_LISTENERS = {
    "agg_phase": {"two_phase_aggregate", "split_distinct_aggregate"},
    "distinct_method": {"bitmap_distinct", "distinct_branches", "split_distinct_aggregate"},
    "eager_aggregation": {"eager_aggregation"},
    "join.ship": {"join_strategy"},
    "join.local": {"join_strategy"},
    "join.skew": {"skewed_join"},
    "skewed_windows": {"skewed_windows"},
}
"""The rules by setting; one of them must report the effect of the forced setting."""
_FORCES_NOTHING = {"AUTO", "NONE", "auto", "native", "false"}


def unheard(settings: Settings, rules: Collection[str]) -> list[str]:
    """Returns the forced settings that no rule, fired or skipped, has reported on."""
    return [
        key
        for key, listeners in _LISTENERS.items()
        if settings.get(key, "AUTO") not in _FORCES_NOTHING and not listeners & set(rules)
    ]


_HASHED_WHERE_BROADCAST = {
    JoinShip.BROADCAST_LEFT: JoinLocal.HASH_LEFT,
    JoinShip.BROADCAST_RIGHT: JoinLocal.HASH_RIGHT,
}


def is_legal(ship: JoinShip, local: JoinLocal) -> bool:
    """Whether Spark supports this pair: the broadcast side must be the hashed side."""
    return local is JoinLocal.AUTO or ship not in _HASHED_WHERE_BROADCAST or local is _HASHED_WHERE_BROADCAST[ship]


def _values(key: str, kind: Any) -> tuple[Settings, ...]:
    return ({}, *({key: value.value} for value in kind if value is not kind.AUTO))


def _methods() -> Iterator[Settings]:
    yield {}
    for method in DistinctMethod:
        if method is DistinctMethod.SPLIT:
            yield from (
                {"distinct_method": method.value, "distinct_split.bucket_num": buckets, "incremental_agg": incremental}
                for buckets in BUCKETS
                for incremental in (True, False)
            )
        elif method is not DistinctMethod.AUTO:
            yield {"distinct_method": method.value}
    yield {"distinct_split.enabled": Toggle.TRUE.value, "distinct_split.bucket_num": 3}
    yield {"distinct_split.enabled": Toggle.FALSE.value}


def _pairs() -> Iterator[Settings]:
    for ship, local in product(JoinShip, JoinLocal):
        if is_legal(ship, local):
            chosen = {"join.ship": ship, "join.local": local}
            yield {key: way.value for key, way in chosen.items() if way.value != "AUTO"}


def _skews() -> Iterator[Settings]:
    yield from _values("join.skew", JoinSkew)
    # By default, such a small side is broadcast, and a broadcast join has no hot keys.
    for skew in JoinSkew:
        if skew not in {JoinSkew.AUTO, JoinSkew.NONE}:
            yield {"join.skew": skew.value, "join.ship": JoinShip.REPARTITION.value}


def dimensions(
    *, distinct: bool, aggregate: bool, join: bool, window: bool = False
) -> tuple[tuple[Settings, ...], ...]:
    """Returns the dimensions that concern such a query. The first choice of each is the default."""
    found: list[tuple[Settings, ...]] = []
    if aggregate:
        found.append(_values("agg_phase", AggPhase))
    if distinct:
        found.append(tuple(_methods()))
    if aggregate and join:
        found.append(_values("eager_aggregation", Toggle))
    if join:
        found += [tuple(_pairs()), tuple(_skews())]
    if window:
        found.append(_values("skewed_windows", Toggle))
    return tuple(found)


def all_off(choices: tuple[tuple[Settings, ...], ...]) -> Settings:
    """Returns ALL_OFF without phases that would be refused without an aggregate."""
    has_phases = any("agg_phase" in choice for dimension in choices for choice in dimension)
    return {key: value for key, value in ALL_OFF.items() if has_phases or key != "agg_phase"}


def alone(choices: tuple[tuple[Settings, ...], ...]) -> list[Settings]:
    """Returns the defaults, everything off, and each choice alone."""
    return [{}, all_off(choices), *(choice for dimension in choices for choice in dimension[1:])]


def in_pairs(choices: tuple[tuple[Settings, ...], ...]) -> list[Settings]:
    """Returns `alone` and all pairs of choices from different dimensions."""
    two = combinations([dimension[1:] for dimension in choices], 2)
    return alone(choices) + [{**left, **right} for one, other in two for left, right in product(one, other)]


def all_together(choices: tuple[tuple[Settings, ...], ...]) -> list[Settings]:
    """Returns the whole product, and everything off."""
    return [all_off(choices), *({key: way[key] for way in ways for key in way} for ways in product(*choices))]
