"""Jobs, for people."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

import typer

from service.cli.amounts import amount, size
from service.cli.client.answers import Document, Job, JobSummary, read
from service.cli.client.output import Output
from service.cli.client.refusals import Source, problem_head, problem_lines
from service.cli.client.session import Session
from service.cli.client.waiting import exit_code
from service.cli.errors import ExitCode
from service.spec.status import JobStatus

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
    from service.spec.options import JobSettings

    default = JobSettings().model_dump(mode="json")
    for key, value in dict(job.spec.get("settings") or {}).items():
        known = default.get(key)
        if isinstance(value, dict) and isinstance(known, dict):
            yield from ((f"{key}.{name}", inner) for name, inner in value.items() if inner != known.get(name))
        elif value != known:
            yield key, value
