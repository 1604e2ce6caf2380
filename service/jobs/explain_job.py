"""Plans a job without running it. A worker plans it, on the way that every job takes, and nothing of it is kept.

The query whose plan tells of a table's keys: it groups by each of them.

What a worker knows of those keys is what the profile tells.

What is known of a table's keys, and what a shuffle by each would come to.

Profiles keys of a table: a worker plans a query that groups by them, on the way that every explanation takes.
"""

from __future__ import annotations

import asyncio
import heapq
import re
from collections.abc import Sequence

from sqlalchemy.orm import Session

from service.broker.dispatch import Doorbell
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


class ExplainFailedError(Exception):
    """A worker found out that the job cannot be planned."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.detail)
        self.problem = problem


async def explain_job(
    database: Database,
    watcher: JobWatcher,
    doorbell: Doorbell,
    settings: Settings,
    submissions: Submissions,
    submission: Submission,
) -> PlanReport:
    """The plan report of a job that is not run.

    Raises SpecError for a job that cannot run, ExplainFailedError where only a worker found that out,
    TooManyExplanationsError where the tenant waits for as many as it may, and WorkerUnavailableError where none
    answered in time.
    """
    patience = settings.api.explain_timeout_seconds
    accepted = await submissions.run(submit_job, database, doorbell, settings, submission)
    job_id, tenant = accepted.job.id, submission.tenant
    try:
        async with asyncio.timeout(patience):
            return await _wait_for_report(database, watcher, tenant, job_id)
    except TimeoutError:
        raise WorkerUnavailableError(
            f"No worker has planned the job within {patience:g} s. Is one running (GET /readyz), and is it busy?"
        ) from None
    finally:
        # Also for a caller that went away; a worker that still plans it notices that its claim is void.
        await asyncio.shield(asyncio.to_thread(_forget, database, job_id))


def forget_abandoned(database: Database) -> None:
    """Removes explanations that a killed process left behind."""
    with database.write() as session:
        jobs.delete_forgotten_explains(session, database.now(session))


async def _wait_for_report(database: Database, watcher: JobWatcher, tenant: str, job_id: str) -> PlanReport:
    version = 0
    while True:
        # Every wait ends by itself now and then: a change may be missed while the database does not answer.
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
            # Its worker counts the same time, and was the first to see it over.
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


def _forget(database: Database, job_id: str) -> None:
    with database.write() as session:
        jobs.delete_job(session, job_id)


_TABLE = "t"
_KEY = re.compile(r"\bk(\d+)\.")
_IN_QUERY = re.compile(r"^/query(?:/source/queries/(?P<place>\d+))?(?:/group_by/(?P<column>\d+).*|.*)$")


def job_of(request: ProfileRequest) -> JobSpec:
    """The job whose plan tells of the keys: a branch of a UNION ALL for each, under an alias of its own."""
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


def as_posted(issue: Issue) -> Issue:
    """An issue of the query that was made of the request, told of the request."""
    pointer = issue.pointer or ""
    if not pointer.startswith("/query"):
        return issue.model_copy(update={"pointer": pointer.replace(f"/tables/{_TABLE}", "/table", 1) or None})
    found = _IN_QUERY.match(pointer)
    place = found["place"] if found and found["place"] else "0"
    return issue.model_copy(
        update={
            "pointer": f"/keys/{place}" + (f"/{found['column']}" if found and found["column"] else ""),
            # The names of tables there are the query's own.
            "detail": _KEY.sub("", issue.detail),
            "suggestions": tuple(_KEY.sub("", one) for one in issue.suggestions),
            "line": None,
            "column": None,
        }
    )


def alias(place: int) -> str:
    """What the table is called where it is grouped by the key at this place."""
    return f"k{place}"


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


_THRESHOLDS = SkewSettings()


def profile_of(request: ProfileRequest, plan: PlanReport, slots: int) -> ProfileReport:
    """What the plan of the request's query tells, for `slots` tasks."""
    # Each alias stands for one key; those of a union's branches stand below a name for where they are.
    sizes = plan.tables[0]
    table = ProfiledTable(files=sizes.files, bytes=sizes.bytes, rows=sizes.rows, rows_are_exact=sizes.rows_are_exact)
    found = {known.table.rpartition("/")[2]: known for known in plan.keys if known.columns}
    keys = [_key_profile(columns, found.get(alias(place)), sizes, slots) for place, columns in enumerate(request.keys)]
    return ProfileReport(table=table, keys=tuple(keys), statistics_ms=plan.statistics_ms)


def task_rows(rows: int, distinct: int, hot: Sequence[int], slots: int) -> tuple[int, int]:
    """Rows of the hottest and of the median task of a shuffle by a key to `slots` tasks.

    `hot` are the rows of the hottest keys. A key is whole on one task; hot keys go to the emptiest task, largest first
    (longest processing time first; Graham, 1969), and all others are spread evenly over as many tasks as there are
    keys: the best that hashing can come to, so that what is told here is no bad luck.
    """
    tasks = max(1, min(slots, distinct))
    others = max(rows - sum(hot), 0)
    # So many tasks may be the hot keys' own, where there are no others.
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
    over_even = hottest * slots / known.rows if known.rows else 1.0
    hot_bytes = hottest * table.bytes / max(table.rows, 1)
    skewed = max(over_median, over_even) > _THRESHOLDS.factor and hot_bytes >= _THRESHOLDS.threshold
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
        max_over_even=round(over_even, 2),
        skewed=skewed,
        advice=_advice(columns, known, over_median, over_even, skewed=skewed, slots=slots),
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
        max_over_even=1.0,
        skewed=False,
        advice="No row of it could be sampled, so nothing is known of this key.",
    )


def _advice(
    columns: tuple[str, ...], known: KeyStatistics, over_median: float, over_even: float, *, skewed: bool, slots: int
) -> str:
    name = ", ".join(columns)
    hot = known.hot_keys
    subject = f"{name} is {hot[0].value} in {hot[0].share:.1%} of the rows" if hot else f"No value of {name} stands out"
    if known.distinct_keys < slots:
        values = "value" if known.distinct_keys == 1 else "values"
        subject += f" and has about {known.distinct_keys:,} {values} for {slots:,} tasks"
    if over_median >= over_even:
        told = f"{subject}: the hottest task gets {over_median:.1f} times the rows of others"
    else:
        told = f"{subject}: the hottest task gets {over_even:.1f} times what each would if all had a share"
    if max(over_median, over_even) <= _THRESHOLDS.factor:
        return f"{told}, nothing needs to change."
    if not skewed:
        return f"{told}, but too few for that to matter."
    return (
        f"{told}. Aggregate by it in two phases (agg_phase), count its distinct values in buckets "
        "(distinct_split.enabled), join by it with the hot keys apart (join.skew ISOLATE); left to auto, these are "
        "chosen where they pay."
    )


async def profile_table(
    database: Database,
    watcher: JobWatcher,
    doorbell: Doorbell,
    settings: Settings,
    submissions: Submissions,
    request: ProfileRequest,
    tenant: str,
    request_id: str | None,
) -> ProfileReport:
    """What a sample tells of the keys. Nothing of it is kept.

    Raises SpecError for columns that are not there and tables that cannot be read, TooManyExplanationsError where the
    tenant waits for as many as it may, and WorkerUnavailableError where no worker answered in time.
    """
    try:
        submission = Submission(tenant, job_of(request), "", request_id, kind=EXPLAIN)
        plan = await explain_job(database, watcher, doorbell, settings, submissions, submission)
    except SpecError as error:
        raise SpecError([as_posted(issue) for issue in error.issues]) from None
    except ExplainFailedError as error:
        errors = tuple(as_posted(issue) for issue in error.problem.errors)
        raise ExplainFailedError(error.problem.model_copy(update={"errors": errors})) from None
    if request.slots is not None:
        return profile_of(request, plan, request.slots)
    return profile_of(request, plan, await asyncio.to_thread(_largest_worker, database, settings))


def _largest_worker(database: Database, settings: Settings) -> int:
    """Slots of the live worker that has most of them; 1 where none tells."""
    with database.read() as session:
        silent_before = database.now(session) - worker_silence_ms(settings)
        return max((row.slots or 1 for row in workers.list_workers(session, silent_before)), default=1)
