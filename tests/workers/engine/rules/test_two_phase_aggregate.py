"""`two_phase_aggregate`: when it fires, and what it makes. Whole plans are in `tests/golden`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from service.contract.options import JobSettings
from service.contract.query import AggregateFunction as F
from service.contract.query import JoinKind
from service.contract.reports import HotKey
from service.sql.expressions.scalar import column
from service.sql.types.data_types import BIGINT, BOOLEAN, DOUBLE, STRING, DataType, Field, array
from tests.support.applied_rules import matched, skipped
from tests.support.plan_parts import USERS
from tests.support.scalars import scalar
from workers.engine.plan.explain import text_of
from workers.engine.plan.nodes import (
    Aggregate,
    AggregateRole,
    Call,
    Filter,
    Join,
    Named,
    Node,
    Phases,
    Project,
    Scan,
    output_of,
)
from workers.engine.plan.validation import check
from workers.engine.rules.rule import Match, RuleContext, Skip
from workers.engine.rules.two_phase_aggregate import TwoPhaseAggregate
from workers.engine.statistics.model import KeySketch, Statistics, TableSize

RULE = TwoPhaseAggregate()
ORDERS = Scan(
    "orders",
    "o",
    ((Field("o.uid", BIGINT), "uid"), (Field("o.category", STRING), "category"), (Field("o.rate", DOUBLE), "rate")),
)
UID, CATEGORY = column("o.uid", BIGINT), column("o.category", STRING)
ROWS = Call(F.COUNT, (), Field("n", BIGINT))
CATEGORIES = Call(F.COUNT, (CATEGORY,), Field("c", BIGINT), distinct=True)
UIDS = Call(F.COUNT, (UID,), Field("d", BIGINT), distinct=True)
VARIANCE = Call(F.VAR_POP, (UID,), Field("v", DOUBLE))
WHOLE = Aggregate(ORDERS, (Named(UID, "uid"),), (ROWS,))
DISTINCT = replace(WHOLE, calls=(CATEGORIES,))
POSITIVE = scalar("`o.uid` > 0", BOOLEAN)
FILTERED = replace(WHOLE, calls=(replace(CATEGORIES, filter=POSITIVE),))
BY_RATE = replace(WHOLE, keys=(Named(column("o.rate", DOUBLE), "rate"),))
JOINED = replace(WHOLE, input=Join(ORDERS, USERS, JoinKind.INNER, ((UID, column("u.uid", BIGINT)),)))


def distinct_values(type_: DataType) -> Aggregate:
    """Counts categories of this type."""
    return replace(DISTINCT, calls=(replace(CATEGORIES, arguments=(column("o.category", type_),)),))


GROUPED = Project(WHOLE, (Named(column("uid", BIGINT), "d.uid"), Named(column("n", BIGINT), "d.n")))
AGAIN = Aggregate(GROUPED, (Named(column("d.uid", BIGINT), "uid"),), (ROWS,))
ROW_COUNT = 10_000_000


def context(
    groups: int = 1000,
    pairs: int = 0,
    values: int = 0,
    rates: int = 1000,
    share: float = 0.0,
    rows: int = ROW_COUNT,
    sampled: int = 50_000,
    representative: bool = True,
    **settings: Any,
) -> RuleContext:
    hot = (HotKey(value="7", share=share, estimated_rows=round(share * rows)),) if share else ()
    distinct: dict[tuple[str, ...], int] = {("o.uid",): groups, ("o.rate",): rates}
    if pairs:
        distinct["o.uid", "o.category"] = pairs
    if values:
        distinct["o.category",] = values
    keys = {
        columns: KeySketch("o", columns, sampled, values, 0.0, hot if columns == ("o.uid",) else (), representative)
        for columns, values in distinct.items()
    }
    tables = {"o": TableSize("o", 8, rows * 100, rows, True), "u": TableSize("u", 1, 20_000_000, 1_000_000, True)}
    return RuleContext(JobSettings.model_validate(settings), Statistics(tables, keys, slots=16))


@pytest.mark.parametrize(
    "node",
    [ORDERS, replace(WHOLE, role=AggregateRole.PARTIAL), replace(WHOLE, phases=Phases.TWO_PHASE)],
)
def test_it_is_about_undecided_whole_aggregates(node: Node) -> None:
    assert RULE.match(node, context()) is None


def test_what_a_split_has_made_is_settled() -> None:
    skip = skipped(RULE, replace(WHOLE, role=AggregateRole.FINAL), context())
    assert "set its phases" in skip.reason


@pytest.mark.parametrize(
    ("node", "ctx", "words"),
    [
        (replace(WHOLE, keys=()), context(agg_phase="ONE_PHASE"), "There are no group keys"),
        (JOINED, context(agg_phase="TWO_PHASE"), "already partitioned by group keys"),
        (AGAIN, context(groups=9_000_000), "already partitioned by group keys"),
        (replace(AGAIN, calls=()), context(groups=9_000_000), "already partitioned by group keys"),
        (AGAIN, context(agg_phase="ONE_PHASE"), "already partitioned by group keys"),
        (replace(WHOLE, calls=(CATEGORIES, UIDS)), context(agg_phase="ONE_PHASE"), "one phase is not possible"),
        (replace(WHOLE, calls=(CATEGORIES, UIDS)), context(), "one phase is not possible"),
        (FILTERED, context(agg_phase="ONE_PHASE"), "one phase is not possible"),
        (FILTERED, context(groups=1_500_000, pairs=9_900_000), "one phase is not possible"),
        (replace(JOINED, calls=FILTERED.calls), context(), "one phase is not possible"),
        (WHOLE, context(groups=9_000_000, representative=False), "files are sorted by o.uid"),
        (
            DISTINCT,
            context(groups=1_500_000, pairs=9_900_000, representative=False),
            "files are sorted by o.uid",
        ),
        (WHOLE, context(groups=9_000_000, sampled=3999), "but only 3,999 of 10,000,000 rows were sampled"),
        (
            replace(WHOLE, input=Filter(ORDERS, POSITIVE)),
            context(groups=8_000_000, share=0.2),
            "but group 7 may have up to 43% of all rows",
        ),
        (BY_RATE, context(rates=9_000_000), "after an exchange by o.rate, which is a DOUBLE"),
        (
            replace(WHOLE, keys=(Named(scalar("upper(`o.category`)", STRING), "k"),)),
            context(),
            "no statistics for the group keys",
        ),
        (DISTINCT, context(groups=9_000_000), "no statistics for the distinct values"),
        (WHOLE, context(groups=400_000, rows=499_999), "499,999 rows are too few"),
        (WHOLE, context(groups=1000), "The local phase keeps less than 1% of its rows: Spark's two phases are kept."),
        (
            WHOLE,
            context(groups=8_000_000, share=0.4),
            "but group 7 has 40% of all rows: one phase would put them on one task.",
        ),
        (DISTINCT, context(groups=1000, pairs=5000), "Spark's two phases are kept"),
    ],
)
def test_it_leaves_the_plan_with_a_reason(node: Node, ctx: RuleContext, words: str) -> None:
    skip = skipped(RULE, node, ctx)
    assert words in skip.reason


@pytest.mark.parametrize(
    ("node", "ctx", "operators"),
    [
        (WHOLE, context(groups=9_000_000), ["Aggregate", "Exchange", "Scan"]),
        (
            DISTINCT,
            context(groups=1_500_000, pairs=9_900_000),
            ["Project", "Aggregate", "Aggregate", "Exchange", "Scan"],
        ),
    ],
)
def test_a_local_phase_that_does_not_reduce_is_left_out(
    node: Aggregate, ctx: RuleContext, operators: list[str]
) -> None:
    match = matched(RULE, node, ctx)
    assert match.choice == "ONE_PHASE"
    assert "costs more than it saves" in match.reason
    one, two, *_ = match.alternatives
    assert (one.name, one.chosen, two.name, two.chosen) == ("ONE_PHASE", True, "TWO_PHASE", False)
    assert one.cost < two.cost
    after = RULE.rewrite(match, ctx)
    check(after, RULE.name, output_of(node))
    assert [line.split()[0] for line in text_of(after).splitlines()] == operators
    assert "Exchange BY o.uid" in text_of(after)


def test_a_distinct_call_without_parts_is_left_to_spark_after_the_exchange() -> None:
    spread = Call(F.VAR_POP, (column("o.rate", DOUBLE),), Field("v", DOUBLE))
    ctx = context(groups=1_500_000, pairs=9_900_000)
    match = matched(RULE, replace(DISTINCT, calls=(CATEGORIES, spread)), ctx)
    assert [line.split()[0] for line in text_of(RULE.rewrite(match, ctx)).splitlines()] == [
        "Aggregate",
        "Exchange",
        "Scan",
    ]


def test_half_a_million_rows_are_enough() -> None:
    assert "The local phase keeps" in skipped(RULE, WHOLE, context(groups=1000, rows=500_000)).reason
    values = matched(RULE, DISTINCT, context(groups=20, pairs=495_000, rows=500_000))
    assert "ONE_PHASE_BY_VALUE" in {way.name for way in values.alternatives}


def test_the_samples_own_rate_decides_nothing() -> None:
    # The sample has met 1000 keys in 50,000 rows, a rate of 0.02; the table has nearly as many keys as rows.
    assert isinstance(RULE.match(WHOLE, context(groups=9_000_000)), Match)


@pytest.mark.parametrize(
    ("node", "ctx", "sent_by"),
    [
        (DISTINCT, context(groups=20, pairs=9_900_000), "o.uid, o.category"),
        (DISTINCT, context(groups=3_000_000, pairs=9_900_000, share=0.6), "o.uid, o.category"),
        (replace(DISTINCT, calls=(ROWS, CATEGORIES)), context(groups=20, pairs=9_900_000), "o.uid, o.category"),
        (replace(DISTINCT, keys=()), context(values=9_900_000), "o.category"),
    ],
)
def test_many_values_of_few_groups_are_sent_by_group_and_value(node: Aggregate, ctx: RuleContext, sent_by: str) -> None:
    match = matched(RULE, node, ctx)
    assert match.choice == "ONE_PHASE_BY_VALUE"
    assert "costs clearly less" in match.reason
    assert [way.name for way in match.alternatives if way.chosen] == [match.choice]
    after = RULE.rewrite(match, ctx)
    check(after, RULE.name, output_of(node))
    assert [line.split()[0] for line in text_of(after).splitlines()] == [
        "Project",
        "Aggregate",
        "Aggregate",
        "Exchange",
        "Scan",
    ]
    assert f"Exchange BY {sent_by} INTO 33\n" in text_of(after)


@pytest.mark.parametrize(
    ("node", "ctx"),
    [
        (DISTINCT, context(groups=20, pairs=9_900_000, agg_phase="TWO_PHASE")),
        (DISTINCT, context(groups=20, pairs=9_900_000, distinct_method="native")),
        (DISTINCT, context(groups=20, pairs=9_900_000, representative=False)),
        (DISTINCT, context(groups=20, pairs=100)),
        (replace(DISTINCT, keys=()), context(values=9_900_000, agg_phase="TWO_PHASE")),
        (replace(DISTINCT, keys=()), context(values=9_900_000, agg_phase="ONE_PHASE")),
        (replace(DISTINCT, keys=(), grouping_sets=((), ())), context(values=9_900_000)),
        (replace(DISTINCT, keys=()), context(values=100)),
        (replace(DISTINCT, keys=(), calls=(ROWS,)), context()),
        (FILTERED, context(groups=20, pairs=9_900_000)),
        (replace(DISTINCT, calls=(CATEGORIES, VARIANCE)), context(groups=20, pairs=9_900_000)),
        # Values that cannot be hashed, and fractions, of which Spark groups by another form.
        *((distinct_values(type_), context(groups=20, pairs=9_900_000)) for type_ in (array(STRING), DOUBLE)),
    ],
)
def test_else_they_are_not(node: Aggregate, ctx: RuleContext) -> None:
    match = RULE.match(node, ctx)
    assert isinstance(match, Skip) or match is None or match.choice != "ONE_PHASE_BY_VALUE"


@pytest.mark.parametrize("phase", ["ONE_PHASE", "TWO_PHASE"])
@pytest.mark.parametrize("share", [0.0, 0.9])
def test_a_forced_phase_is_used_and_its_cost_is_in_the_trace(phase: str, share: float) -> None:
    ctx = context(share=share, agg_phase=phase)
    match = matched(RULE, WHOLE, ctx)
    assert match.reason.startswith(f"agg_phase is {phase}: ")
    assert [way.name for way in match.alternatives if way.chosen] == [phase]
    after = RULE.rewrite(match, ctx)
    check(after, RULE.name, output_of(WHOLE))
    assert isinstance(after, Aggregate)
    assert after.phases.value == phase


def test_a_given_phase_needs_no_statistics() -> None:
    ctx = RuleContext(JobSettings.model_validate({"agg_phase": "ONE_PHASE"}), Statistics({}, {}, 4))
    match = matched(RULE, WHOLE, ctx)
    assert match.alternatives == ()


def test_several_distinct_arguments_may_be_forced_to_two_phases() -> None:
    matched(RULE, replace(WHOLE, calls=(CATEGORIES, UIDS)), context(agg_phase="TWO_PHASE"))
