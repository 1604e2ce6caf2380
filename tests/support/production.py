"""The service as in production: PostgreSQL, Redis, several APIs and several workers, each a real process.

Every process has its own state directory, as on its own machine. They share the database, the broker, the data and the
results.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import httpx
from sqlalchemy import Executable
from sqlalchemy.orm import Session

from service.contract.enums import KeyScope
from service.keys.administration import KeyRequest, issue_key
from service.store.session import Database
from service.store.tables import WorkerRow
from tests.support.client import JobClient
from tests.support.processes import end, family, start_python, wait_for, wait_until_gone
from tests.support.servers import PostgresServer, RedisServer, running_postgres, running_redis

T = TypeVar("T")

_LISTENS = re.compile(r"Evenkeel listens on http://\S+:(\d+)")
_START_SECONDS = 180.0
_END_SECONDS = 60.0
_LOG_CHARACTERS = 4000
_INTERNAL_ERROR_EVENTS = frozenset({"attempt_failed", "publication_impossible"})
"""The log events of a worker that store an `internal_error`."""

ENVIRONMENT: Mapping[str, str] = {
    "EVENKEEL_SPARK_MASTER": "local[1]",
    "EVENKEEL_SPARK_DRIVER_MEMORY": "512m",
    "EVENKEEL_WORKER_CONCURRENCY": "2",
    # Long enough for heartbeats of many processes on two cores, short enough for a test to wait until it expires.
    "EVENKEEL_WORKER_LEASE_SECONDS": "10",
    "EVENKEEL_WORKER_HEARTBEAT_SECONDS": "1",
    "EVENKEEL_WORKER_SWEEP_SECONDS": "0.5",
    "EVENKEEL_WORKER_RING_AGAIN_SECONDS": "2",
    "EVENKEEL_WORKER_DRAIN_SECONDS": "0",
}
"""Small enough for several of each next to the test process, and quick to notice lost jobs."""


@dataclass
class Part:
    """One of the processes. `environment` are its variables, including those of all processes."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    log: Path
    process: subprocess.Popen[bytes] = field(init=False)

    @property
    def is_running(self) -> bool:
        """Whether the process has not ended."""
        return self.process.poll() is None

    def said(self) -> str:
        """Returns its log so far, including earlier starts."""
        return self.log.read_text(errors="replace")


class Api(JobClient):
    """An API process with the usual requests. It keeps its port when it is restarted."""

    def __init__(self, part: Part, port: int, key: str) -> None:
        super().__init__(f"http://127.0.0.1:{port}", key)
        self.part = part


class Production:
    """All processes. Start them from the main thread."""

    def __init__(self, directory: Path, environment: Mapping[str, str]) -> None:
        self.directory = directory
        self.data = directory / "data"
        self.results = directory / "results"
        self.apis: list[Api] = []
        self.workers: list[Part] = []
        self._shared = {
            **ENVIRONMENT,
            "EVENKEEL_DATA_ROOTS": str(self.data),
            "EVENKEEL_DATA_RESULTS": str(self.results),
            **environment,
        }
        self.database = Database(self._shared["EVENKEEL_DATABASE_URL"])
        self.data.mkdir()
        self.results.mkdir()

    def migrate(self) -> None:
        """Runs `evenkeel migrate`."""
        part = self._part("migrate", ["-m", "service.cli", "migrate"], {})
        if part.process.wait(_START_SECONDS) != 0:
            raise AssertionError(f"evenkeel migrate failed:\n{part.said()}")

    def key(self, **asked: Any) -> str:
        """Creates an API key, with every scope by default."""
        return issue_key(self.database, KeyRequest(**{"name": "tests", "scopes": tuple(KeyScope), **asked}), None).key

    def start_api(self) -> Api:
        """Starts `evenkeel serve` on a free port and waits until it responds."""
        part = self._part(f"api-{len(self.apis)}", ["-m", "service.cli", "serve", "--port", "0"], {})
        port = int(self._wait(part, "the address of the API", lambda: _LISTENS.search(part.said())).group(1))
        part.command = [*part.command[:-1], str(port)]
        api = Api(part, port, self.key())
        self.apis.append(api)
        self._wait_for_api(api)
        return api

    def start_worker(self, environment: Mapping[str, str] | None = None) -> Part:
        """Starts `evenkeel worker` without waiting; see `wait_for_workers`."""
        part = self._part(f"worker-{len(self.workers)}", ["-m", "service.cli", "worker"], environment or {})
        self.workers.append(part)
        return part

    def start_workers(self, number: int, environment: Mapping[str, str] | None = None) -> list[Part]:
        """Starts workers and waits until Spark is ready in each."""
        started = [self.start_worker(environment) for _ in range(number)]
        self.wait_for_workers()
        return started

    def wait_for_workers(self) -> None:
        """Waits until each running worker has sent a heartbeat and Spark is ready."""
        for part in self.workers:
            if part.is_running:
                self._wait(part, f"{part.name} to be ready", lambda part=part: self._is_ready(part))  # type: ignore[misc]

    def kill(self, part: Part) -> None:
        """Sends SIGKILL and waits until the process and its JVM have ended."""
        processes = list(family(part.process.pid))
        part.process.kill()
        part.process.wait(_END_SECONDS)
        wait_until_gone(processes)

    def stop(self, part: Part) -> int:
        """Sends SIGTERM, waits until the process and its JVM have ended, and returns the exit code."""
        processes = list(family(part.process.pid))
        part.process.send_signal(signal.SIGTERM)
        code = part.process.wait(_END_SECONDS)
        wait_until_gone(processes)
        return code

    def start_again(self, part: Part) -> None:
        """Restarts an ended process, an API on its old port, and waits until it is ready."""
        assert not part.is_running
        self._launch(part)
        for api in self.apis:
            if api.part is part:
                self._wait_for_api(api)
                return
        self._wait(part, f"{part.name} to be ready", lambda: self._is_ready(part))

    def retire_workers(self) -> None:
        """Stops all workers."""
        for part in self.workers:
            if part.is_running:
                part.process.send_signal(signal.SIGTERM)
        for part in self.workers:
            self._end(part)

    def read(self, query: Callable[[Session], T]) -> T:
        """Returns the result of `query` in a transaction."""
        with self.database.read() as session:
            return query(session)

    def all(self, statement: Executable) -> list[tuple[Any, ...]]:
        """Returns the rows of a statement."""
        return self.read(lambda session: [tuple(row) for row in session.execute(statement)])

    def logs(self) -> str:
        """Returns the end of every process's log, for the message of a failed test."""
        return "\n".join(
            f"--- {log.name}\n{log.read_text(errors='replace')[-_LOG_CHARACTERS:]}"
            for log in sorted(self.directory.glob("*.log"))
        )

    def internal_errors(self, job_id: str) -> str:
        """Returns what the workers logged about the internal errors of a job, each with its traceback."""
        found = []
        for part in self.workers:
            for line in part.said().splitlines():
                entry = _log_entry(line)
                if entry.get("job_id") == job_id and entry.get("event") in _INTERNAL_ERROR_EVENTS:
                    error = entry.pop("exception", "(no traceback)")
                    found.append(f"{part.name}: {json.dumps(entry)}\n{error}")
        return "\n".join(found) or f"No worker logged an internal error of job {job_id}."

    def close(self) -> None:
        """Ends every process with its JVM."""
        self.retire_workers()
        for api in self.apis:
            api.http.close()
            self._end(api.part)
        self.database.close()

    def _part(self, name: str, command: Sequence[str], environment: Mapping[str, str]) -> Part:
        own = {"EVENKEEL_STATE_DIR": str(self.directory / f"state-{name}"), **self._shared, **environment}
        part = Part(name, command, own, self.directory / f"{name}.log")
        self._launch(part)
        return part

    def _launch(self, part: Part) -> None:
        part.process = start_python(part.command, environment=part.environment, log=part.log, cwd=self.directory)

    def _wait(self, part: Part, what: str, probe: Callable[[], T | None]) -> T:
        def look() -> T | None:
            if not part.is_running:
                raise AssertionError(f"{part.name} ended with {part.process.returncode}")
            return probe()

        try:
            return wait_for(what, look, _START_SECONDS)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.logs()}") from None

    def _wait_for_api(self, api: Api) -> None:
        def answers() -> bool:
            with suppress(httpx.TransportError):
                return api.http.get("/healthz").is_success
            return False

        self._wait(api.part, "the API", answers)

    def _is_ready(self, part: Part) -> bool:
        return self.read(
            lambda session: any(
                row.pid == part.process.pid and row.spark_state == "ready" for row in session.query(WorkerRow)
            )
        )

    def _end(self, part: Part) -> None:
        processes = list(family(part.process.pid))
        if part.is_running:
            part.process.send_signal(signal.SIGCONT)
            end(part.process, _END_SECONDS)
        wait_until_gone(processes)


def _log_entry(line: str) -> dict[str, Any]:
    """Parses a line of a log. Returns an empty dictionary for a line that is not a JSON object."""
    with suppress(json.JSONDecodeError):
        entry = json.loads(line)
        if isinstance(entry, dict):
            return entry
    return {}


@dataclass(frozen=True)
class Servers:
    """The database and broker servers of a `Production`, which tests can restart."""

    postgres: PostgresServer
    redis: RedisServer


@contextmanager
def running_servers(directory: Path) -> Iterator[Servers]:
    """Runs PostgreSQL and Redis below `directory`."""
    with running_postgres(directory) as postgres, running_redis(directory) as redis:
        yield Servers(postgres, redis)


@contextmanager
def running_production(
    directory: Path,
    servers: Servers | None,
    *,
    apis: int = 2,
    workers: int = 3,
    environment: Mapping[str, str] | None = None,
) -> Iterator[Production]:
    """Runs all processes below `directory`.

    Without `servers`, they use SQLite and the embedded broker, and all processes share a state directory.
    """
    if servers is None:
        state = directory / "state"
        shared = {
            "EVENKEEL_STATE_DIR": str(state),
            "EVENKEEL_DATABASE_URL": f"sqlite:///{state / 'evenkeel.db'}",
        }
    else:
        shared = {
            "EVENKEEL_DATABASE_URL": servers.postgres.create_database("evenkeel"),
            "EVENKEEL_BROKER_URL": servers.redis.url,
        }
    with ExitStack() as stack:
        production = Production(directory, {**shared, **(environment or {})})
        stack.callback(production.close)
        production.migrate()
        for _ in range(apis):
            production.start_api()
        production.start_workers(workers)
        yield production
