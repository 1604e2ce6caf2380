"""What the skew report says, by table: keys, stages, loss, and advice that would help or none."""

from __future__ import annotations

import pytest

from service.contract.options import JobSettings
from service.contract.query import AggregateFunction, JoinKind
from service.contract.reports import HotKey, RuleOutcome, RuleTrace, SkewReport, StageMetrics
from service.sql.expressions.scalar import column
from service.sql.types.data_types import BIGINT, Field
from tests.support.plan_parts import COUNT, USERS
from tests.support.scalars import scalar
from tests.support.stages import stage
from workers.engine.plan.nodes import Aggregate, AggregateRole, Call, Exchange, Join, Named, Node, Phases, Scan
from workers.engine.report.skew import skew_report
from workers.engine.report.task_skew import evidence_of
from workers.engine.statistics.model import KeySketch, Statistics, TableSize

UID, CATEGORY = column("o.uid", BIGINT), column("o.category", BIGINT)
ORDERS = Scan("orders", "o", ((Field("o.uid", BIGINT), "uid"), (Field("o.category", BIGINT), "category")))
DISTINCT = Call(AggregateFunction.COUNT, (CATEGORY,), Field("d", BIGINT), distinct=True)
SUM = Call(AggregateFunction.SUM, (CATEGORY,), Field("s", BIGINT))
UNKNOWN_SUM = Call(AggregateFunction.SUM, (scalar("f(`o.uid`)", None),), Field("s", BIGINT))
BY_UID = (Named(UID, "uid"),)


def whole(*calls: Call, source: Node = ORDERS) -> Aggregate:
    return Aggregate(source, BY_UID, calls)


def one_phase(*calls: Call) -> Aggregate:
    return Aggregate(Exchange(ORDERS, (UID,)), BY_UID, calls, phases=Phases.ONE_PHASE)


def partial() -> Aggregate:
    bucket = Named(scalar("pmod(xxhash64(`o.category`), 16)", BIGINT), "$bucket")
    return Aggregate(ORDERS, (*BY_UID, bucket), (DISTINCT,), AggregateRole.PARTIAL, Phases.TWO_PHASE)


def join(kind: JoinKind = JoinKind.INNER) -> Join:
    return Join(ORDERS, USERS, kind, ((UID, column("u.uid", BIGINT)),))


def sketch(*columns: str, hot: dict[str, float], distinct: int = 10_000, null_share: float = 0.0) -> KeySketch:
    keys = tuple(
        HotKey(
            value=value,
            share=share,
            estimated_rows=round(share * 1_000_000),
            is_null=value == "NULL" and null_share > 0,
        )
        for value, share in hot.items()
    )
    return KeySketch(columns[0].split(".")[0], columns, 60_000, distinct, null_share, keys)


def statistics(*sketches: KeySketch, slots: int = 4, users_bytes: int = 1 << 30) -> Statistics:
    sizes = {
        "o": TableSize("o", 4, 1 << 30, 1_000_000, True),
        "u": TableSize("u", 1, users_bytes, 10_000, True),
    }
    return Statistics(sizes, {known.columns: known for known in sketches}, slots)


def report(
    known: Statistics, plan: Node, *stages: StageMetrics, rules: tuple[RuleTrace, ...] = (), factor: float = 4.0
) -> SkewReport:
    settings = JobSettings.model_validate({"skew.factor": factor})
    evidence = evidence_of(stages, known.slots, factor)
    # Every other setting gives another plan.
    return skew_report(known, plan, evidence, settings, rules, lambda other: other.model_dump_json())


HOT_UID = sketch("o.uid", hot={"7": 0.5, "8": 0.01})
FIRED = RuleTrace(rule="split_distinct_aggregate", outcome=RuleOutcome.FIRED, node="", reason="")


@pytest.mark.parametrize(
    ("plan", "setting", "value", "expected"),
    [
        (whole(COUNT), None, None, "Every task aggregates its share"),
        (whole(COUNT, DISTINCT), None, None, "shuffles by group and distinct value"),
        (one_phase(COUNT), "agg_phase", "TWO_PHASE", "agg_phase to TWO_PHASE"),
        (one_phase(DISTINCT), "distinct_split.enabled", "true", "distinct_split.enabled to true"),
        # A call that cannot be split leaves Spark's two phases, which shuffle by the value too.
        (one_phase(DISTINCT, UNKNOWN_SUM), "agg_phase", "TWO_PHASE", "agg_phase to TWO_PHASE"),
        (partial(), None, None, "distributed these rows over buckets"),
        (whole(DISTINCT, source=join()), "distinct_split.enabled", "true", "distinct_split.enabled to true"),
        (whole(COUNT, source=join()), None, None, "what is below"),
    ],
)
def test_advice_on_a_hot_group(plan: Node, setting: str | None, value: str | None, expected: str) -> None:
    known = report(statistics(HOT_UID), plan)
    assert known.skewed is (setting is not None or expected == "what is below")
    group = next(key for key in known.keys if key.role == "group key")
    assert (group.table, group.columns, group.sampled_rows) == ("o", ("o.uid",), 60_000)
    assert [key.value for key in group.hot_keys] == ["7"]
    assert not any(key.estimate_is_wrong for key in known.keys)
    assert group.rows_on_one_task == (500_000 if known.skewed else None)
    assert (known.setting, known.value) == (setting, value)
    if setting or len(known.keys) == 1:
        assert expected in known.advice


@pytest.mark.parametrize(
    ("kind", "users_bytes", "expected"),
    [
        (JoinKind.INNER, 1 << 30, "one task joins them"),
        (JoinKind.INNER, 1 << 20, "broadcasts"),
        (JoinKind.LEFT, 1 << 20, "broadcasts"),
        (JoinKind.RIGHT, 1 << 20, "one task joins them"),
        (JoinKind.FULL, 1 << 20, "one task joins them"),
    ],
)
def test_advice_on_a_hot_join_key(kind: JoinKind, users_bytes: int, expected: str) -> None:
    known = report(statistics(HOT_UID, users_bytes=users_bytes), join(kind))
    assert [key.role for key in known.keys] == ["join key"]
    assert expected in known.advice
    assert known.skewed is ("one task" in expected)
    assert known.setting is None


@pytest.mark.parametrize(
    ("kind", "reported"),
    [
        (JoinKind.INNER, []),
        (JoinKind.LEFT_SEMI, []),
        (JoinKind.RIGHT, ["u"]),
        (JoinKind.LEFT, ["o"]),
        (JoinKind.LEFT_ANTI, ["o"]),
        (JoinKind.FULL, ["o", "u"]),
    ],
)
def test_null_join_keys_count_where_their_rows_are_kept(kind: JoinKind, reported: list[str]) -> None:
    nulls = [sketch(name, hot={"NULL": 0.6}, null_share=0.6) for name in ("o.uid", "u.uid")]
    assert [key.table for key in report(statistics(*nulls), join(kind)).keys] == reported


def test_the_text_null_joins_like_any_other() -> None:
    assert report(statistics(sketch("o.uid", hot={"NULL": 0.6}, null_share=0.0)), join()).keys


def test_null_group_keys_are_a_group() -> None:
    known = report(statistics(sketch("o.uid", hot={"NULL": 0.6}, null_share=0.6)), whole(COUNT))
    assert known.keys[0].hot_keys[0].value == "NULL"


def test_a_hot_distinct_value_alone_is_no_skew() -> None:
    known = report(statistics(sketch("o.category", hot={"3": 0.9})), whole(DISTINCT))
    assert [key.role for key in known.keys] == ["distinct value"]
    assert not known.skewed
    assert known.setting is None
    # A sum has no distinct values, and COUNT(DISTINCT) leaves NULLs out.
    assert report(statistics(sketch("o.category", hot={"3": 0.9})), whole(SUM)).keys == ()
    assert report(statistics(sketch("o.category", hot={"NULL": 0.9}, null_share=0.9)), whole(DISTINCT)).keys == ()


@pytest.mark.parametrize(
    ("share", "distinct", "slots", "factor", "hot"),
    [
        (0.5, 10_000, 4, 4.0, True),
        (0.17, 16, 4, 4.0, False),  # United among sixteen carriers: 17 % against 5.5 % of the others
        (0.30, 16, 4, 4.0, True),
        (0.30, 16, 4, 8.0, False),
        (0.9, 2, 4, 4.0, True),
        (0.7, 2, 4, 4.0, False),
        (1.0, 1, 4, 4.0, True),
        (0.01, 10_000, 4, 4.0, False),  # nothing that eight partitions notice
        (0.12, 10_000, 4, 4.0, False),
        (0.13, 10_000, 4, 4.0, True),
        (0.01, 10_000, 100, 4.0, True),
        (0.2, 10_000, 1, 4.0, True),
    ],
)
def test_which_keys_stand_out(share: float, distinct: int, slots: int, factor: float, hot: bool) -> None:
    known = statistics(sketch("o.uid", hot={"7": share}, distinct=distinct), slots=slots)
    assert bool(report(known, whole(COUNT), factor=factor).keys) is hot


@pytest.mark.parametrize(
    ("times", "tasks", "skewed"),
    [
        ((10.0, 10.0, 10.0, 10.0, 1000.0), 5, True),
        ((10.0, 10.0, 10.0, 10.0, 40.0), 5, False),
        ((1.0, 1.0, 1.0, 1.0, 99.0), 5, False),  # too short to matter
        ((300.0, 300.0, 300.0, 300.0, 1000.0), 5, False),
        ((0.0, 0.0, 0.0, 0.0, 500.0), 5, True),
        ((500.0, 500.0, 500.0, 500.0, 500.0), 1, False),
        (None, 5, False),
    ],
)
def test_which_stages_are_skewed(
    times: tuple[float, float, float, float, float] | None, tasks: int, skewed: bool
) -> None:
    known = report(statistics(), whole(COUNT), stage(times, tasks=tasks))
    assert known.skewed is skewed
    assert bool(known.stages) is skewed


def test_numbers_of_a_skewed_stage() -> None:
    known = report(statistics(), whole(COUNT), stage((100.0, 100.0, 100.0, 100.0, 1600.0), wall_ms=2000))
    (found,) = known.stages
    assert (found.max_over_median, found.slowest_task_ms, found.median_task_ms) == (16.0, 1600.0, 100.0)
    assert found.stage_impact == 0.8
    # 2000 ms of work are 500 ms on four slots.
    assert found.lost_ms == known.lost_ms == 1100
    assert known.setting is None
    assert "no hot key of the sample explains it" in known.advice


def test_worst_stage_first() -> None:
    known = report(
        statistics(),
        whole(COUNT),
        stage((1.0, 1.0, 1.0, 1.0, 200.0), stage_id=1),
        stage((1.0, 1.0, 1.0, 1.0, 900.0), stage_id=2),
    )
    assert [found.stage_id for found in known.stages] == [2, 1]
    assert known.lost_ms == sum(found.lost_ms for found in known.stages)


def test_nothing_stands_out() -> None:
    known = report(statistics(sketch("o.uid", hot={})), whole(COUNT), stage((10.0, 11.0, 12.0, 13.0, 14.0)))
    assert known == SkewReport(
        skewed=False,
        keys=(),
        stages=(),
        lost_ms=0,
        advice="There are no hot keys and no slow tasks. Nothing needs to change.",
    )
