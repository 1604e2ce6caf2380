"""What the query and the settings force for a join, also after a rule chose a strategy."""

from __future__ import annotations

import pytest

from service.contract.options import JoinLocal, JoinSettings, JoinShip, JoinSkew
from service.contract.query import JoinKind
from tests.support.joined import col, scan
from workers.engine.plan.nodes import Join, JoinStrategy
from workers.engine.rules.joins.strategy_cost import (
    NOT_FORCED,
    ForcedStrategy,
    forced_strategy,
    skew_of,
    with_choice,
)

AUTO, BY_KEY, HASH = JoinShip.AUTO, JoinShip.REPARTITION, JoinLocal.HASH_RIGHT


def join(ship: JoinShip = AUTO, local: JoinLocal = JoinLocal.AUTO, demanded: ForcedStrategy | None = None) -> Join:
    keys = ((col("l.k"), col("r.k")),)
    strategy = JoinStrategy(ship, local, JoinSkew.SALT, demanded)
    return Join(scan("l"), scan("r"), JoinKind.INNER, keys, strategy=strategy)


@pytest.mark.parametrize(
    ("of", "settings", "demand"),
    [
        (join(), NOT_FORCED, NOT_FORCED),
        (join(), (BY_KEY, HASH), (BY_KEY, HASH)),
        (join(local=HASH), (BY_KEY, JoinLocal.SORT_MERGE), (BY_KEY, HASH)),
        (join(BY_KEY, HASH, NOT_FORCED), NOT_FORCED, NOT_FORCED),
        (join(BY_KEY, HASH, ForcedStrategy(BY_KEY)), NOT_FORCED, ForcedStrategy(BY_KEY)),
    ],
)
def test_the_forced_strategy_of_a_join(of: Join, settings: ForcedStrategy, demand: ForcedStrategy) -> None:
    assert forced_strategy(of, JoinSettings(ship=settings[0], local=settings[1])) == demand


def test_a_choice_of_a_rule_does_not_change_what_is_forced() -> None:
    chosen = with_choice(join(BY_KEY), BY_KEY, HASH, ForcedStrategy(BY_KEY))
    assert chosen.strategy.forced == ForcedStrategy(BY_KEY)
    # It runs as one of which all of that is demanded.
    assert chosen == join(BY_KEY, HASH)


def test_the_text_of_a_forced_strategy() -> None:
    assert ForcedStrategy(BY_KEY, HASH).text == "REPARTITION with HASH_RIGHT"
    assert ForcedStrategy(AUTO, HASH).text == "HASH_RIGHT"


def test_the_skew_strategy_of_a_join_precedes_the_settings() -> None:
    assert skew_of(join(), JoinSkew.NONE) is JoinSkew.SALT
    assert skew_of(Join(scan("l"), scan("r"), JoinKind.INNER, join().keys), JoinSkew.ISOLATE) is JoinSkew.ISOLATE
