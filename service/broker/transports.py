"""The transports of messages: folders of the embedded broker, and Redis, with TLS; and the meaning of their errors.

Both transports drop messages that announce no job: everybody who reaches Redis can write there, and some malformed
messages would end a Celery worker, and the next worker after it.

kombu's own transport over folders writes a message or a binding into a file that other processes already read. A
process that reads half of it ends with a JSONDecodeError. `FolderChannel` writes another file and renames it.

Each connection over TLS checks the server's certificate and host name; no setting turns that off. No error text
contains a secret.
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

RUN_JOB = "run_job"
"""Name of the workers' task. Its only argument is the job id."""

_MAX_BYTES = 64 << 10

_log = structlog.get_logger(__name__)

_OTHER_NAME = frozenset({62, 64})
_UNKNOWN_CA = frozenset({2, 18, 19, 20, 21})
"""X509_V_ERR_… of OpenSSL, as `ssl` reports them."""

_NO_TLS = frozenset({"WRONG_VERSION_NUMBER", "UNKNOWN_PROTOCOL", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG"})
_OF_CLIENTS = frozenset(
    {"BAD_CERTIFICATE", "UNSUPPORTED_CERTIFICATE", "CERTIFICATE_REVOKED", "CERTIFICATE_EXPIRED", "UNKNOWN_CA"}
    | {"CERTIFICATE_UNKNOWN"}
)
_PORTS = "rediss:// is for a port with TLS, redis:// for one without."
_CLOSED = f"{_PORTS} If it asks its clients for certificates, set EVENKEEL_BROKER_TLS_CERTIFICATE_FILE."
"""For a server that closes the connection during the TLS handshake, sometimes before it sends the reason."""

_OWN_CERTIFICATE = "Set EVENKEEL_BROKER_TLS_CERTIFICATE_FILE to a certificate of a CA that Redis trusts."


def causes_of(error: BaseException | None) -> Iterator[BaseException]:
    """Yields an error, its cause or context, and so on."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


@dataclass(frozen=True)
class BrokerFault:
    """Why messages cannot be sent, and what to do, each in one sentence without any secret."""

    detail: str
    advice: str


def fault_of(error: Exception, address: str, *, is_tls: bool) -> BrokerFault:
    """Returns the fault of an error of a connection to the Redis at `address` ("host:port", or a path)."""
    match error:
        case redis.AuthenticationError() | redis.exceptions.NoPermissionError():
            return BrokerFault(
                f"The Redis at {address} refuses the user or password, or the user may not use it.",
                "Correct user and password in EVENKEEL_BROKER_URL, or EVENKEEL_BROKER_PASSWORD.",
            )
        case redis.BusyLoadingError():
            return BrokerFault(f"The Redis at {address} is still loading its data.", "Wait until it is ready.")
        case redis.TimeoutError() | TimeoutError():
            return BrokerFault(
                f"Redis does not answer at {address}: no answer in time.",
                "Check whether the server hangs or a firewall drops packets; EVENKEEL_BROKER_TIMEOUT_SECONDS limits "
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
                f"The Redis at {address} refuses the connection: {error}.",
                "Correct its configuration or EVENKEEL_BROKER_URL.",
            )
    return BrokerFault(
        f"The server at {address} is no Redis.",
        f"Correct host and port in EVENKEEL_BROKER_URL; {_CLOSED if is_tls else _PORTS}",
    )


def _fault_of_tls(error: ssl.SSLError, address: str) -> BrokerFault:
    if isinstance(error, ssl.SSLCertVerificationError):
        return _fault_of_certificate(error, address)
    reason = error.reason or type(error).__name__
    alert = reason.partition("_ALERT_")[2]
    if reason in _NO_TLS:
        return BrokerFault(f"The server at {address} does not use TLS.", f"Correct EVENKEEL_BROKER_URL: {_PORTS}")
    if alert == "CERTIFICATE_REQUIRED":
        return BrokerFault(f"The Redis at {address} requires a certificate of its clients.", _OWN_CERTIFICATE)
    if alert in _OF_CLIENTS:
        words = alert.lower().replace("_", " ")
        return BrokerFault(f"The Redis at {address} refuses our certificate: {words}.", _OWN_CERTIFICATE)
    words = reason.lower().replace("_", " ")
    return BrokerFault(f"TLS with the server at {address} fails: {words}.", f"See its log. {_CLOSED}")


def _fault_of_certificate(error: ssl.SSLCertVerificationError, address: str) -> BrokerFault:
    subject = f"The certificate of the Redis at {address}"
    match error.verify_code:
        case code if code in _UNKNOWN_CA:
            return BrokerFault(
                f"{subject} is not from a trusted CA.",
                "Set EVENKEEL_BROKER_TLS_CA_FILE to the certificate of its CA; if it already is, another server "
                "answers there.",
            )
        case code if code in _OTHER_NAME:
            return BrokerFault(
                f"{subject} is for another host name.",
                "Use a name of the certificate in EVENKEEL_BROKER_URL, or create a certificate for this name; if the "
                "right server has one, another server answers there.",
            )
        case 10:  # X509_V_ERR_CERT_HAS_EXPIRED
            return BrokerFault(f"{subject} has expired.", "Renew it on the server.")
        case 9:  # X509_V_ERR_CERT_NOT_YET_VALID
            return BrokerFault(f"{subject} is not valid yet.", "Check the clocks of both machines.")
    return BrokerFault(f"{subject} is not valid: {error.verify_message}.", "Replace it on the server.")


def _reason(error: BaseException) -> str | None:
    """Returns why no server could be reached; None if one accepted the connection and closed it, or sent nonsense."""
    if isinstance(error, OSError) and not isinstance(error, ConnectionResetError | BrokenPipeError):
        # Errors of name resolution have numbers and texts of their own.
        return None if error.errno is None else error.strerror or os.strerror(error.errno)
    return None


class VerifiedConnection(redis.SSLConnection):
    """Trusts only the CA file if one is set, while redis-py would add it to the system's CAs. Always checks the
    certificate, while kombu accepts any by default."""

    def _wrap_socket_with_ssl(self, sock: socket.socket) -> ssl.SSLSocket:
        context = _context(self.ca_certs, self.certfile, self.keyfile)
        return context.wrap_socket(sock, server_hostname=self.host)


def is_tls(url: str) -> bool:
    """Returns whether a broker's URL uses TLS."""
    return url.startswith("rediss://")


def tls_options(settings: BrokerSettings) -> dict[str, Any]:
    """Returns the TLS options of kombu and redis-py."""
    return {
        "ssl_cert_reqs": ssl.CERT_REQUIRED,
        "ssl_check_hostname": True,
        "ssl_ca_certs": _absolute(settings.tls_ca_file),
        "ssl_certfile": _absolute(settings.tls_certificate_file),
        "ssl_keyfile": _absolute(settings.tls_key_file),
    }


def fault_of_files(settings: BrokerSettings) -> str | None:
    """Returns what is wrong with the files of the settings, in a sentence with the variable; None if they can be
    used."""
    options = tls_options(settings)
    ca, certificate, key = (options[name] for name in ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile"))
    try:
        _context(ca)
    except OSError as error:
        return f"EVENKEEL_BROKER_TLS_CA_FILE is not a file of certificates: {_words(error)}."
    try:
        _context(None, certificate, key)
    except OSError as error:
        with_key = " with EVENKEEL_BROKER_TLS_KEY_FILE" if key else ""
        return (
            f"EVENKEEL_BROKER_TLS_CERTIFICATE_FILE{with_key} is no certificate with its key, without a passphrase: "
            f"{_words(error)}."
        )
    return None


def _context(ca: str | None, certificate: str | None = None, key: str | None = None) -> ssl.SSLContext:
    """Reads the files for each connection, so that they can be replaced while the service runs."""
    context = ssl.create_default_context(cafile=ca)
    if certificate is not None:
        # Without a passphrase, OpenSSL would prompt for that of an encrypted key at the terminal.
        context.load_cert_chain(certificate, key, password="")
    return context


def _absolute(path: Path | None) -> str | None:
    return None if path is None else str(path.expanduser().absolute())


def _words(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        return error.reason.replace("_", " ").lower() if error.reason else "cannot be read as PEM"
    return error.strerror or type(error).__name__


def is_ours(message: Any) -> bool:
    """Returns whether a decoded message announces a job, and logs one that does not, which the caller drops. A newer
    version may add arguments and headers."""
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
        return "its task does not exist"
    if any(headers.get(name) is not None for name in ("eta", "expires", "group")) or not isinstance(headers["id"], str):
        return "Evenkeel writes no such headers"
    if not isinstance(properties["delivery_tag"], str) or not isinstance(properties["delivery_info"], dict):
        return "Evenkeel writes no such properties"
    if len(message["body"]) > _MAX_BYTES:
        return "it is too large"
    arguments, keywords, _ = json.loads(base64.b64decode(message["body"], validate=True))
    if not isinstance(arguments, list) or not isinstance(keywords, dict) or not isinstance(arguments[0], str):
        return "it contains no job id"
    return None


class FolderChannel(filesystem.Channel):  # type: ignore[misc]
    """A channel over a folder: `data_folder_in` and `data_folder_out` are the same."""

    def _put(self, queue: str, payload: dict[str, Any], **_: Any) -> None:
        # Names sort by time, by the clock of the machine that all processes share.
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
                # Only one process succeeds. If it ends before it claims the job, the sweeper announces that again.
                (folder / name).rename(taken)
            except FileNotFoundError:
                continue
            content = taken.read_bytes()
            taken.unlink(missing_ok=True)
            try:
                return loads(content.decode())
            except ValueError as error:
                _log.error("message_dropped", reason=f"it is not JSON ({type(error).__name__})", file=name)
        raise Empty

    def _queue_bind(self, exchange: str, routing_key: str, pattern: str, queue: str) -> None:
        binding = filesystem.exchange_queue_t(routing_key or "", pattern or "", queue or "")
        file: Path = self._exchange_file(exchange)
        if binding in self.get_table(exchange):
            return  # without the lock, so that a stopped process that has it blocks only new bindings
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
    """Replaces `file` by `content` as JSON, at once."""
    temporary = file.with_name(f".{file.name}.{uuid.uuid4()}.part")
    temporary.write_text(dumps(content), encoding="utf-8")
    temporary.replace(file)


class RedisChannel(kombu_redis.Channel):  # type: ignore[misc]
    """A channel that drops what is not JSON."""

    connection_class_ssl = VerifiedConnection

    def _brpop_read(self, **options: Any) -> Any:
        try:
            return super()._brpop_read(**options)
        except ValueError as error:
            # The message is removed from Redis.
            _log.error("message_dropped", reason=f"it is not JSON ({type(error).__name__})")
            return True


class RedisTransport(kombu_redis.Transport):  # type: ignore[misc]
    """`redis://`, `rediss://` and `redis+socket://` with `RedisChannel`."""

    Channel = RedisChannel

    def _deliver(self, message: Any, queue: str) -> None:
        if is_ours(message):
            super()._deliver(message, queue)


def register() -> None:
    """Registers RedisTransport for these schemes, also for a socket's, of whose URL kombu uses only the scheme."""
    name = f"{__name__}:{RedisTransport.__name__}"
    TRANSPORT_ALIASES.update(redis=name, rediss=name)
