"""Advice: a setting that helps comes before an explanation why none does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from pydantic import ValidationError

from service.spec.compile import compile_job
from service.spec.ddl import parse_schema
from service.spec.errors import SpecError
from service.spec.job import JobSpec
from service.spec.options import JobSettings
from service.spec.query import AggregateFunction, JoinKind
from service.spec.reports import HotKey, HotKeyReport, RuleOutcome, RuleTrace
from service.spec.scalar import Scalar, column
from service.spec.strategies import JoinSkew
from service.spec.types import BIGINT, DOUBLE, Field, array
from workers.engine.plan.nodes import Aggregate, Call, Exchange, Join, JoinStrategy, Named, Node, Phases, Scan
from workers.engine.planner import plan_query
from workers.engine.stats.advice import Advice, KeyRole, Situation, advise, group_of, sides_of
from workers.engine.stats.skew import skew_report
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


TABLES = {"o": "uid BIGINT, category BIGINT", "u": "uid BIGINT, name BIGINT"}
QUERIES: dict[str, tuple[str, ...]] = {
    "SELECT o.uid, COUNT(*) AS n FROM o GROUP BY o.uid": ("agg_phase",),
    "SELECT o.uid, COUNT(DISTINCT o.category) AS n FROM o GROUP BY o.uid": (
        "distinct_method",
        "distinct_split.enabled",
        "agg_phase",
    ),
    "SELECT o.uid, COUNT(DISTINCT o.category) AS n, SUM(u.name) AS s FROM o JOIN u ON o.uid = u.uid GROUP BY o.uid": (
        "distinct_method",
        "distinct_split.enabled",
        "join.skew",
    ),
    "SELECT o.category, u.name FROM o JOIN u ON o.uid = u.uid": ("join.skew", "join.ship"),
    "SELECT o.category, SUM(u.name) AS s FROM o JOIN u ON o.uid = u.uid GROUP BY o.category": (
        "join.skew",
        "eager_aggregation",
    ),
    "SELECT o.category, SUM(u.name) AS s FROM o FULL JOIN u ON o.uid = u.uid GROUP BY o.category": (
        "join.skew",
        "eager_aggregation",
    ),
}
"""With the settings that may change their advice."""

CHOICES: dict[str, tuple[str, ...]] = {
    "distinct_method": ("auto", "native", "split", "bitmap", "branches"),
    "distinct_split.enabled": ("auto", "true", "false"),
    "agg_phase": ("AUTO", "ONE_PHASE", "TWO_PHASE"),
    "join.skew": ("AUTO", "NONE", "ISOLATE", "SALT"),
    "join.ship": ("AUTO", "REPARTITION"),
    "eager_aggregation": ("auto", "true", "false"),
}
ADVISED = {
    ("distinct_split.enabled", "true"),
    ("distinct_method", "split"),
    ("agg_phase", "TWO_PHASE"),
    ("join.skew", "ISOLATE"),
    ("join.skew", "SALT"),
    ("eager_aggregation", "auto"),
}
"""All that the source can say."""


def submitted(sql: str, settings: dict[str, Any]) -> JobSpec:
    """The job as it is accepted: raises what a submission is refused with."""
    used = {name: columns for name, columns in TABLES.items() if f"{name}." in sql}
    tables = {name: {"format": "csv", "path": name, "schema": columns} for name, columns in used.items()}
    spec = JobSpec.model_validate({"tables": tables, "sql": sql, "settings": settings})
    compile_job(spec, {name: parse_schema(columns, "/") for name, columns in used.items()})
    return spec


def known(users_hot: float) -> Statistics:
    sizes = {name: TableSize(name, 8, 1 << 33, 50_000_000, True) for name in TABLES}
    keys: dict[tuple[str, ...], KeySketch] = {}
    for alias, share in (("o", 0.5), ("u", users_hot)):
        hot = (HotKey(value="7", share=share, estimated_rows=round(share * 50_000_000)),) if share else ()
        literals = ((Scalar("7L", (), BIGINT),),) if share else ()
        columns = (f"{alias}.uid",)
        keys[columns] = KeySketch(alias, columns, 60_000, 50_000, 40_000_000, 0.0, hot, literals=literals)
    return Statistics(sizes, keys, 16)


def advised() -> Iterator[tuple[str, JobSpec, str, str]]:
    """Every job of the queries and settings that are accepted and get an advice with a setting, with that advice."""
    for sql, names in QUERIES.items():
        for values, users_hot in product(product(*(CHOICES[name] for name in names)), (0.0, 0.01)):
            settings = dict(zip(names, values, strict=True))
            try:
                spec = submitted(sql, settings)
            except (SpecError, ValidationError):
                continue
            schemas = {name: parse_schema(columns, "/") for name, columns in TABLES.items() if name in spec.tables}
            statistics = known(users_hot)
            plan = plan_query(compile_job(spec, schemas), statistics, spec.settings)
            report = skew_report(statistics, plan.after, (), spec.settings, plan.trace)
            assert all(key.estimated_rows > 0 and key.share > 0 for found in report.keys for key in found.hot_keys)
            if report.setting is not None and report.value is not None:
                yield sql, spec, report.setting, report.value


def with_setting(settings: dict[str, Any], name: str, value: str) -> dict[str, Any]:
    """What a page does that resubmits a job's own `spec` with the setting that the report names."""
    *groups, last = name.split(".")
    changed: dict[str, Any] = {**settings}
    place = changed
    for group in groups:
        place[group] = {**place[group]}
        place = place[group]
    place[last] = value
    return changed


@pytest.mark.slow
def test_every_advice_can_be_taken_by_submitting_the_job_again_with_it() -> None:
    seen = set()
    for sql, spec, setting, value in advised():
        own = spec.model_dump(mode="json", by_alias=True)["settings"]
        again = submitted(sql, with_setting(own, setting, value))
        assert again.settings != spec.settings, (setting, value)
        seen.add((setting, value))
    assert seen == ADVISED
