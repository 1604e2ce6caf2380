"""Random faults of every kind, and clients that submit small jobs meanwhile."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import httpx
import psutil
from sqlalchemy import func, select
from sqlalchemy.exc import SQLAlchemyError

from service.broker.dispatch import Dispatcher
from service.contract.enums import JobStatus
from service.store.tables import JobRow
from tests.support.burst import SLOW, SLOW_ANSWER, small_answer, small_job
from tests.support.counts import count
from tests.support.patience import PatientClient
from tests.support.processes import wait_for
from tests.support.production import ENVIRONMENT, Part, Production, Servers
from tests.support.worker import jvm_of

_LEASE_SECONDS = float(ENVIRONMENT["EVENKEEL_WORKER_LEASE_SECONDS"])
_CLIENTS = 4
_MAX_WAITING = count(sample=15, full=60)
_BETWEEN_POSTS_SECONDS = (0.1, 0.6)
_CANCEL_SECONDS = (0.0, 3.0)
_BETWEEN_FAULTS_SECONDS = (0.5, 4.0)

FAILING = {**small_job(5), "name": "failing", "sql": "SELECT SUM(1 / (s.v - s.v)) AS x FROM s"}
"""Divides by zero."""


@dataclass(frozen=True)
class Expected:
    """The allowed final states of a job, and its rows if it SUCCEEDED."""

    ends: frozenset[str]
    rows: Sequence[tuple[int, ...]] = ()


class Clients:
    """Clients that post small jobs of every kind until stopped: valid ones, failing ones, and slow ones that they
    cancel or give a time limit of a second.
    """

    def __init__(self, production: Production, seed: int) -> None:
        self.expected: dict[str, Expected] = {}
        """The accepted jobs by id."""
        self._client = PatientClient(production.apis)
        self._production = production
        self._seed = seed
        self._stopped = threading.Event()
        self._lock = threading.Lock()

    @contextmanager
    def posting(self) -> Iterator[None]:
        """Runs the clients during the block. Raises the error of a client."""
        with ThreadPoolExecutor(_CLIENTS) as pool:
            clients: list[Future[None]] = [pool.submit(self._post, number) for number in range(_CLIENTS)]
            try:
                yield
            finally:
                self._stopped.set()
            for client in clients:
                client.result()

    def _post(self, client: int) -> None:
        random_ = random.Random(self._seed * 100 + client)
        number = 0
        while not self._stopped.wait(random_.uniform(*_BETWEEN_POSTS_SECONDS)):
            if self._are_many_waiting():
                continue
            number += 1
            self._post_one(random_, f"chaos-{client}-{number}", number)

    def _are_many_waiting(self) -> bool:
        """Whether many jobs are waiting: repeatedly killed workers complete fewer jobs than clients can submit."""
        waiting = select(func.count()).select_from(JobRow).where(JobRow.status == JobStatus.QUEUED.value)
        with suppress(SQLAlchemyError):
            return bool(self._production.all(waiting)[0][0] > _MAX_WAITING)
        return False

    def _post_one(self, random_: random.Random, key: str, number: int) -> None:
        kind = random_.choices(("valid", "failing", "slow", "cancelled", "timed out"), (12, 2, 1, 2, 1))[0]
        match kind:
            case "valid":
                self._accept(small_job(number), key, {"SUCCEEDED"}, small_answer(number))
            case "failing":
                self._accept(FAILING, key, {"FAILED"})
            case "slow":
                self._accept(SLOW, key, {"SUCCEEDED"}, SLOW_ANSWER)
            case "timed out":
                # On a fast machine, the job may succeed.
                limited = {**SLOW, "limits": {"timeout": "1s", "max_attempts": 10}}
                self._accept(limited, key, {"TIMED_OUT", "SUCCEEDED"}, SLOW_ANSWER)
            case _:
                job_id = self._accept(SLOW, key, {"CANCELLED", "SUCCEEDED"}, SLOW_ANSWER)
                self._stopped.wait(random_.uniform(*_CANCEL_SECONDS))
                self._cancel(job_id)

    def _accept(self, spec: dict[str, Any], key: str, ends: set[str], rows: Sequence[tuple[int, ...]] = ()) -> str:
        # It may lose many attempts: the test checks its outcome, not the limit of attempts.
        job_id = self._client.submit({"limits": {"max_attempts": 10}, **spec}, key)
        with self._lock:
            self.expected[job_id] = Expected(frozenset(ends), rows)
        return job_id

    def _cancel(self, job_id: str) -> None:
        """Cancels a job; repeats the request until it is accepted or the job has ended."""
        while True:
            for api in self._production.apis:
                with suppress(httpx.TransportError):
                    if api.http.post(f"/v1/jobs/{job_id}/cancel").status_code in {202, 409}:
                        return
            time.sleep(0.2)


class Chaos:
    """Causes faults one after the other. Before the next fault, ended processes are started again."""

    def __init__(self, production: Production, servers: Servers, dispatcher: Dispatcher, seed: int) -> None:
        self.fault_counts: Counter[str] = Counter()
        """How often each fault was made."""
        self._production = production
        self._servers = servers
        self._dispatcher = dispatcher
        self._random = random.Random(seed)

    @property
    def faults(self) -> Sequence[Callable[[], None]]:
        """All kinds of faults."""
        return (
            self.kill_a_worker,
            self.kill_a_jvm,
            self.freeze_a_jvm,
            self.pause_a_worker_past_its_lease,
            self.stop_a_worker,
            self.kill_an_api,
            self.stop_an_api,
            self.crash_redis,
            self.flush_redis,
            self.freeze_redis,
            self.crash_postgresql,
            self.freeze_postgresql,
            self.break_connections,
            self.ring_twice,
        )

    def run(self, seconds: float) -> None:
        """Causes each fault once in random order, or half of them in a sample, then random faults until the time is
        over."""
        end = time.monotonic() + seconds
        first = self._random.sample(self.faults, count(sample=7, full=len(self.faults)))
        while first or time.monotonic() < end:
            fault = first.pop() if first else self._random.choice(self.faults)
            fault()
            self.fault_counts[fault.__name__] += 1
            time.sleep(self._random.uniform(*_BETWEEN_FAULTS_SECONDS))

    def kill_a_worker(self) -> None:
        """Kills a worker, whose JVM ends too, and starts it again."""
        part = self._worker()
        self._production.kill(part)
        self._production.start_again(part)

    def kill_a_jvm(self) -> None:
        """Kills a Spark driver."""
        with suppress(ValueError, psutil.NoSuchProcess):  # It is being started.
            jvm_of(self._worker().process).kill()

    def freeze_a_jvm(self) -> None:
        """Freezes a Spark driver until its worker terminates it."""
        with suppress(ValueError, psutil.NoSuchProcess):
            jvm = jvm_of(self._worker().process)
            jvm.suspend()
            wait_for("the worker to terminate the JVM", lambda: not jvm.is_running(), 60)

    def pause_a_worker_past_its_lease(self) -> None:
        """Freezes a worker until others have taken over its jobs."""
        part = self._worker()
        part.process.send_signal(signal.SIGSTOP)
        time.sleep(_LEASE_SECONDS + 2)
        part.process.send_signal(signal.SIGCONT)

    def stop_a_worker(self) -> None:
        """Stops a worker, which hands its jobs back, and starts it again."""
        part = self._worker()
        self._production.stop(part)
        self._production.start_again(part)

    def kill_an_api(self) -> None:
        """Kills an API, possibly between a commit and its message, and starts it again."""
        part = self._random.choice(self._production.apis).part
        self._production.kill(part)
        self._production.start_again(part)

    def stop_an_api(self) -> None:
        """Stops an API and starts it again."""
        part = self._random.choice(self._production.apis).part
        self._production.stop(part)
        self._production.start_again(part)

    def crash_redis(self) -> None:
        """Kills and restarts Redis, which loses all messages."""
        self._servers.redis.restart(signal.SIGKILL)

    def flush_redis(self) -> None:
        """Deletes all messages while all clients stay connected."""
        with self._servers.redis.client() as client:
            client.flushall()

    def freeze_redis(self) -> None:
        """Freezes Redis for some seconds: it accepts connections but does not respond."""
        self._servers.redis.freeze()
        time.sleep(self._random.uniform(2, 6))
        self._servers.redis.thaw()

    def crash_postgresql(self) -> None:
        """Kills and restarts PostgreSQL."""
        self._servers.postgres.restart(signal.SIGKILL)
        self._wait_for_database()

    def freeze_postgresql(self) -> None:
        """Freezes PostgreSQL for some seconds: it accepts connections but does not respond."""
        self._servers.postgres.freeze()
        time.sleep(self._random.uniform(2, 6))
        self._servers.postgres.thaw()

    def break_connections(self) -> None:
        """Closes every connection to the database, including active ones."""
        self._servers.postgres.end_connections(str(self._production.database.engine.url.database))
        self._wait_for_database()

    def ring_twice(self) -> None:
        """Sends the messages of waiting, running and ended jobs again."""
        latest = select(JobRow.id, JobRow.queue).order_by(JobRow.submitted_at.desc()).limit(20)
        for job_id, queue in self._production.all(latest):
            self._dispatcher.announce([job_id], queue)

    def _worker(self) -> Part:
        return self._random.choice([part for part in self._production.workers if part.is_running])

    def _wait_for_database(self) -> None:
        def is_reachable() -> bool:
            with suppress(SQLAlchemyError):
                return bool(self._production.all(select(1)))
            return False

        wait_for("the database", is_reachable, 60)
