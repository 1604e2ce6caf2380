"""Compares the estimates that a plan was chosen by with Spark's measurements, and its cost with that of Spark's own
plan.

Spark reports rows by stage, and a stage is not an operator: it reads the rows of one and writes those of the next. So
the rows shuffled are measured for the whole query. They are those of one operator only if no other operator of the
query can have shuffled rows. Savings compare the estimated costs of a rule's choice and of what Spark does without the
rule.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from service.contract.reports import (
    Alternative,
    ChoiceOutcome,
    EstimatedSaving,
    EstimateReport,
    OperatorReport,
    PlanReport,
    Quantity,
    RuleTrace,
    StageMetrics,
    WrongEstimate,
)
from workers.engine.plan.nodes import Join, Node, Scan
from workers.engine.plan.traversal import walk_up
from workers.engine.report.operator_tree import JOINS, name_of, numbered
from workers.engine.rules.joins.strategy_cost import JoinAlgorithm
from workers.engine.statistics.model import Statistics
from workers.engine.statistics.partitioning import broadcast_side

FEW_ROWS = 1_000
"""An estimate and a measurement that are both below this number of rows are not compared."""

CLOSE = 2.0
"""An estimate that is off by at most this factor is right."""

WRONG = 10.0
"""An estimate that is off by more than this factor is wrong."""

COMPLETE = "COMPLETE"
"""Spark's status of a stage that succeeded."""

SPARK_DEFAULTS = {
    "two_phase_aggregate": "TWO_PHASE",
    "split_distinct_aggregate": "NATIVE",
    "counted_percentiles": "NATIVE",
    "bitmap_distinct": "NATIVE",
    "distinct_branches": "NATIVE",
    "eager_aggregation": "NATIVE",
    "join_order": "WRITTEN",
    "semi_join_reduction": "NONE",
    "skewed_join": "NONE",
    "skewed_windows": "NATIVE",
}
"""By rule, the rule's name for what Spark does without it. For a join strategy it depends on the sizes of the sides."""

_NEVER_SHUFFLES = frozenset({"Scan", "Filter", "Project", "Expand", "Generate", "Union"})
_EAGER = "eager_aggregation"
_JOIN_STRATEGY = "join_strategy"
_ESTIMATED_BY = {"incremental_aggregate": "split_distinct_aggregate"}
"""By rule, the other rule whose estimate covers the nodes that it adds."""

_MULTIPLIES = JOINS | {"Expand", "Generate"}
"""Spark's operators that may emit more rows than they read."""

_EMITS_ITS_INPUT = frozenset({"Scan", "Project", "Sort", "Exchange"})
"""Operators whose rows are not compared. Most emit their input; a scan's estimate is the size of its table, of which
Spark may skip a part.
"""


def estimates_of(
    report: PlanReport,
    plan: Node,
    statistics: Statistics,
    stages: Sequence[StageMetrics],
    run_by: OperatorReport = OperatorReport(),  # noqa: B008 - it is frozen
) -> EstimateReport:
    """Returns the estimated and measured rows of one run. `report` is that of the run, `plan` its plan after the rules,
    and `run_by` has the figures of its operators. Stages that failed or were stopped are left out.

    The estimates of a query are those of the plan after the rules, for each operator by the last rule that compared
    alternatives for it. The estimate of the chosen alternative covers the nodes that replace an operator.
    """
    done = [stage for stage in stages if stage.status == COMPLETE]
    measured = _Measured(
        read=sum(stage.input_rows for stage in done),
        shuffled=sum(stage.shuffle_write_rows for stage in done),
        hottest=_hottest(done),
        emitted=_most_emitted(run_by),
    )
    decided = _decided(report)
    all_estimated = bool(decided) and not _unestimated(report, decided)
    shuffling = [node.id for node in report.before.nodes if node.operator not in _NEVER_SHUFFLES]
    only_id = shuffling[0] if len(shuffling) == 1 else None
    total = sum(chosen.rows_shuffled for chosen in decided.values()) if decided else None
    rows_read = _rows_read(plan, statistics)
    most = max((chosen.rows_on_hottest_task for chosen in decided.values()), default=None)
    of_query = [_of_query(Quantity.ROWS_READ, rows_read, measured.read)]
    if all_estimated:
        of_query.append(_of_query(Quantity.ROWS_SHUFFLED, total, measured.shuffled))
        # An estimate that is too high may include rows that a task emitted: see `_wrong_choices`.
        if most is not None and measured.hottest is not None and most < measured.hottest:
            of_query.append(_of_query(Quantity.ROWS_ON_HOTTEST_TASK, most, measured.hottest))
    wrong = (
        *(one for one in of_query if one is not None),
        *_wrong_choices(report.rules, only_id, measured),
        *_wrong_nodes(report, run_by),
    )
    return EstimateReport(
        choices=tuple(_outcomes(report.rules, only_id, measured, wrong)),
        estimated_rows_read=rows_read,
        measured_rows_read=measured.read,
        estimated_rows_shuffled=total,
        measured_rows_shuffled=measured.shuffled,
        estimated_rows_on_hottest_task=most,
        measured_rows_on_hottest_task=measured.hottest,
        estimated_result_rows=report.after.nodes[-1].estimated_rows,
        all_estimated=all_estimated,
        summary=_summary(total, measured.shuffled, all_estimated),
        wrong=tuple(sorted(wrong, key=lambda one: -one.factor)),
    )


def error_factor(estimated: float, measured: float) -> float:
    """Returns the ratio of the larger number to the smaller one, at least 1; 1 if both are below `FEW_ROWS`.

    >>> error_factor(10, 900), error_factor(2_000, 8_000), error_factor(0, 5_000)
    (1.0, 4.0, 5000.0)
    """
    if max(estimated, measured) < FEW_ROWS:
        return 1.0
    return max(estimated, measured) / max(min(estimated, measured), 1.0)


def is_wrong(estimated: float, measured: float) -> bool:
    """Whether one number is more than 10 times the other, and at least one of them is not below `FEW_ROWS`.

    >>> is_wrong(10_000, 1_000), is_wrong(10_001, 1_000), is_wrong(1, 999)
    (False, True, False)
    """
    return error_factor(estimated, measured) > WRONG


def choice_of(trace: RuleTrace) -> Alternative | None:
    """Returns the alternative that a rule chose; None if the rule compared none."""
    return next((alternative for alternative in trace.alternatives if alternative.chosen), None)


@dataclass(frozen=True)
class _Measured:
    """Rows that the query `read` and `shuffled`. `hottest` is the most that one task read from a shuffle, `emitted` the
    most that one operator emitted; None if an operator that matters did not count its rows.
    """

    read: int
    shuffled: int
    hottest: int | None
    emitted: int | None

    @property
    def most_handled(self) -> int | None:
        """An upper bound of the rows that one task read, sorted and emitted for one operator, as costs count them."""
        return None if self.hottest is None or self.emitted is None else 2 * self.hottest + self.emitted


def _decided(report: PlanReport) -> Mapping[int, Alternative]:
    """Returns the alternative that was chosen last, by node: for nodes of the plan after the rules, and for nodes that
    a rule replaced. An aggregate that eager aggregation moved below a join is left out: it has a more exact estimate of
    its own.
    """
    before, after = ({node.id for node in tree.nodes} for tree in (report.before, report.after))
    last = {trace.node_id: trace for trace in report.rules if choice_of(trace) is not None}
    return {
        node_id: chosen
        for node_id, trace in last.items()
        if (chosen := choice_of(trace)) is not None
        and node_id is not None
        and (node_id in after or (node_id in before and trace.rule != _EAGER))
    }


def _unestimated(report: PlanReport, decided: Mapping[int, Alternative]) -> bool:
    """Whether the plan after the rules has an operator that may shuffle rows and is covered by no estimate."""
    choosing = {trace.rule for trace in report.rules if choice_of(trace) is not None} - {_EAGER}
    return any(
        node.operator not in _NEVER_SHUFFLES
        and node.id not in decided
        and _ESTIMATED_BY.get(node.changed_by or "", node.changed_by) not in choosing
        for node in report.after.nodes
    )


def _outcomes(
    rules: Sequence[RuleTrace], only_id: int | None, measured: _Measured, wrong: Sequence[WrongEstimate]
) -> Iterator[ChoiceOutcome]:
    """The choices of the rules. `only_id`: the only node that can shuffle rows; all measured rows are its own."""
    wrong_choices = {(one.rule, one.node_id) for one in wrong}
    for trace in rules:
        chosen = choice_of(trace)
        if chosen is not None:
            is_only = only_id is not None and trace.node_id == only_id
            yield ChoiceOutcome(
                rule=trace.rule,
                node=trace.node,
                node_id=trace.node_id,
                alternative=chosen.name,
                estimated_rows_shuffled=chosen.rows_shuffled,
                estimated_rows_on_hottest_task=chosen.rows_on_hottest_task,
                measured_rows_shuffled=measured.shuffled if is_only else None,
                measured_rows_on_hottest_task=measured.hottest if is_only else None,
                is_wrong=(trace.rule, trace.node_id) in wrong_choices,
            )


def _of_query(quantity: Quantity, estimated: int | None, measured: int) -> WrongEstimate | None:
    return None if estimated is None or not is_wrong(estimated, measured) else _wrong(quantity, estimated, measured)


def _wrong_choices(rules: Sequence[RuleTrace], only_id: int | None, measured: _Measured) -> Iterator[WrongEstimate]:
    """Choices that contradict the measurements of the whole query: it shuffled fewer rows than estimated, or no task
    can have processed as many. If only one operator shuffles rows, its estimate can also be found too low.
    """
    for trace in rules:
        chosen = choice_of(trace)
        if chosen is None:
            continue
        is_only = only_id is not None and trace.node_id == only_id
        shuffled, hottest, most = chosen.rows_shuffled, chosen.rows_on_hottest_task, measured.most_handled
        if is_wrong(shuffled, measured.shuffled) and (is_only or shuffled > measured.shuffled):
            yield _wrong(Quantity.ROWS_SHUFFLED, shuffled, measured.shuffled, trace.node_id, trace.node, trace.rule)
        if most is not None and hottest > most and is_wrong(hottest, most):
            yield _wrong(Quantity.ROWS_ON_HOTTEST_TASK, hottest, most, trace.node_id, trace.node, trace.rule)


def _wrong_nodes(report: PlanReport, run_by: OperatorReport) -> Iterator[WrongEstimate]:
    rows = {figures.id: figures.rows for figures in run_by.nodes}
    for node in report.after.nodes:
        estimated, emitted = node.estimated_rows, rows.get(node.id)
        if node.operator in _EMITS_ITS_INPUT or estimated is None or emitted is None:
            continue
        if is_wrong(estimated, emitted):
            line = f"{node.operator} {node.detail}".rstrip()
            yield _wrong(Quantity.ROWS_EMITTED, estimated, emitted, node.id, line)


def _wrong(
    quantity: Quantity,
    estimated: int,
    measured: int,
    node_id: int | None = None,
    node: str | None = None,
    rule: str | None = None,
) -> WrongEstimate:
    return WrongEstimate(
        quantity=quantity,
        node_id=node_id,
        node=node,
        rule=rule,
        estimated=estimated,
        measured=measured,
        factor=round(error_factor(estimated, measured), 1),
    )


def _rows_read(plan: Node, statistics: Statistics) -> int | None:
    sizes = [statistics.tables.get(node.alias) for node in walk_up(plan) if isinstance(node, Scan)]
    return None if None in sizes else sum(size.rows for size in sizes if size is not None)


def _hottest(stages: Sequence[StageMetrics]) -> int | None:
    """The most rows that one task read from a shuffle."""
    return max((rows for stage in stages if (rows := max_shuffle_rows(stage)) is not None), default=None)


def max_shuffle_rows(stage: StageMetrics) -> int | None:
    """Returns the most rows that one task of a stage read from a shuffle; None if the stage reads no shuffle.

    `records` includes rows of files, so the rows that the whole stage read from shuffles are an upper bound.
    """
    if stage.records is None or not stage.shuffle_read_rows:
        return None
    return min(round(stage.records.max), stage.shuffle_read_rows)


def _most_emitted(run_by: OperatorReport) -> int | None:
    if run_by.is_cut or any(each.rows is None and name_of(each) in _MULTIPLIES for each in run_by.operators):
        return None
    return max((each.rows for each in run_by.operators if each.rows is not None), default=None)


def _summary(estimated: int | None, measured: int, all_estimated: bool) -> str:
    if estimated is None:
        return f"No rule compared costs; {measured:,} rows were shuffled."
    compared = f"The plan was estimated to shuffle {estimated:,} rows, and {measured:,} were shuffled"
    if not all_estimated:
        return f"{compared}, including those of operators without an estimate."
    factor = error_factor(estimated, measured)
    if factor <= CLOSE:
        return f"{compared}. The estimate was right within a factor of {CLOSE:g}."
    high_or_low = "high" if estimated > measured else "low"
    was = "was wrong: it was " if factor > WRONG else "was "
    return f"{compared}. The estimate {was}{factor:,.1f} times too {high_or_low}."


def estimated_savings(
    rules: Sequence[RuleTrace], before: Node, statistics: Statistics, choices: Sequence[ChoiceOutcome] = ()
) -> tuple[EstimatedSaving, ...]:
    """Returns a saving for each trace with a chosen alternative, if the alternatives include what Spark does by
    default. `before` is the plan without the rules; `choices` are the outcomes of the same traces, if they are known.
    """
    wrong = {(choice.rule, choice.node_id) for choice in choices if choice.is_wrong}
    return tuple(
        EstimatedSaving(
            rule=trace.rule,
            node=trace.node,
            node_id=trace.node_id,
            alternative=chosen.name,
            cost=chosen.cost,
            spark_alternative=default.name,
            spark_cost=default.cost,
            ratio=round(chosen.cost / default.cost, 4) if default.cost else None,
            is_wrong=(trace.rule, trace.node_id) in wrong,
        )
        for trace in rules
        if (chosen := choice_of(trace)) is not None
        and (default := _spark_default(trace, before, statistics)) is not None
    )


def _spark_default(trace: RuleTrace, before: Node, statistics: Statistics) -> Alternative | None:
    name = SPARK_DEFAULTS.get(trace.rule)
    if trace.rule == _JOIN_STRATEGY:
        name = _default_join(trace.node_id, before, statistics)
    return next((alternative for alternative in trace.alternatives if alternative.name == name), None)


def _default_join(node_id: int | None, before: Node, statistics: Statistics) -> str | None:
    """Spark broadcasts a side whose files are small; else it sorts and merges. None for a join that an earlier rule
    added: the plan without the rules does not have it.
    """
    for each in numbered(before).walk():
        if each.id == node_id and isinstance(each.node, Join):
            ship = broadcast_side(each.node, statistics)
            return JoinAlgorithm.SORT_MERGE if ship is None else JoinAlgorithm(ship)
    return None
