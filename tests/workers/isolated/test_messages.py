"""What a worker and the process of an attempt send each other arrives as it was sent."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from service.contract import problems
from service.contract.enums import AttemptStatus, JobStatus
from service.store.publication import Ending
from service.store.session import Database
from service.store.streaming_state import StreamStopReason
from tests.support import lifecycle
from tests.support.bench import Bench
from tests.support.tables import USERS, parquet
from workers.isolated.messages import Message, claim_in, line_of, line_of_claim, message_in, message_of
from workers.jobs.outcome import HandBack, LeaseLost, StreamStop, Success, Verdict
from workers.process.job_runner import JobRunner


@pytest.mark.parametrize(
    "verdict",
    [
        Ending(JobStatus.CANCELLED, problems.cancelled()),
        HandBack(AttemptStatus.CRASHED, problems.driver_lost("w1")),
        LeaseLost(),
    ],
)
def test_a_verdict(verdict: Verdict) -> None:
    assert message_in(line_of(message_of(verdict))).verdict == verdict


def test_a_process_that_is_alive_has_no_verdict() -> None:
    assert line_of(Message()) == b"{}\n"
    assert message_in(b"{}\n").verdict is None
    assert message_in(line_of(Message(planning_ms=0))) == Message(planning_ms=0)


@pytest.mark.parametrize("line", [b"Spark says something\n", b'{"later": 1}\n', b'{"planning_ms": 1'])
def test_another_line_is_refused(line: bytes) -> None:
    with pytest.raises(ValidationError):
        message_in(line)


def test_a_stream_has_no_process_of_its_own() -> None:
    with pytest.raises(TypeError, match="StreamStop"):
        message_of(StreamStop(StreamStopReason.STOPPED))


@pytest.mark.one_database
def test_a_claim(database: Database) -> None:
    job_id = lifecycle.insert(database, isolated=True, spec={"sql": "SELECT 'ü\n' AS x"})
    claim = lifecycle.claim(database, job_id)
    line = line_of_claim(claim)
    assert line.count(b"\n") == 1
    read = claim_in(line)
    assert (read, read.spec, read.queue, read.isolated) == (claim, claim.spec, claim.queue, True)


@pytest.mark.spark
def test_the_metrics_of_a_run(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    published: list[Verdict] = []
    monkeypatch.setattr(JobRunner, "_end", lambda _, __, verdict: published.append(verdict))
    spec = {
        "tables": {"orders": parquet("orders"), "users": USERS},
        "sql": "SELECT u.name, COUNT(DISTINCT o.category) AS n FROM orders o JOIN users u ON o.uid = u.uid "
        "GROUP BY u.name",
    }
    assert bench.runner.run(bench.submit(spec))
    (success,) = published
    assert isinstance(success, Success)
    ending = success.measured()
    assert ending.metrics is not None
    assert ending.metrics.figures is not None
    sent = line_of(message_of(ending))
    read = message_in(sent)
    assert line_of(read) == sent
    assert read.ending is not None
    assert read.ending.metrics is not None
    assert tuple(read.ending.metrics.stages) == tuple(ending.metrics.stages)
    assert (read.ending.result, read.ending.metrics.figures) == (ending.result, ending.metrics.figures)
    assert (read.ending.metrics.skew, read.ending.metrics.estimates) == (
        ending.metrics.skew,
        ending.metrics.estimates,
    )
