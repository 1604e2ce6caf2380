"""Measures requests a second, processor time, response times and memory of the API, beside a uvicorn that does nothing.

    python tests/benchmarks/load.py [--seconds 5] [--rounds 3] [--connections 16] [--finished 10000] [--events 1000]
                                    [--rate 500] [--jobs 2] [--apis 1] [--postgres] [--only polls,submissions,…]

Starts an API with SQLite and the folder broker (with `--postgres`, PostgreSQL and Redis), and stores ten thousand
finished jobs. Then it measures in rounds, so that both sides see the same machine: requests that do nothing to the bare
uvicorn, conditional polls, submissions, and lists of fifty jobs, each as fast as the connections go. After that, it
opens `--events` streams of events and reads the memory of the API. At last it starts a worker with `--jobs` jobs that
run until they are stopped, and polls `--rate` times a second; those times count from when a request was due. Every
request has an API key. The load comes from one process on the same machine. Prints Markdown tables and the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import random
import socket
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import psutil
from sqlalchemy import delete, text

sys.path.insert(0, str(Path(__file__).parents[2]))

from service.contract.enums import JobStatus
from service.store.tables import JobRow
from tests.benchmarks.http_load import Connection, Times, as_fast_as_possible, at_a_rate, request
from tests.support.burst import small_job, write_small
from tests.support.lifecycle import add_finished
from tests.support.machine import machine
from tests.support.production import Production, running_production, running_servers
from tests.support.tables import ENDLESS, write_endless

_SEED = 6
_POLLED = 500
"""Different jobs that are polled."""
_BARE, _POLLS, _SUBMISSIONS, _LISTS = "bare uvicorn", "polls", "submissions", "lists"
_HOST = "127.0.0.1"
_MB = 1 << 20
_OPEN_SECONDS = 120.0


@dataclass(frozen=True)
class Kind:
    """A kind of request: to which ports, the requests, the expected status, and the processes that answer."""

    ports: Sequence[int]
    requests: Sequence[bytes]
    status: int
    processes: Sequence[psutil.Process]

    def endless(self) -> Iterator[bytes]:
        """Returns requests in a random order, without end."""
        order = random.Random(_SEED)
        return (order.choice(self.requests) for _ in itertools.count())

    async def connections(self, number: int) -> list[Connection]:
        """Opens connections to the ports in turn."""
        return [await Connection.open(_HOST, self.ports[place % len(self.ports)]) for place in range(number)]


@dataclass
class Total:
    """The figures of all rounds of a kind of request."""

    times: Times = field(default_factory=Times)
    elapsed: float = 0.0
    processor: float = 0.0

    @property
    def rate(self) -> float:
        """Requests a second."""
        return len(self.times.seconds) / self.elapsed

    @property
    def cost(self) -> float:
        """Milliseconds of processor time of the server for each request."""
        return 1000 * self.processor / max(1, len(self.times.seconds))


def main() -> None:
    """Measures and prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5, help="of each kind of request in each round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--finished", type=int, default=10_000, help="finished jobs in the list")
    parser.add_argument("--events", type=int, default=1_000, help="open streams of events; 0 for none")
    parser.add_argument("--rate", type=float, default=500, help="polls a second while jobs run")
    parser.add_argument("--jobs", type=int, default=2, help="running jobs; 0 to start no worker")
    parser.add_argument("--apis", type=int, default=1, help="processes of the API")
    parser.add_argument("--postgres", action="store_true", help="PostgreSQL and Redis")
    parser.add_argument("--only", default=",".join((_POLLS, _SUBMISSIONS, _LISTS)), help="kinds of requests")
    arguments = parser.parse_args()
    environment = {"EVENKEEL_LIMITS_QUEUED_JOBS": "0", "EVENKEEL_API_AUTHENTICATION": "on"}
    if arguments.jobs:
        environment |= {"EVENKEEL_SPARK_MASTER": "local[*]", "EVENKEEL_WORKER_CONCURRENCY": str(arguments.jobs)}
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        path = Path(directory)
        servers = stack.enter_context(running_servers(path)) if arguments.postgres else None
        (path / "production").mkdir()
        production = stack.enter_context(
            running_production(path / "production", servers, apis=arguments.apis, workers=0, environment=environment)
        )
        write_small(production.data)
        write_endless(production.data)
        port, bare = stack.enter_context(_bare_uvicorn())
        _Measurement(production, arguments, port, bare).run()
    _write(f"\n{machine()}")


class _Measurement:
    """All measurements of one service."""

    def __init__(self, production: Production, arguments: argparse.Namespace, port: int, bare: psutil.Process) -> None:
        self._production = production
        self._asked = arguments
        self._database = "PostgreSQL" if arguments.postgres else "SQLite"
        self._headers = {"Authorization": f"Bearer {production.key(tenant='default')}"}
        self._ports = [urlsplit(api.address).port or 0 for api in production.apis]
        self._processes = [psutil.Process(api.part.process.pid) for api in production.apis]
        self._bare = Kind([port], [request("GET", "/", self._headers)], 204, [bare])

    def run(self) -> None:
        """Measures everything."""
        first = self._production.apis[0].http.post("/v1/jobs", json=small_job(3), headers=self._headers)
        first.raise_for_status()
        finished = add_finished(self._production.database, first.json()["id"], self._asked.finished)
        if self._asked.postgres:
            # As autovacuum does within a minute; until then, the server does not choose the index for lists.
            with self._production.database.look() as session:
                session.execute(text("ANALYZE"))
        asyncio.run(self._capacity(self._polls(finished[:_POLLED])))
        if self._asked.events:
            asyncio.run(self._memory(first.json()["id"]))
        if self._asked.jobs:
            self._start_jobs()
            asyncio.run(self._rate(self._polls(finished[:_POLLED])))

    def _polls(self, finished: Sequence[str]) -> Kind:
        http = self._production.apis[0].http
        tags = {one: http.get(f"/v1/jobs/{one}", headers=self._headers).headers["ETag"] for one in finished}
        polls = [
            request("GET", f"/v1/jobs/{one}", {**self._headers, "If-None-Match": tag}) for one, tag in tags.items()
        ]
        return Kind(self._ports, polls, 304, self._processes)

    async def _capacity(self, polls: Kind) -> None:
        submissions = [request("POST", "/v1/jobs", self._headers, small_job(number)) for number in range(100)]
        lists = [request("GET", "/v1/jobs?page_size=50", self._headers)]
        kinds: Mapping[str, Kind] = {
            _BARE: self._bare,
            _POLLS: polls,
            _SUBMISSIONS: Kind(self._ports, submissions, 202, self._processes),
            _LISTS: Kind(self._ports, lists, 200, self._processes),
        }
        chosen = {_BARE, *self._asked.only.split(",")}
        totals: dict[str, Total] = defaultdict(Total)
        for _ in range(self._asked.rounds):
            for name, kind in kinds.items():
                if name in chosen:
                    # One list at a time, as a page asks for it.
                    number = 1 if name == _LISTS else self._asked.connections
                    await _measure(totals[name], kind, number, self._asked.seconds)
        _write(
            f"| {self._database}, {len(self._ports)} API | a second | of bare uvicorn | processor time each | median "
            f"| p99 | failed |\n| --- {'| ---: ' * 6}|"
        )
        for name, total in totals.items():
            share = "" if name == _BARE else f"{100 * total.rate / totals[_BARE].rate:.0f} %"
            _write(
                f"| {name} | {total.rate:,.0f} | {share} | {total.cost:.2f} ms | {total.times.median:.1f} ms "
                f"| {total.times.share(0.99):.0f} ms | {total.times.failed} |"
            )

    async def _memory(self, waiting: str) -> None:
        before = _memory_of(self._processes)
        events = request("GET", f"/v1/jobs/{waiting}/events", {**self._headers, "Accept": "text/event-stream"})
        kind = Kind(self._ports, [events], 200, self._processes)
        listening = await kind.connections(self._asked.events)
        for connection in listening:
            connection.listen(events)
        began, received = time.monotonic(), 0
        while received < len(listening) and time.monotonic() - began < _OPEN_SECONDS:
            await asyncio.sleep(1)
            received = sum(connection.events > 0 for connection in listening)
        after = _memory_of(self._processes)
        for connection in listening:
            connection.close()
        _write(
            f"\n{received} streams of events: {after / _MB:.0f} MB resident in all API processes, "
            f"{before / _MB:.0f} MB before."
        )

    def _start_jobs(self) -> None:
        with self._production.database.write() as session:
            # The submissions that were measured would run first.
            session.execute(delete(JobRow).where(JobRow.status == JobStatus.QUEUED.value))
        self._production.start_workers(1)
        api = self._production.apis[0]
        ids = [
            api.http.post("/v1/jobs", json=ENDLESS, headers=self._headers).json()["id"] for _ in range(self._asked.jobs)
        ]
        for job_id in ids:
            api.wait(job_id, "RUNNING")

    async def _rate(self, polls: Kind) -> None:
        _write(
            f"\n| {self._database}, {self._asked.jobs} running jobs | a second | median | p95 | p99 | longest "
            f"| failed |\n| --- {'| ---: ' * 6}|"
        )
        totals: dict[str, Times] = defaultdict(Times)
        for _ in range(self._asked.rounds):
            for name, kind in ((_BARE, self._bare), (_POLLS, polls)):
                connections = await kind.connections(4 * self._asked.connections)
                times = await at_a_rate(connections, kind.endless(), self._asked.rate, self._asked.seconds, kind.status)
                totals[name].add(times)
                for connection in connections:
                    connection.close()
        for name, times in totals.items():
            _write(
                f"| {name} | {self._asked.rate:.0f} | {times.median:.1f} ms | {times.share(0.95):.0f} ms "
                f"| {times.share(0.99):.0f} ms | {times.longest:.0f} ms | {times.failed} |"
            )


async def _measure(total: Total, kind: Kind, number: int, seconds: float) -> None:
    connections = await kind.connections(number)
    before = _cpu(kind.processes)
    times, elapsed = await as_fast_as_possible(connections, kind.endless, seconds, kind.status)
    total.processor += _cpu(kind.processes) - before
    total.elapsed += elapsed
    total.times.add(times)
    for connection in connections:
        connection.close()


@contextmanager
def _bare_uvicorn() -> Iterator[tuple[int, psutil.Process]]:
    """Runs the bare uvicorn. Yields its port and its process."""
    with socket.socket() as listener:
        listener.bind((_HOST, 0))
        listener.listen(1024)
        # Connections wait in the socket until it has started.
        command = [sys.executable, str(Path(__file__).with_name("bare_server.py")), str(listener.fileno())]
        process = subprocess.Popen(command, pass_fds=[listener.fileno()])
        try:
            yield listener.getsockname()[1], psutil.Process(process.pid)
        finally:
            process.terminate()
            process.wait()


def _cpu(processes: Sequence[psutil.Process]) -> float:
    times = [one.cpu_times() for one in processes]
    return sum(one.user + one.system for one in times)


def _memory_of(processes: Sequence[psutil.Process]) -> int:
    return sum(one.memory_info().rss for one in processes)


def _write(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
