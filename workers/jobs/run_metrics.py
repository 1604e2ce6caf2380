"""What an attempt took, measured after it ran."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

import structlog

from service.contract.options import JobSettings
from service.contract.reports import (
    EstimateReport,
    OperatorMetrics,
    OperatorReport,
    Quantity,
    RunFigures,
    SkewReport,
    StageMetrics,
)
from service.data.file_io import DataFile, UriFile
from service.store.publication import AttemptMetrics
from workers.engine.budget import PlanningBudget
from workers.engine.plan.explain import text_of
from workers.engine.planner import apply_rules
from workers.engine.report.estimates import estimated_savings, estimates_of
from workers.engine.report.operator_matching import figures_of
from workers.engine.report.skew import skew_report
from workers.engine.report.task_skew import evidence_of
from workers.engine.rules.prune_union_branches import without_excluded_branches
from workers.engine.rules.rule import RuleContext
from workers.engine.spark.engine import LateStatistics, PlannedQuery
from workers.engine.spark.monitor import SparkMonitor
from workers.engine.spark.sources import TableInput
from workers.engine.statistics.model import Statistics

_log = structlog.get_logger(__name__)

_MOST_DETAIL = 500
"""Characters of what Spark prints of an operator."""


_ADVICE_SECONDS = 1.0
"""For planning the query again by other settings, all of them together: the job has its result and waits for this."""


def measure(
    monitor: SparkMonitor,
    tag: str,
    planned: PlannedQuery,
    tables: Mapping[str, TableInput],
    execution_ms: int,
    beside: LateStatistics | None = None,
) -> AttemptMetrics:
    """Stages of the Spark jobs that carry `tag`, what they tell of skew, and how near the estimates were. Hot keys are
    those of the statistics read `beside` the run, where none were read before. Of a run that came to its end, over
    `tables`, also what its operators did.

    Metrics are worth less than the result: where Spark does not give them, or they cannot be computed, they are left
    out.
    """
    try:
        stages, progress = monitor.outcome(tag)
        run_by = _run_by(monitor, tag, planned, tables, stages)
        estimates = estimates_of(planned.report, planned.plan, planned.statistics, stages, run_by)
        skew = _skew(planned, (None if beside is None else beside.known()), stages, run_by, estimates)
    except Exception:  # noqa: BLE001 - the result is there, and what is reported of the run must not lose it
        _log.warning("metrics_missing", exc_info=True)
        return AttemptMetrics(execution_ms, (), None, None)
    # Spark drops such branches by itself.
    read = without_excluded_branches(planned.made.before)
    saved = estimated_savings(planned.report.rules, read, planned.statistics, estimates.choices)
    shown = tuple(each.model_copy(update={"detail": _shown(each.detail)}) for each in run_by.operators)
    figures = RunFigures(
        slots=planned.statistics.slots, run_by=run_by.model_copy(update={"operators": shown}), estimated=saved
    )
    return AttemptMetrics(execution_ms, stages, skew, progress, estimates, figures)


def _skew(
    planned: PlannedQuery,
    late: Statistics | None,
    stages: Sequence[StageMetrics],
    run_by: OperatorReport,
    estimates: EstimateReport,
) -> SkewReport:
    known = late or planned.statistics

    budget = PlanningBudget(seconds=_ADVICE_SECONDS)

    @cache
    def replan(settings: JobSettings) -> str | None:
        made = apply_rules(planned.made.before, RuleContext(settings, known, budget=budget))
        # How far a pass got by then says nothing about the setting.
        return None if budget.is_spent() else text_of(made.after)

    wrong = [
        one.node_id for one in estimates.wrong if one.quantity is Quantity.ROWS_EMITTED and one.node_id is not None
    ]
    evidence = evidence_of(stages, known.slots, planned.settings.skew.factor, run_by.operators, wrong)
    return skew_report(known, planned.plan, evidence, planned.settings, planned.report.rules, replan)


def _run_by(
    monitor: SparkMonitor,
    tag: str,
    planned: PlannedQuery,
    tables: Mapping[str, TableInput],
    stages: Sequence[StageMetrics],
) -> OperatorReport:
    """The operators and the nodes that they ran. Where a stage ran twice, Spark counts both: without figures then."""
    try:
        found = monitor.operators(tag, planned.frame)
        if any(stage.stage_attempt for stage in stages):
            found = found.model_copy(update={"operators": tuple(map(_without_figures, found.operators))})
        elif not found.is_cut:
            files = {name: [_path_of(file) for file in table.files.files] for name, table in tables.items()}
            found = figures_of(planned.plan, found.operators, files)
    except Exception:  # noqa: BLE001 - the shape of Spark's plans is Spark's own, and the result is there
        _log.warning("operators_missing", exc_info=True)
        return OperatorReport()
    return found


def _without_figures(operator: OperatorMetrics) -> OperatorMetrics:
    unknown = dict.fromkeys(("rows", "bytes", "time_ms", "spilled_bytes", "pipeline_ms"))
    return operator.model_copy(update=unknown)


def _path_of(file: DataFile) -> str:
    return file.uri if isinstance(file, UriFile) else str(file)


def _shown(detail: str) -> str:
    return detail if len(detail) <= _MOST_DETAIL else detail[: _MOST_DETAIL - 1] + "…"
