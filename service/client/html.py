"""Jobs, results and reports as HTML for notebooks. All texts are escaped."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from html import escape

from ..contract.reports import PlanReport, PlanTree, SkewReport
from .responses import JobSummary, ResultPage, RunMetrics
from .text import amount, size

_SHOWN_ROWS = 20
_MAX_CHARACTERS = 200


def table(head: Sequence[str], rows: Iterable[Sequence[object]], numbers: Sequence[int] = ()) -> str:
    """Returns a table; the columns with the indexes `numbers` are right-aligned."""

    def cell(tag: str, index: int, value: object) -> str:
        return f'<{tag} style="text-align:{"right" if index in numbers else "left"}">{_text(value)}</{tag}>'

    names = "".join(cell("th", index, name) for index, name in enumerate(head))
    lines = ("<tr>" + "".join(cell("td", index, value) for index, value in enumerate(row)) + "</tr>" for row in rows)
    return f"<table><thead><tr>{names}</tr></thead><tbody>{''.join(lines)}</tbody></table>"


def job(found: JobSummary) -> str:
    """Returns the state of a job."""
    rows: list[tuple[str, object]] = [("job", found.id), ("name", found.name), ("status", found.status)]
    if found.waiting_for:
        rows.append(("waits for", found.waiting_for))
    if found.progress is not None and not found.is_at_rest:
        rows.append(("tasks", f"{found.progress.tasks_done} of {found.progress.tasks_total}"))
    if found.result is not None:
        rows.append(("rows", f"{found.result.rows:,}"))
    if found.error is not None:
        rows.append(("error", f"{found.error.detail} [{found.error.code}]"))
    lines = "".join(f'<tr><th style="text-align:left">{_text(a)}</th><td>{_text(b)}</td></tr>' for a, b in rows)
    return f"<table><tbody>{lines}</tbody></table>"


def result(page: ResultPage) -> str:
    """Returns the first rows of a result."""
    numbers = [
        index
        for index, column in enumerate(page.columns)
        if str(column.type).startswith(("TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "DECIMAL"))
    ]
    rows = page.rows[:_SHOWN_ROWS]
    shown = table([column.name for column in page.columns], rows, numbers)
    more = page.total_rows - len(rows)
    size_text = amount(page.total_rows, "row") + (f", of which {len(rows)} are shown" if more > 0 else "")
    return f"{shown}<p>{size_text}</p>"


def progress(status: str, total: int | None, done: int, text: str, seconds: float) -> str:
    """Returns a bar."""
    value = "" if total is None else f'value="{min(done, total)}" max="{total}"'
    return f"<div>{_text(status)} <progress {value}></progress> {_text(text)} {seconds:.0f} s</div>"


def plan(report: PlanReport) -> str:
    """Returns the plans before and after the rules, and what each rule did."""
    rules = [(trace.rule, trace.outcome.value, trace.reason) for trace in report.rules]
    return (
        f"<h4>Rules</h4>{table(('rule', 'outcome', 'reason'), rules)}"
        f"<details><summary>Plan before</summary>{_tree(report.before)}</details>"
        f"<details open><summary>Plan after</summary>{_tree(report.after)}</details>"
    )


def skew(report: SkewReport) -> str:
    """Returns whether a job was skewed, the advice, and the hot keys."""
    rows = [
        (found.table, ", ".join(found.columns), found.role, hot.value, f"{hot.share:.1%}", f"{hot.estimated_rows:,}")
        for found in report.keys
        for hot in found.hot_keys
    ]
    head = ("table", "columns", "role", "value", "share", "rows, about")
    keys = table(head, rows, (4, 5)) if rows else ""
    return f"<p><b>{'skewed' if report.skewed else 'not skewed'}</b>: {_text(report.advice)}</p>{keys}"


def metrics(report: RunMetrics) -> str:
    """Returns the times of a run, its stages, and its skew."""
    rows = [
        (
            stage.stage_id,
            stage.tasks,
            stage.wall_ms,
            f"{stage.input_rows:,}",
            f"{stage.shuffle_read_rows:,}",
            size(stage.spilled_bytes),
        )
        for stage in report.stages
    ]
    head = ("stage", "tasks", "ms", "rows read", "rows shuffled", "spilled")
    times = f"<p>planned in {report.planning_ms:,} ms, executed in {report.execution_ms:,} ms</p>"
    return times + table(head, rows, range(len(head))) + skew(report.skew)


def _tree(tree: PlanTree) -> str:
    return f"<pre>{escape(tree.text)}</pre>"


def _text(value: object) -> str:
    if value is None:
        return "NULL"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return escape(text if len(text) <= _MAX_CHARACTERS else text[: _MAX_CHARACTERS - 1] + "…")
