"""What is behind an error.

What an error of a connection to Redis means, in words, and what to do about it. No secret is in either.

Connections to Redis over TLS: each checks the server's certificate and its name, and nothing turns that off.

Whether a message is one of ours. Celery ends a worker over some that are not, and the next worker, and the next.

The embedded broker's transport: kombu's folders, with messages that appear whole or not at all.

kombu writes a message or a binding into the file that others already look for. Whoever looks in between reads half of
it, or nothing, and a worker ends with a JSONDecodeError. Here both are written beside it and renamed into place.

kombu's transport over Redis, which drops messages that are not ours: whoever reaches Redis can write there.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import socket
import ssl
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from queue import Empty
from typing import Any

import redis
import structlog
from kombu.exceptions import ChannelError
from kombu.transport import TRANSPORT_ALIASES, filesystem
from kombu.transport import redis as kombu_redis
from kombu.utils.json import dumps, loads

from service.config.settings import BrokerSettings


def causes_of(error: BaseException | None) -> Iterator[BaseException]:
    """An error, what it was raised for, and so on, to the first of them."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


_OTHER_NAME = frozenset({62, 64})
_UNKNOWN_CA = frozenset({2, 18, 19, 20, 21})
"""X509_V_ERR_… of OpenSSL, which `ssl` passes on as they are."""

_NO_TLS = frozenset({"WRONG_VERSION_NUMBER", "UNKNOWN_PROTOCOL", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG"})
_OF_CLIENTS = frozenset(
    {"BAD_CERTIFICATE", "UNSUPPORTED_CERTIFICATE", "CERTIFICATE_REVOKED", "CERTIFICATE_EXPIRED", "UNKNOWN_CA"}
    | {"CERTIFICATE_UNKNOWN"}
)
_PORTS = "rediss:// is for a port with TLS, redis:// for one without."
_CLOSED = f"{_PORTS} If it asks its clients for certificates, set EVENKEEL_BROKER_TLS_CERTIFICATE_FILE."
"""For a server that closes the connection amid TLS: why it does so, it says too late now and then."""

_OWN_CERTIFICATE = "Set EVENKEEL_BROKER_TLS_CERTIFICATE_FILE to one of a CA that it trusts."


@dataclass(frozen=True)
class BrokerFault:
    """What keeps messages from being sent, and what to do, each in one sentence without any secret."""

    detail: str
    advice: str


def fault_of(error: Exception, address: str, *, is_tls: bool) -> BrokerFault:
    """What came of talking to the Redis at `address` ("host:port", or a path), over TLS or not."""
    match error:
        case redis.AuthenticationError() | redis.exceptions.NoPermissionError():
            return BrokerFault(
                f"The Redis at {address} refuses the user or password, or the user may not use it.",
                "Correct user and password in EVENKEEL_BROKER_URL, or EVENKEEL_BROKER_PASSWORD.",
            )
        case redis.BusyLoadingError():
            return BrokerFault(f"The Redis at {address} is still loading its data.", "Wait until it has.")
        case redis.TimeoutError() | TimeoutError():
            return BrokerFault(
                f"Redis does not answer at {address}: no answer in time.",
                "See whether the server hangs or a firewall swallows packets; EVENKEEL_BROKER_TIMEOUT_SECONDS bounds "
                f"the wait. {_PORTS if is_tls else ''}".rstrip(),
            )
        case redis.ConnectionError():
            for cause in causes_of(error):
                if isinstance(cause, ssl.SSLError):
                    return _fault_of_tls(cause, address)
                if (reason := _reason(cause)) is not None:
                    return BrokerFault(
                        f"Redis does not answer at {address}: {reason}.", "Start it, or correct EVENKEEL_BROKER_URL."
                    )
        case redis.ResponseError():
            return BrokerFault(
                f"The Redis at {address} refuses to work: {error}.", "Correct its configuration or EVENKEEL_BROKER_URL."
            )
    return BrokerFault(
        f"What listens at {address} does not speak as Redis does.",
        f"Correct host and port in EVENKEEL_BROKER_URL; {_CLOSED if is_tls else _PORTS}",
    )


def _fault_of_tls(error: ssl.SSLError, address: str) -> BrokerFault:
    if isinstance(error, ssl.SSLCertVerificationError):
        return _fault_of_certificate(error, address)
    reason = error.reason or type(error).__name__
    alert = reason.partition("_ALERT_")[2]
    if reason in _NO_TLS:
        return BrokerFault(f"What listens at {address} does not speak TLS.", f"Correct EVENKEEL_BROKER_URL: {_PORTS}")
    if alert == "CERTIFICATE_REQUIRED":
        return BrokerFault(f"The Redis at {address} asks for a certificate of its clients.", _OWN_CERTIFICATE)
    if alert in _OF_CLIENTS:
        words = alert.lower().replace("_", " ")
        return BrokerFault(f"The Redis at {address} refuses our certificate: {words}.", _OWN_CERTIFICATE)
    words = reason.lower().replace("_", " ")
    return BrokerFault(f"TLS with what listens at {address} fails: {words}.", f"See its log. {_CLOSED}")


def _fault_of_certificate(error: ssl.SSLCertVerificationError, address: str) -> BrokerFault:
    whose = f"The certificate of the Redis at {address}"
    match error.verify_code:
        case code if code in _UNKNOWN_CA:
            return BrokerFault(
                f"{whose} is of no CA that is trusted here.",
                "Set EVENKEEL_BROKER_TLS_CA_FILE to the certificate of its CA; if it is that already, somebody else "
                "answers there.",
            )
        case code if code in _OTHER_NAME:
            return BrokerFault(
                f"{whose} is for another host name.",
                "Write a name that the certificate has in EVENKEEL_BROKER_URL, or have one made for this; if it has "
                "this, somebody else answers there.",
            )
        case 10:  # X509_V_ERR_CERT_HAS_EXPIRED
            return BrokerFault(f"{whose} has expired.", "Give the server a new one.")
        case 9:  # X509_V_ERR_CERT_NOT_YET_VALID
            return BrokerFault(f"{whose} is not valid yet.", "See whether the clocks of both machines are right.")
    return BrokerFault(f"{whose} is not valid: {error.verify_message}.", "Give the server another one.")


def _reason(error: BaseException) -> str | None:
    """Why nothing could be reached; None where something took the connection and then closed it, or talked nonsense."""
    if isinstance(error, OSError) and not isinstance(error, ConnectionResetError | BrokenPipeError):
        # Name resolution has errors of its own, with texts of their own.
        return None if error.errno is None else error.strerror or os.strerror(error.errno)
    return None


class VerifiedConnection(redis.SSLConnection):
    """Trusts the CA file alone where there is one, which redis-py would add to those of the system; and checks whatever
    kombu was told of checking, which takes any certificate by default."""

    def _wrap_socket_with_ssl(self, sock: socket.socket) -> ssl.SSLSocket:
        context = _context(self.ca_certs, self.certfile, self.keyfile)
        return context.wrap_socket(sock, server_hostname=self.host)


def is_tls(url: str) -> bool:
    """Whether a broker's URL asks for TLS."""
    return url.startswith("rediss://")


def tls_options(settings: BrokerSettings) -> dict[str, Any]:
    """What kombu and redis-py are told of TLS, for a URL that asks for it."""
    return {
        "ssl_cert_reqs": ssl.CERT_REQUIRED,
        "ssl_check_hostname": True,
        "ssl_ca_certs": _absolute(settings.tls_ca_file),
        "ssl_certfile": _absolute(settings.tls_certificate_file),
        "ssl_keyfile": _absolute(settings.tls_key_file),
    }


def fault_of_files(settings: BrokerSettings) -> str | None:
    """What is wrong with the files that the settings name, in a sentence with the variable; None where they do."""
    options = tls_options(settings)
    ca, certificate, key = (options[name] for name in ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile"))
    try:
        _context(ca)
    except OSError as error:
        return f"EVENKEEL_BROKER_TLS_CA_FILE is no file of certificates: {_words(error)}."
    try:
        _context(None, certificate, key)
    except OSError as error:
        beside = " with that of EVENKEEL_BROKER_TLS_KEY_FILE" if key else ""
        return (
            f"EVENKEEL_BROKER_TLS_CERTIFICATE_FILE{beside} is no certificate with its key, without a passphrase: "
            f"{_words(error)}."
        )
    return None


def _context(ca: str | None, certificate: str | None = None, key: str | None = None) -> ssl.SSLContext:
    """Read anew for each connection, so that files may be replaced while the service runs."""
    context = ssl.create_default_context(cafile=ca)
    if certificate is not None:
        # Without a passphrase to try, OpenSSL would ask for that of a locked key at the terminal.
        context.load_cert_chain(certificate, key, password="")
    return context


def _absolute(path: Path | None) -> str | None:
    return None if path is None else str(path.expanduser().absolute())


def _words(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        return error.reason.replace("_", " ").lower() if error.reason else "not to be read as PEM"
    return error.strerror or type(error).__name__


RUN_JOB = "run_job"
"""Name of the task that workers register; its one argument is the job id."""

_MAX_BYTES = 64 << 10

_log = structlog.get_logger(__name__)


def is_ours(message: Any) -> bool:
    """Whether a message as a transport has it, out of its JSON, announces a job. Further arguments of a next version,
    and headers that it adds, are no fault. One that is not ours is logged, for the caller to drop."""
    try:
        fault = _fault(message)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, RecursionError) as error:
        fault = f"it is malformed ({type(error).__name__})"
    if fault is not None:
        _log.error("message_dropped", reason=fault, message=repr(message)[:200])
    return fault is None


def _fault(message: Any) -> str | None:
    if message["content-type"] != "application/json":
        return "its content is not JSON"
    headers, properties = message["headers"], message["properties"]
    if headers["task"] != RUN_JOB:
        return "it names a task that does not exist here"
    if any(headers.get(name) is not None for name in ("eta", "expires", "group")) or not isinstance(headers["id"], str):
        return "its headers are none that Evenkeel writes"
    if not isinstance(properties["delivery_tag"], str) or not isinstance(properties["delivery_info"], dict):
        return "its properties are none that Evenkeel writes"
    if len(message["body"]) > _MAX_BYTES:
        return "it is too large"
    arguments, keywords, _ = json.loads(base64.b64decode(message["body"], validate=True))
    if not isinstance(arguments, list) or not isinstance(keywords, dict) or not isinstance(arguments[0], str):
        return "it holds no job id"
    return None


class FolderChannel(filesystem.Channel):  # type: ignore[misc]
    """A channel over two folders: `data_folder_in` and `data_folder_out` are the same one here."""

    def _put(self, queue: str, payload: dict[str, Any], **_: Any) -> None:
        # Names sort by time; the clock is the machine's, as all who share a folder are on it.
        name = f"{time.monotonic_ns():020d}_{uuid.uuid4()}.{queue}.msg"
        try:
            _replace(Path(self.data_folder_out) / name, payload)
        except OSError as error:
            raise ChannelError(f"cannot add a message to {self.data_folder_out}") from error

    def _get(self, queue: str) -> Any:
        folder = Path(self.data_folder_in)
        for name in sorted(entry.name for entry in folder.iterdir()):
            if name.partition(".")[2] != f"{queue}.msg":
                continue
            taken = folder / f".{name}.taken"
            try:
                # One of those who look succeeds. It may die before the job is claimed: the sweeper rings again.
                (folder / name).rename(taken)
            except FileNotFoundError:
                continue
            content = taken.read_bytes()
            taken.unlink(missing_ok=True)
            try:
                return loads(content.decode())
            except ValueError as error:
                _log.error("message_dropped", reason=f"it is no JSON ({type(error).__name__})", file=name)
        raise Empty

    def _queue_bind(self, exchange: str, routing_key: str, pattern: str, queue: str) -> None:
        binding = filesystem.exchange_queue_t(routing_key or "", pattern or "", queue or "")
        file: Path = self._exchange_file(exchange)
        if binding in self.get_table(exchange):
            return  # a process that stands still with the lock in its hands then holds up nobody but newcomers
        try:
            with (self.control_folder / "bindings.lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                known = self.get_table(exchange)
                if binding not in known:
                    _replace(file, [binding, *known])
        except OSError as error:
            raise ChannelError(f"cannot bind a queue in {self.control_folder}") from error


class FolderTransport(filesystem.Transport):  # type: ignore[misc]
    """`filesystem://` with `FolderChannel`."""

    Channel = FolderChannel

    def _deliver(self, message: Any, queue: str) -> None:
        if is_ours(message):
            super()._deliver(message, queue)


def _replace(file: Path, content: Any) -> None:
    """Writes `content` as JSON so that `file` is either as it was or complete."""
    beside = file.with_name(f".{file.name}.{uuid.uuid4()}.part")
    beside.write_text(dumps(content), encoding="utf-8")
    beside.replace(file)


class RedisChannel(kombu_redis.Channel):  # type: ignore[misc]
    """A channel that drops what is no JSON."""

    connection_class_ssl = VerifiedConnection

    def _brpop_read(self, **options: Any) -> Any:
        try:
            return super()._brpop_read(**options)
        except ValueError as error:
            # Taken from Redis, and no message to anybody.
            _log.error("message_dropped", reason=f"it is no JSON ({type(error).__name__})")
            return True


class RedisTransport(kombu_redis.Transport):  # type: ignore[misc]
    """`redis://`, `rediss://` and `redis+socket://` with `RedisChannel`."""

    Channel = RedisChannel

    def _deliver(self, message: Any, queue: str) -> None:
        if is_ours(message):
            super()._deliver(message, queue)


def register() -> None:
    """Makes it what these URLs mean in this process: of a socket's URL, kombu takes the transport's name alone."""
    name = f"{__name__}:{RedisTransport.__name__}"
    TRANSPORT_ALIASES.update(redis=name, rediss=name)
