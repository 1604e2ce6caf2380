"""A test with random faults: many small jobs while parts of the service are killed, frozen, cut off and restarted."""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Iterator

import pytest
from sqlalchemy import select

from service.broker.dispatch import Dispatcher
from service.config.settings import Settings
from service.contract.enums import JobStatus
from service.store.tables import AttemptRow, JobEventRow, JobRow, OutboxRow
from tests.support.burst import rows_of, wait_until_ended, write_pairs, write_small
from tests.support.chaos import Chaos, Clients, Expected
from tests.support.counts import count
from tests.support.production import Production, Servers, running_production

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

SEED = 6
SECONDS = count(sample=20.0, full=240.0)
WORKERS = count(sample=2, full=3)

_log = logging.getLogger(__name__)


@pytest.fixture
def production(servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Production]:
    with running_production(tmp_path_factory.mktemp("production"), servers, workers=WORKERS) as running:
        write_small(running.data)
        write_pairs(running.data)
        yield running


@pytest.fixture
def dispatcher(servers: Servers, monkeypatch: pytest.MonkeyPatch) -> Iterator[Dispatcher]:
    monkeypatch.setenv("EVENKEEL_BROKER_URL", servers.redis.url)
    dispatcher = Dispatcher(Settings())
    yield dispatcher
    dispatcher.close()


@pytest.mark.withstands(
    "random faults",
    how="14 kinds of random faults for 4 minutes (workers, JVMs, APIs, Redis, PostgreSQL, duplicate messages), while "
    "four clients submit, cancel and time out jobs",
    times=14,
    guaranteed="each accepted job ends once, with the right rows or its true error, and leaves nothing else",
)
@pytest.mark.timeout(1500)
def test_every_accepted_job_ends_once(production: Production, servers: Servers, dispatcher: Dispatcher) -> None:
    clients = Clients(production, SEED)
    chaos = Chaos(production, servers, dispatcher, SEED)
    with clients.posting():
        chaos.run(SECONDS)
    wait_until_ended(production, clients.expected, 300)
    # For the analysis of a failure.
    _log.warning("seed %s, %s jobs; %s", SEED, len(clients.expected), dict(chaos.fault_counts))
    assert_ended_once(production, clients.expected)
    assert all(api.http.get("/readyz").is_success for api in production.apis)


def assert_ended_once(production: Production, expected: dict[str, Expected]) -> None:
    """Checks that every job ended once, in an expected state, and with one event for it.

    A job that SUCCEEDED has the right rows, and nothing else is left of any job. No submission created two jobs.
    """
    ends = {row[0]: row[1:] for row in production.all(select(JobRow.id, JobRow.status, JobRow.fence, JobRow.error))}
    assert set(ends) == set(expected)
    states = defaultdict(list)
    events = select(JobEventRow.job_id, JobEventRow.data).where(JobEventRow.type == "status").order_by(JobEventRow.id)
    for job_id, data in production.all(events):
        states[job_id].append(JobStatus(data["status"]))
    for job_id, job in expected.items():
        status, fence, error = ends[job_id]
        if error is not None and error["code"] == "internal_error":
            pytest.fail(f"Job {job_id} ended with an internal error.\n{production.internal_errors(job_id)}")
        assert status in job.ends, (job_id, status, error)
        assert [state for state in states[job_id] if state.is_terminal] == [status]
        assert states[job_id][-1] == status
        if status == JobStatus.SUCCEEDED:
            assert error is None
            assert rows_of(production, job_id, fence) == list(job.rows)
            assert [path.name for path in (production.results / job_id).iterdir()] == [f"attempt-{fence}"]
        else:
            assert error["code"] in {"divide_by_zero", "cancelled", "timed_out"}, error
    succeeded = {job_id for job_id, (status, *_) in ends.items() if status == JobStatus.SUCCEEDED}
    # A driver that starts writes a probe. If its worker is killed meanwhile, the probe stays for an hour.
    kept = {path.name for path in production.results.iterdir() if path.is_dir()}
    assert {name for name in kept if not name.startswith(".probe-")} == succeeded
    open_attempts = select(AttemptRow.job_id).where(AttemptRow.finished_at.is_(None))
    assert production.all(open_attempts) == []
    assert production.all(select(OutboxRow.job_id)) == []
    _log.warning("%s", dict(Counter(status for status, *_ in ends.values())))
