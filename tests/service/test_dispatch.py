"""Ringing: a message a job on the embedded broker, and no failure when a broker is away."""

from __future__ import annotations

import base64
import json
import socket
import stat
import time
from pathlib import Path

import pytest

from service.broker import broker_fault, celery_config
from service.dispatch import Dispatcher, build_celery
from service.messages import RUN_JOB
from service.settings import Settings


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setenv("EVENKEEL_STATE_DIR", str(tmp_path))
    return Settings()


@pytest.fixture
def away(monkeypatch: pytest.MonkeyPatch) -> Settings:
    """A Redis that nobody runs."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        monkeypatch.setenv("EVENKEEL_BROKER_URL", f"redis://127.0.0.1:{unused.getsockname()[1]}/0")
        return Settings()


def test_a_message_holds_the_job_id_alone(settings: Settings) -> None:
    dispatcher = Dispatcher(settings)
    assert dispatcher.ring(["a", "b"], "short") == ("a", "b")
    dispatcher.close()
    messages = [json.loads(path.read_text()) for path in (settings.broker_dir / "messages").iterdir()]
    bodies = [json.loads(base64.b64decode(message["body"])) for message in messages]
    assert sorted(body[0][0] for body in bodies) == ["a", "b"]
    assert {message["headers"]["task"] for message in messages} == {RUN_JOB}
    suffixes = {path.name.split(".", 1)[1] for path in (settings.broker_dir / "messages").iterdir()}
    assert suffixes == {"evenkeel.msg"}, "the name that workers of the version before listen to"


def test_the_folders_are_their_owners_alone(settings: Settings) -> None:
    celery_config(settings)
    for folder in (settings.broker_dir, settings.broker_dir / "messages", settings.broker_dir / "control"):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_broker_that_is_away_is_noticed_soon_and_not_raised(away: Settings) -> None:
    dispatcher = Dispatcher(away)
    started = time.monotonic()
    assert dispatcher.ring(["a"], "short") == ()
    assert time.monotonic() - started < 5
    dispatcher.close()


def test_only_json_is_sent_and_read(settings: Settings) -> None:
    conf = build_celery(settings).conf
    assert conf.task_serializer == "json"
    assert list(conf.accept_content) == ["json"]
    assert conf.task_ignore_result is True


class TestFault:
    def test_none_while_folders_are_there(self, settings: Settings) -> None:
        celery_config(settings)
        assert broker_fault(settings) is None

    def test_a_missing_folder(self, settings: Settings) -> None:
        assert "cannot be written" in str(broker_fault(settings))

    def test_a_redis_that_is_away(self, away: Settings) -> None:
        assert "Redis does not answer" in str(broker_fault(away))
