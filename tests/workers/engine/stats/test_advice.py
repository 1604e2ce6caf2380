"""Advice: a setting that helps comes before an explanation why none does."""

from __future__ import annotations

from dataclasses import replace

import pytest

from service.spec.options import JobSettings
from service.spec.query import AggregateFunction, JoinKind
from service.spec.reports import HotKey, HotKeyReport, RuleOutcome, RuleTrace
from service.spec.scalar import Scalar, column
from service.spec.strategies import JoinSkew
from service.spec.types import BIGINT, DOUBLE, Field, array
from workers.engine.plan.nodes import Aggregate, Call, Exchange, Join, JoinStrategy, Named, Node, Phases, Scan
from workers.engine.stats.advice import Advice, KeyRole, Situation, advise, group_of, sides_of
from workers.engine.stats.statistics import KeySketch, Statistics, TableSize

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


def skewed() -> Statistics:
    """Half of the orders are user 7's, of whom there is one."""
    sizes = {alias: TableSize(alias, 8, 1 << 30, 10_000_000, True) for alias in ("o", "u")}
    hot = (HotKey(value="7", share=0.5, estimated_rows=500),)
    literals = ((Scalar("7L", (), BIGINT),),)
    orders = KeySketch("o", ("o.uid",), 60_000, 30_000, 5_000_000, 0.0, hot, literals=literals)
    users = KeySketch("u", ("u.uid",), 60_000, 60_000, 10_000_000, 0.0, ())
    return Statistics(sizes, {("o.uid",): orders, ("u.uid",): users}, slots=4)


def on_join(plan: Node, rules: tuple[RuleTrace, ...] = (), **settings: object) -> Advice:
    known = JobSettings.model_validate(settings)
    return advise([hot(KeyRole.JOIN)], Situation(plan, skewed(), known, rules, ()))


def test_a_hot_join_key_is_to_be_joined_apart() -> None:
    advice = on_join(JOIN)
    assert (advice.setting, advice.value, advice.hurts) == ("join.skew", "ISOLATE", True)
    assert "set join.skew to ISOLATE to join them apart" in advice.sentence


def test_one_that_was_joined_apart_needs_nothing() -> None:
    fired = RuleTrace(rule="skewed_join", outcome=RuleOutcome.FIRED, node="", reason="")
    advice = on_join(replace(JOIN, strategy=JoinStrategy(skew=JoinSkew.NONE)), (fired,))
    assert (advice.setting, advice.hurts) == (None, False)
    assert "has joined it apart" in advice.sentence


@pytest.mark.parametrize(
    ("method", "setting", "value"),
    [("auto", "distinct_split.enabled", "true"), ("native", "distinct_method", "split")],
)
def test_a_split_is_advised_by_the_setting_that_counts(method: str, setting: str, value: str) -> None:
    item = column("o.item", BIGINT)
    distinct = Call(AggregateFunction.COUNT, (item,), Field("n", BIGINT), distinct=True)
    orders = replace(ORDERS, columns=(*ORDERS.columns, (Field("o.item", BIGINT), "item")))
    plan = Aggregate(Exchange(orders, (UID,)), (Named(UID, "uid"),), (distinct,), phases=Phases.ONE_PHASE)
    known = replace(situation(plan), settings=JobSettings.model_validate({"distinct_method": method}))
    advice = advise([hot(KeyRole.GROUP)], known)
    assert (advice.setting, advice.value) == (setting, value)
    assert f"set {setting} to {value}" in advice.sentence


def test_no_setting_is_advised_that_would_be_refused_beside_another() -> None:
    item = column("o.item", BIGINT)
    distinct = Call(AggregateFunction.COUNT, (item,), Field("n", BIGINT), distinct=True)
    orders = replace(ORDERS, columns=(*ORDERS.columns, (Field("o.item", BIGINT), "item")))
    plan = Aggregate(Exchange(orders, (UID,)), (Named(UID, "uid"),), (distinct,), phases=Phases.ONE_PHASE)
    given = JobSettings.model_validate({"distinct_method": "native", "distinct_split.enabled": False})
    advice = advise([hot(KeyRole.GROUP)], replace(situation(plan), settings=given))
    assert (advice.setting, advice.value, advice.hurts) == (None, None, True)
    assert "set distinct_method to split and leave distinct_split.enabled out" in advice.sentence


def test_no_split_is_advised_of_what_has_no_buckets() -> None:
    for of, setting in ((array(BIGINT), "distinct_split.enabled"), (array(DOUBLE), "agg_phase")):
        distinct = Call(AggregateFunction.COUNT, (column("o.items", of),), Field("n", BIGINT), distinct=True)
        orders = replace(ORDERS, columns=(*ORDERS.columns, (Field("o.items", of), "items")))
        plan = Aggregate(Exchange(orders, (UID,)), (Named(UID, "uid"),), (distinct,), phases=Phases.ONE_PHASE)
        assert advise([hot(KeyRole.GROUP)], situation(plan)).setting == setting


def test_no_split_is_advised_for_grouping_sets() -> None:
    """Neither could follow: Spark copies the rows for each set, and shuffles the copies."""
    item = column("o.item", BIGINT)
    distinct = Call(AggregateFunction.COUNT, (item,), Field("n", BIGINT), distinct=True)
    orders = replace(ORDERS, columns=(*ORDERS.columns, (Field("o.item", BIGINT), "item")))
    joined = Join(orders, USERS, JoinKind.LEFT, ((UID, OTHER_UID),))
    plan = Aggregate(joined, (Named(UID, "uid"),), (distinct,))
    known = replace(situation(plan), statistics=skewed())
    assert advise([hot(KeyRole.GROUP)], known).setting == "distinct_split.enabled"
    advice = advise([hot(KeyRole.GROUP)], replace(known, plan=replace(plan, grouping_sets=((0,), ()))))
    assert (advice.setting, advice.hurts) == (None, False)
    assert "nothing needs to change" in advice.sentence


def test_where_no_side_may_be_parted_an_aggregate_may_go_below() -> None:
    full = replace(JOIN, kind=JoinKind.FULL)
    plan = replace(ONE_PHASE, input=full, phases=Phases.TWO_PHASE)
    advice = on_join(plan, eager_aggregation="false")
    assert (advice.setting, advice.value) == ("eager_aggregation", "auto")
    assert on_join(plan).setting is None
    assert "join.skew cannot part them in this join" in on_join(full, eager_aggregation="false").sentence
