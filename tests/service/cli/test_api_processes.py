"""`evenkeel serve` with several processes at one address."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
import pytest
from sqlalchemy import update

from service.store.session import Database
from service.store.tables import JobRow
from tests.support import lifecycle
from tests.support.processes import end, family, start_python, wait_for, wait_until_gone

_LISTENS = re.compile(r"Evenkeel listens on (http://\S+)")
_PROCESS = re.compile(r'process="(\d+)"')
_CHANGES = 200
_CONNECTIONS = 8


@dataclass
class Served:
    """The parent process, its output and its address."""

    process: subprocess.Popen[bytes]
    output: Path
    address: str

    def client(self) -> httpx.Client:
        """Returns a client with one connection of its own, which is one of any of the processes."""
        return httpx.Client(base_url=self.address, timeout=60, trust_env=False)

    def clients_of_all(self, stack: ExitStack) -> list[httpx.Client]:
        """Returns clients whose connections go to two processes."""
        clients: dict[str, list[httpx.Client]] = {}
        while len(clients) < 2 or sum(map(len, clients.values())) < _CONNECTIONS:
            client = stack.enter_context(self.client())
            # A request is counted after its answer was sent.
            number = wait_for("its number", lambda: _PROCESS.search(client.get("/metrics").text)).group(1)  # noqa: B023
            clients.setdefault(number, []).append(client)
        return [client for several in clients.values() for client in several]


@pytest.fixture
def served(tmp_path: Path, state_dir: Path, database: Database, database_url: str) -> Iterator[Served]:
    output = tmp_path / "serve.log"
    environment = {
        "EVENKEEL_STATE_DIR": str(state_dir),
        "EVENKEEL_DATABASE_URL": database_url,
        # With PostgreSQL, callers need a key unless this is set.
        "EVENKEEL_API_AUTHENTICATION": "off",
    }
    process = start_python(
        ["-m", "service.cli", "serve", "--port", "0", "--processes", "2"],
        environment=environment,
        log=output,
        cwd=tmp_path,
    )
    try:
        address = wait_for("the address", lambda: _LISTENS.search(output.read_text()), 60).group(1)
        yield Served(process, output, address)
    finally:
        end(process)


@pytest.mark.not_quick
def test_no_client_sees_an_older_version_than_before(served: Served, database: Database) -> None:
    """Whichever process answers, and whatever the job is read with."""
    job_id = lifecycle.insert(database)
    done = threading.Event()

    def change() -> None:
        for _ in range(_CHANGES):
            with database.write() as session:
                session.execute(update(JobRow).where(JobRow.id == job_id).values(version=JobRow.version + 1))
        done.set()

    def read(client: httpx.Client, turn: int, tag: str) -> tuple[int | None, str]:
        """Returns the version that the client sees, None for that of `tag`; and the tag of what it sees."""
        if turn % 4 == 3:
            (listed,) = client.get("/v1/jobs").json()["jobs"]
            return int(listed["version"]), tag
        answer = client.get(f"/v1/jobs/{job_id}", headers={"If-None-Match": tag} if tag else {})
        if answer.status_code == httpx.codes.NOT_MODIFIED:
            return None, tag
        return int(answer.json()["version"]), answer.headers["ETag"]

    def follow(clients: list[httpx.Client]) -> list[int]:
        seen, tag, turn = [1], "", 0
        while not done.is_set() or turn < _CONNECTIONS:
            before = tag
            version, tag = read(clients[turn % len(clients)], turn, tag)
            if version is None:
                # 304: the newest version that was seen is the one of the tag.
                version = int(before.strip('"').partition("-")[0])
            seen.append(version)
            turn += 1
        return seen

    with ExitStack() as stack, ThreadPoolExecutor(3) as pool:
        followers = [pool.submit(follow, served.clients_of_all(stack)) for _ in range(2)]
        pool.submit(change).result()
        for follower in followers:
            seen = follower.result()
            assert seen == sorted(seen)
    with served.client() as client:
        assert client.get(f"/v1/jobs/{job_id}").json()["version"] == 1 + _CHANGES


@pytest.mark.one_database("sqlite")
@pytest.mark.not_quick
def test_a_killed_process_is_started_again(served: Served) -> None:
    with ExitStack() as stack:
        served.clients_of_all(stack)
    children = psutil.Process(served.process.pid).children()
    assert len(children) == 2
    os.kill(children[0].pid, signal.SIGKILL)
    wait_for("the message", lambda: "ended (SIGKILL); restarting it" in served.output.read_text())
    with served.client() as client:
        assert client.get("/healthz").status_code == 200
    with ExitStack() as stack:
        served.clients_of_all(stack)


@pytest.mark.one_database("sqlite")
@pytest.mark.not_quick
def test_a_signal_ends_all_processes(served: Served) -> None:
    with ExitStack() as stack:
        served.clients_of_all(stack)
    processes = list(family(served.process.pid))
    assert len(processes) == 3
    os.kill(served.process.pid, signal.SIGTERM)
    assert served.process.wait(60) == 0, served.output.read_text()
    wait_until_gone(processes)
