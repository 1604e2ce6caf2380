"""Plans a job without running it (`explain_job`), and profiles keys of a table (`profile_table`).

A worker plans the submitted job like any other; its row is deleted afterwards. A key profile is computed from the
explanation of a query that groups the table by each of its keys.
"""

from __future__ import annotations

import asyncio
import heapq
import re
from collections.abc import Sequence

from sqlalchemy.orm import Session

from service.broker.dispatch import JobAnnouncer
from service.config.settings import Settings
from service.contract.enums import JobStatus
from service.contract.errors import WorkerUnavailableError
from service.contract.job import JobSpec
from service.contract.options import SkewSettings
from service.contract.problems import Issue, Problem, SpecError
from service.contract.profiles import KeyProfile, ProfiledTable, ProfileReport, ProfileRequest
from service.contract.reports import KeyStatistics, PlanReport, TableStatistics
from service.jobs.read_jobs import JobWatcher
from service.jobs.readiness import worker_silence_ms
from service.jobs.submit_job import Submission, Submissions, submit_job
from service.store import jobs, publication, workers
from service.store.jobs import EXPLAIN
from service.store.session import Database

_TABLE = "t"
_ALIAS_PREFIX = re.compile(r"\bk(\d+)\.")
_QUERY_POINTER = re.compile(r"^/query(?:/source/queries/(?P<place>\d+))?(?:/group_by/(?P<column>\d+).*|.*)$")
_THRESHOLDS = SkewSettings()


class ExplainFailedError(Exception):
    """A worker could not plan the job."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.detail)
        self.problem = problem


async def explain_job(
    database: Database,
    watcher: JobWatcher,
    announcer: JobAnnouncer,
    settings: Settings,
    submissions: Submissions,
    submission: Submission,
) -> PlanReport:
    """Returns the plan report of a job without running it.

    Raises SpecError for an invalid job, ExplainFailedError if only the worker found the error, TooManyExplanationsError
    if the tenant's limit is reached, and WorkerUnavailableError if no worker answered in time.
    """
    timeout = settings.api.explain_timeout_seconds
    accepted = await submissions.run(submit_job, database, announcer, settings, submission)
    job_id, tenant = accepted.job.id, submission.tenant
    try:
        async with asyncio.timeout(timeout):
            return await _wait_for_report(database, watcher, tenant, job_id)
    except TimeoutError:
        raise WorkerUnavailableError(
            f"No worker planned the job within {timeout:g} s. Check whether a worker is running (GET /readyz) and "
            "whether it is busy."
        ) from None
    finally:
        # Also if the caller has disconnected. A worker that still plans the job finds that it lost its claim.
        await asyncio.shield(asyncio.to_thread(_delete_explanation, database, job_id))


def delete_abandoned_explanations(database: Database) -> None:
    """Deletes explanations whose process was killed."""
    with database.write() as session:
        jobs.delete_old_explanations(session, database.now(session))


async def _wait_for_report(database: Database, watcher: JobWatcher, tenant: str, job_id: str) -> PlanReport:
    version = 0
    while True:
        # Waits end after a few seconds: the watcher may miss a change while the database is unavailable.
        await watcher.wait_for_change(job_id, version, seconds=5)
        version, report = await asyncio.to_thread(_read_report, database, tenant, job_id)
        if report is not None:
            return report


def _read_report(database: Database, tenant: str, job_id: str) -> tuple[int, PlanReport | None]:
    with database.read() as session:
        row = jobs.find_job(session, tenant=tenant, job_id=job_id, kind=jobs.EXPLAIN)
        if row is None:
            raise WorkerUnavailableError("The explanation was removed before it was read.")
        if not jobs.has_finished(row):
            return row.version, None
        if row.status == JobStatus.TIMED_OUT.value:
            # The worker applies the same timeout and may notice it first.
            raise TimeoutError
        if row.status != JobStatus.SUCCEEDED.value:
            raise ExplainFailedError(_problem(row.error, row.status))
        return row.version, _report(session, job_id)


def _report(session: Session, job_id: str) -> PlanReport:
    plan = publication.latest_plan(session, job_id)
    if plan is None:
        raise WorkerUnavailableError("The worker ended the explanation without a plan.")
    return publication.report_of(plan)


def _problem(error: object, status: str) -> Problem:
    if error is None:
        raise WorkerUnavailableError(f"The explanation ended {status} without a reason.")
    return Problem.model_validate(error)


def _delete_explanation(database: Database, job_id: str) -> None:
    with database.write() as session:
        jobs.delete_job(session, job_id)


def build_profile_job(request: ProfileRequest) -> JobSpec:
    """Returns the job to plan: a UNION ALL with one branch for each key, each under its own table alias."""
    branches = [
        {
            "source": {"kind": "table", "table": _TABLE, "alias": alias(place)},
            "group_by": [
                {"expression": f"{alias(place)}.{_quoted(column)}", "name": f"c{at}"}
                for at, column in enumerate(columns)
            ],
            "aggregates": [{"function": "COUNT", "arguments": [], "name": "n"}],
            "select": [{"expression": "n", "name": "n"}],
        }
        for place, columns in enumerate(request.keys)
    ]
    query = branches[0]
    if len(branches) > 1:
        union = {"kind": "union_all", "queries": branches, "alias": "u"}
        query = {"source": union, "select": [{"expression": "u.n", "name": "n"}]}
    return JobSpec.model_validate({"name": "profile", "tables": {_TABLE: request.table}, "query": query})


def to_request_issue(issue: Issue) -> Issue:
    """Converts an issue of the generated query into one that points into the profile request."""
    pointer = issue.pointer or ""
    if not pointer.startswith("/query"):
        return issue.model_copy(update={"pointer": pointer.replace(f"/tables/{_TABLE}", "/table", 1) or None})
    found = _QUERY_POINTER.match(pointer)
    place = found["place"] if found and found["place"] else "0"
    return issue.model_copy(
        update={
            "pointer": f"/keys/{place}" + (f"/{found['column']}" if found and found["column"] else ""),
            # Remove the aliases, which are internal to the generated query.
            "detail": _ALIAS_PREFIX.sub("", issue.detail),
            "suggestions": tuple(_ALIAS_PREFIX.sub("", one) for one in issue.suggestions),
            "line": None,
            "column": None,
        }
    )


def alias(place: int) -> str:
    """Returns the table's alias in the branch that groups by the key at this index."""
    return f"k{place}"


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def build_profile(request: ProfileRequest, plan: PlanReport, slots: int) -> ProfileReport:
    """Computes the profile for `slots` concurrent tasks from the plan report of the generated query."""
    # Each alias belongs to one key. In a union, the alias follows the path of its branch.
    sizes = plan.tables[0]
    table = ProfiledTable(files=sizes.files, bytes=sizes.bytes, rows=sizes.rows, rows_are_exact=sizes.rows_are_exact)
    found = {known.table.rpartition("/")[2]: known for known in plan.keys if known.columns}
    keys = [_key_profile(columns, found.get(alias(place)), sizes, slots) for place, columns in enumerate(request.keys)]
    return ProfileReport(table=table, keys=tuple(keys), statistics_ms=plan.statistics_ms)


def task_rows(rows: int, distinct: int, hot: Sequence[int], slots: int) -> tuple[int, int]:
    """Returns the rows of the largest and of the median task when rows are shuffled by a key to `slots` tasks.

    `hot` are the row counts of the hot keys. All rows of a key go to one task. Hot keys are assigned to the least
    loaded task, largest first (longest processing time first; Graham, 1969). All other rows are spread evenly over as
    many tasks as there are keys. This is the best that hashing can achieve, so the result does not depend on unlucky
    hash values.
    """
    tasks = max(1, min(slots, distinct))
    others = max(rows - sum(hot), 0)
    # Without other rows, each hot key may have a task of its own.
    loads = [others / tasks] * tasks
    heapq.heapify(loads)
    for count in sorted(hot, reverse=True):
        heapq.heapreplace(loads, loads[0] + count)
    loads.sort()
    return round(loads[-1]), round(loads[(len(loads) - 1) // 2])


def _key_profile(
    columns: tuple[str, ...], known: KeyStatistics | None, table: TableStatistics, slots: int
) -> KeyProfile:
    if known is None or not known.sampled_rows:
        return _unknown(columns, table, slots)
    rows = [hot.estimated_rows for hot in known.hot_keys]
    hottest, median = task_rows(known.rows, known.distinct_keys, rows, slots)
    over_median = hottest / median if median else 1.0
    over_mean = hottest * slots / known.rows if known.rows else 1.0
    hot_bytes = hottest * table.bytes / max(table.rows, 1)
    skewed = max(over_median, over_mean) > _THRESHOLDS.factor and hot_bytes >= _THRESHOLDS.threshold
    return KeyProfile(
        columns=columns,
        rows=known.rows,
        rows_are_exact=known.rows_are_exact,
        sampled_rows=known.sampled_rows,
        distinct_keys=known.distinct_keys,
        null_share=known.null_share,
        hot_keys=known.hot_keys,
        slots=slots,
        busy_tasks=min(slots, known.distinct_keys),
        rows_on_hottest_task=hottest,
        rows_on_median_task=median,
        max_over_median=round(over_median, 2),
        max_over_mean=round(over_mean, 2),
        skewed=skewed,
        advice=_advice(columns, known, over_median, over_mean, skewed=skewed, slots=slots),
    )


def _unknown(columns: tuple[str, ...], table: TableStatistics, slots: int) -> KeyProfile:
    even = round(table.rows / slots)
    return KeyProfile(
        columns=columns,
        rows=table.rows,
        rows_are_exact=table.rows_are_exact,
        sampled_rows=0,
        distinct_keys=0,
        null_share=0,
        hot_keys=(),
        slots=slots,
        busy_tasks=slots if table.rows else 0,
        rows_on_hottest_task=even,
        rows_on_median_task=even,
        max_over_median=1.0,
        max_over_mean=1.0,
        skewed=False,
        advice="No rows could be sampled, so no statistics of this key are available.",
    )


def _advice(
    columns: tuple[str, ...], known: KeyStatistics, over_median: float, over_mean: float, *, skewed: bool, slots: int
) -> str:
    name = ", ".join(columns)
    hot = known.hot_keys
    subject = f"{name} is {hot[0].value} in {hot[0].share:.1%} of the rows" if hot else f"{name} has no hot key"
    if known.distinct_keys < slots:
        values = "value" if known.distinct_keys == 1 else "values"
        subject += f" and has about {known.distinct_keys:,} {values} for {slots:,} tasks"
    if over_median >= over_mean:
        finding = f"{subject}: the largest task gets {over_median:.1f} times the rows of the median task"
    else:
        finding = f"{subject}: the largest task gets {over_mean:.1f} times the rows of an even split over all slots"
    if max(over_median, over_mean) <= _THRESHOLDS.factor:
        return f"{finding}. No change is needed."
    if not skewed:
        return f"{finding}, but that task is too small to matter."
    return (
        f"{finding}. Use a two-phase aggregate (agg_phase), split distinct aggregates into buckets "
        "(distinct_split.enabled), isolate hot keys in joins (join.skew ISOLATE), and compute hot windows "
        "in several tasks (skewed_windows). With `auto`, the optimizer chooses these if they reduce the cost."
    )


async def profile_table(
    database: Database,
    watcher: JobWatcher,
    announcer: JobAnnouncer,
    settings: Settings,
    submissions: Submissions,
    request: ProfileRequest,
    tenant: str,
    request_id: str | None,
) -> ProfileReport:
    """Returns statistics of the keys, estimated from a sample. Nothing is stored.

    Raises SpecError for unknown columns and unreadable tables, TooManyExplanationsError if the tenant's limit is
    reached, and WorkerUnavailableError if no worker answered in time.
    """
    try:
        submission = Submission(tenant, build_profile_job(request), "", request_id, kind=EXPLAIN)
        plan = await explain_job(database, watcher, announcer, settings, submissions, submission)
    except SpecError as error:
        raise SpecError([to_request_issue(issue) for issue in error.issues]) from None
    except ExplainFailedError as error:
        errors = tuple(to_request_issue(issue) for issue in error.problem.errors)
        raise ExplainFailedError(error.problem.model_copy(update={"errors": errors})) from None
    if request.slots is not None:
        return build_profile(request, plan, request.slots)
    return build_profile(request, plan, await asyncio.to_thread(_largest_worker, database, settings))


def _largest_worker(database: Database, settings: Settings) -> int:
    """Returns the largest number of slots of any live worker; 1 if no worker reports its slots."""
    with database.read() as session:
        silent_before = database.now(session) - worker_silence_ms(settings)
        return max((row.slots or 1 for row in workers.list_workers(session, silent_before)), default=1)
