"""What was estimated stands beside what happened, and of an operator only where it must have been that one."""

from __future__ import annotations

import pytest

from service.spec.reports import (
    Alternative,
    PlanNodeReport,
    PlanReport,
    PlanTree,
    Quantiles,
    RuleOutcome,
    RuleTrace,
    StageMetrics,
)
from service.spec.types import BIGINT, Field
from workers.engine.plan.nodes import Scan, Union
from workers.engine.stats.actuals import estimates_of
from workers.engine.stats.statistics import Statistics, TableSize

ORDERS = Scan("orders", "o", ((Field("o.uid", BIGINT), "uid"),))
KNOWN = Statistics({"o": TableSize("o", 1, 100, 50_000, True)}, {}, slots=2)
UNKNOWN = Statistics({}, {}, slots=2)


def tree(*lines: str) -> PlanTree:
    nodes = [line.partition(" ") for line in lines]
    return PlanTree(
        nodes=tuple(
            PlanNodeReport(id=number, operator=operator, detail=detail, inputs=(), estimated_rows=7 * number)
            for number, (operator, _, detail) in enumerate(nodes)
        ),
        text="\n".join(lines),
    )


def trace(node: str, shuffled: int, hottest: int, rule: str = "two_phase_aggregate") -> RuleTrace:
    ways = (
        Alternative(name="A", cost=1.0, rows_shuffled=shuffled, rows_on_hottest_task=hottest, chosen=True),
        Alternative(name="B", cost=2.0, rows_shuffled=1, rows_on_hottest_task=1, chosen=False),
    )
    return RuleTrace(rule=rule, outcome=RuleOutcome.FIRED, node=node, reason="It is so.", alternatives=ways)


def report(before: PlanTree, *rules: RuleTrace) -> PlanReport:
    return PlanReport(before=before, after=before, rules=rules, tables=(), keys=(), statistics_ms=1)


def stage(number: int, read: int, written: int, most: float = 0.0, *, rows: int = 0, ok: bool = True) -> StageMetrics:
    return StageMetrics(
        stage_id=number,
        stage_attempt=0,
        name="",
        status="COMPLETE" if ok else "FAILED",
        tasks=2,
        failed_tasks=0,
        wall_ms=1,
        input_rows=rows,
        input_bytes=0,
        shuffle_read_rows=read,
        shuffle_read_bytes=0,
        shuffle_write_rows=written,
        shuffle_write_bytes=0,
        spilled_bytes=0,
        duration_ms=None,
        records=Quantiles(min=0, p25=0, median=0, p75=0, max=most),
        shuffle_bytes=None,
        spill_bytes=None,
    )


STAGES = (
    stage(1, 0, 40_000, 25_000, rows=50_000),
    stage(2, 0, 9_000, ok=False),
    stage(2, 40_000, 0, 30_000),
)


def test_the_only_operator_has_what_was_measured() -> None:
    run = report(tree("Scan o", "Aggregate BY uid", "Project uid"), trace("Aggregate BY uid", 10_000, 5_000))
    made = estimates_of(run, ORDERS, KNOWN, STAGES)
    (choice,) = made.choices
    assert (choice.rule, choice.alternative, choice.estimated_rows_shuffled) == ("two_phase_aggregate", "A", 10_000)
    assert (choice.measured_rows_shuffled, choice.measured_rows_on_hottest_task) == (40_000, 30_000)
    assert (made.estimated_rows_shuffled, made.measured_rows_shuffled) == (10_000, 40_000)
    assert (made.estimated_rows_on_hottest_task, made.measured_rows_on_hottest_task) == (5_000, 30_000)
    assert (made.estimated_rows_read, made.measured_rows_read) == (50_000, 50_000)
    assert (made.estimated_result_rows, made.all_estimated) == (14, True)
    assert (
        made.summary
        == "10,000 rows were estimated to be shuffled, and 40,000 were: the estimate was 4.0 times too low."
    )


def test_beside_a_sort_stages_cannot_be_told_apart() -> None:
    run = report(tree("Scan o", "Aggregate BY uid", "Sort uid"), trace("Aggregate BY uid", 10_000, 5_000))
    made = estimates_of(run, ORDERS, KNOWN, STAGES)
    assert [way.measured_rows_shuffled for way in made.choices] == [None]
    assert not made.all_estimated
    assert made.measured_rows_shuffled == 40_000
    assert made.summary.endswith("and 40,000 were, those of operators without an estimate included.")


def test_the_last_rule_counts_and_what_a_rule_made_does_not_count_twice() -> None:
    run = report(
        tree("Aggregate BY uid", "Aggregate BY day", "Aggregate BY day"),
        trace("Aggregate BY uid", 99_000, 1, "split_distinct_aggregate"),
        trace("Aggregate BY uid", 10_000, 5_000),
        trace("Aggregate BY day", 20_000, 10),
        trace("Aggregate BY day", 20_000, 10),
        trace("Aggregate FINAL BY uid", 7_000, 7),
    )
    made = estimates_of(run, ORDERS, KNOWN, STAGES)
    assert len(made.choices) == 5
    assert (made.estimated_rows_shuffled, made.estimated_rows_on_hottest_task) == (50_000, 5_000)
    assert made.all_estimated
    assert made.summary.endswith("the estimate was right within a factor of 2.")


def test_nothing_decided_and_nothing_known() -> None:
    made = estimates_of(report(tree("Scan o")), Union((ORDERS, ORDERS)), UNKNOWN, ())
    assert (made.estimated_rows_read, made.estimated_rows_shuffled, made.measured_rows_on_hottest_task) == (None,) * 3
    assert made.summary == "Nothing was decided by cost; 0 rows were shuffled."
    assert estimates_of(report(tree("Scan o")), Union((ORDERS, ORDERS)), KNOWN, ()).estimated_rows_read == 100_000


@pytest.mark.parametrize(("rows", "said"), [(200, "right"), (900, "right"), (4_000, "8.0 times too low")])
def test_few_rows_are_no_mistake(rows: int, said: str) -> None:
    run = report(tree("Aggregate"), trace("Aggregate", 500, 1))
    assert said in estimates_of(run, ORDERS, KNOWN, (stage(1, 0, rows),)).summary


def test_a_task_took_no_more_from_a_shuffle_than_its_stage() -> None:
    mixed = stage(1, 300, 0, 5_000, rows=9_000)
    assert estimates_of(report(tree("Scan o")), ORDERS, KNOWN, (mixed,)).measured_rows_on_hottest_task == 300
