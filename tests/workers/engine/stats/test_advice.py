"""Advice: a setting that helps comes before an explanation why none does."""

from __future__ import annotations

import pytest

from service.spec.options import JobSettings
from service.spec.query import AggregateFunction, JoinKind
from service.spec.reports import HotKey, HotKeyReport
from service.spec.scalar import column
from service.spec.types import BIGINT, Field
from workers.engine.plan.nodes import Aggregate, Call, Exchange, Join, Named, Node, Phases, Scan
from workers.engine.stats.advice import KeyRole, Situation, advise, group_of, sides_of
from workers.engine.stats.statistics import Statistics

UID, OTHER_UID = column("o.uid", BIGINT), column("u.uid", BIGINT)
ORDERS = Scan("orders", "o", ((Field("o.uid", BIGINT), "uid"),))
USERS = Scan("users", "u", ((Field("u.uid", BIGINT), "uid"),))
COUNT = Call(AggregateFunction.COUNT, (), Field("n", BIGINT))
JOIN = Join(ORDERS, USERS, JoinKind.INNER, ((UID, OTHER_UID),))
ONE_PHASE = Aggregate(Exchange(JOIN, (UID,)), (Named(UID, "uid"),), (COUNT,), phases=Phases.ONE_PHASE)


def hot(role: KeyRole) -> HotKeyReport:
    keys = (HotKey(value="7", share=0.5, estimated_rows=500),)
    return HotKeyReport(table="o", columns=("o.uid",), role=role, hot_keys=keys, sampled_rows=1000)


def situation(plan: Node) -> Situation:
    return Situation(plan, Statistics({}, {}, slots=4), JobSettings(), (), ())


def test_a_setting_that_helps_comes_first() -> None:
    advice = advise([hot(KeyRole.JOIN), hot(KeyRole.GROUP)], situation(ONE_PHASE))
    assert (advice.setting, advice.value) == ("agg_phase", "TWO_PHASE")
    assert advice.sentence.startswith("The group key o.uid is 7 in 50% of the rows")


@pytest.mark.parametrize(("role", "told"), [(KeyRole.JOIN, "joined on one task"), (KeyRole.DISTINCT, "put together")])
def test_else_the_first_explanation(role: KeyRole, told: str) -> None:
    advice = advise([hot(role)], situation(JOIN))
    assert (advice.setting, advice.value) == (None, None)
    assert told in advice.sentence
    assert advice.hurts is (role is KeyRole.JOIN)


def test_a_key_that_hurts_is_explained_before_one_that_does_not() -> None:
    assert "joined on one task" in advise([hot(KeyRole.DISTINCT), hot(KeyRole.JOIN)], situation(JOIN)).sentence


def test_no_key_and_no_stage() -> None:
    assert advise([], situation(JOIN)).sentence == "No key and no task stands out: nothing needs to change."


def test_columns_of_a_node() -> None:
    assert group_of(ONE_PHASE) == {"o.uid"}
    assert sides_of(JOIN) == (frozenset({"o.uid"}), frozenset({"u.uid"}))
