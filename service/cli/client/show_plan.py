"""Prints a plan report: what each rule did and why, what was weighed, and the plan."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from service.cli.amounts import size
from service.cli.client.output import Output
from service.spec.reports import KeyStatistics, PlanNodeReport, PlanReport, RuleOutcome, RuleTrace, TableStatistics

_STYLES = ((RuleOutcome.FIRED, "green"), (RuleOutcome.SKIPPED, "yellow"))
_KEYS_SHOWN = 3


def show_plan(output: Output, plan: PlanReport, *, with_sql: bool = False, with_physical: bool = False) -> None:
    """All of a plan report, but for Spark's own plan and the SQL unless these are wanted."""
    if plan.first_run is not None:
        output.say(f"It ran twice: the first run failed ({plan.first_run.failure}); what follows is of the second.")
    output.say("Tables", "bold")
    output.table(("", " ", "  "), list(_tables(plan.tables)), indent=2)
    hot = list(_hot_keys(plan.keys))
    if hot:
        output.heading("Hot keys")
        output.table(("key", "value", "share", "rows"), hot, numbers=("share", "rows"), indent=2)
    output.heading("Rules")
    show_rules(output, plan.rules)
    output.heading("Plan")
    output.indented(_text_with_ids(plan))
    if with_sql:
        output.heading("SQL before")
        output.indented(plan.before.sql or "(not told)")
        output.heading("SQL after")
        output.indented(plan.after.sql or "(not told)")
    if with_physical and plan.physical_plan:
        output.heading("Spark's physical plan")
        output.indented(plan.physical_plan)


def show_rules(output: Output, rules: Iterable[RuleTrace]) -> None:
    """Each rule with the node that it looked at and its reason, then what was weighed."""
    traces = tuple(rules)
    if _have_ids(traces):
        rows = [(trace.outcome, trace.rule, _number(trace.node_id), trace.reason) for trace in traces]
        output.table(("", " ", "  ", "   "), rows, whole=("", " ", "  "), styles=_STYLES, indent=2)
    else:
        plain = [(trace.outcome, trace.rule, trace.reason) for trace in traces]
        output.table(("", " ", "  "), plain, whole=("", " "), styles=_STYLES, indent=2)
    weighed = [line for trace in traces for line in _weighed(trace)]
    if weighed:
        output.heading("What was weighed (cost: rows of the slowest task over all phases)")
        numbers = ("cost", "shuffled", "hottest task")
        output.table(("rule, way", *numbers), weighed, numbers=numbers, whole=("rule, way",), indent=2)


def _have_ids(rules: Iterable[RuleTrace]) -> bool:
    """Whether they are of a version whose rules name nodes by their ids."""
    return any(trace.node_id is not None for trace in rules)


def _number(node_id: int | None) -> str:
    return "" if node_id is None else f"#{node_id}"


def _text_with_ids(plan: PlanReport) -> str:
    """The plan after the rules as text, each node with its id where the rules name nodes by them."""
    lines = plan.after.text.splitlines()
    if not _have_ids(plan.rules) or len(lines) != len(plan.after.nodes):
        return plan.after.text
    by_id = {node.id: node for node in plan.after.nodes}

    def below(node: PlanNodeReport) -> Iterator[PlanNodeReport]:
        yield node
        for each in node.inputs:
            yield from below(by_id[each])

    numbers = [_number(node.id) for node in below(plan.after.nodes[-1])]
    width = max(map(len, numbers))
    return "\n".join(f"{number:<{width}} {line}" for number, line in zip(numbers, lines, strict=True))


def _weighed(trace: RuleTrace) -> Iterator[tuple[str, str, str, str]]:
    """The rule, and a line for each way below it; the chosen one with an arrow."""
    if trace.alternatives:
        yield trace.rule, "", "", ""
    for way in trace.alternatives:
        name = f"{'→' if way.chosen else ' '} {way.name}"
        yield name, f"{way.cost:,.0f}", f"{way.rows_shuffled:,}", f"{way.rows_on_hottest_task:,}"


def _tables(tables: Iterable[TableStatistics]) -> Iterator[tuple[str, str, str]]:
    for table in tables:
        about = "" if table.rows_are_exact else "about "
        yield table.table, f"{about}{table.rows:,} rows", f"{table.files:,} files, {size(table.bytes)}"


def _hot_keys(keys: Iterable[KeyStatistics]) -> Iterator[tuple[str, str, str, str]]:
    for key in keys:
        for hot in key.hot_keys[:_KEYS_SHOWN]:
            yield ", ".join(key.columns), hot.value, f"{hot.share:.1%}", f"{hot.estimated_rows:,}"
