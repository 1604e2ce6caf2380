"""The dispatcher: one message for each job, and no failure if the broker is unavailable."""

from __future__ import annotations

import base64
import json
import socket
import stat
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from service.broker.configuration import broker_fault, celery_config
from service.broker.dispatch import Dispatcher, build_celery
from service.broker.transports import RUN_JOB, FolderTransport
from service.config.settings import Settings
from tests.support.servers import running_redis


@pytest.fixture
def away(monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Settings of a Redis that does not run."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        monkeypatch.setenv("EVENKEEL_BROKER_URL", f"redis://127.0.0.1:{unused.getsockname()[1]}/0")
        return Settings()


def test_a_message_contains_only_the_job_id(settings: Settings) -> None:
    dispatcher = Dispatcher(settings)
    assert dispatcher.announce(["a", "b"], "short") == ("a", "b")
    dispatcher.close()
    messages = [json.loads(path.read_text()) for path in (settings.broker_dir / "messages").iterdir()]
    bodies = [json.loads(base64.b64decode(message["body"])) for message in messages]
    assert sorted(body[0][0] for body in bodies) == ["a", "b"]
    assert {message["headers"]["task"] for message in messages} == {RUN_JOB}
    suffixes = {path.name.split(".", 1)[1] for path in (settings.broker_dir / "messages").iterdir()}
    assert suffixes == {"evenkeel.msg"}, "the name that workers of the version before listen to"


def test_the_folders_are_readable_only_by_their_owner(settings: Settings) -> None:
    celery_config(settings)
    for folder in (settings.broker_dir, settings.broker_dir / "messages", settings.broker_dir / "control"):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_an_unavailable_broker_is_noticed_soon_and_does_not_raise(away: Settings) -> None:
    dispatcher = Dispatcher(away)
    started = time.monotonic()
    assert dispatcher.announce(["a"], "short") == ()
    assert time.monotonic() - started < 5
    dispatcher.close()


def test_only_json_is_sent_and_read(settings: Settings) -> None:
    conf = build_celery(settings).conf
    assert conf.task_serializer == "json"
    assert list(conf.accept_content) == ["json"]
    assert conf.task_ignore_result is True


class TestFault:
    def test_none_while_the_folders_exist(self, settings: Settings) -> None:
        celery_config(settings)
        assert broker_fault(settings) is None

    def test_a_missing_folder(self, settings: Settings) -> None:
        assert "cannot be written" in str(broker_fault(settings))

    def test_an_unavailable_redis(self, away: Settings) -> None:
        assert "Redis cannot be reached" in str(broker_fault(away))


@pytest.mark.parametrize("attempt", range(5))
def test_first_messages_sent_at_once_by_a_fresh_process_all_arrive(settings: Settings, attempt: int) -> None:
    # What kombu remembers of a process is gone, and nothing is bound.
    FolderTransport.global_state.clear()
    dispatcher, together = Dispatcher(settings), threading.Barrier(8)

    def announce(number: int) -> tuple[str, ...]:
        together.wait(10)
        return dispatcher.announce([f"job-{number}"], "long" if number % 2 else "short")

    with ThreadPoolExecutor(8) as pool:
        sent = [job_id for taken in pool.map(announce, range(8)) for job_id in taken]
    dispatcher.close()
    messages = [json.loads(path.read_text()) for path in (settings.broker_dir / "messages").iterdir()]
    arrived = sorted(json.loads(base64.b64decode(message["body"]))[0][0] for message in messages)
    assert arrived == sorted(sent) == [f"job-{number}" for number in range(8)]
    queues = {path.name.split(".", 1)[1] for path in (settings.broker_dir / "messages").iterdir()}
    assert queues == {"evenkeel.msg", "evenkeel.long.msg"}


def test_after_a_failure_nothing_is_sent_for_a_moment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("EVENKEEL_BROKER_KEY_PREFIX", "two:")
    now = 0.0
    with running_redis(tmp_path) as server:
        monkeypatch.setenv("EVENKEEL_BROKER_URL", server.url)
        dispatcher = Dispatcher(Settings(), clock=lambda: now)
        assert dispatcher.announce(["a"], "short") == ("a",)
        server.stop()
        assert dispatcher.announce(["b", "c"], "short") == ()
        server.start()
        assert dispatcher.announce(["d"], "short") == (), "the sweeper announces it"
        now = 2.0
        assert dispatcher.announce(["e", "f"], "short") == ("e", "f")
        dispatcher.close()
        with server.client() as client:
            assert client.llen("two:evenkeel") == 2
