"""Measures response times while many clients poll, submit and listen to events.

    python tests/benchmarks/load.py [--seconds 60] [--pollers 1000] [--every 5] [--submissions 50] [--streams 200]
                                    [--finished 10000] [--apis 1] [--embedded]

Starts PostgreSQL and Redis (with `--embedded`, SQLite and the folder broker) and `--apis` APIs without a worker, and
stores ten thousand finished jobs. For `--seconds`, each poller requests a job with its ETag every five seconds over its
own connection; meanwhile jobs are submitted, the newest are listed twice a second, and event streams of waiting jobs
stay open. Then it polls and submits as fast as it can over 16 connections. Every request has an API key. Times start
when a request is due, not when it is sent, so that delays by earlier requests count. The load comes from one process on
the same machine. Prints rows of a Markdown table and the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import random
import ssl
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.support.burst import small_job, write_small
from tests.support.lifecycle import add_finished
from tests.support.machine import machine
from tests.support.production import Production, running_production, running_servers

_SEED = 6
_LISTS_A_SECOND = 2
_CONNECTIONS = 16
_CAPACITY_SECONDS = 10.0
_HEAD = (
    "| database | APIs | what | asked a second | median | p95 | p99 | longest | failed |\n"
    "| --- " + "| ---: " * 8 + "|\n"
)


@dataclass
class Figures:
    """The figures of one kind of request: seconds from when each was due, and the number of failures."""

    seconds: list[float] = field(default_factory=list)
    failed: int = 0

    def row(self, elapsed: float) -> str:
        """Returns the cells of the table."""
        times = sorted(self.seconds) or [0.0]
        shown = (statistics.median(times), _share(times, 0.95), _share(times, 0.99), times[-1])
        cells = " | ".join(f"{1000 * one:.0f} ms" for one in shown)
        return f"{len(self.seconds) / elapsed:.0f} | {cells} | {self.failed}"


def _share(times: Sequence[float], share: float) -> float:
    return times[min(len(times) - 1, int(share * len(times)))]


class Load:
    """All the clients of one run, in one event loop."""

    def __init__(self, addresses: Sequence[str], key: str, arguments: argparse.Namespace) -> None:
        self._headers = {"Authorization": f"Bearer {key}"}
        self._security = ssl.create_default_context()
        self._clients: list[httpx.AsyncClient] = []
        self.http = self._client()
        self._addresses = itertools.cycle(f"{address}/v1/jobs" for address in addresses)
        self.figures: dict[str, Figures] = defaultdict(Figures)
        self.events = 0
        self._asked = arguments
        self._random = random.Random(_SEED)

    def _client(self) -> httpx.AsyncClient:
        """Returns a client with its own connections: a shared pool would search all connections for every request."""
        client = httpx.AsyncClient(headers=self._headers, timeout=60, trust_env=False, verify=self._security)
        self._clients.append(client)
        return client

    async def close(self) -> None:
        """Closes all connections."""
        for client in self._clients:
            await client.aclose()

    async def run(self, finished: Sequence[str], waiting: Sequence[str]) -> float:
        """Runs the whole load and returns its seconds."""
        streams = [asyncio.create_task(self._listen(job_id)) for job_id in waiting]
        await asyncio.sleep(1)
        began = time.perf_counter()
        polls = [self._poll(self._random.choice(finished), began) for _ in range(self._asked.pollers)]
        await asyncio.gather(
            *polls,
            self._at_a_rate("submit a job", self._asked.submissions, began, self._submit),
            self._at_a_rate("list jobs", _LISTS_A_SECOND, began, self._list),
        )
        elapsed = time.perf_counter() - began
        for stream in streams:
            stream.cancel()
        await asyncio.gather(*streams, return_exceptions=True)
        return elapsed

    async def capacity(self, what: str, ask: Callable[[], Coroutine[Any, Any, httpx.Response]]) -> float:
        """Sends requests as fast as possible over a few connections and returns the seconds."""
        began = time.perf_counter()

        async def go_on() -> None:
            while (due := time.perf_counter()) - began < _CAPACITY_SECONDS:
                await self._timed(what, due, ask())

        await asyncio.gather(*(go_on() for _ in range(_CONNECTIONS)))
        return time.perf_counter() - began

    async def ask(self, job_id: str, tag: str, client: httpx.AsyncClient | None = None) -> httpx.Response:
        """Polls an unchanged job."""
        return await (client or self.http).get(f"{next(self._addresses)}/{job_id}", headers={"If-None-Match": tag})

    async def _poll(self, job_id: str, began: float) -> None:
        due = began + self._random.random() * self._asked.every
        client, tag = self._client(), ""
        while due < began + self._asked.seconds:
            await asyncio.sleep(due - time.perf_counter())
            answer = await self._timed("poll a job", due, self.ask(job_id, tag, client))
            tag = tag if answer is None else answer.headers.get("ETag", tag)
            due += self._asked.every

    async def _at_a_rate(
        self, what: str, a_second: float, began: float, ask: Callable[[], Coroutine[Any, Any, httpx.Response]]
    ) -> None:
        under_way = set()
        for number in range(round(a_second * self._asked.seconds)):
            due = began + number / a_second
            await asyncio.sleep(due - time.perf_counter())
            under_way.add(asyncio.create_task(self._timed(what, due, ask())))
        await asyncio.gather(*under_way)

    async def _timed(self, what: str, due: float, request: Awaitable[httpx.Response]) -> httpx.Response | None:
        figures = self.figures[what]
        try:
            answer = await request
        except httpx.TransportError:
            figures.failed += 1
            return None
        figures.seconds.append(time.perf_counter() - due)
        figures.failed += answer.status_code >= 400
        return answer

    async def _listen(self, job_id: str) -> None:
        async with self._client().stream("GET", f"{next(self._addresses)}/{job_id}/events", timeout=None) as answer:
            async for line in answer.aiter_lines():
                self.events += line.startswith("id:")

    async def _submit(self) -> httpx.Response:
        return await self.http.post(next(self._addresses), json=small_job(self._random.randrange(1_000)))

    async def _list(self) -> httpx.Response:
        return await self.http.get(next(self._addresses), params={"page_size": 50})

    async def submit_one(self) -> str:
        """Submits a job, which stays queued, and returns its id."""
        answer = await self._submit()
        answer.raise_for_status()
        return str(answer.json()["id"])


def main() -> None:
    """Measures and prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--pollers", type=int, default=1_000)
    parser.add_argument("--every", type=float, default=5, help="seconds between two requests of a poller")
    parser.add_argument("--submissions", type=float, default=50, help="a second")
    parser.add_argument("--streams", type=int, default=200, help="open streams of events")
    parser.add_argument("--finished", type=int, default=10_000, help="finished jobs in the list")
    parser.add_argument("--apis", type=int, default=1, help="processes of the API")
    parser.add_argument("--embedded", action="store_true", help="SQLite and the folder broker")
    arguments = parser.parse_args()
    limits = {
        "EVENKEEL_LIMITS_QUEUED_JOBS": "0",
        "EVENKEEL_API_AUTHENTICATION": "on",
    }
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        path = Path(directory)
        servers = None if arguments.embedded else stack.enter_context(running_servers(path))
        started = running_production(path / "production", servers, apis=arguments.apis, workers=0, environment=limits)
        (path / "production").mkdir()
        production = stack.enter_context(started)
        write_small(production.data)
        sys.stdout.write(_HEAD)
        asyncio.run(_measure(production, arguments, "SQLite" if arguments.embedded else "PostgreSQL"))
    sys.stdout.write(f"\n{machine()}\n")


async def _measure(production: Production, arguments: argparse.Namespace, database: str) -> None:
    load = Load([api.address for api in production.apis], production.key(tenant="default"), arguments)
    finished = add_finished(production.database, await load.submit_one(), arguments.finished)
    waiting = [await load.submit_one() for _ in range(arguments.streams)]
    processes = [psutil.Process(api.part.process.pid) for api in production.apis]
    cpu, own = _cpu(processes), time.process_time()
    elapsed = await load.run(finished, waiting)
    used, own = (_cpu(processes) - cpu) / elapsed, (time.process_time() - own) / elapsed
    for what, figures in load.figures.items():
        sys.stdout.write(f"| {database} | {arguments.apis} | {what} | {figures.row(elapsed)} |\n")
    sys.stdout.write(
        f"\nProcessor of the APIs: {100 * used:.0f} % of a core; of the load itself: {100 * own:.0f} %. "
        f"Events: {load.events}.\n\n"
    )
    load.figures.clear()
    answer = await load.ask(finished[0], "")
    tag = answer.headers["ETag"]
    asks = {"poll, as fast as it goes": lambda: load.ask(finished[0], tag), "submit, as fast as it goes": load._submit}
    for what, ask in asks.items():
        cpu = _cpu(processes)
        elapsed = await load.capacity(what, ask)
        used = (_cpu(processes) - cpu) / elapsed
        row = load.figures[what].row(elapsed)
        sys.stdout.write(f"| {database} | {arguments.apis} | {what} | {row} |  {100 * used:.0f} % of a core\n")
    await load.close()


def _cpu(processes: Sequence[psutil.Process]) -> float:
    times = [one.cpu_times() for one in processes]
    return sum(one.user + one.system for one in times)


if __name__ == "__main__":
    main()
