"""A batch job that must end while it is planned ends at once, on real Spark, in every step of its planning."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import delete, select, update

from service.contract.enums import AttemptStatus
from service.store import leases
from service.store.attempts import attempts_of
from service.store.jobs import EXPLAIN, RUN
from service.store.tables import JobRow, PlanRow
from tests.support.bench import Bench
from tests.support.hanging import Hang, HangInJvm, LoopInPython, LoopWithChecks, WaitInPython
from tests.support.processes import wait_for
from tests.support.tables import parquet
from workers.engine.planner import plan_query
from workers.engine.spark import engine
from workers.jobs.cancellation import CancellationWatch
from workers.jobs.planning import TooManyPlanningsError
from workers.periodic import Loop
from workers.process.shutdown import Shutdown

pytestmark = pytest.mark.spark

COUNT = {"tables": {"o": parquet("orders")}, "sql": "SELECT COUNT(*) AS n FROM o"}


@pytest.fixture(params=[LoopWithChecks, LoopInPython, HangInJvm], ids=["checks", "python", "jvm"])
def hang(request: pytest.FixtureRequest, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hang]:
    """The first planning does not get on with its rules; those after it do."""
    own: Hang = request.param(bench.driver)

    def hangs_once(*given: Any) -> Any:
        own.once(given[-1].check)
        return plan_query(*given)

    monkeypatch.setattr(engine, "plan_query", hangs_once)
    yield own
    own.release()
    wait_for("the planning to end", lambda: not bench.running_attempts.abandoned.all())


@contextmanager
def planning(bench: Bench, hang: Hang, job_id: str) -> Iterator[threading.Thread]:
    """A runner's thread that plans the job, which hangs; with the threads of a worker that look for what is to stop."""
    watch = CancellationWatch(bench.database, bench.running_attempts)
    loops = [Loop("cancellation", 0.2, watch.step), Loop("time-limits", 0.2, watch.mark_overdue)]
    loops.append(Loop("spark-cancellation", 0.2, watch.cancel_spark_jobs))
    runner = threading.Thread(target=bench.runner.run, args=(job_id,), daemon=True)
    runner.start()
    try:
        assert hang.begun.wait(60)
        for loop in loops:
            loop.start()
        yield runner
    finally:
        for loop in loops:
            loop.ask_to_stop()
            loop.join(10)


def assert_ended(bench: Bench, runner: threading.Thread, job_id: str, status: str, code: str) -> None:
    """Published once, by a thread that is free again."""
    wait_for(f"{status} of the job", lambda: bench.job(job_id).status == status, 15)
    runner.join(15)
    assert not runner.is_alive()
    assert bench.running_attempts.all() == ()
    with bench.database.read() as session:
        (attempt,) = attempts_of(session, job_id)
    assert (attempt.error or {})["code"] == code


def assert_is_left_alone(bench: Bench, hang: Hang, job_id: str) -> None:
    """Nothing comes of the planning when it goes on, and the worker goes on before that."""
    version = bench.job(job_id).version
    other = bench.submit(COUNT)
    bench.runner.run(other)
    assert bench.job(other).status == "SUCCEEDED"
    assert len(bench.running_attempts.abandoned.all()) == (0 if isinstance(hang, LoopWithChecks) else 1)
    hang.release()
    wait_for("the planning to end", lambda: not bench.running_attempts.abandoned.all())
    assert bench.job(job_id).version == version
    with bench.database.read() as session:
        assert [row.job_id for row in session.scalars(select(PlanRow))] == [other]
    assert {path.name for path in bench.settings.results_dir.iterdir()} == {other}


@pytest.mark.parametrize("kind", [RUN, EXPLAIN])
def test_a_cancelled_job_ends_while_it_is_planned(bench: Bench, hang: Hang, kind: str) -> None:
    job_id = bench.submit(COUNT, kind=kind)
    with planning(bench, hang, job_id) as runner:
        with bench.database.write() as session:
            session.execute(update(JobRow).values(status="CANCELLING", cancel_requested_at=1))
        assert_ended(bench, runner, job_id, "CANCELLED", "cancelled")
        assert_is_left_alone(bench, hang, job_id)


@pytest.mark.parametrize("kind", [RUN, EXPLAIN])
def test_a_job_ends_at_its_time_limit_while_it_is_planned(bench: Bench, hang: Hang, kind: str) -> None:
    job_id = bench.submit(COUNT, kind=kind, timeout_ms=2_000)
    with planning(bench, hang, job_id) as runner:
        assert_ended(bench, runner, job_id, "TIMED_OUT", "timed_out")
        assert_is_left_alone(bench, hang, job_id)


@pytest.mark.parametrize("kind", [RUN, EXPLAIN])
def test_a_job_that_another_worker_has_is_left_while_it_is_planned(bench: Bench, hang: Hang, kind: str) -> None:
    job_id = bench.submit(COUNT, kind=kind)
    with planning(bench, hang, job_id) as runner:
        with bench.database.write() as session:
            session.execute(update(JobRow).values(status="QUEUED", lease_owner=None, lease_expires_at=None))
            assert leases.claim(session, job_id, "w2", bench.database.now(session), 30_000) is not None
        runner.join(15)
        assert not runner.is_alive()
        job = bench.job(job_id)
        assert (job.status, job.fence, job.lease_owner) == ("PLANNING", 2, "w2")
        assert_is_left_alone(bench, hang, job_id)


def test_an_explanation_whose_caller_has_gone_is_left(bench: Bench, hang: Hang) -> None:
    job_id = bench.submit(COUNT, kind=EXPLAIN)
    with planning(bench, hang, job_id) as runner:
        with bench.database.write() as session:
            session.execute(delete(JobRow).where(JobRow.id == job_id))
        runner.join(15)
        assert not runner.is_alive()


@pytest.mark.parametrize("kind", [RUN, EXPLAIN])
def test_a_worker_that_leaves_hands_back_the_job_that_it_plans(bench: Bench, hang: Hang, kind: str) -> None:
    job_id = bench.submit(COUNT, kind=kind)
    killed: list[str] = []
    departure = Shutdown(
        "w1",
        bench.running_attempts,
        drain_seconds=0.0,
        hand_back=bench.runner.hand_back,
        kill_driver=lambda: killed.append("driver"),
        stop_taking=lambda: None,
    )
    departure.start()
    try:
        with planning(bench, hang, job_id) as runner:
            departure.order()
            assert_ended(bench, runner, job_id, "QUEUED", "handed_back")
    finally:
        departure.order()
        departure.finish()
    with bench.database.read() as session:
        (attempt,) = attempts_of(session, job_id)
    assert attempt.status == AttemptStatus.CANCELLED.value, "it counts against no limit"
    assert bench.announced == [job_id]
    assert killed == [], "nobody waited for it"


@pytest.fixture
def hangs(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[WaitInPython]]:
    """The first four plannings hang, each in its own way."""
    own = [WaitInPython(bench.driver) for _ in range(4)]
    waiting = iter(own)

    def hangs_in_turn(*given: Any) -> Any:
        for hang in waiting:
            hang.once(given[-1].check)
            break
        return plan_query(*given)

    monkeypatch.setattr(engine, "plan_query", hangs_in_turn)
    yield own
    for hang in own:
        hang.release()
    wait_for("the plannings to end", lambda: not bench.running_attempts.abandoned.all())


def abandon(bench: Bench, hang: Hang, kind: str) -> None:
    """Has a planning hang for which nobody waits."""
    job_id = bench.submit(COUNT, kind=kind)
    with planning(bench, hang, job_id) as runner:
        with bench.database.write() as session:
            session.execute(delete(JobRow).where(JobRow.id == job_id))
        runner.join(15)


def test_a_worker_with_too_many_abandoned_plannings_claims_nothing(bench: Bench, hangs: list[WaitInPython]) -> None:
    for hang in hangs:
        abandon(bench, hang, RUN)
    job_id = bench.submit(COUNT)
    claims: list[Callable[[], bool]] = [lambda: bench.runner.run(job_id), lambda: bench.runner.run_next(["short"])]
    for claim in claims:
        with pytest.raises(TooManyPlanningsError):
            claim()
    assert (bench.job(job_id).status, bench.job(job_id).fence) == ("QUEUED", 0)
    hangs[0].release()
    wait_for("its end", lambda: len(bench.running_attempts.abandoned.all()) == 3)
    assert bench.runner.run(job_id)
    assert bench.job(job_id).status == "SUCCEEDED"


def test_abandoned_explanations_take_their_slots_until_their_threads_end(
    bench: Bench, hangs: list[WaitInPython]
) -> None:
    # Of four slots the explanations of a tenant take two.
    for hang in hangs[:2]:
        abandon(bench, hang, EXPLAIN)
    waiting, other = bench.submit(COUNT, kind=EXPLAIN), bench.submit(COUNT)
    assert not bench.runner.run(waiting)
    hangs[2].release()
    assert bench.runner.run_next(["short"])
    assert (bench.job(waiting).status, bench.job(other).status) == ("QUEUED", "SUCCEEDED")
    hangs[0].release()
    wait_for("its end", lambda: len(bench.running_attempts.abandoned.all()) == 1)
    hangs[3].release()
    assert bench.runner.run(waiting)
    assert bench.job(waiting).status == "SUCCEEDED"
