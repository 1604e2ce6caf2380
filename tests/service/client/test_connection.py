"""The address, the API key, and the connection with its retries."""

from __future__ import annotations

import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import httpx
import pytest
import trustme
from pydantic import SecretStr

from service.cli.connection import Connection
from service.cli.operations import Service
from service.cli.terminal import CliError, ExitCode
from service.client import requests
from service.client.address import api_key, checked_url, is_loopback, segment
from service.client.errors import ConfigurationError, NotFoundError
from service.client.retries import RetryBudget, retry_after_seconds
from service.config.client import ClientSettings
from tests.support.clocks import ManualSeconds
from tests.support.processes import free_port
from tests.support.scripted import answers, breaks_off, breaks_off_amid_the_body, scripted
from tests.support.served import Evenkeel
from tests.support.tls import behind_tls, write_ca

KEY = SecretStr("ek_secret")
JOB = {"id": "1", "status": "QUEUED", "finished": False}


def refused(call: Callable[[], object]) -> CliError:
    with pytest.raises(CliError) as raised:
        call()
    return raised.value


@pytest.mark.withstands(
    "a service that redirects to another host",
    how="every request gets a redirect to another host: permanent, temporary, or keeping the method",
    times=3,
    guaranteed="no request and no API key is sent to the other host; the command shows the redirect's target",
    kind="attack",
)
@pytest.mark.parametrize("status", [301, 302, 307])
def test_key_is_not_sent_to_another_host(status: int) -> None:
    with scripted(answers(200, JOB)) as other, scripted(answers(status, JOB, Location=f"{other.url}/v1/me")) as service:
        with Connection(service.url, KEY, retry_seconds=5) as connection:
            error = refused(Service(connection).me)
        assert service.seen[0].headers["authorization"] == "Bearer ek_secret"
        assert other.seen == []
    assert error.code == ExitCode.USAGE
    assert other.url in error.message


@pytest.mark.withstands(
    "the response to a submission is lost",
    how="the connection breaks after the job was posted, twice",
    times=2,
    guaranteed="it is posted again with the same Idempotency-Key: one job",
    kind="fault",
)
def test_repeated_submission_has_the_same_key() -> None:
    with (
        scripted(breaks_off, breaks_off, answers(202, JOB)) as service,
        Connection(service.url, retry_seconds=5) as one,
    ):
        document, _ = Service(one).submit({"sql": "SELECT 1"})
    assert document == JOB
    assert len({(seen.path, seen.headers["idempotency-key"], seen.body) for seen in service.seen}) == 1
    assert len(service.seen) == 3


@pytest.mark.parametrize("call", [lambda service: service.resume("1", {}), lambda service: service.create_key({})])
def test_unrepeatable_requests_are_sent_once(call: Callable[[Service], object]) -> None:
    with scripted(breaks_off, answers(202, JOB)) as service, Connection(service.url, retry_seconds=5) as connection:
        error = refused(lambda: call(Service(connection)))
    assert error.code == ExitCode.UNREACHABLE
    assert len(service.seen) == 1


@pytest.mark.parametrize("status", [429, 503])
def test_retry_after_is_respected(status: int) -> None:
    printed: list[str] = []
    with scripted(answers(status, JOB, Retry_After="1"), answers(200, JOB)) as service:
        began = time.monotonic()
        with Connection(service.url, retry_seconds=30, notify=printed.append) as connection:
            assert Service(connection).job("1") == JOB
        assert time.monotonic() - began >= 1
    assert printed == [f"The service is busy ({status}): trying again in 1 s"]


def test_busy_service_after_all_retries() -> None:
    problem = {
        "type": "/problems/too_many_jobs",
        "title": "Too many",
        "status": 429,
        "detail": "Wait.",
        "code": "too_many_jobs",
    }
    with scripted(answers(429, problem, Retry_After="60")) as service, Connection(service.url, retry_seconds=3) as one:
        error = refused(lambda: Service(one).submit({}))
    assert (error.code, error.message) == (ExitCode.UNREACHABLE, "Wait. [too_many_jobs]")
    assert len(service.seen) == 1


def test_unreachable_service() -> None:
    with Connection(f"http://127.0.0.1:{free_port()}", retry_seconds=0.5) as connection:
        error = refused(Service(connection).me)
    assert error.code == ExitCode.UNREACHABLE
    assert "evenkeel up" in error.advice


def test_other_server() -> None:
    def page(handler: BaseHTTPRequestHandler) -> None:
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n<html>")

    with scripted(page) as service, Connection(service.url) as connection:
        assert refused(Service(connection).me).code == ExitCode.CRASHED


def test_text_of_a_proxy_is_escaped() -> None:
    def text(handler: BaseHTTPRequestHandler) -> None:
        body = b"bad\x1b[2J gateway"
        head = f"HTTP/1.1 502 Bad\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}\r\n\r\n"
        handler.wfile.write(head.encode() + body)

    with scripted(text) as service, Connection(service.url) as connection:
        error = refused(Service(connection).me)
    assert error.code == ExitCode.UNREACHABLE
    assert error.message == r"the service answered 502 bad\x1b[2J gateway"


def test_interrupted_response_is_requested_again() -> None:
    with (
        scripted(breaks_off_amid_the_body, answers(200, JOB)) as service,
        Connection(service.url, retry_seconds=5) as one,
    ):
        assert Service(one).job("1") == JOB
    assert len(service.seen) == 2


def test_interrupted_stream_raises() -> None:
    with (
        scripted(breaks_off_amid_the_body) as service,
        Connection(service.url, retry_seconds=5) as connection,
        connection.stream(requests.result("1", requests.ARROW)) as answer,
        pytest.raises(httpx.TransportError),
    ):
        list(answer.iter_bytes())


def test_exit_codes_of_http_statuses(subtests: pytest.Subtests) -> None:
    cases: list[tuple[int, ExitCode]] = [
        (400, ExitCode.USAGE),
        (401, ExitCode.DENIED),
        (403, ExitCode.DENIED),
        (404, ExitCode.NOT_FOUND),
        (409, ExitCode.CONFLICT),
        (410, ExitCode.NOT_FOUND),
        (413, ExitCode.USAGE),
        (422, ExitCode.USAGE),
        (500, ExitCode.CRASHED),
        (503, ExitCode.UNREACHABLE),
    ]
    for status, code in cases:
        with (
            subtests.test(status=status),
            scripted(answers(status, {})) as service,
            Connection(service.url) as connection,
        ):
            assert refused(Service(connection).me).code == code


def test_loopback_uses_no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    with scripted(answers(200, JOB)) as service, scripted(answers(200, {"a": "proxy"})) as proxy:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, proxy.url)
        with Connection(service.url, KEY) as connection:
            assert Service(connection).job("1") == JOB
        with Connection("http://jobs.example.org", KEY) as connection:
            assert Service(connection).job("1") == {"a": "proxy"}
    assert len(service.seen) == len(proxy.seen) == 1


@pytest.mark.withstands(
    "another server impersonates the service",
    how="over TLS with a certificate of another CA",
    times=1,
    guaranteed="the command ends with exit code 10 and sends no API key; it accepts the CA in `SSL_CERT_FILE`",
    kind="attack",
)
def test_key_is_not_sent_without_a_trusted_certificate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ca = trustme.CA()
    issued = ca.issue_cert("127.0.0.1")
    with scripted(answers(200, JOB)) as service, behind_tls(int(service.url.rpartition(":")[2]), issued) as front:
        url = f"https://127.0.0.1:{front.port}"
        with Connection(url, KEY, retry_seconds=0) as connection:
            error = refused(lambda: Service(connection).job("1"))
        assert error.code == ExitCode.UNREACHABLE
        assert "SSL_CERT_FILE" in error.advice
        assert (service.seen, front.heard) == ([], b"")
        monkeypatch.setenv("SSL_CERT_FILE", str(write_ca(ca, tmp_path / "ca.pem")))
        with Connection(url, KEY) as connection:
            assert Service(connection).job("1") == JOB


def test_key_is_sent_over_http_only_to_loopback(evenkeel: Evenkeel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVENKEEL_API_KEY", KEY.get_secret_value())
    monkeypatch.setenv("EVENKEEL_RETRY_SECONDS", "0")
    elsewhere = ("jobs", "--url", "http://jobs.invalid")
    refusal = evenkeel(*elsewhere)
    assert (refusal.exit_code, "EVENKEEL_INSECURE_HTTP" in refusal.stderr) == (2, True)
    monkeypatch.setenv("EVENKEEL_INSECURE_HTTP", "true")
    assert evenkeel(*elsewhere).exit_code == 10
    monkeypatch.delenv("EVENKEEL_INSECURE_HTTP")
    with scripted(answers(200, {"jobs": []})) as service:
        assert evenkeel("jobs", "--url", service.url).exit_code == 0


def test_invalid_proxy_and_certificate_settings(monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests) -> None:
    cases: list[tuple[str, str]] = [("ALL_PROXY", "socks://a:1"), ("SSL_CERT_FILE", "/nowhere")]
    for name, value in cases:
        with subtests.test(name=name, value=value):
            monkeypatch.setenv(name, value)
            assert refused(lambda: Connection("https://jobs.invalid")).code == ExitCode.USAGE
            with scripted(answers(200, JOB)) as service, Connection(service.url) as connection:
                assert connection.send(requests.me()).status_code == 200


@pytest.mark.parametrize("url", ["http://127.0.0.1:8080", "https://jobs.example.org/evenkeel/", "http://[::1]:8080 "])
def test_valid_addresses(url: str) -> None:
    assert checked_url(url) == url.strip().rstrip("/")


@pytest.mark.parametrize(
    "url",
    [
        "127.0.0.1:8080",
        "ftp://a",
        "http://",
        "http://a:b",
        "http://a/?x=1",
        "http://a#b",
        "",
        "http://a..b",
        f"http://{'a' * 64}.org",
        "http://a/\x01",
    ],
)
def test_invalid_addresses(url: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        checked_url(url)
    assert raised.value.advice


def test_password_in_an_address_is_refused_and_not_shown() -> None:
    with pytest.raises(ConfigurationError) as raised:
        checked_url("https://user:hunter2@example.org")
    assert "hunter2" not in raised.value.message + raised.value.advice


def test_is_loopback() -> None:
    assert all(map(is_loopback, ("http://127.0.0.1", "http://localhost:1", "http://[::1]:2")))
    assert not is_loopback("http://10.0.0.1")


@pytest.mark.parametrize("name", ["../keys", "a/b", "", "a?x", "..", "a\nb"])
def test_ids_cannot_change_the_path(name: str) -> None:
    with pytest.raises(NotFoundError, match="no job has the id"):
        segment(name, "job")


def shown(key_file: Path | None = None) -> str | None:
    key = api_key(ClientSettings(), key_file)
    return None if key is None else key.get_secret_value()


def test_precedence_of_the_sources_of_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("option", "variable"):
        (tmp_path / name).write_text(f"ek_of_{name}\n")
    assert shown() is None
    monkeypatch.setenv("EVENKEEL_API_KEY_FILE", str(tmp_path / "variable"))
    assert shown() == "ek_of_variable"
    monkeypatch.setenv("EVENKEEL_API_KEY", " ek_itself ")
    assert shown() == "ek_itself"
    assert shown(tmp_path / "option") == "ek_of_option"


@pytest.mark.parametrize("content", [b"", b"two words", b"a\r\nHost: evil", "ü".encode(), b"\xff"])
def test_invalid_key_is_refused_and_not_shown(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "key").write_bytes(content)
    with pytest.raises(ConfigurationError, match="does not contain an API key") as raised:
        shown(tmp_path / "key")
    assert not content or content.decode(errors="replace") not in str(raised.value)


def test_missing_key_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="could not be read"):
        shown(tmp_path / "key")


def test_pauses_double_within_the_budget() -> None:
    clock = ManualSeconds()
    budget, pauses = RetryBudget(3, clock), []
    while (pause := budget.next_pause()) is not None:
        pauses.append(pause)
        clock.now += pause
    assert pauses == [0.2, 0.4, 0.8, 1.6]


def test_requested_pause_beyond_the_budget_gives_up() -> None:
    budget = RetryBudget(3, ManualSeconds())
    assert budget.next_pause(2) == 2
    assert budget.next_pause(60) is None
    assert RetryBudget(0, ManualSeconds()).next_pause() is None


def test_retry_after_seconds() -> None:
    assert retry_after_seconds("7") == 7
    assert [retry_after_seconds(text) for text in (None, "", "Wed, 21 Oct 2015 07:28:00 GMT", "-1", "9999999")] == [
        None
    ] * 5
