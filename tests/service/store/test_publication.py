"""Publication: all at once with a valid fencing token, and nothing without."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from sqlalchemy import func, select, update

from service.contract import problems
from service.contract.enums import JobStatus
from service.contract.reports import (
    EstimateReport,
    PlanReport,
    PlanTree,
    Progress,
    RuleOutcome,
    RuleTrace,
    RunFigures,
    SkewReport,
    StageMetrics,
)
from service.store.attempts import Claim, attempts_of
from service.store.publication import (
    AttemptMetrics,
    Ending,
    PublishedResult,
    is_published,
    publish,
    published_paths,
    report_of,
    save_plan,
)
from service.store.session import Database
from service.store.tables import JobEventRow, JobRow, PlanRow, StageMetricsRow
from tests.support import lifecycle
from tests.support.clocks import ManualClock
from tests.support.lifecycle import SKEW, STAGE, row_of

TREE = PlanTree(nodes=(), text="")
PLAN = PlanReport(before=TREE, after=TREE, rules=(), tables=(), keys=(), statistics_ms=1)
ESTIMATES = EstimateReport(
    choices=(),
    estimated_rows_read=None,
    measured_rows_read=1,
    estimated_rows_shuffled=None,
    measured_rows_shuffled=0,
    estimated_rows_on_hottest_task=None,
    measured_rows_on_hottest_task=None,
    estimated_result_rows=None,
    all_estimated=True,
    summary="No rule compared costs; 0 rows were shuffled.",
)
FIGURES = RunFigures(slots=4)
SUCCESS = Ending(
    JobStatus.SUCCEEDED,
    result=PublishedResult("job-1/attempt-1", rows=7, bytes=70),
    metrics=AttemptMetrics(
        execution_ms=12,
        stages=(STAGE,),
        skew=SKEW,
        progress=Progress(tasks_done=2, tasks_total=2),
        estimates=ESTIMATES,
        figures=FIGURES,
    ),
)


FAILURE = Ending(JobStatus.FAILED, problems.internal_error("job-1", 1))


def publish_now(database: Database, claim: Claim, ending: Ending) -> bool:
    with database.write() as session:
        return publish(session, claim, ending, database.now(session))


def counts(database: Database) -> list[int | None]:
    with database.read() as session:
        return [session.scalar(select(func.count()).select_from(t)) for t in (JobEventRow, PlanRow, StageMetricsRow)]


def test_success_publishes_everything_at_once(database: Database, clock: ManualClock, job_id: str) -> None:
    claim = lifecycle.claim(database, job_id)
    with database.write() as session:
        assert save_plan(session, claim, PLAN, 5, clock.ms)
    clock.ms += 100
    assert publish_now(database, claim, SUCCESS)

    row = row_of(database, job_id)
    assert (row.status, row.result_path, row.result_rows, row.result_bytes) == ("SUCCEEDED", "job-1/attempt-1", 7, 70)
    assert (row.finished_at, row.lease_owner, row.lease_expires_at, row.error) == (clock.ms, None, None, None)
    assert Progress.model_validate(row.progress) == Progress(tasks_done=2, tasks_total=2)
    with database.read() as session:
        plan = session.scalars(select(PlanRow)).one()
        stage = session.scalars(select(StageMetricsRow)).one()
        (attempt,) = attempts_of(session, job_id)
        assert is_published(session, claim, JobStatus.SUCCEEDED)
        assert not is_published(session, claim, JobStatus.FAILED)
    assert report_of(plan) == PLAN
    assert SkewReport.model_validate(plan.skew) == SKEW
    assert EstimateReport.model_validate(plan.estimates) == ESTIMATES
    assert RunFigures.model_validate(plan.figures) == FIGURES
    assert (plan.planning_ms, plan.execution_ms) == (5, 12)
    assert StageMetrics.model_validate(stage.metrics) == STAGE
    assert (attempt.status, attempt.finished_at) == ("SUCCEEDED", clock.ms)


def test_a_job_is_published_once(database: Database, job_id: str) -> None:
    claim = lifecycle.claim(database, job_id)
    assert publish_now(database, claim, SUCCESS)
    before = counts(database)
    assert not publish_now(database, claim, Ending(JobStatus.FAILED, problems.internal_error(job_id, 1)))
    assert row_of(database, job_id).status == "SUCCEEDED"
    assert counts(database) == before


@pytest.mark.parametrize("taken_over", [False, True])
def test_a_late_result_changes_nothing(database: Database, clock: ManualClock, job_id: str, taken_over: bool) -> None:
    late = lifecycle.claim(database, job_id)
    with database.write() as session:
        session.execute(update(JobRow).values(status="QUEUED", lease_owner=None, lease_expires_at=None))
    if taken_over:
        lifecycle.claim(database, job_id, "w2")
    version, before = row_of(database, job_id).version, counts(database)
    with database.write() as session:
        assert not save_plan(session, late, PLAN, 5, clock.ms)
    assert not publish_now(database, late, SUCCESS)
    row = row_of(database, job_id)
    assert (row.status, row.version) == ("PLANNING" if taken_over else "QUEUED", version)
    assert counts(database) == before


def test_the_plan_of_a_second_run_replaces_the_first(database: Database, clock: ManualClock, job_id: str) -> None:
    claim = lifecycle.claim(database, job_id)
    other = PLAN.model_copy(update={"physical_plan": "SortMergeJoin"})
    for report in (PLAN, PLAN, other):
        with database.write() as session:
            assert save_plan(session, claim, report, 5, clock.ms)
    with database.read() as session:
        stored = report_of(session.scalars(select(PlanRow)).one())
        told = session.scalars(select(JobEventRow.type).where(JobEventRow.type == "plan")).all()
    assert stored == other
    # Saying the same twice tells nothing new.
    assert len(told) == 2


def test_the_event_of_a_plan_names_the_rules_that_fired(database: Database, clock: ManualClock, job_id: str) -> None:
    outcomes = {"b": RuleOutcome.FIRED, "c": RuleOutcome.SKIPPED, "a": RuleOutcome.FIRED}
    rules = tuple(RuleTrace(rule=name, outcome=found, node="", reason="") for name, found in outcomes.items())
    claim = lifecycle.claim(database, job_id)
    lifecycle.plan(database, claim, PLAN.model_copy(update={"rules": rules}))
    with database.read() as session:
        data = session.scalars(select(JobEventRow.data).where(JobEventRow.type == "plan")).one()
    assert data == {"attempt": 1, "rules_fired": ["a", "b"]}


def test_paths_of_results(database: Database, add_job: Callable[..., str]) -> None:
    for job_id in ("other", "done", "failed"):
        lifecycle.end(database, lifecycle.claim(database, add_job(job_id)), FAILURE if job_id == "failed" else SUCCESS)
    for job_id in ("queued", "unknown", "other, queued"):
        add_job(job_id)
    with database.write() as session:
        session.execute(update(JobRow).where(JobRow.id == "unknown").values(status="PAUSED"))
        found = published_paths(session, ["done", "failed", "queued", "unknown", "gone"])
    assert found == {"done": "job-1/attempt-1", "failed": None, "gone": None}


def test_the_next_attempt_publishes(database: Database, job_id: str) -> None:
    late = lifecycle.claim(database, job_id)
    with database.write() as session:
        session.execute(update(JobRow).values(status="QUEUED", lease_owner=None, lease_expires_at=None))
    newer = lifecycle.claim(database, job_id, "w2")
    assert publish_now(database, newer, SUCCESS)
    assert not publish_now(database, late, Ending(JobStatus.FAILED, problems.internal_error(job_id, 1)))
    assert row_of(database, job_id).status == "SUCCEEDED"


@pytest.mark.parametrize("status", [JobStatus.SUCCEEDED, JobStatus.CANCELLED, JobStatus.FAILED])
def test_the_first_end_of_a_job_being_cancelled_counts(
    database: Database, clock: ManualClock, job_id: str, status: JobStatus
) -> None:
    claim = lifecycle.claim(database, job_id)
    with database.write() as session:
        session.execute(update(JobRow).values(status="CANCELLING", cancel_requested_at=clock.ms))
    assert publish_now(database, claim, Ending(status))
    assert row_of(database, job_id).status == status.value


def test_only_a_terminal_status_ends_a_job(database: Database, job_id: str) -> None:
    claim = lifecycle.claim(database, job_id)
    with pytest.raises(ValueError, match="RUNNING"):
        publish_now(database, claim, Ending(JobStatus.RUNNING))


def test_a_deleted_job_is_not_published(database: Database, clock: ManualClock, job_id: str) -> None:
    claim = lifecycle.claim(database, job_id)
    with database.write() as session:
        session.delete(session.get_one(JobRow, job_id))
    with database.write() as session:
        assert not save_plan(session, claim, PLAN, 5, clock.ms)
    assert not publish_now(database, claim, SUCCESS)
