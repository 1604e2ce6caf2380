"""Jobs, for people.

What a run measured, for people; first of all whether it was skewed, and what to change.

Prints a plan report: what each rule did and why, what was weighed, and the plan.

API keys over the API, for `evenkeel keys` with the address of a service.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import typer

from service.client.connection import Source, problem_head, problem_lines
from service.client.responses import (
    Document,
    EstimateError,
    IssuedKey,
    Job,
    JobSummary,
    Key,
    KeyPage,
    RunMetrics,
    RunSavings,
    read,
)
from service.client.session import Output, Session, client_settings, opened
from service.client.terminal import ExitCode, amount, size
from service.client.waiting import exit_code
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

STYLES = (
    (JobStatus.SUCCEEDED, "green"),
    (JobStatus.RUNNING, "cyan"),
    (JobStatus.PLANNING, "cyan"),
    (JobStatus.FAILED, "red"),
    (JobStatus.CRASHED, "red"),
    (JobStatus.TIMED_OUT, "red"),
    (JobStatus.CANCELLED, "yellow"),
)
_WIDE = 110


def show_jobs(output: Output, jobs: Iterable[JobSummary]) -> None:
    """A line a job."""
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
        output.table(head, rows, numbers=("submitted", "took"), whole=("id", "status"), cut="name", styles=STYLES)
    else:
        output.note("There are no such jobs.")


def show_job(output: Output, job: Job, source: Source | None = None) -> None:
    """All that is known of a job, but for what it computed."""
    now = datetime.now(UTC)
    progress = job.progress
    output.pairs(
        (
            ("id", job.id),
            ("name", job.name),
            ("status", job.status),
            ("waits for", job.waiting_for),
            ("mode", job.mode),
            ("queue", job.queue),
            ("submitted", _moment(job.submitted_at, now)),
            ("started", _moment(job.started_at, now)),
            ("ended", _moment(job.finished_at, now)),
            ("runs again", _moment(job.next_run_at, now)),
            ("took", took(job, now)),
            ("attempts", job.attempts if job.attempts > 1 else None),
            ("tasks", f"{progress.tasks_done} of {progress.tasks_total}" if progress and not job.at_rest else None),
            ("result", _result(job)),
            ("settings", ", ".join(f"{key}={value}" for key, value in _settings(job))),
        )
    )
    if job.error is not None:
        output.say()
        output.say(problem_head(job.error), "red")
        for line in problem_lines(job.error, source or (Source(job.sql, "sql") if job.sql else None)):
            output.indented(line)
    if job.sql:
        output.heading("SQL")
        output.indented(job.sql)


def tell_end(session: Session, document: Document, source: Source | None = None) -> None:
    """How a job ended that was waited for: as JSON, or in words beside the matter. Ends the command with its code."""
    job = read(Job, document)
    code = exit_code(job)
    output = session.output
    if output.as_json:
        output.document(document)
    else:
        spent = took(job, datetime.now(UTC))
        output.note(", ".join(part for part in (job.status, spent and f"took {spent}", _result(job)) if part))
    if job.error is not None:
        lines = problem_lines(job.error, source or (Source(job.sql, "sql") if job.sql else None))
        output.note("\n  ".join((problem_head(job.error), *lines)))
    if not output.as_json and code is ExitCode.OK and job.result is not None:
        output.note(f"See its rows:  evenkeel result {job.id}\nWas it skewed: evenkeel skew {job.id}")
    if code is not ExitCode.OK:
        raise typer.Exit(code)


def took(job: JobSummary, now: datetime) -> str:
    """How long a job has been at work, or was."""
    if job.started_at is None:
        return ""
    return lasted((job.finished_at or now) - job.started_at) if job.finished_at or not job.at_rest else ""


def lasted(span: timedelta) -> str:
    """A span to two digits or so: `0.4 s`, `12 s`, `3 min 5 s`, `2 h 10 min`, `3 d`."""
    seconds = max(span.total_seconds(), 0)
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min" if whole < 172_800 else f"{whole // 86_400} d"


def ago(at: datetime | None, now: datetime) -> str:
    """How long ago a moment was."""
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
    told = f"{at.astimezone():%Y-%m-%d %H:%M:%S}"
    return f"{told} ({ago(at, now)})" if at <= now else told


def _result(job: JobSummary) -> str:
    return "" if job.result is None else f"{amount(job.result.rows, 'row')}, {size(job.result.bytes)}"


def _settings(job: Job) -> Iterable[tuple[str, object]]:
    """Those that are not at their defaults."""
    from service.contract.options import JobSettings

    default = JobSettings().model_dump(mode="json")
    for key, value in dict(job.spec.get("settings") or {}).items():
        known = default.get(key)
        if isinstance(value, dict) and isinstance(known, dict):
            yield from ((f"{key}.{name}", inner) for name, inner in value.items() if inner != known.get(name))
        elif value != known:
            yield key, value


_SKEWED_KEYS_SHOWN = 5


def show_metrics(output: Output, metrics: RunMetrics, saved: RunSavings) -> None:
    """The stages of a run, its estimates, and its skew."""
    took = f"planning {_seconds(metrics.planning_ms)}, running {_seconds(metrics.execution_ms)}"
    rows = "" if metrics.result_rows is None else f"{metrics.result_rows:,}"
    output.pairs((("took", took), ("result rows", rows)))
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
    show_skew(output, metrics.skew, saved)


def show_skew(output: Output, skew: SkewReport, saved: RunSavings) -> None:
    """Is it skewed, what is to be done, by which keys, what did it cost, and what would be saved."""
    verdict = "Skewed" if skew.skewed else "Not skewed"
    if skew.lost_ms:
        verdict += f", {_seconds(skew.lost_ms)} lost"
    output.say(verdict, "bold red" if skew.skewed else "green")
    output.say(skew.advice)
    if skew.setting is not None and skew.value is not None:
        output.say(f"Submit it again with  --set {skew.setting}={skew.value}", "bold")
    for line in _saved(saved):
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
    # Of one operator among several, the measurements only say how many rows were possible.
    found = f"at most {wrong.measured:,} possible" if wrong.rule and is_high else f"{wrong.measured:,} measured"
    return (
        f"The estimate was wrong: {wrong.quantity.replace('_', ' ')}{node}{rule}: {wrong.estimated:,} estimated, "
        f"{found}, {wrong.factor:,.0f} times too {'high' if is_high else 'low'}."
    )


def _saved(saved: RunSavings) -> Iterator[str]:
    simulated, beside = saved.savings.simulated, saved.comparison
    if simulated is not None and simulated.as_is_ms > simulated.even_ms:
        slots, as_is, even = simulated.slots, _seconds(simulated.as_is_ms), _seconds(simulated.even_ms)
        yield f"On {amount(slots, 'slot')} its stages take {as_is}, and {even} with even tasks."
    if beside is not None and beside.before_ms is not None and beside.after_ms is not None:
        yield f"It ran for {_seconds(beside.after_ms)}, {beside.job_id} for {_seconds(beside.before_ms)}."


def _measured_hot_keys(skew: SkewReport) -> Iterator[tuple[str, str, str, str, str]]:
    for key in skew.keys:
        for hot in key.hot_keys[:_SKEWED_KEYS_SHOWN]:
            yield ", ".join(key.columns), key.role, hot.value, f"{hot.share:.1%}", f"{hot.estimated_rows:,}"


def _median_and_max(quantiles: Quantiles | None) -> tuple[str, str]:
    return ("", "") if quantiles is None else (_seconds(quantiles.median), _seconds(quantiles.max))


def _seconds(milliseconds: float) -> str:
    return f"{milliseconds / 1000:,.2f} s"


_STYLES = ((RuleOutcome.FIRED, "green"), (RuleOutcome.SKIPPED, "yellow"))
_PLANNED_KEYS_SHOWN = 3


def show_plan(output: Output, plan: PlanReport, *, with_sql: bool = False, with_physical: bool = False) -> None:
    """All of a plan report, but for Spark's own plan and the SQL unless these are wanted."""
    if plan.first_run is not None:
        output.say(f"It ran twice: the first run failed ({plan.first_run.failure}); what follows is of the second.")
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


def _estimated_hot_keys(keys: Iterable[KeyStatistics]) -> Iterator[tuple[str, str, str, str]]:
    for key in keys:
        for hot in key.hot_keys[:_PLANNED_KEYS_SHOWN]:
            yield ", ".join(key.columns), hot.value, f"{hot.share:.1%}", f"{hot.estimated_rows:,}"


def is_over_api(url: str | None, key_file: Path | None) -> bool:
    """Whether a service was named, in an option or a variable: else keys are those of the database."""
    if url is not None or key_file is not None:
        return True
    return "url" in client_settings().model_fields_set


def create_key(url: str | None, key_file: Path | None, body: dict[str, Any], *, as_json: bool) -> None:
    """Makes a key and prints it."""
    with opened(url, key_file, as_json=as_json) as session:
        document = session.service.create_key(body)
        if as_json:
            session.output.document(document)
        else:
            session.output.plain(read(IssuedKey, document).key)


def list_all_keys(url: str | None, key_file: Path | None, tenant: str | None, *, as_json: bool) -> None:
    """Prints all keys; as JSON a list, as of the database."""
    with opened(url, key_file, as_json=as_json) as session:
        document = session.service.keys(tenant or "")
        if as_json:
            session.output.document(document["keys"])
        else:
            show_keys(session.output, read(KeyPage, document).keys)


def revoke_key(url: str | None, key_file: Path | None, key_id: str, *, as_json: bool) -> None:
    """Ends a key."""
    with opened(url, key_file, as_json=as_json) as session:
        document = session.service.revoke_key(key_id)
        if as_json:
            session.output.document(document)
        else:
            key = read(Key, document)
            session.output.plain(f"Revoked {key.id} ({key.name}).")


def show_keys(output: Output, keys: tuple[Key, ...]) -> None:
    """A line a key."""
    rows = []
    for key in keys:
        until = "for good" if key.expires_at is None else f"until {key.expires_at:%Y-%m-%d %H:%M}"
        holds = until if key.live else ("revoked" if key.revoked_at else "expired")
        used = "never" if key.used_at is None else f"{key.used_at:%Y-%m-%d %H:%M}"
        rows.append((key.id, key.tenant, key.name, " ".join(key.scopes), holds, used))
    output.table(("id", "tenant", "name", "scopes", "holds", "last used"), rows, whole=("id",))
