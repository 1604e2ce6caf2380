"""Prints jobs, metrics, plans and API keys for people."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta

import typer

from service.cli.connection import read
from service.cli.session import Output, Session
from service.cli.terminal import ExitCode, program
from service.cli.waiting import exit_code
from service.client.problem_text import Source, problem_head, problem_lines
from service.client.responses import Document, EstimateError, Job, JobSummary, KeyPage, RunMetrics
from service.client.text import amount, size
from service.contract.enums import JobStatus
from service.contract.reports import (
    KeyStatistics,
    PlanNodeReport,
    PlanReport,
    Quantiles,
    RuleOutcome,
    RuleTrace,
    SkewReport,
    TableStatistics,
)

_JOB_STYLES = (
    (JobStatus.SUCCEEDED, "green"),
    (JobStatus.RUNNING, "cyan"),
    (JobStatus.PLANNING, "cyan"),
    (JobStatus.FAILED, "red"),
    (JobStatus.CRASHED, "red"),
    (JobStatus.TIMED_OUT, "red"),
    (JobStatus.CANCELLED, "yellow"),
)
_WIDE = 110
"""Columns of a terminal from which lists of jobs have more columns."""

_RULE_STYLES = ((RuleOutcome.FIRED, "green"), (RuleOutcome.SKIPPED, "yellow"))
_SKEWED_KEYS_SHOWN = 5
_PLANNED_KEYS_SHOWN = 3


def show_jobs(output: Output, jobs: Iterable[JobSummary]) -> None:
    """Prints a line for each job."""
    now = datetime.now(UTC)
    wide = output.width >= _WIDE
    head = ["id", "status", "submitted", *(("took", "mode", "queue") if wide else ()), "name"]
    rows = [
        [
            job.id,
            job.status,
            ago(job.submitted_at, now),
            *((took(job, now), job.mode, job.queue) if wide else ()),
            job.name,
        ]
        for job in jobs
    ]
    if rows:
        numbers, whole = ("submitted", "took"), ("id", "status")
        output.table(head, rows, numbers=numbers, whole=whole, cut="name", styles=_JOB_STYLES)
    else:
        output.note("No jobs match.")


def show_job(output: Output, job: Job) -> None:
    """Prints a job's state, settings, error and SQL."""
    now = datetime.now(UTC)
    progress = job.progress
    output.pairs(
        (
            ("id", job.id),
            ("name", job.name),
            ("status", job.status),
            ("waiting for", job.waiting_for),
            ("mode", job.mode),
            ("queue", job.queue),
            ("submitted", _moment(job.submitted_at, now)),
            ("started", _moment(job.started_at, now)),
            ("ended", _moment(job.finished_at, now)),
            ("next run", _moment(job.next_run_at, now)),
            ("took", took(job, now)),
            ("attempts", job.attempts if job.attempts > 1 else None),
            ("tasks", f"{progress.tasks_done} of {progress.tasks_total}" if progress and not job.is_at_rest else None),
            ("result", _result(job)),
            ("settings", ", ".join(f"{key}={value}" for key, value in _settings(job))),
        )
    )
    if job.error is not None:
        output.say()
        output.say(problem_head(job.error), "red")
        for line in problem_lines(job.error, _source(job)):
            output.indented(line)
    if job.sql:
        output.heading("SQL")
        output.indented(job.sql)


def show_end(
    session: Session, document: Document, source: Source | None = None, *, has_shown_rows: bool = False
) -> None:
    """Reports how a job ended, as JSON or as a message on standard error.

    Raises typer.Exit with the job's exit code unless that is 0.
    """
    job = read(Job, document)
    code = exit_code(job)
    output = session.output
    if output.as_json:
        output.document(document)
    else:
        spent = took(job, datetime.now(UTC))
        output.note(", ".join(part for part in (job.status, spent and f"took {spent}", _result(job)) if part))
    if job.error is not None:
        lines = problem_lines(job.error, source or _source(job))
        output.note("\n  ".join((problem_head(job.error), *lines)))
    if not output.as_json and code is ExitCode.OK and job.result is not None:
        if not has_shown_rows:
            output.note(f"Show its rows:  {program()} result {job.id}")
        output.note(f"Check for skew: {program()} skew {job.id}")
    if code is not ExitCode.OK:
        raise typer.Exit(code)


def _source(job: Job) -> Source | None:
    return Source(job.sql or "", "sql", has_keys=True)


def took(job: JobSummary, now: datetime) -> str:
    """Returns how long a job ran, or has been running; empty if unknown."""
    if job.started_at is None or (job.finished_at is None and job.is_at_rest):
        return ""
    return duration_text((job.finished_at or now) - job.started_at)


def duration_text(duration: timedelta) -> str:
    """Returns a duration with about two digits: `0.4 s`, `12 s`, `3 min 5 s`, `2 h 10 min`, `3 d`."""
    seconds = max(duration.total_seconds(), 0)
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min" if whole < 172_800 else f"{whole // 86_400} d"


def ago(at: datetime | None, now: datetime) -> str:
    """Returns how long ago a time was; empty for None."""
    if at is None:
        return ""
    seconds = max((now - at).total_seconds(), 0)
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds // length:.0f} {unit} ago"
    return "just now" if seconds < 5 else f"{seconds:.0f} s ago"


def _moment(at: datetime | None, now: datetime) -> str:
    if at is None:
        return ""
    text = f"{at.astimezone():%Y-%m-%d %H:%M:%S}"
    return f"{text} ({ago(at, now)})" if at <= now else text


def _result(job: JobSummary) -> str:
    return "" if job.result is None else f"{amount(job.result.rows, 'row')}, {size(job.result.bytes)}"


def _settings(job: Job) -> Iterable[tuple[str, object]]:
    """Yields the settings that differ from their defaults."""
    from service.contract.options import JobSettings

    default = JobSettings().model_dump(mode="json")
    for key, value in dict(job.spec.get("settings") or {}).items():
        known = default.get(key)
        if isinstance(value, dict) and isinstance(known, dict):
            yield from ((f"{key}.{name}", inner) for name, inner in value.items() if inner != known.get(name))
        elif value != known:
            yield key, value


def show_metrics(output: Output, metrics: RunMetrics) -> None:
    """Prints the stages, wrong estimates and skew of a run."""
    times = f"planning {_seconds(metrics.planning_ms)}, running {_seconds(metrics.execution_ms)}"
    rows = "" if metrics.result_rows is None else f"{metrics.result_rows:,}"
    output.pairs((("took", times), ("result rows", rows)))
    output.heading("Stages")
    output.table(
        ("stage", "tasks", "took", "read", "shuffled", "spilled", "task median", "task max"),
        [
            (
                stage.stage_id,
                f"{stage.tasks:,}" + (f" ({stage.failed_tasks} failed)" if stage.failed_tasks else ""),
                _seconds(stage.wall_ms),
                size(stage.input_bytes + stage.shuffle_read_bytes),
                f"{stage.shuffle_write_rows:,} rows" if stage.shuffle_write_rows else "",
                size(stage.spilled_bytes) if stage.spilled_bytes else "",
                *_median_and_max(stage.duration_ms),
            )
            for stage in metrics.stages
        ],
        numbers=("stage", "tasks", "took", "read", "shuffled", "spilled", "task median", "task max"),
        indent=2,
    )
    if metrics.estimates is not None:
        output.heading("Estimates")
        output.say(metrics.estimates.summary)
        for wrong in metrics.estimates.wrong:
            output.say(_wrong(wrong), "yellow")
    output.heading("Skew")
    show_skew(output, metrics)


def show_skew(output: Output, metrics: RunMetrics) -> None:
    """Prints whether a run was skewed, the advice, the savings, the hot keys and the skewed stages."""
    skew = metrics.skew
    verdict = "Skewed" if skew.skewed else "Not skewed"
    if skew.lost_ms:
        verdict += f", {_seconds(skew.lost_ms)} lost"
    output.say(verdict, "bold red" if skew.skewed else "green")
    output.say(skew.advice)
    if skew.setting is not None and skew.value is not None:
        output.say(f"Submit it again with  --set {skew.setting}={skew.value}", "bold")
    for line in _savings(metrics):
        output.say(line)
    keys = list(_measured_hot_keys(skew))
    if keys:
        output.say()
        output.table(("hot key", "as", "value", "share", "rows, about"), keys, numbers=("share", "rows, about"))
    if skew.stages:
        output.say()
        output.table(
            ("stage", "max / median", "slowest task", "median task", "of the stage", "lost"),
            [
                (
                    stage.stage_id,
                    f"{stage.max_over_median:.1f}x",
                    _seconds(stage.slowest_task_ms),
                    _seconds(stage.median_task_ms),
                    f"{stage.stage_impact:.0%}",
                    _seconds(stage.lost_ms),
                )
                for stage in skew.stages
            ],
            numbers=("stage", "max / median", "slowest task", "median task", "of the stage", "lost"),
        )


def _wrong(wrong: EstimateError) -> str:
    number = "" if wrong.node_id is None else f" of #{wrong.node_id}"
    node = "" if wrong.node is None else f"{number} {wrong.node}"
    rule = "" if wrong.rule is None else f", estimated by {wrong.rule}"
    is_high = wrong.estimated > wrong.measured
    # For one of several operators, the measurements give only the maximum of its rows.
    found = f"at most {wrong.measured:,} possible" if wrong.rule and is_high else f"{wrong.measured:,} measured"
    return (
        f"The estimate was wrong: {wrong.quantity.replace('_', ' ')}{node}{rule}: {wrong.estimated:,} estimated, "
        f"{found}, {wrong.factor:,.0f} times too {'high' if is_high else 'low'}."
    )


def _savings(metrics: RunMetrics) -> Iterator[str]:
    simulated, comparison = metrics.savings.simulated, metrics.comparison
    if simulated is not None and simulated.actual_ms > simulated.balanced_ms:
        slots, actual, balanced = simulated.slots, _seconds(simulated.actual_ms), _seconds(simulated.balanced_ms)
        yield f"On {amount(slots, 'slot')} its stages take {actual}, and {balanced} with even tasks."
    if comparison is not None and comparison.before_ms is not None and comparison.after_ms is not None:
        before, after = _seconds(comparison.before_ms), _seconds(comparison.after_ms)
        yield f"It ran for {after}, {comparison.job_id} for {before}."


def _measured_hot_keys(skew: SkewReport) -> Iterator[tuple[str, str, str, str, str]]:
    for key in skew.keys:
        for hot in key.hot_keys[:_SKEWED_KEYS_SHOWN]:
            yield ", ".join(key.columns), key.role, hot.value, f"{hot.share:.1%}", f"{hot.estimated_rows:,}"


def _median_and_max(quantiles: Quantiles | None) -> tuple[str, str]:
    return ("", "") if quantiles is None else (_seconds(quantiles.median), _seconds(quantiles.max))


def _seconds(milliseconds: float) -> str:
    return f"{milliseconds / 1000:,.2f} s"


def show_plan(output: Output, plan: PlanReport, *, with_sql: bool = False, with_physical: bool = False) -> None:
    """Prints a plan report. SQL and Spark's physical plan are printed on request only."""
    if plan.first_run is not None:
        output.say(f"The first run failed ({plan.first_run.failure}). The following is the plan of the second run.")
    output.say("Tables", "bold")
    output.table(("", " ", "  "), list(_tables(plan.tables)), indent=2)
    hot = list(_estimated_hot_keys(plan.keys))
    if hot:
        output.heading("Hot keys")
        output.table(("key", "value", "share", "rows"), hot, numbers=("share", "rows"), indent=2)
    output.heading("Rules")
    show_rules(output, plan.rules)
    output.heading("Plan")
    output.indented(_text_with_ids(plan))
    if with_sql:
        output.heading("SQL before")
        output.indented(plan.before.sql or "(not available)")
        output.heading("SQL after")
        output.indented(plan.after.sql or "(not available)")
    if with_physical and plan.physical_plan:
        output.heading("Spark's physical plan")
        output.indented(plan.physical_plan)


def show_rules(output: Output, rules: Iterable[RuleTrace]) -> None:
    """Prints each rule's decision, node and reason, then the alternatives that were compared."""
    traces = tuple(rules)
    if _have_ids(traces):
        rows = [(trace.outcome, trace.rule, _number(trace.node_id), trace.reason) for trace in traces]
        output.table(("", " ", "  ", "   "), rows, whole=("", " ", "  "), styles=_RULE_STYLES, indent=2)
    else:
        plain = [(trace.outcome, trace.rule, trace.reason) for trace in traces]
        output.table(("", " ", "  "), plain, whole=("", " "), styles=_RULE_STYLES, indent=2)
    compared = [line for trace in traces for line in _alternatives(trace)]
    if compared:
        output.heading("Alternatives (cost: rows of the slowest task, over all phases)")
        numbers = ("cost", "shuffled", "hottest task")
        output.table(("alternative", *numbers), compared, numbers=numbers, whole=("alternative",), indent=2)


def _have_ids(rules: Iterable[RuleTrace]) -> bool:
    """Whether the rules name nodes by id; reports of earlier versions do not."""
    return any(trace.node_id is not None for trace in rules)


def _number(node_id: int | None) -> str:
    return "" if node_id is None else f"#{node_id}"


def _text_with_ids(plan: PlanReport) -> str:
    """Returns the text of the plan after the rules, with the id before each node if the rules name nodes by id."""
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


def _alternatives(trace: RuleTrace) -> Iterator[tuple[str, str, str, str]]:
    """Yields the rule, and below it a line for each alternative; an arrow marks the chosen one."""
    if trace.alternatives:
        yield trace.rule, "", "", ""
    for each in trace.alternatives:
        name = f"{'→' if each.chosen else ' '} {each.name}"
        yield name, f"{each.cost:,.0f}", f"{each.rows_shuffled:,}", f"{each.rows_on_hottest_task:,}"


def _tables(tables: Iterable[TableStatistics]) -> Iterator[tuple[str, str, str]]:
    for table in tables:
        about = "" if table.rows_are_exact else "about "
        yield table.table, f"{about}{amount(table.rows, 'row')}", f"{amount(table.files, 'file')}, {size(table.bytes)}"


def _estimated_hot_keys(keys: Iterable[KeyStatistics]) -> Iterator[tuple[str, str, str, str]]:
    for key in keys:
        for hot in key.hot_keys[:_PLANNED_KEYS_SHOWN]:
            yield ", ".join(key.columns), hot.value, f"{hot.share:.1%}", f"{hot.estimated_rows:,}"


def show_keys(output: Output, page: KeyPage) -> None:
    """Prints a line for each API key."""
    rows = []
    for key in page.keys:
        until = "no expiry" if key.expires_at is None else f"until {key.expires_at:%Y-%m-%d %H:%M}"
        valid = until if key.active else ("revoked" if key.revoked_at else "expired")
        used = "never" if key.used_at is None else f"{key.used_at:%Y-%m-%d %H:%M}"
        rows.append((key.id, key.tenant, key.name, " ".join(key.scopes), valid, used))
    output.table(("id", "tenant", "name", "scopes", "valid", "last used"), rows, whole=("id",))
