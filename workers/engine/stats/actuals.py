"""The estimates that a plan was chosen by, beside what Spark measured when it ran.

Spark tells rows by stage, and a stage is not an operator: it reads for one and writes for the next. So what was
measured is told of the whole query, and of an operator only where nothing else in the query can have sent rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from service.spec.reports import (
    Alternative,
    ChoiceOutcome,
    EstimateReport,
    PlanNodeReport,
    PlanReport,
    RuleTrace,
    StageMetrics,
)
from workers.engine.plan.nodes import Node, Scan
from workers.engine.plan.transform import walk_up
from workers.engine.stats.statistics import Statistics

FEW_ROWS = 1_000
"""Estimates and measures that are both below it differ by nothing that anyone would notice."""

CLOSE = 2.0
"""An estimate within this factor chooses rightly."""

_SENDS_NOTHING = frozenset({"Scan", "Filter", "Project", "Expand", "Union"})
_COMPLETE = "COMPLETE"


def estimates_of(
    report: PlanReport, plan: Node, statistics: Statistics, stages: Sequence[StageMetrics]
) -> EstimateReport:
    """Estimated and measured rows of one run. `report` and `plan`, the one after the rules, are those of the run;
    stages that failed or were cut off are left out.

    The estimates of a query are those of the operators that it has before the rules, each by the last rule that weighed
    it: what a rule makes is in the estimate of the way that it chose.
    """
    done = [stage for stage in stages if stage.status == _COMPLETE]
    shuffled, hottest = sum(stage.shuffle_write_rows for stage in done), _hottest(done)
    decided = list(_decided(report))
    senders = [_line(node) for node in report.before.nodes if node.operator not in _SENDS_NOTHING]
    weighed = [line for line, _ in decided]
    all_estimated = sorted(weighed) == sorted(senders)
    alone = senders[0] if len(senders) == 1 else None
    total = sum(way.rows_shuffled for _, way in decided) if decided else None
    return EstimateReport(
        choices=tuple(_outcomes(report.rules, alone, shuffled, hottest)),
        estimated_rows_read=_rows_read(plan, statistics),
        measured_rows_read=sum(stage.input_rows for stage in done),
        estimated_rows_shuffled=total,
        measured_rows_shuffled=shuffled,
        estimated_rows_on_hottest_task=max((way.rows_on_hottest_task for _, way in decided), default=None),
        measured_rows_on_hottest_task=hottest,
        estimated_result_rows=report.after.nodes[-1].estimated_rows,
        all_estimated=all_estimated,
        summary=_summary(total, shuffled, all_estimated),
    )


def off_by(estimated: float, measured: float) -> float:
    """How many times one is the other, 1 or more; 1 where both are few.

    >>> off_by(10, 900), off_by(2_000, 8_000), off_by(0, 5_000)
    (1.0, 4.0, 5000.0)
    """
    if max(estimated, measured) < FEW_ROWS:
        return 1.0
    return max(estimated, measured) / max(min(estimated, measured), 1.0)


def _decided(report: PlanReport) -> Iterator[tuple[str, Alternative]]:
    """The operators of the plan before the rules that were weighed, each with the way that it was to run."""
    lines = {_line(node) for node in report.before.nodes}
    last: dict[str, str] = {}
    for trace in report.rules:
        if trace.node in lines and _chosen(trace) is not None:
            last[trace.node] = trace.rule
    for trace in report.rules:
        way = _chosen(trace)
        # Equal operators of one plan have a trace each.
        if way is not None and last.get(trace.node) == trace.rule:
            yield trace.node, way


def _outcomes(
    rules: Sequence[RuleTrace], alone: str | None, shuffled: int, hottest: int | None
) -> Iterator[ChoiceOutcome]:
    for trace in rules:
        way = _chosen(trace)
        if way is not None:
            told = trace.node == alone
            yield ChoiceOutcome(
                rule=trace.rule,
                node=trace.node,
                alternative=way.name,
                estimated_rows_shuffled=way.rows_shuffled,
                estimated_rows_on_hottest_task=way.rows_on_hottest_task,
                measured_rows_shuffled=shuffled if told else None,
                measured_rows_on_hottest_task=hottest if told else None,
            )


def _chosen(trace: RuleTrace) -> Alternative | None:
    return next((way for way in trace.alternatives if way.chosen), None)


def _line(node: PlanNodeReport) -> str:
    return f"{node.operator} {node.detail}".rstrip()


def _rows_read(plan: Node, statistics: Statistics) -> int | None:
    sizes = [statistics.tables.get(node.alias) for node in walk_up(plan) if isinstance(node, Scan)]
    return None if None in sizes else sum(size.rows for size in sizes if size is not None)


def _hottest(stages: Sequence[StageMetrics]) -> int | None:
    """The most rows of one task behind a shuffle. `records` counts rows of files too, so the stage's own bound it."""
    return max(
        (
            min(round(stage.records.max), stage.shuffle_read_rows)
            for stage in stages
            if stage.records is not None and stage.shuffle_read_rows
        ),
        default=None,
    )


def _summary(estimated: int | None, measured: int, all_estimated: bool) -> str:
    if estimated is None:
        return f"Nothing was decided by cost; {measured:,} rows were shuffled."
    told = f"{estimated:,} rows were estimated to be shuffled, and {measured:,} were"
    if not all_estimated:
        return f"{told}, those of operators without an estimate included."
    factor = off_by(estimated, measured)
    if factor <= CLOSE:
        return f"{told}: the estimate was right within a factor of {CLOSE:g}."
    return f"{told}: the estimate was {factor:,.1f} times too {'high' if estimated > measured else 'low'}."
