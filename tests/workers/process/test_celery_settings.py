"""The consumption of messages on real Redis servers: a job is a line in a file, all else is as in every worker."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis
import trustme

from service.broker.dispatch import Dispatcher
from service.broker.transports import RUN_JOB
from service.config.settings import Settings
from tests.support.processes import end, start_python, wait_for
from tests.support.servers import RedisServer, running_redis
from tests.support.tls import behind_tls, server_context, write_ca
from workers.process.queue_consumer import worker_config

pytestmark = pytest.mark.e2e

PREFIX = "one:"
LISTENER = str(Path(__file__).parents[2] / "support" / "listener.py")


class Line:
    """A Redis with a password, those who listen to it with two threads each, and the API's end of it."""

    def __init__(self, directory: Path, server: RedisServer, held: ExitStack) -> None:
        self.server = server
        self.arrived = directory / "arrived"
        self.gate = directory / "gate"
        self.log = directory / "listeners.log"
        self.arrived.touch()
        self._directory = directory
        self._held = held
        self.settings = Settings()
        self.dispatcher = Dispatcher(self.settings)
        self.listeners: list[subprocess.Popen[bytes]] = []

    def listen(self, queues: str = "short,long") -> subprocess.Popen[bytes]:
        """One more listener, which is ready."""
        ready = self._ready()
        process = self.start(queues)
        wait_for("the listener", lambda: self._ready() > ready, 60)
        return process

    def start(self, queues: str = "short,long") -> subprocess.Popen[bytes]:
        """One more listener, which may not be ready."""
        process = start_python(
            [LISTENER, str(self.arrived), str(self.gate)],
            environment={"EVENKEEL_WORKER_QUEUES": queues},
            log=self.log,
            cwd=self._directory,
        )
        self._held.callback(end, process)
        self.listeners.append(process)
        return process

    def announce(self, *job_ids: str, queue: str = "short") -> None:
        """Rings until the broker takes each message."""
        for job_id in job_ids:
            wait_for(f"the broker to take {job_id}", partial(self.dispatcher.announce, [job_id], queue))

    def wait(self, *job_ids: str, seconds: float = 60) -> None:
        """Waits until all of them have come."""

        def come() -> bool:
            return set(job_ids) <= set(self.came())

        try:
            wait_for(f"{job_ids}", come, seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}; came: {self.came()}\n{self.log.read_text()[-5000:]}") from None

    def came(self) -> list[str]:
        """Ids in order of arrival."""
        return self.arrived.read_text().split()

    def _ready(self) -> int:
        return self.log.read_text().count(" ready.") if self.log.exists() else 0


@contextmanager
def a_line(directory: Path, server: RedisServer, environment: Mapping[str, str]) -> Iterator[Line]:
    with ExitStack() as held, pytest.MonkeyPatch.context() as patch:
        for name, value in {
            "STATE_DIR": str(directory),
            "BROKER_KEY_PREFIX": PREFIX,
            "BROKER_TIMEOUT_SECONDS": "1",
            "WORKER_CONCURRENCY": "2",
            "WORKER_RESERVED_SLOTS": "0",
            **environment,
        }.items():
            patch.setenv(f"EVENKEEL_{name}", value)
        line = Line(directory, server, held)
        held.callback(line.dispatcher.close)
        yield line


@pytest.fixture(scope="module")
def line(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Line]:
    directory = tmp_path_factory.mktemp("line")
    with running_redis(directory, "geheim") as server, a_line(directory, server, {"BROKER_URL": server.url}) as line:
        line.listen()
        yield line


@pytest.fixture
def client(line: Line) -> Iterator[redis.Redis]:
    with line.server.client() as client:
        yield client


def test_both_queues_are_heard_and_every_key_has_the_prefix(line: Line, client: redis.Redis) -> None:
    line.announce("a1")
    line.announce("a2", queue="long")
    line.wait("a1", "a2")
    assert client.keys(f"{PREFIX}*")
    assert sorted(client.keys("*")) == sorted(client.keys(f"{PREFIX}*"))


def test_a_message_of_the_next_version_is_understood(line: Line) -> None:
    send = line.dispatcher._celery.send_task
    send(RUN_JOB, args=["b1", {"more": 1}], kwargs={"tenant": "t"}, queue="evenkeel", headers={"new": "header"})
    line.wait("b1")


def test_what_is_no_message_of_ours_is_dropped_and_ends_nobody(line: Line, client: redis.Redis) -> None:
    line.announce("good")
    line.wait("good")
    line.dispatcher._celery.send_task("unknown", args=["x"], queue="evenkeel")
    line.dispatcher._celery.send_task(RUN_JOB, args=["x"], queue="evenkeel", serializer="pickle")
    envelope: dict[str, Any] = {
        "headers": {"task": RUN_JOB, "id": "1"},
        "content-type": "application/json",
        "content-encoding": "utf-8",
        "properties": {"delivery_tag": "1", "delivery_info": {"exchange": "", "routing_key": "evenkeel"}},
    }
    garbage = ["nonsense", "\udcff", "null", json.dumps({**envelope, "body": "bnVsbA=="}), json.dumps(envelope)]
    for text in garbage:
        client.lpush(f"{PREFIX}evenkeel", text.encode(errors="surrogateescape"))
    line.announce("c1")
    line.wait("c1")
    assert [process.poll() for process in line.listeners] == [None]
    # A task may come before the word that its message was taken reaches the broker.
    wait_for("every message to be acknowledged", lambda: client.hlen(f"{PREFIX}unacked") == 0 or None)
    assert "x" not in line.came()
    assert line.log.read_text().count("message_dropped") == len(garbage) + 2


def test_a_busy_worker_keeps_no_messages_from_others(line: Line, client: redis.Redis) -> None:
    line.announce("wait-1", "wait-2")
    line.wait("wait-1", "wait-2")
    line.announce("d1", "d2")
    line.announce("d3", queue="long")
    # What it wrongly took, it would have taken by the time that a listener needs to start.
    short = line.listen("short")
    line.wait("d1", "d2")
    assert client.llen(f"{PREFIX}evenkeel.long") == 1, "that one is not for who listens to the short queue alone"
    end(short)
    line.listeners.remove(short)
    line.gate.touch()
    line.wait("d3")
    line.gate.unlink()


def test_the_worker_continues_after_redis_was_flushed(line: Line, client: redis.Redis) -> None:
    client.flushall()
    line.announce("e1")
    line.announce("e2", queue="long")
    line.wait("e1", "e2")


def test_a_frozen_redis_costs_one_caller_its_time(line: Line) -> None:
    line.server.freeze()
    try:
        assert line.dispatcher.announce(["f1"], "short") == ()
        started = time.process_time()
        assert [line.dispatcher.announce(["f1"], "short") for _ in range(100)] == [()] * 100
        assert time.process_time() - started < 1
    finally:
        line.server.thaw()
    line.announce("f2")
    line.wait("f2")


def test_the_worker_reconnects_to_redis(line: Line) -> None:
    line.server.stop(signal.SIGKILL)
    assert line.dispatcher.announce(["g1"], "short") == ()
    line.server.start()
    line.announce("g2")
    line.wait("g2")
    assert [process.poll() for process in line.listeners] == [None]


def test_the_password_is_in_no_log(line: Line) -> None:
    assert "geheim" not in line.log.read_text()


@pytest.mark.withstands(
    "a worker connects to an impostor of Redis",
    kind="attack",
    how="TLS with a certificate of another CA, then with the right certificate",
    times=1,
    guaranteed="the worker logs the reason and sends nothing, not even its password; it connects by itself once the "
    "certificate is right",
)
def test_a_worker_sends_nothing_to_an_impostor_and_continues_with_tls(line: Line, tmp_path: Path) -> None:
    ca = trustme.CA()
    files = {"BROKER_PASSWORD": line.server.password, "BROKER_TLS_CA_FILE": str(write_ca(ca, tmp_path / "ca.pem"))}
    with behind_tls(line.server.port, trustme.CA().issue_cert("localhost")) as front:
        url = f"rediss://localhost:{front.port}/0"
        with a_line(tmp_path, line.server, {**files, "BROKER_URL": url, "BROKER_KEY_PREFIX": "tls:"}) as own:
            own.start()
            wait_for("its word", lambda: own.log.exists() and "CERTIFICATE_VERIFY_FAILED" in own.log.read_text(), 60)
            assert own.dispatcher.announce(["h1"], "short") == ()
            assert front.heard == b""
            front.context = server_context(ca.issue_cert("localhost"))
            own.announce("h2", queue="long")
            own.wait("h2")
            assert own.came() == ["h2"]
            burst = [f"h{number}" for number in range(3, 203)]
            own.announce(*burst)
            own.wait(*burst)
            said = own.log.read_text()
    assert f"Cannot connect to rediss://:**@localhost:{front.port}/0: " in said
    assert line.server.password not in said
    assert line.server.password.encode() in front.heard


def test_a_worker_retries_the_connection_to_its_broker_for_ever(line: Line) -> None:
    config = worker_config(line.settings)
    assert config["broker_connection_max_retries"] is None
    assert config["broker_connection_retry_on_startup"] is True
