"""The choice of a method: a rewrite only if it is clearly cheaper. The tests of the rules cover the methods."""

from __future__ import annotations

import pytest

from service.contract.options import JobSettings
from workers.engine.rules.cost import Cost
from workers.engine.rules.distinct.methods import (
    BITMAP,
    GROUP_BITMAPS,
    NATIVE,
    ONE_PHASE,
    MethodCosts,
    is_split_forced,
    unknown_reason,
)


def methods(**slowest: float) -> MethodCosts:
    return MethodCosts({name: Cost(cost, 0.0, 0.0) for name, cost in slowest.items()})


@pytest.mark.parametrize(
    ("known", "best"),
    [
        (methods(), NATIVE),
        (methods(NATIVE=100, BITMAP=81), NATIVE),
        (methods(NATIVE=100, BITMAP=80), BITMAP),
        (methods(NATIVE=100, BITMAP=60, ONE_PHASE=70), NATIVE),
        (methods(NATIVE=100, ONE_PHASE=100), NATIVE),
        # Bitmaps of groups send what one phase sends, and need no margin over it.
        (methods(NATIVE=100, BITMAPS_OF_GROUPS=60, ONE_PHASE=70), GROUP_BITMAPS),
        (methods(NATIVE=100, BITMAPS_OF_GROUPS=81, ONE_PHASE=90), NATIVE),
    ],
)
def test_a_method_is_chosen_if_it_is_clearly_cheaper_than_both_of_sparks(known: MethodCosts, best: str) -> None:
    assert known.best == best


def test_one_alternative_is_marked_as_chosen() -> None:
    ways = methods(NATIVE=4, ONE_PHASE=3).alternatives(ONE_PHASE)
    assert [(way.name, way.cost, way.chosen) for way in ways] == [("NATIVE", 4, False), ("ONE_PHASE", 3, True)]


def test_the_method_goes_before_the_toggle() -> None:
    assert is_split_forced(JobSettings.model_validate({"distinct_split.enabled": True}))
    assert is_split_forced(JobSettings.model_validate({"distinct_method": "split"}))
    assert not is_split_forced(
        JobSettings.model_validate({"distinct_method": "native", "distinct_split.enabled": True})
    )


def test_what_is_not_known_is_a_sentence() -> None:
    assert unknown_reason("the keys are not known") == "The keys are not known: Spark's own plan is kept."
