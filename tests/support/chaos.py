"""Faults of every kind at random moments, and clients that go on submitting small jobs meanwhile."""

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
_MOST_WAITING = count(sample=15, full=60)
_BREATH_SECONDS = (0.1, 0.6)
_CANCEL_SECONDS = (0.0, 3.0)
_BETWEEN_FAULTS_SECONDS = (0.5, 4.0)

WRONG = {**small_job(5), "name": "wrong", "sql": "SELECT SUM(1 / (s.v - s.v)) AS x FROM s"}
"""Divides by zero."""


@dataclass(frozen=True)
class Expected:
    """How a job may end, and the rows of one that SUCCEEDED."""

    ends: frozenset[str]
    rows: Sequence[tuple[int, ...]] = ()


class Clients:
    """Post small jobs of every kind until told to stop: right ones, wrong ones, slow ones that they cancel or give a
    second.
    """

    def __init__(self, production: Production, seed: int) -> None:
        self.expected: dict[str, Expected] = {}
        """What was accepted, by id."""
        self._client = PatientClient(production.apis)
        self._production = production
        self._seed = seed
        self._told = threading.Event()
        self._lock = threading.Lock()

    @contextmanager
    def posting(self) -> Iterator[None]:
        """They post inside. Raises what ended one of them."""
        with ThreadPoolExecutor(_CLIENTS) as pool:
            clients: list[Future[None]] = [pool.submit(self._post, number) for number in range(_CLIENTS)]
            try:
                yield
            finally:
                self._told.set()
            for client in clients:
                client.result()

    def _post(self, client: int) -> None:
        random_ = random.Random(self._seed * 100 + client)
        number = 0
        while not self._told.wait(random_.uniform(*_BREATH_SECONDS)):
            if self._are_many_waiting():
                continue
            number += 1
            self._post_one(random_, f"chaos-{client}-{number}", number)

    def _are_many_waiting(self) -> bool:
        """Workers that are killed over and over get less done than clients can ask for."""
        waiting = select(func.count()).select_from(JobRow).where(JobRow.status == JobStatus.QUEUED.value)
        with suppress(SQLAlchemyError):
            return bool(self._production.all(waiting)[0][0] > _MOST_WAITING)
        return False

    def _post_one(self, random_: random.Random, key: str, number: int) -> None:
        kind = random_.choices(("right", "wrong", "slow", "cancelled", "timed out"), (12, 2, 1, 2, 1))[0]
        match kind:
            case "right":
                self._accept(small_job(number), key, {"SUCCEEDED"}, small_answer(number))
            case "wrong":
                self._accept(WRONG, key, {"FAILED"})
            case "slow":
                self._accept(SLOW, key, {"SUCCEEDED"}, SLOW_ANSWER)
            case "timed out":
                # On a machine that is quick enough it may come to its end.
                limited = {**SLOW, "limits": {"timeout": "1s", "max_attempts": 10}}
                self._accept(limited, key, {"TIMED_OUT", "SUCCEEDED"}, SLOW_ANSWER)
            case _:
                job_id = self._accept(SLOW, key, {"CANCELLED", "SUCCEEDED"}, SLOW_ANSWER)
                self._told.wait(random_.uniform(*_CANCEL_SECONDS))
                self._cancel(job_id)

    def _accept(self, spec: dict[str, Any], key: str, ends: set[str], rows: Sequence[tuple[int, ...]] = ()) -> str:
        # Of attempts it may lose many: this is about what becomes of it, not about its patience.
        job_id = self._client.submit({"limits": {"max_attempts": 10}, **spec}, key)
        with self._lock:
            self.expected[job_id] = Expected(frozenset(ends), rows)
        return job_id

    def _cancel(self, job_id: str) -> None:
        """Until it is accepted, or the job has ended."""
        while True:
            for api in self._production.apis:
                with suppress(httpx.TransportError):
                    if api.http.post(f"/v1/jobs/{job_id}/cancel").status_code in {202, 409}:
                        return
            time.sleep(0.2)


class Chaos:
    """What goes wrong. Each fault is over, and what it ended is started again, before the next one comes."""

    def __init__(self, production: Production, servers: Servers, dispatcher: Dispatcher, seed: int) -> None:
        self.fault_counts: Counter[str] = Counter()
        """How often each fault was made."""
        self._production = production
        self._servers = servers
        self._dispatcher = dispatcher
        self._random = random.Random(seed)

    @property
    def faults(self) -> Sequence[Callable[[], None]]:
        """All of them."""
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
        """Each fault once, in an order of chance, then any of them until the time is up."""
        end = time.monotonic() + seconds
        first = self._random.sample(self.faults, len(self.faults))
        while first or time.monotonic() < end:
            fault = first.pop() if first else self._random.choice(self.faults)
            fault()
            self.fault_counts[fault.__name__] += 1
            time.sleep(self._random.uniform(*_BETWEEN_FAULTS_SECONDS))

    def kill_a_worker(self) -> None:
        """`kill -9`; its JVM goes with it. Another one is started."""
        part = self._worker()
        self._production.kill(part)
        self._production.start_again(part)

    def kill_a_jvm(self) -> None:
        """`kill -9` of a Spark driver."""
        with suppress(ValueError, psutil.NoSuchProcess):  # it is just being started
            jvm_of(self._worker().process).kill()

    def freeze_a_jvm(self) -> None:
        """A Spark driver that answers nobody: its worker ends it."""
        with suppress(ValueError, psutil.NoSuchProcess):
            jvm = jvm_of(self._worker().process)
            jvm.suspend()
            wait_for("the JVM to be ended by its worker", lambda: not jvm.is_running(), 60)

    def pause_a_worker_past_its_lease(self) -> None:
        """It wakes up when others have taken its jobs."""
        part = self._worker()
        part.process.send_signal(signal.SIGSTOP)
        time.sleep(_LEASE_SECONDS + 2)
        part.process.send_signal(signal.SIGCONT)

    def stop_a_worker(self) -> None:
        """SIGTERM: it hands its jobs back."""
        part = self._worker()
        self._production.stop(part)
        self._production.start_again(part)

    def kill_an_api(self) -> None:
        """`kill -9`, maybe between a commit and its message."""
        part = self._random.choice(self._production.apis).part
        self._production.kill(part)
        self._production.start_again(part)

    def stop_an_api(self) -> None:
        """SIGTERM."""
        part = self._random.choice(self._production.apis).part
        self._production.stop(part)
        self._production.start_again(part)

    def crash_redis(self) -> None:
        """All messages are lost."""
        self._servers.redis.restart(signal.SIGKILL)

    def flush_redis(self) -> None:
        """The same, while everybody stays connected."""
        with self._servers.redis.client() as client:
            client.flushall()

    def freeze_redis(self) -> None:
        """It takes connections and answers nobody for some seconds."""
        self._servers.redis.freeze()
        time.sleep(self._random.uniform(2, 6))
        self._servers.redis.thaw()

    def crash_postgresql(self) -> None:
        """`kill -9` of the server."""
        self._servers.postgres.restart(signal.SIGKILL)
        self._wait_for_database()

    def freeze_postgresql(self) -> None:
        """It takes connections and answers nobody for some seconds."""
        self._servers.postgres.freeze()
        time.sleep(self._random.uniform(2, 6))
        self._servers.postgres.thaw()

    def break_connections(self) -> None:
        """Every connection to the database, whatever it is at."""
        self._servers.postgres.end_connections(str(self._production.database.engine.url.database))
        self._wait_for_database()

    def ring_twice(self) -> None:
        """Messages for jobs that wait, run or have ended, again."""
        latest = select(JobRow.id, JobRow.queue).order_by(JobRow.submitted_at.desc()).limit(20)
        for job_id, queue in self._production.all(latest):
            self._dispatcher.ring([job_id], queue)

    def _worker(self) -> Part:
        return self._random.choice([part for part in self._production.workers if part.is_running])

    def _wait_for_database(self) -> None:
        def is_there() -> bool:
            with suppress(SQLAlchemyError):
                return bool(self._production.all(select(1)))
            return False

        wait_for("the database", is_there, 60)
