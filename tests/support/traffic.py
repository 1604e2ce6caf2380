"""Clients that submit and follow jobs in the background of a test, and checks of their results."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

from sqlalchemy import func, select

from service.store.tables import JobEventRow, JobRow
from tests.support.burst import SLOW, SLOW_ANSWER, assert_ended_once, small_answer, small_job, wait_until_ended
from tests.support.patience import PatientClient
from tests.support.production import Production

_THREADS = 12
_END_SECONDS = 300.0


class Traffic:
    """Slow jobs that clients wait for and follow, and small jobs that clients post. `name` is the prefix of their
    names.
    """

    def __init__(self, production: Production, name: str, pool: ThreadPoolExecutor) -> None:
        self.client = PatientClient(production.apis)
        self.slow: list[str] = []
        self._production = production
        self._name = name
        self._pool = pool
        self._waiting: list[Future[dict[str, Any]]] = []
        self._following: dict[str, Future[list[dict[str, Any]]]] = {}
        self._posting: dict[int, Future[str]] = {}

    def start_slow(self, number: int) -> None:
        """Starts slow jobs, each with a client that waits for it and one that follows it. Returns when the first
        runs.
        """
        self.slow = [self.client.submit(SLOW, f"{self._name}-slow-{place}") for place in range(number)]
        self._production.apis[0].wait(self.slow[0], "RUNNING")
        self._waiting = [self._pool.submit(self.client.wait, job_id) for job_id in self.slow]
        self._following = {job_id: self._pool.submit(self.client.follow, job_id) for job_id in self.slow}

    def post(self, numbers: Sequence[int]) -> None:
        """Lets clients post these small jobs in the background."""
        for number in numbers:
            spec = {**small_job(number), "name": f"{self._name}-{number}"}
            self._posting[number] = self._pool.submit(self.client.submit, spec, f"{self._name}-{number}")

    def wait_until_posted(self) -> None:
        """Waits until every small job has been accepted."""
        for future in self._posting.values():
            future.result()

    def finish(self) -> None:
        """Waits for the end of all jobs. Checks that each ended once with the right result, and that each client saw
        it.
        """
        posted = {future.result(): number for number, future in self._posting.items()}
        wait_until_ended(self._production, [*self.slow, *posted], _END_SECONDS)
        answers = {job_id: small_answer(number) for job_id, number in posted.items()}
        assert_ended_once(self._production, {**dict.fromkeys(self.slow, SLOW_ANSWER), **answers})
        assert [future.result()["status"] for future in self._waiting] == ["SUCCEEDED"] * len(self.slow)
        for job_id, future in self._following.items():
            self._assert_all_told(job_id, future.result())
        named = select(func.count()).select_from(JobRow).where(JobRow.name.startswith(f"{self._name}-"))
        assert self._production.all(named) == [(len(posted),)], "a repeated submission created a second job"

    def _assert_all_told(self, job_id: str, events: list[dict[str, Any]]) -> None:
        """Checks that each event came once and in order. Only old progress events may be missing."""
        ids = [event["id"] for event in events]
        assert all(first < second for first, second in pairwise(ids)), ids
        kept = select(JobEventRow.id).where(JobEventRow.job_id == job_id, JobEventRow.type != "progress")
        assert {event_id for (event_id,) in self._production.all(kept)} <= set(ids)


@contextmanager
def traffic(production: Production, name: str) -> Iterator[Traffic]:
    """Runs clients whose threads end with the block, in which `finish` must be called."""
    with ThreadPoolExecutor(_THREADS) as pool:
        yield Traffic(production, name, pool)
