"""TLS to Redis: both ends check certificate and host name, whatever the URL says, and report faults."""

from __future__ import annotations

import datetime
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import kombu.pools
import pytest
import redis
import trustme
from celery import Celery
from cryptography.hazmat.primitives import serialization
from kombu.exceptions import OperationalError

from service.broker.configuration import broker_fault, celery_config
from service.broker.dispatch import Dispatcher
from service.config.settings import Settings
from tests.support.processes import wait_for
from tests.support.servers import RedisServer, running_redis
from tests.support.tls import Pair, TlsFront, behind_tls, write_ca, write_pair

CA = trustme.CA()
OTHER_CA = trustme.CA()
GOOD = CA.issue_cert("127.0.0.1", "localhost")
NOW = datetime.datetime.now(datetime.UTC)
A_DAY = datetime.timedelta(days=1)
IMPOSTORS = {
    "another CA": (OTHER_CA.issue_cert("127.0.0.1"), "was not issued by a trusted CA"),
    "another host": (CA.issue_cert("redis.example.org", "127.0.0.2"), "is for a different host name"),
    "expired": (CA.issue_cert("127.0.0.1", not_before=NOW - 9 * A_DAY, not_after=NOW - A_DAY), "has expired"),
}
PASSWORD = "geheim"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with running_redis(tmp_path_factory.mktemp("redis"), PASSWORD) as server:
        yield server


@pytest.fixture(autouse=True)
def environment(server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with server.client() as client:
        client.flushall()
    monkeypatch.setenv("EVENKEEL_STATE_DIR", str(tmp_path))
    monkeypatch.setenv("EVENKEEL_BROKER_TIMEOUT_SECONDS", "2")
    monkeypatch.setenv("EVENKEEL_BROKER_PASSWORD", PASSWORD)
    monkeypatch.setenv("EVENKEEL_BROKER_TLS_CA_FILE", str(write_ca(CA, tmp_path / "ca.pem")))
    # kombu tells the connections of one process apart by their addresses alone.
    kombu.pools.reset()
    yield
    kombu.pools.reset()


def at(front: TlsFront | RedisServer, monkeypatch: pytest.MonkeyPatch, host: str = "127.0.0.1") -> Settings:
    monkeypatch.setenv("EVENKEEL_BROKER_URL", f"rediss://{host}:{front.port}/0")
    return Settings()


def read(settings: Settings) -> str:
    """Returns the job id of the next message, as a worker receives it."""
    with closing(Celery("evenkeel", set_as_current=False)) as app:
        app.conf.update(celery_config(settings))
        with app.connection_for_read() as connection, closing(connection.SimpleQueue("evenkeel")) as queue:
            message = queue.get(timeout=5)
            message.ack()
            return str(message.payload[0][0])


def tell(settings: Settings) -> str:
    """Returns the fault of the broker as text; empty if there is none."""
    fault = broker_fault(settings)
    told = "" if fault is None else f"{fault.detail} {fault.advice}"
    assert PASSWORD not in told
    return told


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_message_goes_there_and_comes_back(server: RedisServer, monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    with behind_tls(server.port, GOOD) as front:
        settings = at(front, monkeypatch, host)
        assert tell(settings) == ""
        with closing(Dispatcher(settings)) as dispatcher:
            assert dispatcher.announce(["job-1"], "short") == ("job-1",)
        assert read(settings) == "job-1"
    # The proof that what is not heard below would have been.
    assert PASSWORD.encode() in front.heard


@pytest.mark.not_quick
@pytest.mark.withstands(
    "an impostor of Redis",
    kind="attack",
    how="TLS with a certificate of another CA, for another host, and expired",
    times=3,
    guaranteed="API and worker refuse it and say why; it receives no password and no job",
)
@pytest.mark.parametrize("name", IMPOSTORS)
def test_another_server_gets_no_message(server: RedisServer, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    issued, told = IMPOSTORS[name]
    with behind_tls(server.port, issued) as front:
        settings = at(front, monkeypatch)
        assert told in tell(settings)
        with closing(Dispatcher(settings)) as dispatcher:
            assert dispatcher.announce(["job-1"], "short") == ()
        with pytest.raises(OperationalError, match="CERTIFICATE_VERIFY_FAILED"):
            read(settings)
        wait_for("all three to be refused", lambda: front.refused >= 3)
    assert front.heard == b""


def test_with_a_ca_file_the_system_s_cas_do_not_count(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(write_ca(OTHER_CA, tmp_path / "system.pem")))
    with behind_tls(server.port, IMPOSTORS["another CA"][0]) as front:
        assert "was not issued by a trusted CA" in tell(at(front, monkeypatch))
        with closing(Dispatcher(Settings())) as dispatcher:
            assert dispatcher.announce(["job-1"], "short") == ()
        assert front.heard == b""
        kombu.pools.reset()
        monkeypatch.delenv("EVENKEEL_BROKER_TLS_CA_FILE")
        assert tell(Settings()) == ""
        with closing(Dispatcher(Settings())) as dispatcher:
            assert dispatcher.announce(["job-2"], "short") == ("job-2",)
        assert read(Settings()) == "job-2"


@pytest.mark.not_quick
@pytest.mark.withstands(
    "TLS verification disabled",
    kind="attack",
    how="kombu's ways to disable it, with an impostor of Redis: no TLS options, and CERT_NONE without a check of host "
    "names",
    times=2,
    guaranteed="the connection is verified anyway; no password is sent",
)
@pytest.mark.parametrize("options", [None, {"ssl_cert_reqs": "none", "ssl_check_hostname": False}])
def test_no_option_turns_the_check_off(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch, options: dict[str, object] | None
) -> None:
    with behind_tls(server.port, IMPOSTORS["another CA"][0]) as front:
        config = celery_config(at(front, monkeypatch))
        with closing(Celery("evenkeel", set_as_current=False)) as app:
            app.conf.update({**config, "broker_use_ssl": options})
            with app.connection_for_read() as connection, pytest.raises(redis.ConnectionError, match="VERIFY_FAILED"):
                connection.connect()
        wait_for("the connection to be refused", lambda: front.refused >= 1)
    assert front.heard == b""


class TestClients:
    """A Redis that requires certificates of its clients."""

    @pytest.fixture
    def front(self, server: RedisServer) -> Iterator[TlsFront]:
        with behind_tls(server.port, GOOD, CA) as front:
            yield front

    @pytest.mark.parametrize("in_one", [False, True])
    def test_a_trusted_certificate(
        self, front: TlsFront, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, in_one: bool
    ) -> None:
        pair = write_pair(CA.issue_cert("evenkeel"), tmp_path, "own")
        if in_one:
            pair.certificate.write_bytes(pair.certificate.read_bytes() + pair.key.read_bytes())
        else:
            monkeypatch.setenv("EVENKEEL_BROKER_TLS_KEY_FILE", str(pair.key))
        monkeypatch.setenv("EVENKEEL_BROKER_TLS_CERTIFICATE_FILE", str(pair.certificate))
        settings = at(front, monkeypatch)
        assert tell(settings) == ""
        with closing(Dispatcher(settings)) as dispatcher:
            assert dispatcher.announce(["job-3"], "short") == ("job-3",)
        assert read(settings) == "job-3"

    def test_none(self, front: TlsFront, monkeypatch: pytest.MonkeyPatch) -> None:
        told = tell(at(front, monkeypatch))
        assert f"The Redis at 127.0.0.1:{front.port} requires a client certificate." in told
        assert "EVENKEEL_BROKER_TLS_CERTIFICATE_FILE" in told

    def test_one_of_another_ca(self, front: TlsFront, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        show(write_pair(OTHER_CA.issue_cert("evenkeel"), tmp_path, "own"), monkeypatch)
        assert "rejects the client certificate: unknown ca." in tell(at(front, monkeypatch))


def show(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVENKEEL_BROKER_TLS_CERTIFICATE_FILE", str(pair.certificate))
    monkeypatch.setenv("EVENKEEL_BROKER_TLS_KEY_FILE", str(pair.key))


class TestReported:
    """Servers without TLS, and files without certificates."""

    def test_a_plain_redis_behind_rediss(self, server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("EVENKEEL_BROKER_TIMEOUT_SECONDS", "0.5")
        assert "redis:// for one without" in tell(at(server, monkeypatch))

    def test_a_server_without_tls(self, monkeypatch: pytest.MonkeyPatch) -> None:
        heard = b""

        def answer() -> None:
            nonlocal heard
            client, _ = plain.accept()
            with suppress(OSError), client:
                heard = client.recv(4096)
                client.sendall(b"-ERR unknown command\r\n")
                client.shutdown(socket.SHUT_WR)
                while client.recv(4096):
                    pass

        with socket.create_server(("127.0.0.1", 0)) as plain:
            thread = threading.Thread(target=answer)
            thread.start()
            monkeypatch.setenv("EVENKEEL_BROKER_URL", f"rediss://127.0.0.1:{plain.getsockname()[1]}/0")
            assert "does not use TLS" in tell(Settings())
            thread.join(10)
        assert heard.startswith(b"\x16\x03"), "a handshake"
        assert PASSWORD.encode() not in heard

    def test_tls_behind_redis(self, server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("EVENKEEL_BROKER_TLS_CA_FILE")
        with behind_tls(server.port, GOOD) as front:
            monkeypatch.setenv("EVENKEEL_BROKER_URL", f"redis://127.0.0.1:{front.port}/0")
            told = tell(Settings())
        assert "is not Redis." in told
        assert "rediss:// is for a port with TLS" in told

    @pytest.mark.parametrize(("text", "told"), [(None, "No such file"), ("nonsense", "no certificate or crl found")])
    def test_a_file_of_no_ca(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str | None, told: str
    ) -> None:
        file = tmp_path / "own.pem"
        if text is not None:
            file.write_text(text)
        monkeypatch.setenv("EVENKEEL_BROKER_TLS_CA_FILE", str(file))
        monkeypatch.setenv("EVENKEEL_BROKER_URL", "rediss://127.0.0.1:1/0")
        assert f"EVENKEEL_BROKER_TLS_CA_FILE is not a file with certificates: {told}" in tell(Settings())

    def test_files_of_no_certificate(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        pair = write_pair(CA.issue_cert("evenkeel"), tmp_path, "own")
        other = write_pair(CA.issue_cert("evenkeel"), tmp_path, "other")
        monkeypatch.setenv("EVENKEEL_BROKER_URL", "rediss://127.0.0.1:1/0")
        show(Pair(pair.certificate, other.key), monkeypatch)
        assert "with its unencrypted key: key values mismatch." in tell(Settings())
        key = serialization.load_pem_private_key(pair.key.read_bytes(), None)
        locked = serialization.BestAvailableEncryption(b"passphrase")
        pair.key.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, locked))
        show(pair, monkeypatch)
        assert "with its unencrypted key: cannot be read as PEM." in tell(Settings())
        monkeypatch.delenv("EVENKEEL_BROKER_TLS_KEY_FILE")
        assert "EVENKEEL_BROKER_TLS_CERTIFICATE_FILE is not a certificate with its unencrypted key" in tell(Settings())
