"""Which stages are skewed, and what a run shows about a key whose rows one task was estimated to read."""

from __future__ import annotations

import pytest

from service.contract.reports import StageMetrics
from tests.support.stages import operator, stage
from workers.engine.report.task_skew import Evidence, Finding, evidence_of, lost_ms


def evidence(*stages: StageMetrics, factor: float = 4.0) -> Evidence:
    return evidence_of(stages, 4, factor)


@pytest.mark.parametrize(
    ("times", "factor", "skewed"),
    [
        ((400.0, 400.0, 500.0, 900.0, 1000.0), 4.0, False),  # twice the median one
        ((400.0, 400.0, 500.0, 900.0, 1000.0), 1.9, True),
        ((400.0, 400.0, 500.0, 900.0, 2000.0), 4.0, False),
        ((400.0, 400.0, 500.0, 900.0, 2001.0), 4.0, True),
    ],
)
def test_the_factor_is_the_one_of_the_settings(times: tuple[float, ...], factor: float, skewed: bool) -> None:
    assert bool(evidence(stage(times), factor=factor).skewed) is skewed


@pytest.mark.parametrize(("shorter", "skewed"), [(100.0, True), (600.0, False)])
def test_of_two_tasks_the_longer_one_is_compared_with_the_other(shorter: float, skewed: bool) -> None:
    found = evidence(stage((shorter, shorter, 1000.0, 1000.0, 1000.0), tasks=2)).skewed
    assert [(one.median_task_ms, one.max_over_median) for one in found] == ([(100.0, 10.0)] if skewed else [])


@pytest.mark.parametrize(
    ("measured", "rows", "finding"),
    [
        ((), 900_000, Finding.UNMEASURED),
        ((stage(None),), 900_000, Finding.UNMEASURED),
        ((stage(),), 900_000, Finding.WRONG),
        ((stage(),), None, Finding.EVEN),
        # Nine of ten rows on one of five tasks: 36 times the mean of the others.
        ((stage(read=1_000_000, most=900_000),), 900_000, Finding.CONFIRMED),
        ((stage(read=1_000_000, most=900_000),), None, Finding.CONFIRMED),
        ((stage(read=1_000_000, most=900_000),), 9_000_001, Finding.WRONG),
        ((stage(read=1_000_000, most=900_000),), 8_000_000, Finding.CONFIRMED),
        ((stage(read=1_000_000, most=900_000, status="FAILED"),), 900_000, Finding.WRONG),
        # Half of the rows: four times the mean of the others, and not more.
        ((stage(read=1_000_000, most=500_000),), 500_000, Finding.EVEN),
        # Spark made one task of all partitions.
        ((stage(read=1_000_000, most=1_000_000, tasks=1),), 900_000, Finding.CONFIRMED),
        # 900 rows are few.
        ((stage(read=1_000, most=900),), 900, Finding.EVEN),
        # The task took long though it read no more than others: it emitted more.
        ((stage((9.0, 9.0, 9.0, 9.0, 900.0), read=1_000_000, most=250_000),), 250_000, Finding.CONFIRMED),
        # The stage that took long read files.
        ((stage((9.0, 9.0, 9.0, 9.0, 900.0)), stage(read=1_000_000, most=250_000, stage_id=4)), 250_000, Finding.EVEN),
    ],
)
def test_findings_about_a_key(measured: tuple[StageMetrics, ...], rows: float | None, finding: Finding) -> None:
    assert evidence(*measured).finding_on(rows, node_id=1) is finding


def test_where_the_rows_of_an_operator_were_wrong_nothing_follows_from_its_keys() -> None:
    found = evidence_of((stage(read=1_000_000, most=900_000),), 4, 4.0, (), [1])
    assert (found.finding_on(900_000, 1), found.finding_on(900_000, 2)) == (Finding.WRONG, Finding.CONFIRMED)


def test_joins_that_spark_ran_with_a_broadcast() -> None:
    names = {1: "BroadcastHashJoin", 2: "SortMergeJoin", None: "BroadcastHashJoin", 4: "BroadcastNestedLoopJoin"}
    operators = [operator(number, name, rows=1, node=node) for number, (node, name) in enumerate(names.items())]
    assert evidence_of((), 4, 4.0, operators).broadcast == {1, 4}


@pytest.mark.parametrize(
    ("times", "tasks", "slots", "lost"),
    [
        # Four tasks, as Spark gives their quantiles: number 0, 1, 2, 3, 3.
        ((10.0, 20.0, 30.0, 1000.0, 1000.0), 4, 2, 470),
        ((10.0, 10.0, 10.0, 10.0, 1000.0), 100, 2, 5),  # 99 short tasks fill the other slot as well
        ((10.0, 10.0, 10.0, 10.0, 1000.0), 100, 10, 801),
        ((100.0, 100.0, 100.0, 100.0, 100.0), 4, 4, 0),
        ((100.0, 100.0, 100.0, 100.0, 100.0), 400, 4, 0),
        ((10.0, 10.0, 1000.0, 1000.0, 1000.0), 2, 4, 495),
    ],
)
def test_lost_time(times: tuple[float, float, float, float, float], tasks: int, slots: int, lost: int) -> None:
    assert lost_ms(stage(times, tasks=tasks), slots) == lost
