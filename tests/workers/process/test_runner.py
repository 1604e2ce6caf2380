"""One attempt from claim to publication, on real Spark, with every way to end."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from sqlalchemy import delete, select, update
from sqlalchemy.exc import InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.orm import Session

from service.contract import problems
from service.contract.enums import AttemptStatus, JobStatus
from service.contract.reports import EstimateReport, PlanReport, RunFigures, SkewReport
from service.store import leases
from service.store.attempts import attempts_of
from service.store.jobs import EXPLAIN
from service.store.publication import Ending, report_of
from service.store.session import Database
from service.store.tables import AttemptRow, JobEventRow, JobRow, PlanRow, StageMetricsRow
from tests.support.bench import Bench, SharedDriver
from tests.support.processes import wait_for
from tests.support.tables import ENDLESS, USERS, parquet
from workers.driver.cluster import SparkUnavailableError
from workers.engine.spark.engine import Engine, LateStatistics, PlannedQuery, WrittenResult
from workers.engine.statistics.model import Statistics
from workers.jobs.attempt import Attempt, StopReason
from workers.jobs.cancellation import CancellationWatch
from workers.jobs.outcome import Verdict
from workers.process.heartbeat import Heartbeat, ProgressReporter
from workers.process.job_runner import JobRunner

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from workers.driver.driver import Driver

pytestmark = pytest.mark.spark

PER_USER = {
    "name": "per-user",
    "tables": {"orders": parquet("orders"), "users": USERS},
    "sql": "SELECT u.name, COUNT(DISTINCT o.category) AS categories, COUNT(*) AS n "
    "FROM orders o JOIN users u ON o.uid = u.uid GROUP BY u.name",
}


def one_attempt(bench: Bench, job_id: str) -> AttemptRow:
    with bench.database.read() as session:
        (attempt,) = attempts_of(session, job_id)
    return attempt


def events(bench: Bench, job_id: str) -> list[tuple[str, Any]]:
    with bench.database.read() as session:
        rows = session.scalars(select(JobEventRow).where(JobEventRow.job_id == job_id).order_by(JobEventRow.id))
        return [(row.type, row.data.get("status")) for row in rows]


def files_of(bench: Bench) -> list[Path]:
    return list(bench.settings.results_dir.rglob("*"))


def test_success(bench: Bench) -> None:
    job_id = bench.submit(PER_USER)
    bench.runner.run(job_id)

    job = bench.job(job_id)
    assert (job.status, job.error, job.result_path) == ("SUCCEEDED", None, f"{job_id}/attempt-1")
    rows = pq.read_table(bench.settings.results_dir / f"{job_id}/attempt-1").to_pylist()
    # The 100 users have 100 orders each, but for user 99, ten of whose orders are nobody's.
    assert sorted((row["name"], row["categories"], row["n"]) for row in rows) == sorted(
        (f"user {uid}", 7, 90 if uid == 99 else 100) for uid in range(100)
    )
    assert job.result_rows == 100
    assert job.result_bytes is not None
    assert job.result_bytes > 0
    with bench.database.read() as session:
        plan = session.scalars(select(PlanRow)).one()
        stages = session.scalars(select(StageMetricsRow)).all()
    assert PlanReport.model_validate(plan.report).physical_plan
    assert SkewReport.model_validate(plan.skew).advice
    estimates = EstimateReport.model_validate(plan.estimates)
    assert estimates.measured_rows_read > 0
    assert estimates.summary
    figures = RunFigures.model_validate(plan.figures)
    nodes = {node.id: node for node in PlanReport.model_validate(plan.report).after.nodes}
    assert figures.slots == 2
    assert figures.run_by.operators[0].rows == 100, "what was written"
    assert [(nodes[told.id].operator, told.rows) for told in figures.run_by.nodes] == [
        ("Scan", 10_000),
        ("Scan", 100),
        ("Join", 9_990),
        ("Aggregate", 100),
        ("Project", 100),
    ]
    assert plan.execution_ms is not None
    assert stages
    assert one_attempt(bench, job_id).status == "SUCCEEDED"
    assert events(bench, job_id) == [
        ("status", "QUEUED"),
        ("attempt", "PLANNING"),
        ("status", "PLANNING"),
        ("plan", None),
        ("status", "RUNNING"),
        ("attempt", "SUCCEEDED"),
        ("status", "SUCCEEDED"),
    ]
    assert bench.running_attempts.all() == ()


class Flaky(Database):
    """Loses the answers of the writes of these numbers, counted from 1: they are made, and nobody is told."""

    def __init__(self, url: str, lost: Mapping[int, Exception]) -> None:
        super().__init__(url)
        self.lost = lost
        self.writes = 0

    @contextmanager
    def write(self) -> Iterator[Session]:
        self.writes += 1
        number = self.writes
        with super().write() as session:
            yield session
        if number in self.lost:
            raise self.lost[number]


CAUSE = ValueError("away")
AWAY = (
    OperationalError("UPDATE", None, CAUSE),
    InterfaceError("UPDATE", None, CAUSE),
    PoolTimeoutError("all connections are taken"),
)


def run_flaky(bench: Bench, job_id: str, lost: Mapping[int, Exception]) -> list[float]:
    """Runs the job on a database that loses answers; gives the pauses, none of which is made."""
    pauses: list[float] = []
    database = Flaky(bench.settings.database_url, lost)
    settings, drivers = bench.settings, SharedDriver(bench.driver)
    try:
        JobRunner(settings, database, drivers, bench.running_attempts, "w1", bench.announce, pause=pauses.append).run(
            job_id
        )
    finally:
        database.close()
    return pauses


def test_a_short_outage_of_the_database_has_no_effect(bench: Bench) -> None:
    job_id = bench.submit(PER_USER)
    # The claim is 1; then the plan with the start, and the end, of each of which the first answer is lost.
    pauses = run_flaky(bench, job_id, dict(zip((2, 4), AWAY[:2], strict=True)))
    assert pauses == [0.5, 0.5]
    assert bench.job(job_id).status == "SUCCEEDED"
    assert [event for event in events(bench, job_id) if event[0] != "attempt"] == [
        ("status", "QUEUED"),
        ("status", "PLANNING"),
        ("plan", None),
        ("status", "RUNNING"),
        ("status", "SUCCEEDED"),
    ]


class Away(Flaky):
    """Does nothing any more from one write on."""

    @contextmanager
    def write(self) -> Iterator[Session]:
        if self.writes + 1 in self.lost:
            raise self.lost[self.writes + 1]
        with super().write() as session:
            yield session


@pytest.mark.parametrize(("gone_from", "status"), [(2, "PLANNING"), (3, "RUNNING")])
def test_a_long_outage_of_the_database_does_not_end_the_job(bench: Bench, gone_from: int, status: str) -> None:
    job_id = bench.submit(PER_USER)
    database = Away(bench.settings.database_url, {gone_from: AWAY[2]})
    runner = JobRunner(
        bench.settings,
        database,
        SharedDriver(bench.driver),
        bench.running_attempts,
        "w1",
        bench.announce,
        pause=lambda _: None,
    )
    if status == "RUNNING":
        # The result is there and waits for the next attempt to replace it: the database could not be told.
        with pytest.raises(PoolTimeoutError):
            runner.run(job_id)
    else:
        runner.run(job_id)
    database.close()
    job = bench.job(job_id)
    assert (job.status, job.error, job.lease_owner) == (status, None, "w1")
    assert bench.running_attempts.all() == ()


class NoDriver:
    """A worker whose Spark is not available."""

    def driver(self) -> Driver:
        """Never any."""
        raise SparkUnavailableError("cluster_unreachable", "No Spark master answers.")


def test_a_worker_without_spark_takes_no_job_and_spends_no_attempt(bench: Bench) -> None:
    job_id = bench.submit(PER_USER)
    runner = JobRunner(bench.settings, bench.database, NoDriver(), bench.running_attempts, "w1", bench.announce)
    with pytest.raises(SparkUnavailableError, match="cluster_unreachable: No Spark master answers"):
        runner.run(job_id)
    job = bench.job(job_id)
    assert (job.status, job.fence, bench.announced) == ("QUEUED", 0, [])


class ClosingDriver(SharedDriver):
    """The worker is told to take no more jobs while it waits for its driver."""

    def __init__(self, bench: Bench) -> None:
        super().__init__(bench.driver)
        self._running_attempts = bench.running_attempts

    def driver(self) -> Driver:
        """After the order to stop."""
        self._running_attempts.close()
        return super().driver()


def test_a_worker_that_stops_while_it_waits_for_spark_claims_nothing(bench: Bench) -> None:
    job_id = bench.submit(PER_USER)
    JobRunner(bench.settings, bench.database, ClosingDriver(bench), bench.running_attempts, "w1", bench.announce).run(
        job_id
    )
    assert (bench.job(job_id).status, bench.job(job_id).fence) == ("QUEUED", 0)


def test_a_second_message_finds_nothing_to_do(bench: Bench) -> None:
    job_id = bench.submit(PER_USER)
    bench.runner.run(job_id)
    bench.runner.run(job_id)
    assert one_attempt(bench, job_id).fence == 1
    bench.runner.run("unknown")


def test_explain_plans_and_runs_nothing(bench: Bench) -> None:
    job_id = bench.submit(PER_USER, kind=EXPLAIN)
    bench.runner.run(job_id)
    job = bench.job(job_id)
    assert (job.status, job.result_path) == ("SUCCEEDED", None)
    with bench.database.read() as session:
        assert PlanReport.model_validate(session.scalars(select(PlanRow)).one().report).rules
    assert files_of(bench) == []


def test_an_explanation_that_nobody_waits_for_any_more_is_not_planned(bench: Bench) -> None:
    job_id = bench.submit(PER_USER, kind=EXPLAIN, timeout_ms=30_000)
    with bench.database.write() as session:
        session.execute(update(JobRow).values(submitted_at=JobRow.submitted_at - 30_000))
    bench.runner.run(job_id)
    assert bench.job(job_id).status == "TIMED_OUT"
    with bench.database.read() as session:
        assert session.scalars(select(PlanRow)).all() == []


def test_explanations_leave_slots_to_other_jobs(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    explained = [bench.submit(PER_USER, kind=EXPLAIN) for _ in range(3)]
    other = bench.submit(PER_USER)
    with bench.database.write() as session:
        for waited, job_id in enumerate(reversed([*explained, other])):
            session.execute(update(JobRow).where(JobRow.id == job_id).values(submitted_at=JobRow.submitted_at - waited))
    taken: list[str] = []
    outcomes: list[bool] = []

    def work(_runner: JobRunner, attempt: Attempt, _driver: Driver) -> Verdict:
        """Another thread of the worker looks for a job while this one is at its own."""
        taken.append(attempt.claim.job_id)
        number = len(taken)
        if number == 1:
            # Its caller has gone; Spark plans on, and the slot is taken.
            with bench.database.write() as session:
                session.execute(delete(JobRow).where(JobRow.id == explained[0]))
        if number < 3:
            outcomes.append(bench.runner.run_next(["short"]))
        if number == 3:
            outcomes.append(bench.runner.run(explained[2]))
        return Ending(JobStatus.SUCCEEDED)

    monkeypatch.setattr(JobRunner, "_work", work)
    assert bench.runner.run_next(["short"])
    # Two of four slots, and the third explanation, though older, behind the other job.
    assert taken == [*explained[:2], other]
    assert outcomes == [False, True, True]
    assert bench.job(explained[2]).status == "QUEUED"
    assert bench.runner.run_next(["short"])
    assert taken[-1] == explained[2]


def test_a_setting_that_the_previous_version_accepted_is_in_the_trace(bench: Bench) -> None:
    settings = {"distinct_split": {"enabled": True}, "distinct_method": "native"}
    job_id = bench.submit({**PER_USER, "settings": settings}, kind=EXPLAIN)
    bench.runner.run(job_id)
    assert (bench.job(job_id).status, bench.job(job_id).error) == ("SUCCEEDED", None)
    with bench.database.read() as session:
        rules = PlanReport.model_validate(session.scalars(select(PlanRow)).one().report).rules
    assert any("contradicts" in trace.reason for trace in rules)


def test_files_gone_since_submission(bench: Bench) -> None:
    job_id = bench.submit(PER_USER)
    shutil.rmtree(bench.settings.state_dir / "data" / "orders")
    bench.runner.run(job_id)
    job = bench.job(job_id)
    assert job.error is not None
    assert (job.status, job.error["code"], job.error["status"]) == ("FAILED", "path_not_found", 422)


def test_what_only_spark_finds_out(bench: Bench) -> None:
    overflow = {
        "tables": {"orders": parquet("orders")},
        "sql": "SELECT SUM(uid * 9000000000000000000) AS x FROM orders",
    }
    job_id = bench.submit(overflow)
    bench.runner.run(job_id)
    job = bench.job(job_id)
    assert job.error is not None
    assert (job.status, job.error["code"]) == ("FAILED", "arithmetic_overflow")
    assert "at org.apache" not in job.error["detail"]
    assert one_attempt(bench, job_id).status == "FAILED"
    assert files_of(bench) == []


def test_a_broadcast_that_does_not_fit_costs_a_second_run_and_the_plan_says_so(
    bench: Bench, spark: SparkSession
) -> None:
    job_id = bench.submit({**PER_USER, "settings": {"join.ship": "BROADCAST_RIGHT"}})
    # Sessions of jobs take it over.
    conf = spark.sparkContext._jsc.sc().conf()
    conf.set("spark.sql.maxBroadcastTableSize", "1k")
    try:
        bench.runner.run(job_id)
    finally:
        conf.remove("spark.sql.maxBroadcastTableSize")
    job = bench.job(job_id)
    assert (job.status, job.error, job.result_rows) == ("SUCCEEDED", None, 100)
    with bench.database.read() as session:
        plan = session.scalars(select(PlanRow)).one()
    report, estimates = report_of(plan), EstimateReport.model_validate(plan.estimates)
    assert "SortMergeJoin" in (report.physical_plan or "")
    assert report.rules[0].rule == "fallback"
    assert report.rules[0].reason.startswith("Fell back and ran again: after ")
    # Both runs are told, each by itself.
    first = report.first_run
    assert first is not None
    assert first.failure.startswith("A table was too large to broadcast. Spark says: Cannot broadcast the table")
    assert "BroadcastHashJoin" in (first.physical_plan or "")
    assert first.execution_ms > 0
    assert plan.execution_ms is not None
    assert plan.execution_ms > 0
    assert [kind for kind, _ in events(bench, job_id)].count("plan") == 2
    assert one_attempt(bench, job_id).fence == 1
    # The scan for the broadcast came to its end, and is none of the run that made the result.
    assert estimates.measured_rows_read == 10_000 + 100
    assert job.result_path == f"{job_id}/attempt-1-2"
    assert [path.name for path in (bench.settings.results_dir / job_id).iterdir()] == ["attempt-1-2"]


def test_the_run_after_a_fallback_reads_no_statistics_again(
    bench: Bench, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[LateStatistics] = []

    class Counted(LateStatistics):
        def __init__(self, gather: Callable[[], Statistics]) -> None:
            super().__init__(gather)
            started.append(self)

    monkeypatch.setattr("workers.engine.spark.engine.LateStatistics", Counted)
    # Nothing is left to decide: statistics are read during the run alone.
    forced = {"agg_phase": "TWO_PHASE", "distinct_method": "native", "eager_aggregation": False}
    job_id = bench.submit({**PER_USER, "settings": {**forced, "join.ship": "BROADCAST_RIGHT"}})
    conf = spark.sparkContext._jsc.sc().conf()
    conf.set("spark.sql.maxBroadcastTableSize", "1k")
    try:
        bench.runner.run(job_id)
    finally:
        conf.remove("spark.sql.maxBroadcastTableSize")
    assert (bench.job(job_id).status, bench.job(job_id).result_path) == ("SUCCEEDED", f"{job_id}/attempt-1-2")
    assert len(started) == 1


def test_an_attempt_after_a_crash_broadcasts_nothing(bench: Bench) -> None:
    job_id = bench.submit({**PER_USER, "settings": {"join.ship": "BROADCAST_RIGHT"}})
    with bench.database.write() as session:
        now = bench.database.now(session)
        claim = leases.claim(session, job_id, "w2", now, 60_000)
        assert claim is not None
        leases.hand_back(session, claim, now, status=AttemptStatus.CRASHED, error=problems.driver_lost("w2"))
    bench.runner.run(job_id)
    with bench.database.read() as session:
        report = report_of(session.scalars(select(PlanRow)).one())
    assert bench.job(job_id).result_rows == 100
    assert report.rules[0].reason.startswith("An earlier attempt lost the worker or its Spark driver")
    assert "Broadcast" not in (report.physical_plan or "")
    assert report.first_run is None


def test_a_bug_is_reported_without_its_stack(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    job_id = bench.submit(PER_USER)
    with bench.database.write() as session:
        session.execute(update(JobRow).values(spec={"neither": "this", "nor": "that"}))
    bench.runner.run(job_id)
    job = bench.job(job_id)
    assert job.error is not None
    assert (job.status, job.error["code"], job.error["status"]) == ("FAILED", "internal_error", 500)
    assert job_id in job.error["detail"]
    assert "Traceback" not in str(job.error)


def test_cancel_ends_the_job_and_its_tasks(bench: Bench) -> None:
    job_id = bench.submit(ENDLESS)
    watch = CancellationWatch(bench.database, bench.running_attempts)
    with bench.running(job_id) as attempt:
        watch.step()
        assert attempt.reason is None
        with bench.database.write() as session:
            session.execute(update(JobRow).values(status="CANCELLING", cancel_requested_at=1))
        watch.step()
        assert attempt.reason is StopReason.CANCELLED
    job = bench.job(job_id)
    assert job.error is not None
    assert (job.status, job.error["code"]) == ("CANCELLED", "cancelled")
    assert one_attempt(bench, job_id).status == "CANCELLED"
    assert all(stage.status != "ACTIVE" for stage in bench.driver.monitor.outcome(attempt.tag)[0])
    assert files_of(bench) == []
    with bench.database.read() as session:
        assert session.scalars(select(StageMetricsRow)).all(), "the stages of a cancelled job tell what took its time"


def test_the_time_limit_ends_the_job(bench: Bench) -> None:
    job_id = bench.submit(ENDLESS, timeout_ms=600_000)
    with bench.running(job_id) as attempt:
        CancellationWatch(bench.database, bench.running_attempts, clock=lambda: attempt.deadline).mark_overdue()
        assert attempt.reason is StopReason.TIMED_OUT
    job = bench.job(job_id)
    assert job.error is not None
    assert (job.status, job.error["code"]) == ("TIMED_OUT", "timed_out")
    assert "600 s" in job.error["detail"]


def test_an_attempt_begun_after_the_time_limit_ends_at_once(bench: Bench) -> None:
    job_id = bench.submit(PER_USER, timeout_ms=1000)
    with bench.database.write() as session:
        session.execute(update(JobRow).values(started_at=1))
    bench.runner.run(job_id)
    assert bench.job(job_id).status == "TIMED_OUT"


def test_an_attempt_that_lost_its_lease_publishes_nothing(bench: Bench) -> None:
    job_id = bench.submit(ENDLESS)
    heartbeat = Heartbeat(bench.database, "w1", bench.running_attempts, 30_000)
    with bench.running(job_id) as attempt:
        heartbeat.step()
        assert attempt.reason is None
        with bench.database.write() as session:
            session.execute(update(JobRow).values(status="QUEUED", lease_owner=None, lease_expires_at=None))
            assert leases.claim(session, job_id, "w2", bench.database.now(session), 30_000) is not None
        heartbeat.step()
        assert attempt.reason is StopReason.LEASE_LOST
    job = bench.job(job_id)
    assert (job.status, job.fence, job.lease_owner) == ("PLANNING", 2, "w2")
    assert files_of(bench) == []


def test_a_stopping_worker_hands_the_job_back(bench: Bench) -> None:
    job_id = bench.submit(ENDLESS)
    with bench.running(job_id) as attempt:
        bench.running_attempts.close()
        attempt.stop(StopReason.WORKER_STOPPING)
    job = bench.job(job_id)
    assert (job.status, job.lease_owner, bench.announced) == ("QUEUED", None, [job_id])
    assert one_attempt(bench, job_id).status == AttemptStatus.CANCELLED.value
    bench.runner.run(job_id)
    assert bench.job(job_id).fence == 1, "a worker that stops claims nothing"


def test_progress_is_stored_when_it_changed(bench: Bench) -> None:
    job_id = bench.submit(ENDLESS)
    reporter = ProgressReporter(bench.database, bench.running_attempts)

    def is_stored_once() -> bool:
        reporter.step()
        version = bench.job(job_id).version
        reporter.step()
        return bench.job(job_id).version == version

    with bench.running(job_id):
        wait_for("progress to stand still", is_stored_once, 30)
        stored = bench.job(job_id)
    assert stored.progress is not None
    assert stored.progress["tasks_total"] > 0
    assert ("progress", None) in events(bench, job_id)


@pytest.mark.withstands(
    "a file is replaced by a link between the worker's check and Spark's read",
    kind="attack",
    how="a file of the table becomes a link to a file outside the data roots after planning",
    times=2,
    guaranteed="the job fails; no row and no text of the link's target appears",
)
@pytest.mark.parametrize("is_readable", [True, False])
def test_what_spark_reads_through_a_link_is_not_kept(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_readable: bool
) -> None:
    users = bench.settings.state_dir / "data" / "users" / "users.csv"
    secret = tmp_path / "secret.csv"
    secret.write_text("uid,name\n1,hush\n" if is_readable else "root:x:0:0:hush\n")
    execute = Engine.execute

    def after_a_swap(engine: Engine, planned: PlannedQuery, directory: Path) -> WrittenResult:
        users.unlink()
        users.symlink_to(secret)
        return execute(engine, planned, directory)

    monkeypatch.setattr(Engine, "execute", after_a_swap)
    job_id = bench.submit({"tables": {"u": USERS}, "sql": "SELECT name, COUNT(*) AS n FROM u GROUP BY name"})
    bench.runner.run(job_id)
    job = bench.job(job_id)
    assert job.error is not None
    assert (job.status, job.error["code"]) == ("FAILED", "path_outside_data_roots")
    assert "hush" not in str(job.error)
    assert files_of(bench) == []


def test_the_replacement_removes_what_the_lost_attempt_wrote(bench: Bench) -> None:
    job_id = bench.submit(PER_USER)
    left = bench.settings.results_dir / job_id / "attempt-1"
    left.mkdir(parents=True)
    (left / "part-0.parquet").write_bytes(b"half a file")
    with bench.database.write() as session:
        session.execute(update(JobRow).values(fence=1))
    bench.runner.run(job_id)
    assert bench.job(job_id).result_path == f"{job_id}/attempt-2"
    assert [path.name for path in (bench.settings.results_dir / job_id).iterdir()] == ["attempt-2"]
