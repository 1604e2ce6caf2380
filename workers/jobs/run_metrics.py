"""Measures a batch attempt after its run: stages, operators, skew, estimates and savings."""

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
from workers.engine.spark.engine import LateStatistics, PlannedQuery, WrittenResult
from workers.engine.spark.monitor import SparkMonitor
from workers.engine.spark.sources import TableInput
from workers.engine.statistics.model import Statistics

_log = structlog.get_logger(__name__)

_MOST_DETAIL = 500
"""How many characters of Spark's text of an operator are stored."""

_ADVICE_SECONDS = 1.0
"""The budget to plan the query again with other settings, for all of them together."""


def first_metrics(monitor: SparkMonitor, tag: str, execution_ms: int) -> AttemptMetrics:
    """Returns the metrics that are stored with the end of a run: its time, and the final progress of the Spark jobs
    that have `tag`.
    """
    progress = None
    try:
        progress = monitor.final_progress(tag)
    except Exception:  # noqa: BLE001 - an error of the metrics must not lose the result
        _log.warning("progress_missing", exc_info=True)
    return AttemptMetrics(execution_ms, (), None, progress)


def measure(
    monitor: SparkMonitor,
    tag: str,
    planned: PlannedQuery,
    tables: Mapping[str, TableInput],
    execution_ms: int,
    late: LateStatistics | None = None,
    written: WrittenResult | None = None,
) -> AttemptMetrics:
    """Returns the stages of the Spark jobs that have `tag`, their skew, and the errors of the estimates. For a run over
    `tables` that ended and has `written` its result, also returns the figures of its operators. Hot keys are those of
    the statistics that were read during the run (`late`), or else before it.

    An error must not lose the result: metrics that Spark does not provide, or that cannot be computed, are omitted.
    """
    try:
        stages, progress = monitor.outcome(tag)
        run_by = _run_by(monitor, tag, planned, tables, stages, written)
        estimates = estimates_of(planned.report, planned.plan, planned.statistics, stages, run_by)
        skew = _skew(planned, None if late is None else late.result(), stages, run_by, estimates)
        # Spark also removes such branches.
        read = without_excluded_branches(planned.made.before)
        saved = estimated_savings(planned.report.rules, read, planned.statistics, estimates.choices)
        shown = tuple(each.model_copy(update={"detail": _shown(each.detail)}) for each in run_by.operators)
        figures = RunFigures(
            slots=planned.statistics.slots,
            run_by=run_by.model_copy(update={"operators": shown}),
            estimated=saved,
            corrupt_records=dict(planned.corrupt.counts()),
        )
    except Exception:  # noqa: BLE001 - an error of the metrics must not lose the result
        _log.warning("metrics_missing", exc_info=True)
        return AttemptMetrics(execution_ms, (), None, None)
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
        # The result of an unfinished pass says nothing about the setting.
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
    written: WrittenResult | None,
) -> OperatorReport:
    """Returns the operators with the nodes that they ran; without figures if a stage ran twice, since Spark counts
    both.
    """
    try:
        found = monitor.operators(tag, planned.frame)
        if written is not None and written.is_collected:
            found = monitor.with_collected(found, written.rows, written.bytes)
        if any(stage.stage_attempt for stage in stages):
            found = found.model_copy(update={"operators": tuple(map(_without_figures, found.operators))})
        elif not found.is_cut:
            files = {name: [_path_of(file) for file in table.files.files] for name, table in tables.items()}
            found = figures_of(planned.plan, found.operators, files)
    except Exception:  # noqa: BLE001 - the form of Spark's plans may change; the result must not be lost
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
