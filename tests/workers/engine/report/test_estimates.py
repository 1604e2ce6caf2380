"""Estimates are compared with measurements; those of one operator only if no other can have been measured."""

from __future__ import annotations

import pytest

from service.contract.reports import (
    Alternative,
    NodeFigures,
    OperatorMetrics,
    OperatorReport,
    PlanNodeReport,
    PlanReport,
    PlanTree,
    Quantity,
    RuleOutcome,
    RuleTrace,
    StageMetrics,
)
from tests.support import stages
from tests.support.plan_parts import ORDERS
from tests.support.stages import operator
from workers.engine.plan.nodes import Union
from workers.engine.report.estimates import estimates_of
from workers.engine.statistics.model import Statistics, TableSize

KNOWN = Statistics({"o": TableSize("o", 1, 100, 50_000, True)}, {}, slots=2)
UNKNOWN = Statistics({}, {}, slots=2)


def tree(*lines: str, first: int = 0) -> PlanTree:
    nodes = [line.partition(" ") for line in lines]
    return PlanTree(
        nodes=tuple(
            PlanNodeReport(id=first + number, operator=operator, detail=detail, inputs=(), estimated_rows=7 * number)
            for number, (operator, _, detail) in enumerate(nodes)
        ),
        text="\n".join(lines),
    )


def trace(node_id: int, shuffled: int, hottest: int, rule: str = "two_phase_aggregate") -> RuleTrace:
    ways = (
        Alternative(name="A", cost=1.0, rows_shuffled=shuffled, rows_on_hottest_task=hottest, chosen=True),
        Alternative(name="B", cost=2.0, rows_shuffled=1, rows_on_hottest_task=1, chosen=False),
    )
    return RuleTrace(
        rule=rule, outcome=RuleOutcome.FIRED, node="Aggregate", node_id=node_id, reason="It is so.", alternatives=ways
    )


def report(before: PlanTree, *rules: RuleTrace, after: PlanTree | None = None) -> PlanReport:
    return PlanReport(before=before, after=after or before, rules=rules, tables=(), keys=(), statistics_ms=1)


def made(operator: str, number: int, by: str | None = None) -> PlanNodeReport:
    return PlanNodeReport(id=number, operator=operator, detail="", inputs=(), changed_by=by)


def plan(*nodes: PlanNodeReport) -> PlanTree:
    return PlanTree(nodes=nodes, text="")


def stage(number: int, read: int, written: int, most: float = 0.0, *, rows: int = 0, ok: bool = True) -> StageMetrics:
    status = "COMPLETE" if ok else "FAILED"
    return stages.stage(
        None, stage_id=number, tasks=2, wall_ms=1, rows=rows, read=read, written=written, most=most, status=status
    )


STAGES = (
    stage(1, 0, 40_000, 25_000, rows=50_000),
    stage(2, 0, 9_000, ok=False),
    stage(2, 40_000, 0, 30_000),
)


def test_the_only_operator_has_what_was_measured() -> None:
    run = report(tree("Scan o", "Aggregate BY uid", "Project uid"), trace(1, 10_000, 5_000))
    made = estimates_of(run, ORDERS, KNOWN, STAGES)
    (choice,) = made.choices
    assert (choice.rule, choice.alternative, choice.estimated_rows_shuffled) == ("two_phase_aggregate", "A", 10_000)
    assert (choice.measured_rows_shuffled, choice.measured_rows_on_hottest_task) == (40_000, 30_000)
    assert (made.estimated_rows_shuffled, made.measured_rows_shuffled) == (10_000, 40_000)
    assert (made.estimated_rows_on_hottest_task, made.measured_rows_on_hottest_task) == (5_000, 30_000)
    assert (made.estimated_rows_read, made.measured_rows_read) == (50_000, 50_000)
    assert (made.estimated_result_rows, made.all_estimated) == (14, True)
    assert (
        made.summary == "The plan was estimated to shuffle 10,000 rows, and 40,000 were shuffled. "
        "The estimate was 4.0 times too low."
    )


def test_with_a_sort_stages_cannot_be_assigned() -> None:
    run = report(tree("Scan o", "Aggregate BY uid", "Sort uid"), trace(1, 10_000, 5_000))
    made = estimates_of(run, ORDERS, KNOWN, STAGES)
    assert [way.measured_rows_shuffled for way in made.choices] == [None]
    assert not made.all_estimated
    assert made.measured_rows_shuffled == 40_000
    assert made.summary.endswith("and 40,000 were shuffled, including those of operators without an estimate.")


def test_the_last_rule_counts_and_what_a_rule_made_does_not_count_twice() -> None:
    run = report(
        tree("Aggregate BY uid", "Aggregate BY day", "Aggregate BY day"),
        trace(0, 99_000, 1, "split_distinct_aggregate"),
        trace(0, 10_000, 5_000),
        # Two nodes that read alike.
        trace(1, 20_000, 10),
        trace(2, 20_000, 10),
        # A node that a rule made.
        trace(3, 7_000, 7),
    )
    made = estimates_of(run, ORDERS, KNOWN, STAGES)
    assert len(made.choices) == 5
    assert (made.estimated_rows_shuffled, made.estimated_rows_on_hottest_task) == (50_000, 5_000)
    assert made.all_estimated
    assert made.summary.endswith("The estimate was right within a factor of 2.")


def test_nothing_decided_and_nothing_known() -> None:
    made = estimates_of(report(tree("Scan o")), Union((ORDERS, ORDERS)), UNKNOWN, ())
    assert (made.estimated_rows_read, made.estimated_rows_shuffled, made.measured_rows_on_hottest_task) == (None,) * 3
    assert made.summary == "No rule compared costs; 0 rows were shuffled."
    assert estimates_of(report(tree("Scan o")), Union((ORDERS, ORDERS)), KNOWN, ()).estimated_rows_read == 100_000


@pytest.mark.parametrize(("rows", "said"), [(200, "right"), (900, "right"), (4_000, "8.0 times too low")])
def test_few_rows_are_no_mistake(rows: int, said: str) -> None:
    run = report(tree("Aggregate"), trace(0, 500, 1))
    assert said in estimates_of(run, ORDERS, KNOWN, (stage(1, 0, rows),)).summary


def test_a_task_took_no_more_from_a_shuffle_than_its_stage() -> None:
    mixed = stage(1, 300, 0, 5_000, rows=9_000)
    assert estimates_of(report(tree("Scan o")), ORDERS, KNOWN, (mixed,)).measured_rows_on_hottest_task == 300


def test_of_two_nodes_that_read_alike_only_the_one_that_was_weighed_is_estimated() -> None:
    run = report(tree("Aggregate BY day", "Aggregate BY day"), trace(1, 20_000, 10))
    made = estimates_of(run, ORDERS, KNOWN, STAGES)
    assert not made.all_estimated
    assert (made.estimated_rows_shuffled, made.choices[0].node_id) == (20_000, 1)


def test_what_is_aggregated_below_a_join_counts_as_it_was_weighed_in_the_plan_that_ran() -> None:
    before = plan(made("Scan", 0), made("Scan", 1), made("Join", 2), made("Aggregate", 3))
    below, final = made("Aggregate", 4, "two_phase_aggregate"), made("Aggregate", 5, "eager_aggregation")
    after = plan(made("Scan", 0), below, made("Scan", 1), made("Join", 2, "eager_aggregation"), final)
    rules = (
        trace(3, 4_000_000, 230_000_000_000, "eager_aggregation"),
        trace(2, 30_000, 8_000, "join_strategy"),
        trace(4, 20_000, 9_000),
    )
    found = estimates_of(report(before, *rules, after=after), ORDERS, KNOWN, STAGES)
    assert (found.estimated_rows_shuffled, found.estimated_rows_on_hottest_task) == (50_000, 9_000)
    assert not found.all_estimated, "nothing was estimated of the final aggregate"
    known = estimates_of(report(before, *rules, trace(5, 7, 7), after=after), ORDERS, KNOWN, STAGES)
    assert (known.estimated_rows_shuffled, known.all_estimated) == (50_007, True)


@pytest.mark.parametrize("by", ["split_distinct_aggregate", "incremental_aggregate"])
def test_nodes_added_by_a_rule_are_in_its_estimate(by: str) -> None:
    before = plan(made("Scan", 0), made("Aggregate", 1))
    after = plan(made("Scan", 0), made("Aggregate", 2, "split_distinct_aggregate"), made("Aggregate", 3, by))
    split = trace(1, 20_000, 9_000, "split_distinct_aggregate")
    found = estimates_of(report(before, split, after=after), ORDERS, KNOWN, STAGES)
    assert (found.estimated_rows_shuffled, found.all_estimated) == (20_000, True)
    weighed_nothing = split.model_copy(update={"alternatives": ()})
    assert not estimates_of(report(before, weighed_nothing, after=after), ORDERS, KNOWN, STAGES).all_estimated


def figures(node: int, rows: int | None) -> NodeFigures:
    return NodeFigures(id=node, rows=rows, bytes=None, time_ms=None)


READ = stage(1, 0, 40_000, 25_000, rows=50_000)


@pytest.mark.parametrize(
    ("estimated", "measured", "factor"),
    [(400_001, 40_000, 10.0), (3_999, 40_000, 10.0), (400_000, 40_000, None), (4_000, 40_000, None), (0, 999, None)],
)
def test_an_estimate_is_wrong_beyond_ten_times(estimated: int, measured: int, factor: float | None) -> None:
    run = report(tree("Scan o", "Aggregate"), trace(1, estimated, 1))
    made = estimates_of(run, ORDERS, KNOWN, (stage(1, 0, measured, rows=50_000),))
    of_query, of_choice = [
        [one.factor for one in made.wrong if one.rule == rule] for rule in (None, "two_phase_aggregate")
    ]
    assert of_query == of_choice == ([] if factor is None else [factor])
    assert made.choices[0].is_wrong is (factor is not None)
    assert ("was wrong" in made.summary) is (factor is not None)


def test_the_rows_of_each_node_are_compared_by_its_id() -> None:
    after = PlanTree(
        nodes=(
            PlanNodeReport(id=7, operator="Scan", detail="o", inputs=(), estimated_rows=900_000),
            PlanNodeReport(id=3, operator="Join", detail="INNER", inputs=(7,), estimated_rows=38_279_129_098),
            PlanNodeReport(id=9, operator="Join", detail="INNER", inputs=(3,), estimated_rows=2_000_000),
            PlanNodeReport(id=4, operator="Project", detail="g", inputs=(9,), estimated_rows=1),
            PlanNodeReport(id=5, operator="Aggregate", detail="BY g", inputs=(4,), estimated_rows=None),
            PlanNodeReport(id=6, operator="Filter", detail="g > 1", inputs=(5,), estimated_rows=5_000),
        ),
        text="",
    )
    run = report(tree("Scan o")).model_copy(update={"after": after})
    rows = {7: 1, 3: 2_100_000, 9: 2_100_000, 4: 2_100_000, 5: 2_100_000, 6: None}
    run_by = OperatorReport(nodes=tuple(figures(node, count) for node, count in rows.items()))
    (wrong,) = estimates_of(run, ORDERS, KNOWN, (READ,), run_by).wrong
    assert (wrong.quantity, wrong.node_id, wrong.node) == (Quantity.ROWS_EMITTED, 3, "Join INNER")
    assert (wrong.estimated, wrong.measured, wrong.factor) == (38_279_129_098, 2_100_000, 18_228.2)


def test_a_choice_that_the_whole_query_contradicts_is_wrong_though_others_send_rows_too() -> None:
    joins = tree("Scan o", "Join a", "Join b")
    operators = (operator(1, "SortMergeJoin", rows=60_000), operator(2, "Project"))
    run = report(joins, trace(1, 400_001, 1), trace(2, 40_000, 1_200_001))
    made = estimates_of(run, ORDERS, KNOWN, STAGES, OperatorReport(operators=operators))
    found = {(one.node_id, one.quantity): (one.estimated, one.measured) for one in made.wrong if one.rule}
    assert found == {
        (1, Quantity.ROWS_SHUFFLED): (400_001, 40_000),
        # A task that took 30,000 rows, sorted them, and emitted all that the join did.
        (2, Quantity.ROWS_ON_HOTTEST_TASK): (1_200_001, 120_000),
    }
    assert [choice.is_wrong for choice in made.choices] == [True, True]


@pytest.mark.parametrize(
    "operators", [(), (operator(1, "SortMergeJoin", rows=None),), (operator(1, "SortMergeJoin", rows=10**8),)]
)
def test_a_task_may_have_emitted_what_it_did_not_read(operators: tuple[OperatorMetrics, ...]) -> None:
    run = report(tree("Scan o", "Join a", "Join b"), trace(1, 40_000, 100_000_000))
    made = estimates_of(run, ORDERS, KNOWN, STAGES, OperatorReport(operators=operators))
    assert made.wrong == ()
    assert not made.choices[0].is_wrong


def test_more_rows_on_one_task_than_all_choices_expected() -> None:
    run = report(tree("Scan o", "Join a", "Join b"), trace(1, 20_000, 2_000), trace(2, 20_000, 1_000))
    (wrong,) = estimates_of(run, ORDERS, KNOWN, STAGES).wrong
    assert (wrong.quantity, wrong.node_id, wrong.rule) == (Quantity.ROWS_ON_HOTTEST_TASK, None, None)
    assert (wrong.estimated, wrong.measured, wrong.factor) == (2_000, 30_000, 15.0)


def test_rows_read_are_compared_too() -> None:
    made = estimates_of(report(tree("Scan o")), ORDERS, KNOWN, (stage(1, 0, 0, rows=4_000),))
    assert [(one.quantity, one.factor) for one in made.wrong] == [(Quantity.ROWS_READ, 12.5)]
