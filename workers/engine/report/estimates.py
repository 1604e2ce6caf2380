"""The estimates that a plan was chosen by, next to what Spark measured when it ran.

Spark reports rows by stage, and a stage is not an operator: it reads for one and writes for the next. So rows that were
shuffled are those of the whole query, and of an operator only where nothing else in the query can have sent rows.

What the rules' choices cost in comparison with Spark's own plan, by the estimates that they were made by.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from service.contract.options import JoinShip
from service.contract.reports import (
    Alternative,
    ChoiceOutcome,
    EstimatedSaving,
    EstimateReport,
    OperatorReport,
    PlanNodeReport,
    PlanReport,
    Quantity,
    RuleTrace,
    StageMetrics,
    WrongEstimate,
)
from workers.engine.plan.nodes import Join, Node, Scan
from workers.engine.plan.traversal import walk_up
from workers.engine.report.operator_tree import JOINS, name_of, numbered
from workers.engine.rules.joins.strategy_cost import Way
from workers.engine.statistics.model import Statistics
from workers.engine.statistics.partitioning import broadcast_side

FEW_ROWS = 1_000
"""Estimates and measurements that are both below it are not compared."""

CLOSE = 2.0
"""An estimate within this factor chooses rightly."""

WRONG = 10.0
"""An estimate beyond this factor is wrong."""

COMPLETE = "COMPLETE"
"""Spark's status of a stage that ran to its end."""

_SENDS_NOTHING = frozenset({"Scan", "Filter", "Project", "Expand", "Union"})
_EAGER = "eager_aggregation"
_PART_OF = {"incremental_aggregate": "split_distinct_aggregate"}
"""By rule, the one that estimates what it makes."""

_MULTIPLIES = JOINS | {"Expand", "Generate"}
"""Spark's operators that may emit more rows than they take."""

_EMITS_ITS_INPUT = frozenset({"Scan", "Project", "Sort", "Exchange"})
"""Operators without an estimate of their own. A scan's is the size of its table, of which Spark may skip a part."""


def estimates_of(
    report: PlanReport,
    plan: Node,
    statistics: Statistics,
    stages: Sequence[StageMetrics],
    run_by: OperatorReport = OperatorReport(),  # noqa: B008 - it is frozen
) -> EstimateReport:
    """Estimated and measured rows of one run. `report` and `plan`, the one after the rules, are those of the run, and
    `run_by` is what its operators did; stages that failed or were stopped are left out.

    The estimates of a query are those of the plan after the rules, of each operator by the last rule that weighed it.
    What a rule made in place of an operator is in the estimate of the way that it chose.
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
    senders = [node.id for node in report.before.nodes if node.operator not in _SENDS_NOTHING]
    alone = senders[0] if len(senders) == 1 else None
    total = sum(way.rows_shuffled for way in decided.values()) if decided else None
    rows_read = _rows_read(plan, statistics)
    most = max((way.rows_on_hottest_task for way in decided.values()), default=None)
    of_query = [_of_query(Quantity.ROWS_READ, rows_read, measured.read)]
    if all_estimated:
        of_query.append(_of_query(Quantity.ROWS_SHUFFLED, total, measured.shuffled))
        # An estimate that is too high may count rows that were emitted: see `_wrong_choices`.
        if most is not None and measured.hottest is not None and most < measured.hottest:
            of_query.append(_of_query(Quantity.ROWS_ON_HOTTEST_TASK, most, measured.hottest))
    wrong = (
        *(one for one in of_query if one is not None),
        *_wrong_choices(report.rules, alone, measured),
        *_wrong_nodes(report, run_by),
    )
    return EstimateReport(
        choices=tuple(_outcomes(report.rules, alone, measured, wrong)),
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


def off_by(estimated: float, measured: float) -> float:
    """How many times one is the other, 1 or more; 1 where both are few.

    >>> off_by(10, 900), off_by(2_000, 8_000), off_by(0, 5_000)
    (1.0, 4.0, 5000.0)
    """
    if max(estimated, measured) < FEW_ROWS:
        return 1.0
    return max(estimated, measured) / max(min(estimated, measured), 1.0)


def is_wrong(estimated: float, measured: float) -> bool:
    """Whether one is more than 10 times the other, and not both are few.

    >>> is_wrong(10_000, 1_000), is_wrong(10_001, 1_000), is_wrong(1, 999)
    (False, True, False)
    """
    return off_by(estimated, measured) > WRONG


def choice_of(trace: RuleTrace) -> Alternative | None:
    """The way that a rule chose; None where it weighed none."""
    return next((way for way in trace.alternatives if way.chosen), None)


@dataclass(frozen=True)
class _Measured:
    """Rows that the query read, sent, and that one task took from a shuffle at most; `emitted` is the most that one
    operator emitted, None where one did not count its rows.
    """

    read: int
    shuffled: int
    hottest: int | None
    emitted: int | None

    @property
    def most_handled(self) -> int | None:
        """More rows than one task handled for one operator: read, sorted and emitted, as costs count them."""
        return None if self.hottest is None or self.emitted is None else 2 * self.hottest + self.emitted


def _decided(report: PlanReport) -> Mapping[int, Alternative]:
    """The nodes that were weighed, each with the way that was chosen last: those of the plan after the rules, and those
    that a rule replaced. What is aggregated below a join is weighed by itself again, and more exactly.
    """
    before, after = ({node.id for node in tree.nodes} for tree in (report.before, report.after))
    last = {trace.node_id: trace for trace in report.rules if choice_of(trace) is not None}
    return {
        node_id: way
        for node_id, trace in last.items()
        if (way := choice_of(trace)) is not None
        and node_id is not None
        and (node_id in after or (node_id in before and trace.rule != _EAGER))
    }


def _unestimated(report: PlanReport, decided: Mapping[int, Alternative]) -> bool:
    """Whether the plan after the rules has an operator that may send rows and is in no estimate."""
    weighing = {trace.rule for trace in report.rules if choice_of(trace) is not None} - {_EAGER}
    return any(
        node.operator not in _SENDS_NOTHING
        and node.id not in decided
        and _PART_OF.get(node.changed_by or "", node.changed_by) not in weighing
        for node in report.after.nodes
    )


def _outcomes(
    rules: Sequence[RuleTrace], alone: int | None, measured: _Measured, wrong: Sequence[WrongEstimate]
) -> Iterator[ChoiceOutcome]:
    wrong_choices = {(one.rule, one.node_id) for one in wrong}
    for trace in rules:
        way = choice_of(trace)
        if way is not None:
            is_alone = alone is not None and trace.node_id == alone
            yield ChoiceOutcome(
                rule=trace.rule,
                node=trace.node,
                node_id=trace.node_id,
                alternative=way.name,
                estimated_rows_shuffled=way.rows_shuffled,
                estimated_rows_on_hottest_task=way.rows_on_hottest_task,
                measured_rows_shuffled=measured.shuffled if is_alone else None,
                measured_rows_on_hottest_task=measured.hottest if is_alone else None,
                is_wrong=(trace.rule, trace.node_id) in wrong_choices,
            )


def _of_query(quantity: Quantity, estimated: int | None, measured: int) -> WrongEstimate | None:
    return None if estimated is None or not is_wrong(estimated, measured) else _wrong(quantity, estimated, measured)


def _wrong_choices(rules: Sequence[RuleTrace], alone: int | None, measured: _Measured) -> Iterator[WrongEstimate]:
    """Choices that what was measured of the whole query contradicts: it sent fewer rows, or no task can have handled
    as many. Where only one operator sends rows, its choice may have been too low as well.
    """
    for trace in rules:
        way = choice_of(trace)
        if way is None:
            continue
        is_alone = alone is not None and trace.node_id == alone
        sent, most = way.rows_shuffled, measured.most_handled
        if is_wrong(sent, measured.shuffled) and (is_alone or sent > measured.shuffled):
            yield _wrong(Quantity.ROWS_SHUFFLED, sent, measured.shuffled, trace)
        if most is not None and way.rows_on_hottest_task > most and is_wrong(way.rows_on_hottest_task, most):
            yield _wrong(Quantity.ROWS_ON_HOTTEST_TASK, way.rows_on_hottest_task, most, trace)


def _wrong_nodes(report: PlanReport, run_by: OperatorReport) -> Iterator[WrongEstimate]:
    rows = {figures.id: figures.rows for figures in run_by.nodes}
    for node in report.after.nodes:
        emitted = rows.get(node.id)
        if node.operator in _EMITS_ITS_INPUT or node.estimated_rows is None or emitted is None:
            continue
        if is_wrong(node.estimated_rows, emitted):
            yield _wrong(Quantity.ROWS_EMITTED, node.estimated_rows, emitted, node)


def _wrong(
    quantity: Quantity, estimated: int, measured: int, about: RuleTrace | PlanNodeReport | None = None
) -> WrongEstimate:
    trace = about if isinstance(about, RuleTrace) else None
    node = about if isinstance(about, PlanNodeReport) else None
    return WrongEstimate(
        quantity=quantity,
        node_id=trace.node_id if trace is not None else node.id if node is not None else None,
        node=trace.node
        if trace is not None
        else f"{node.operator} {node.detail}".rstrip()
        if node is not None
        else None,
        rule=None if trace is None else trace.rule,
        estimated=estimated,
        measured=measured,
        factor=round(off_by(estimated, measured), 1),
    )


def _rows_read(plan: Node, statistics: Statistics) -> int | None:
    sizes = [statistics.tables.get(node.alias) for node in walk_up(plan) if isinstance(node, Scan)]
    return None if None in sizes else sum(size.rows for size in sizes if size is not None)


def _hottest(stages: Sequence[StageMetrics]) -> int | None:
    """The most rows that one task took from a shuffle."""
    return max((rows for stage in stages if (rows := most_shuffled(stage)) is not None), default=None)


def most_shuffled(stage: StageMetrics) -> int | None:
    """The most rows that one task of a stage took from a shuffle; None where it reads none.

    `records` counts rows of files too: a task took no more from the shuffle than the stage did.
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
        return f"Nothing was decided by cost; {measured:,} rows were shuffled."
    compared = f"{estimated:,} rows were estimated to be shuffled, and {measured:,} were"
    if not all_estimated:
        return f"{compared}, those of operators without an estimate included."
    factor = off_by(estimated, measured)
    if factor <= CLOSE:
        return f"{compared}: the estimate was right within a factor of {CLOSE:g}."
    high_or_low = "high" if estimated > measured else "low"
    was = "was wrong: it was " if factor > WRONG else "was "
    return f"{compared}: the estimate {was}{factor:,.1f} times too {high_or_low}."


SPARKS_OWN = {
    "two_phase_aggregate": "TWO_PHASE",
    "split_distinct_aggregate": "NATIVE",
    "bitmap_distinct": "NATIVE",
    "distinct_branches": "NATIVE",
    "eager_aggregation": "NATIVE",
    "skewed_join": "NONE",
}
"""By rule, what it calls what Spark does without it. That of a join strategy depends on the sizes of the sides."""

_JOIN_STRATEGY = "join_strategy"
_SENT = {JoinShip.BROADCAST_LEFT: Way.BROADCAST_LEFT, JoinShip.BROADCAST_RIGHT: Way.BROADCAST_RIGHT}


def estimated_savings(
    rules: Sequence[RuleTrace], before: Node, statistics: Statistics, choices: Sequence[ChoiceOutcome] = ()
) -> tuple[EstimatedSaving, ...]:
    """A saving for each trace that chose one way, where Spark's own is among the alternatives; `before` is the plan
    without the rules, and `choices` are the outcomes of the same traces where they are known.
    """
    wrong = {(choice.rule, choice.node_id) for choice in choices if choice.is_wrong}
    return tuple(_savings(rules, before, statistics, wrong))


def _savings(
    rules: Sequence[RuleTrace], before: Node, statistics: Statistics, wrong: Collection[tuple[str, int | None]]
) -> Iterator[EstimatedSaving]:
    for trace in rules:
        chosen = choice_of(trace)
        own = _own(trace, before, statistics)
        if chosen is None or own is None:
            continue
        yield EstimatedSaving(
            rule=trace.rule,
            node=trace.node,
            node_id=trace.node_id,
            alternative=chosen.name,
            cost=chosen.cost,
            spark_alternative=own.name,
            spark_cost=own.cost,
            ratio=round(chosen.cost / own.cost, 4) if own.cost else None,
            is_wrong=(trace.rule, trace.node_id) in wrong,
        )


def _own(trace: RuleTrace, before: Node, statistics: Statistics) -> Alternative | None:
    name = SPARKS_OWN.get(trace.rule)
    if trace.rule == _JOIN_STRATEGY:
        name = _of_join(trace.node_id, before, statistics)
    return next((way for way in trace.alternatives if way.name == name), None)


def _of_join(node_id: int | None, before: Node, statistics: Statistics) -> str | None:
    """Spark broadcasts a side whose files are small, and else sorts and merges; None for a join that an earlier rule
    made, of which Spark without the rules knows nothing.
    """
    for each in numbered(before).walk():
        if each.id == node_id and isinstance(each.node, Join):
            ship = broadcast_side(each.node, statistics)
            return Way.SORT_MERGE.value if ship is None else _SENT[ship].value
    return None
