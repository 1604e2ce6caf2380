"""Test of posting rows while the API is killed repeatedly: no row is lost or stored twice."""

from __future__ import annotations

import random
import signal
import subprocess
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import httpx
import pyarrow.parquet as pq
import pytest

from tests.support.counts import count
from tests.support.processes import end, free_port, start_python, wait_for

pytestmark = pytest.mark.e2e

SENDERS = 4
BATCHES = count(sample=20, full=40)
ROWS = 50
KILLS = count(sample=3, full=6)
SEED = 20260131


class Server:
    """An API process that is killed and started again."""

    def __init__(self, directory: Path) -> None:
        self.address = f"http://127.0.0.1:{free_port()}"
        self.state = directory / "state"
        self._log = directory / "api.log"
        self._cwd = directory
        self._environment = {
            "EVENKEEL_STATE_DIR": str(self.state),
            "EVENKEEL_API_PORT": self.address.rpartition(":")[2],
        }
        assert self._python("migrate").wait(60) == 0
        self.process = self._start()

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(30)
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        process = self._python("serve")
        wait_for("the API", self._answers, 60)
        return process

    def _python(self, command: str) -> subprocess.Popen[bytes]:
        return start_python(["-m", "service.cli", command], environment=self._environment, log=self._log, cwd=self._cwd)

    def _answers(self) -> bool | None:
        try:
            return httpx.get(f"{self.address}/healthz", trust_env=False).is_success or None
        except httpx.TransportError:
            return None


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    own = Server(tmp_path)
    yield own
    end(own.process)


def send(address: str, sender: int) -> None:
    """Posts batches and repeats each until it is accepted."""
    with httpx.Client(base_url=address, timeout=30, trust_env=False) as client:
        for number in range(BATCHES):
            wait_for(f"batch {sender}/{number}", partial(is_accepted, client, sender, number), 120)


def is_accepted(client: httpx.Client, sender: int, number: int) -> bool | None:
    """Returns whether the API accepted the batch; None if it was unreachable."""
    try:
        answer = client.post(
            "/v1/streams/clicks/rows",
            params={"batch_id": f"{sender}/{number}"},
            content="".join(f'{{"uid": {uid}}}\n' for uid in uids(sender, number)),
            headers={"Content-Type": "application/x-ndjson"},
        )
    except httpx.TransportError:
        return None
    assert answer.status_code in {202, 503}, answer.text
    return answer.status_code == 202 or None


def uids(sender: int, number: int) -> range:
    first = (sender * BATCHES + number) * ROWS
    return range(first, first + ROWS)


@pytest.mark.withstands(
    "the API dies while rows are posted",
    how="`kill -9` at random moments; posts are repeated with their batch id",
    times=1,
    guaranteed="every row is stored once",
)
@pytest.mark.slow
def test_every_row_is_stored_once(server: Server) -> None:
    chance = random.Random(SEED)
    declared = httpx.put(f"{server.address}/v1/streams/clicks", json={"schema": "uid BIGINT"}, trust_env=False)
    assert declared.status_code == 201
    senders = [threading.Thread(target=send, args=(server.address, sender)) for sender in range(SENDERS)]
    for sender in senders:
        sender.start()
    for _ in range(KILLS):
        senders[0].join(chance.uniform(0.05, 0.6))
        server.kill()
    for sender in senders:
        sender.join()
    known = httpx.get(f"{server.address}/v1/streams/clicks", trust_env=False).json()
    files = list(server.state.glob("streams/input/default/clicks/*/*.parquet"))
    found = sorted(uid for file in files for uid in pq.read_table(file).column("uid").to_pylist())
    assert found == list(range(SENDERS * BATCHES * ROWS))
    assert (known["batches"], known["rows"]) == (SENDERS * BATCHES, len(found))
