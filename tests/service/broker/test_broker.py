"""The settings that API and workers share, and faults of the broker."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest
import redis

from service.broker.configuration import broker_fault, celery_config, is_embedded, queue_name
from service.broker.dispatch import Dispatcher
from service.config.settings import Settings
from service.contract.enums import Queue
from tests.support.processes import free_port
from tests.support.servers import PostgresServer, RedisServer, running_redis


class ServerOnSocket(RedisServer):
    """Listens on a Unix socket too."""

    def _command(self) -> Sequence[str]:
        return (*super()._command(), "--unixsocket", str(self._directory / "redis.sock"))


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVENKEEL_STATE_DIR", str(tmp_path))
    monkeypatch.setenv("EVENKEEL_BROKER_TIMEOUT_SECONDS", "0.5")


def at(monkeypatch: pytest.MonkeyPatch, url: str) -> Settings:
    monkeypatch.setenv("EVENKEEL_BROKER_URL", url)
    return Settings()


def test_the_embedded_broker_reads_where_it_writes(tmp_path: Path) -> None:
    options = celery_config(Settings())["broker_transport_options"]
    assert options["data_folder_in"] == options["data_folder_out"] == str(tmp_path / "broker" / "messages")


def test_the_url_of_redis_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVENKEEL_BROKER_KEY_PREFIX", "one:")
    settings = at(monkeypatch, "redis://example:6379/1")
    assert not is_embedded(settings)
    config = celery_config(settings)
    assert config["broker_url"] == "redis://example:6379/1"
    assert config["broker_transport_options"]["global_keyprefix"] == "one:"
    assert config["broker_use_ssl"] is None


def test_short_jobs_keep_the_queue_name_of_version_1() -> None:
    assert [queue_name(queue) for queue in Queue] == ["evenkeel", "evenkeel.long", "evenkeel.stream"]


class TestFault:
    @pytest.mark.not_quick
    def test_none_while_redis_answers(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        with running_redis(tmp_path, "secret") as server:
            assert broker_fault(at(monkeypatch, server.url)) is None
            for wrong in ("secret0", ""):
                fault = broker_fault(at(monkeypatch, server.url.replace(":secret@", f":{wrong}@" if wrong else "")))
                assert fault is not None
                assert "rejects the user or password" in fault.detail
                assert "secret" not in fault.detail + fault.advice
            fault = broker_fault(at(monkeypatch, server.url.replace("/0", "/99")))
            assert fault is not None
            assert "DB index is out of range" in fault.detail
            with server.client() as client:
                client.execute_command("REPLICAOF", "127.0.0.1", "1")
                assert "is a replica" in str(broker_fault(at(monkeypatch, server.url)))
                client.execute_command("REPLICAOF", "NO", "ONE")
            server.freeze()
            assert "did not answer in time" in str(broker_fault(at(monkeypatch, server.url)))

    def test_a_user_without_dangerous_commands_may_send(
        self, monkeypatch: pytest.MonkeyPatch, redis_server: RedisServer
    ) -> None:
        with redis_server.client() as client:
            client.acl_setuser(
                "hardened",
                enabled=True,
                passwords=["+s3cret"],
                keys=["*"],
                channels=["*"],
                categories=["+@all", "-@dangerous"],
            )
            try:
                monkeypatch.setenv("EVENKEEL_BROKER_KEY_PREFIX", "hardened:")
                settings = at(monkeypatch, redis_server.url.replace("redis://", "redis://hardened:s3cret@"))
                with pytest.raises(redis.exceptions.NoPermissionError):
                    redis.Redis.from_url(settings.broker_url).info("replication")
                assert broker_fault(settings) is None
                with closing(Dispatcher(settings)) as dispatcher:
                    assert dispatcher.announce(["job"], "long") == ("job",)
                assert client.llen("hardened:evenkeel.long") == 1
            finally:
                client.delete("hardened:evenkeel.long")
                client.acl_deluser("hardened")

    def test_a_user_without_rights_is_reported(
        self, monkeypatch: pytest.MonkeyPatch, redis_server: RedisServer
    ) -> None:
        with redis_server.client() as client:
            client.acl_setuser("barred", enabled=True, passwords=["+s3cret"], categories=["-@all"])
            try:
                url = redis_server.url.replace("redis://", "redis://barred:s3cret@")
                assert "denies the user access" in str(broker_fault(at(monkeypatch, url)))
            finally:
                client.acl_deluser("barred")

    def test_another_kind_of_server(self, monkeypatch: pytest.MonkeyPatch, postgres: PostgresServer) -> None:
        fault = broker_fault(at(monkeypatch, f"redis://:secret@127.0.0.1:{postgres.port}/0"))
        assert fault is not None
        assert fault.detail == f"The server at 127.0.0.1:{postgres.port} is not Redis."

    @pytest.mark.parametrize(
        ("url", "told"),
        [
            ("redis://:secret@127.0.0.1:{port}/0", "Redis cannot be reached at 127.0.0.1:{port}: Connection refused."),
            ("redis://:secret@no-such-host.invalid/0", "Redis cannot be reached at no-such-host.invalid:6379: "),
            ("redis+socket:///no/such.sock", "There is no socket /no/such.sock."),
        ],
    )
    def test_no_server(self, monkeypatch: pytest.MonkeyPatch, url: str, told: str) -> None:
        port = free_port()
        fault = broker_fault(at(monkeypatch, url.format(port=port)))
        assert fault is not None
        assert fault.detail.startswith(told.format(port=port))

    def test_a_server_that_does_not_answer(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            fault = broker_fault(at(monkeypatch, f"redis://127.0.0.1:{silent.getsockname()[1]}/0"))
        assert fault is not None
        assert "did not answer in time" in fault.detail

    def test_a_socket(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        server = ServerOnSocket(tmp_path)
        server.start()
        try:
            settings = at(monkeypatch, f"redis+socket://{tmp_path}/redis.sock?virtual_host=1")
            assert broker_fault(settings) is None
            dispatcher = Dispatcher(settings)
            assert dispatcher.announce(["job"], "long") == ("job",)
            dispatcher.close()
            with server.client() as client:
                assert client.execute_command("SELECT", 1)
                assert client.llen("evenkeel.long") == 1
        finally:
            server.stop()

    def test_folders(self) -> None:
        settings = Settings()
        assert "cannot be written to" in str(broker_fault(settings))
        celery_config(settings)
        assert broker_fault(settings) is None
