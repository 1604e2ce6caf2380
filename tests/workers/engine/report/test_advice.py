"""Advice: a setting that helps comes before an explanation why none does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from pydantic import ValidationError

from service.contract.job import JobSpec
from service.contract.options import JobSettings, JoinSkew
from service.contract.problems import SpecError
from service.contract.query import AggregateFunction, JoinKind
from service.contract.reports import HotKey, HotKeyReport, RuleOutcome, RuleTrace, SkewReport, StageMetrics, StageSkew
from service.sql.compile import compile_job
from service.sql.expressions.nodes import OrderKey, Over
from service.sql.expressions.scalar import Scalar, column
from service.sql.types.data_types import BIGINT, BOOLEAN, DOUBLE, INT, Field, array
from tests.support.compiled import compiled, job_over, schemas_of
from tests.support.plan_parts import COUNT, ORDERS, USERS
from tests.support.scalars import scalar
from tests.support.stages import stage
from workers.engine.plan.explain import text_of
from workers.engine.plan.nodes import (
    Aggregate,
    Call,
    Deduplicate,
    Exchange,
    Filter,
    Join,
    JoinStrategy,
    Named,
    Node,
    Phases,
    Project,
    Scan,
    Union,
    WindowFunctions,
)
from workers.engine.planner import Plan, plan_query
from workers.engine.report.operator_tree import numbered
from workers.engine.report.skew import (
    Advice,
    KeyRole,
    Situation,
    advise,
    effects_of,
    group_of,
    sides_of,
    skew_report,
    with_settings,
)
from workers.engine.report.task_skew import Evidence, ShuffleReads, evidence_of
from workers.engine.statistics.model import KeySketch, Statistics, TableSize

UID, OTHER_UID = column("o.uid", BIGINT), column("u.uid", BIGINT)
JOIN = Join(ORDERS, USERS, JoinKind.INNER, ((UID, OTHER_UID),))
ONE_PHASE = Aggregate(Exchange(JOIN, (UID,)), (Named(UID, "uid"),), (COUNT,), phases=Phases.ONE_PHASE)


def hot(role: KeyRole) -> HotKeyReport:
    keys = (HotKey(value="7", share=0.5, estimated_rows=500),)
    return HotKeyReport(table="o", columns=("o.uid",), role=role, hot_keys=keys, sampled_rows=1000)


def other_plan(settings: JobSettings) -> str:
    """Every setting gives another plan."""
    return settings.model_dump_json()


def situation(plan: Node) -> Situation:
    return Situation(plan, Statistics({}, {}, slots=4), JobSettings(), (), Evidence(4.0), other_plan)


def advice_on(reports: Sequence[HotKeyReport], known: Situation) -> Advice:
    return advise([effect for report in reports for effect in effects_of(report, known)], known)


def test_a_setting_that_helps_comes_first() -> None:
    advice = advice_on([hot(KeyRole.JOIN), hot(KeyRole.GROUP)], situation(ONE_PHASE))
    assert (advice.setting, advice.value) == ("agg_phase", "TWO_PHASE")
    assert advice.sentence.startswith("The group key o.uid is 7 in 50% of the rows")


@pytest.mark.parametrize(
    ("role", "expected"),
    [(KeyRole.JOIN, "one task joins them"), (KeyRole.DISTINCT, "before the shuffle")],
)
def test_else_the_first_explanation(role: KeyRole, expected: str) -> None:
    advice = advice_on([hot(role)], situation(JOIN))
    assert (advice.setting, advice.value) == (None, None)
    assert expected in advice.sentence
    assert advice.hurts is (role is KeyRole.JOIN)


def test_a_key_that_hurts_is_explained_before_one_that_does_not() -> None:
    assert "one task joins them" in advice_on([hot(KeyRole.DISTINCT), hot(KeyRole.JOIN)], situation(JOIN)).sentence


def test_no_key_and_no_stage() -> None:
    assert advise([], situation(JOIN)).sentence == "There are no hot keys and no slow tasks. Nothing needs to change."


def test_columns_of_a_node() -> None:
    assert group_of(ONE_PHASE) == {"o.uid"}
    assert sides_of(JOIN) == (frozenset({"o.uid"}), frozenset({"u.uid"}))


def skewed() -> Statistics:
    """Half of the orders are user 7's, of whom there is one."""
    sizes = {alias: TableSize(alias, 8, 1 << 30, 10_000_000, True) for alias in ("o", "u")}
    hot = (HotKey(value="7", share=0.5, estimated_rows=500),)
    literals = ((scalar("7L", BIGINT),),)
    orders = KeySketch("o", ("o.uid",), 60_000, 5_000_000, 0.0, hot, literals=literals)
    users = KeySketch("u", ("u.uid",), 60_000, 10_000_000, 0.0, ())
    return Statistics(sizes, {("o.uid",): orders, ("u.uid",): users}, slots=4)


def on_join(plan: Node, rules: tuple[RuleTrace, ...] = (), **settings: object) -> Advice:
    known = JobSettings.model_validate(settings)
    return advice_on([hot(KeyRole.JOIN)], Situation(plan, skewed(), known, rules, Evidence(4.0), other_plan))


def test_a_hot_join_key_is_to_be_joined_apart() -> None:
    advice = on_join(JOIN)
    assert (advice.setting, advice.value, advice.hurts) == ("join.skew", "ISOLATE", True)
    assert "Set join.skew to ISOLATE to join them separately" in advice.sentence


def test_one_that_was_joined_apart_needs_nothing() -> None:
    fired = RuleTrace(rule="skewed_join", outcome=RuleOutcome.FIRED, node="", reason="")
    advice = on_join(replace(JOIN, strategy=JoinStrategy(skew=JoinSkew.NONE)), (fired,))
    assert (advice.setting, advice.hurts) == (None, False)
    assert "skewed_join joined these rows separately" in advice.sentence


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
    advice = advice_on([hot(KeyRole.GROUP)], known)
    assert (advice.setting, advice.value) == (setting, value)
    assert f"Set {setting} to {value}" in advice.sentence


def test_no_setting_is_advised_that_contradicts_another() -> None:
    item = column("o.item", BIGINT)
    distinct = Call(AggregateFunction.COUNT, (item,), Field("n", BIGINT), distinct=True)
    orders = replace(ORDERS, columns=(*ORDERS.columns, (Field("o.item", BIGINT), "item")))
    plan = Aggregate(Exchange(orders, (UID,)), (Named(UID, "uid"),), (distinct,), phases=Phases.ONE_PHASE)
    given = JobSettings.model_validate({"distinct_method": "native", "distinct_split.enabled": False})
    advice = advice_on([hot(KeyRole.GROUP)], replace(situation(plan), settings=given))
    assert (advice.setting, advice.value, advice.hurts) == (None, None, True)
    assert "Set distinct_method to split and omit distinct_split.enabled" in advice.sentence


def test_no_split_is_advised_for_values_without_buckets() -> None:
    for of, setting in ((array(BIGINT), "distinct_split.enabled"), (array(DOUBLE), "agg_phase")):
        distinct = Call(AggregateFunction.COUNT, (column("o.items", of),), Field("n", BIGINT), distinct=True)
        orders = replace(ORDERS, columns=(*ORDERS.columns, (Field("o.items", of), "items")))
        plan = Aggregate(Exchange(orders, (UID,)), (Named(UID, "uid"),), (distinct,), phases=Phases.ONE_PHASE)
        assert advice_on([hot(KeyRole.GROUP)], situation(plan)).setting == setting


def test_no_split_is_advised_for_grouping_sets() -> None:
    """Neither could follow: Spark copies the rows for each set, and shuffles the copies."""
    item = column("o.item", BIGINT)
    distinct = Call(AggregateFunction.COUNT, (item,), Field("n", BIGINT), distinct=True)
    orders = replace(ORDERS, columns=(*ORDERS.columns, (Field("o.item", BIGINT), "item")))
    joined = Join(orders, USERS, JoinKind.LEFT, ((UID, OTHER_UID),))
    plan = Aggregate(joined, (Named(UID, "uid"),), (distinct,))
    known = replace(situation(plan), statistics=skewed())
    assert advice_on([hot(KeyRole.GROUP)], known).setting == "distinct_split.enabled"
    advice = advice_on([hot(KeyRole.GROUP)], replace(known, plan=replace(plan, grouping_sets=((0,), ()))))
    assert (advice.setting, advice.hurts) == (None, False)
    assert "Nothing needs to change" in advice.sentence


def test_an_aggregate_may_move_below_a_join_whose_sides_cannot_be_split() -> None:
    full = replace(JOIN, kind=JoinKind.FULL)
    plan = replace(ONE_PHASE, input=full, phases=Phases.TWO_PHASE)
    advice = on_join(plan, eager_aggregation="false")
    assert (advice.setting, advice.value) == ("eager_aggregation", "auto")
    assert on_join(plan).setting is None
    assert "join.skew cannot distribute the rows of a key of this join" in on_join(plan).sentence


def test_a_setting_that_leaves_the_plan_as_it_is_is_not_advised() -> None:
    known = replace(situation(ONE_PHASE), replan=lambda _: "the same plan")
    advice = advice_on([hot(KeyRole.GROUP)], known)
    assert (advice.setting, advice.hurts) == (None, True)
    assert "Set " not in advice.sentence


EAGER = RuleTrace(rule="eager_aggregation", outcome=RuleOutcome.FIRED, node="", reason="")
BELOW = Aggregate(ORDERS, (Named(UID, "o.uid"),), (COUNT,))


@pytest.mark.parametrize(
    "below",
    [
        BELOW,
        Deduplicate(ORDERS),
        Project(BELOW, (Named(UID, "o.uid"),)),
        Filter(BELOW, scalar("`o.uid` > 1", BOOLEAN)),
        Join(BELOW, replace(USERS, alias="v", columns=((Field("v.uid", BIGINT), "uid"),)), JoinKind.INNER, ()),
        Union((BELOW, BELOW)),
        Union((ORDERS, ORDERS), replaces=BELOW),
    ],
)
@pytest.mark.parametrize(("rules", "who"), [((EAGER,), "eager_aggregation"), ((), "the query")])
def test_rows_that_are_aggregated_before_the_join_are_not_one_tasks_work(
    below: Node, rules: tuple[RuleTrace, ...], who: str
) -> None:
    advice = on_join(replace(JOIN, left=below), rules)
    assert (advice.setting, advice.hurts) == (None, False)
    assert f"aggregated before the join, by {who}. Nothing needs to change" in advice.sentence


@pytest.mark.parametrize("below", [ORDERS, Union((ORDERS, BELOW)), Union((BELOW, BELOW), replaces=ORDERS)])
def test_rows_that_are_not_aggregated_are(below: Node) -> None:
    assert on_join(replace(JOIN, left=below)).hurts


def test_rows_that_are_aggregated_before_they_are_grouped() -> None:
    plan = replace(ONE_PHASE, input=Exchange(replace(JOIN, left=BELOW), (UID,)))
    _, above = effects_of(hot(KeyRole.GROUP), situation(plan))
    assert isinstance(above, Advice)
    assert "These rows are aggregated before they are grouped. Nothing needs to change" in above.sentence


def test_a_join_that_spark_ran_with_a_broadcast_needs_nothing() -> None:
    ran = Evidence(4.0, is_measured=True, broadcast=frozenset({numbered(JOIN).id}))
    known = Situation(JOIN, skewed(), JobSettings(), (), ran, other_plan)
    assert "Spark broadcasts the other side" in advice_on([hot(KeyRole.JOIN)], known).sentence


SLOW = StageSkew(
    stage_id=5, max_over_median=9.0, slowest_task_ms=900, median_task_ms=100, stage_impact=1.0, lost_ms=700
)
UNEVEN = ShuffleReads(most_rows=5_000_000, over_others=30.0, is_skewed=True)
FULL = replace(JOIN, kind=JoinKind.FULL)


@pytest.mark.parametrize(
    ("join", "evidence", "setting", "said"),
    [
        (JOIN, Evidence(4.0, True, (SLOW,), (UNEVEN,)), "join.skew", "Set join.skew to ISOLATE"),
        # Rows were uneven, and it took no task long.
        (
            JOIN,
            Evidence(4.0, True, (), (replace(UNEVEN, is_skewed=False),)),
            "join.skew",
            "In this run no task took more than 4 times",
        ),
        (FULL, Evidence(4.0, True, (SLOW,), (UNEVEN,)), None, "filter or aggregate them before the join"),
        (FULL, Evidence(4.0, True, (), (replace(UNEVEN, is_skewed=False),)), None, "Nothing needs to change"),
        # The rows of the key were read by one task, which had no more than four times as many as the others.
        (JOIN, Evidence(4.0, True, (), (ShuffleReads(5_000_000, 3.9, False),)), None, "Nothing needs to change"),
        # A condition left few of them: five million were estimated.
        (JOIN, Evidence(4.0, True, (), (ShuffleReads(499_999, 30.0, False),)), None, "The estimate was wrong"),
        (
            JOIN,
            Evidence(4.0, True, (SLOW,), (ShuffleReads(499_999, 30.0, True),)),
            None,
            "no hot key of the sample explains",
        ),
    ],
)
def test_advice_agrees_with_what_was_measured(join: Join, evidence: Evidence, setting: str | None, said: str) -> None:
    advice = advice_on([hot(KeyRole.JOIN)], Situation(join, skewed(), JobSettings(), (), evidence, other_plan))
    assert advice.setting == setting
    assert said in advice.sentence


def test_settings_are_changed_by_their_names() -> None:
    given = JobSettings.model_validate({"distinct_split.enabled": False, "skew.factor": 7})
    made = with_settings(given, {"distinct_method": "split", "distinct_split.enabled": "auto"})
    assert made == JobSettings.model_validate({"distinct_method": "split", "skew.factor": 7})


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
    # The left side of a right join cannot be joined in parts.
    "SELECT o.category, COUNT(*) AS n FROM o RIGHT JOIN u ON o.uid = u.uid GROUP BY o.category": (
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
    compiled(used, sql, settings=settings)
    return job_over(used, sql, settings=settings)


def known(users_hot: float, sql: str) -> Statistics:
    sizes = {name: TableSize(name, 8, 1 << 33, 50_000_000, True) for name in TABLES}
    keys: dict[tuple[str, ...], KeySketch] = {}
    for alias, share in (("o", 0.5), ("u", users_hot)):
        hot = (HotKey(value="7", share=share, estimated_rows=round(share * 50_000_000)),) if share else ()
        literals = ((scalar("7L", BIGINT),),) if share else ()
        columns = (f"{alias}.uid",)
        keys[columns] = KeySketch(alias, columns, 60_000, 40_000_000, 0.0, hot, literals=literals)
    if "DISTINCT" not in sql:
        # By what a side would be grouped by, were it aggregated before the join.
        pair = ("o.uid", "o.category")
        keys[pair] = KeySketch("o", pair, 60_000, 1_000_000, 0.0, ())
    return Statistics(sizes, keys, 16)


def reported(measured: Sequence[StageMetrics] = ()) -> Iterator[tuple[str, JobSpec, Statistics, SkewReport]]:
    """Every job of the queries and settings that is accepted, with the skew report of a run with these stages."""
    for sql, names in QUERIES.items():
        for values, users_hot in product(product(*(CHOICES[name] for name in names)), (0.0, 0.01)):
            settings = dict(zip(names, values, strict=True))
            try:
                spec = submitted(sql, settings)
            except (SpecError, ValidationError):
                continue
            statistics = known(users_hot, sql)
            made = plan_of(spec, spec.settings, statistics)

            def replan(other: JobSettings, spec: JobSpec = spec, statistics: Statistics = statistics) -> str:
                return text_of(plan_of(spec, other, statistics).after)

            evidence = evidence_of(measured, statistics.slots, spec.settings.skew.factor)
            yield (
                sql,
                spec,
                statistics,
                skew_report(statistics, made.after, evidence, spec.settings, made.trace, replan),
            )


def plan_of(spec: JobSpec, settings: JobSettings, statistics: Statistics) -> Plan:
    schemas = schemas_of({name: columns for name, columns in TABLES.items() if name in spec.tables})
    return plan_query(compile_job(spec, schemas), statistics, settings)


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


def uneven(rows: int, *, slowest_ms: float) -> StageMetrics:
    """A stage of which one of eight tasks read so many of 50,000,000 rows."""
    return stage((100.0, 100.0, 100.0, 100.0, slowest_ms), tasks=8, read=50_000_000, most=rows)


MEASURED = {
    "nothing": (),
    "one task with all rows of the key": (uneven(26_000_000, slowest_ms=5_000),),
    "one task with all rows of the key, in no more time": (uneven(26_000_000, slowest_ms=150),),
    "even tasks": (uneven(6_250_000, slowest_ms=150),),
    "far fewer rows": (uneven(2_000_000, slowest_ms=5_000),),
}


@pytest.mark.not_quick
@pytest.mark.parametrize("measured", MEASURED)
def test_advice_changes_the_plan_and_the_verdict_is_what_was_measured(measured: str) -> None:
    stages = MEASURED[measured]
    seen = set()
    for sql, spec, statistics, report in reported(stages):
        if stages:
            assert report.skewed is (stages[0].duration_ms is not None and stages[0].duration_ms.max > 400)
        assert not (report.skewed and "Nothing needs to change" in report.advice), (sql, spec.settings)
        if report.setting is None or report.value is None:
            assert "Set " not in report.advice or "omit distinct_split.enabled" in report.advice
            continue
        own = spec.model_dump(mode="json", by_alias=True)["settings"]
        again = submitted(sql, with_setting(own, report.setting, report.value))
        assert again.settings != spec.settings, "the setting is already in effect"
        before, after = (plan_of(spec, settings, statistics).after for settings in (spec.settings, again.settings))
        assert text_of(before) != text_of(after), (sql, spec.settings, report.setting, report.value)
        seen.add((report.setting, report.value))
    assert seen == (ADVISED if measured in {"nothing", *list(MEASURED)[1:3]} else set())


DAYS = Scan("orders", "o", (*ORDERS.columns, (Field("o.day", INT), "day")))


def by_uid(call: str = "row_number", *more: Scalar) -> WindowFunctions:
    over = Over(call, (), (UID.tree, *(key.tree for key in more)), (OrderKey(column("o.day", INT).tree),))
    return WindowFunctions(DAYS, (Named(Scalar(over, INT), "n"),))


def on_window(plan: Node, rules: tuple[RuleTrace, ...] = (), replan: Any = other_plan) -> Advice:
    situation = Situation(plan, skewed(), JobSettings(), rules, Evidence(4.0), replan)
    return advice_on([hot(KeyRole.PARTITION)], situation)


def test_a_hot_partition_is_to_be_computed_in_parts() -> None:
    advice = on_window(by_uid())
    assert (advice.setting, advice.value, advice.hurts) == ("skewed_windows", "true", True)
    assert advice.sentence.startswith(
        "The partition key o.uid is 7 in 50% of the rows and one task computes their calls with OVER. "
        "Set skewed_windows to true"
    )


def test_a_partition_that_has_no_parts_is_named() -> None:
    advice = on_window(by_uid("ntile"), replan=lambda _: "the same plan")
    assert (advice.setting, advice.hurts) == (None, True)
    assert "skewed_windows cannot compute these calls in several tasks" in advice.sentence


def test_a_partition_that_was_computed_in_parts_needs_nothing() -> None:
    part = Named(scalar("pmod(`o.day`, 8)", INT), "$part")
    rows = Project(DAYS, (*(Named(column(name, None), name) for name in ("o.uid", "o.day")), part))
    window = replace(by_uid("row_number", column("$part", INT)), input=rows)
    fired = RuleTrace(rule="skewed_windows", outcome=RuleOutcome.FIRED, node="", reason="")
    assert "skewed_windows computed these rows in several tasks" in on_window(window, (fired,)).sentence


def test_the_partition_key_of_a_window_is_reported() -> None:
    report = skew_report(skewed(), by_uid(), Evidence(4.0), JobSettings(), (), other_plan)
    assert [(key.role, key.rows_on_one_task) for key in report.keys] == [("partition key", 5_000_000)]
