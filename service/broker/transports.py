"""The message transports: folders (the embedded broker) and Redis, with TLS; and explanations of connection errors.

Both transports drop messages that do not announce a job: anyone who can connect to Redis can write there, and some
malformed messages would crash one Celery worker after the other.

kombu's own folder transport writes messages and bindings in place, so another process may read half of a file, and
fails with a JSONDecodeError. `FolderChannel` writes a temporary file and renames it.

Every TLS connection verifies the server's certificate and host name; no setting disables that. No error text contains
a secret.
"""

from __future__ import annotations

import base64
import errno
import fcntl
import json
import os
import socket
import ssl
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
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

_MAX_BODY_BYTES = 64 << 10

_log = structlog.get_logger(__name__)

_HOST_NAME_MISMATCH = frozenset({62, 64})
_UNTRUSTED_CA = frozenset({2, 18, 19, 20, 21})
"""Verification errors of OpenSSL (X509_V_ERR_…), as `ssl` reports them."""

_SERVER_WITHOUT_TLS = frozenset({"WRONG_VERSION_NUMBER", "UNKNOWN_PROTOCOL", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG"})
"""Reasons of an `SSLError` when the server answers without TLS."""

_CLIENT_CERTIFICATE_ALERTS = frozenset(
    {"BAD_CERTIFICATE", "UNSUPPORTED_CERTIFICATE", "CERTIFICATE_REVOKED", "CERTIFICATE_EXPIRED", "UNKNOWN_CA"}
    | {"CERTIFICATE_UNKNOWN"}
)
"""TLS alerts with which a server rejects the client's certificate."""

_SCHEME_ADVICE = "rediss:// is for a port with TLS, redis:// for one without."
_CLOSED_ADVICE = (
    f"{_SCHEME_ADVICE} If the server requires client certificates, set EVENKEEL_BROKER_TLS_CERTIFICATE_FILE."
)
"""For a server that closes the connection during the TLS handshake, sometimes before it sends the reason."""

_CLIENT_CERTIFICATE_ADVICE = "Set EVENKEEL_BROKER_TLS_CERTIFICATE_FILE to a certificate from a CA that Redis trusts."


def causes_of(error: BaseException | None) -> Iterator[BaseException]:
    """Yields an error, then its cause or context, then the cause of that, and so on."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


@dataclass(frozen=True)
class BrokerFault:
    """Why messages cannot be sent, and what to do, each in one sentence that contains no secret."""

    detail: str
    advice: str


def fault_of(error: Exception, address: str, *, is_tls: bool) -> BrokerFault:
    """Returns the fault that caused an error of a connection to Redis at `address` ("host:port", or a path)."""
    match error:
        case redis.AuthenticationError() | redis.exceptions.NoPermissionError():
            return BrokerFault(
                f"The Redis at {address} rejects the user or password, or denies the user access.",
                "Correct the user and password in EVENKEEL_BROKER_URL, or EVENKEEL_BROKER_PASSWORD.",
            )
        case redis.BusyLoadingError():
            return BrokerFault(f"The Redis at {address} is still loading its data.", "Wait until it is ready.")
        case redis.TimeoutError() | TimeoutError():
            return BrokerFault(
                f"The Redis at {address} did not answer in time.",
                "Check whether the server hangs or a firewall drops packets; EVENKEEL_BROKER_TIMEOUT_SECONDS limits "
                f"the wait. {_SCHEME_ADVICE if is_tls else ''}".rstrip(),
            )
        case redis.ConnectionError():
            for cause in causes_of(error):
                if isinstance(cause, ssl.SSLError):
                    return _fault_of_tls(cause, address)
                if (reason := _unreachable_reason(cause)) is not None:
                    return BrokerFault(
                        f"Redis cannot be reached at {address}: {reason}.", "Start it, or correct EVENKEEL_BROKER_URL."
                    )
        case redis.ResponseError():
            return BrokerFault(
                f"The Redis at {address} refuses the connection: {error}.",
                "Correct its configuration or EVENKEEL_BROKER_URL.",
            )
    return BrokerFault(
        f"The server at {address} is not Redis.",
        f"Correct the host and port in EVENKEEL_BROKER_URL; {_CLOSED_ADVICE if is_tls else _SCHEME_ADVICE}",
    )


def _fault_of_tls(error: ssl.SSLError, address: str) -> BrokerFault:
    if isinstance(error, ssl.SSLCertVerificationError):
        return _fault_of_certificate(error, address)
    reason = error.reason or type(error).__name__
    alert = reason.partition("_ALERT_")[2]
    if reason in _SERVER_WITHOUT_TLS:
        return BrokerFault(
            f"The server at {address} does not use TLS.", f"Correct EVENKEEL_BROKER_URL: {_SCHEME_ADVICE}"
        )
    if alert == "CERTIFICATE_REQUIRED":
        return BrokerFault(f"The Redis at {address} requires a client certificate.", _CLIENT_CERTIFICATE_ADVICE)
    if alert in _CLIENT_CERTIFICATE_ALERTS:
        words = alert.lower().replace("_", " ")
        return BrokerFault(
            f"The Redis at {address} rejects the client certificate: {words}.", _CLIENT_CERTIFICATE_ADVICE
        )
    words = reason.lower().replace("_", " ")
    return BrokerFault(
        f"The TLS handshake with the server at {address} fails: {words}.", f"See the server's log. {_CLOSED_ADVICE}"
    )


def _fault_of_certificate(error: ssl.SSLCertVerificationError, address: str) -> BrokerFault:
    subject = f"The certificate of the Redis at {address}"
    match error.verify_code:
        case code if code in _UNTRUSTED_CA:
            return BrokerFault(
                f"{subject} was not issued by a trusted CA.",
                "Set EVENKEEL_BROKER_TLS_CA_FILE to the certificate of its CA; if that is already set, a "
                "different server answers at this address.",
            )
        case code if code in _HOST_NAME_MISMATCH:
            return BrokerFault(
                f"{subject} is for a different host name.",
                "Use a host name of the certificate in EVENKEEL_BROKER_URL, or issue a certificate for this name; if "
                "the server already has one, a different server answers at this address.",
            )
        case 10:  # X509_V_ERR_CERT_HAS_EXPIRED
            return BrokerFault(f"{subject} has expired.", "Renew it on the server.")
        case 9:  # X509_V_ERR_CERT_NOT_YET_VALID
            return BrokerFault(f"{subject} is not valid yet.", "Check the clocks of both machines.")
    return BrokerFault(f"{subject} is not valid: {error.verify_message}.", "Replace it on the server.")


def _unreachable_reason(error: BaseException) -> str | None:
    """Returns why no server could be reached; None if a server accepted the connection, and then closed it or sent
    something else than Redis does."""
    if isinstance(error, OSError) and not isinstance(error, ConnectionResetError | BrokenPipeError):
        # Errors of name resolution have their own numbers and texts.
        return None if error.errno is None else error.strerror or os.strerror(error.errno)
    return None


class VerifiedConnection(redis.SSLConnection):
    """A TLS connection that always verifies the server's certificate; by default, kombu accepts any certificate.

    If a CA file is set, no other CA is trusted; redis-py would also trust the CAs of the system.
    """

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
    """Returns a sentence that names the variable of an unusable file and says what is wrong with it; None if all files
    can be used."""
    options = tls_options(settings)
    ca, certificate, key = (options[name] for name in ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile"))
    try:
        _context(ca)
    except OSError as error:
        return f"EVENKEEL_BROKER_TLS_CA_FILE is not a file with certificates: {_cause_of(error)}."
    try:
        _context(None, certificate, key)
    except OSError as error:
        with_key = " with EVENKEEL_BROKER_TLS_KEY_FILE" if key else ""
        return (
            f"EVENKEEL_BROKER_TLS_CERTIFICATE_FILE{with_key} is not a certificate with its unencrypted key: "
            f"{_cause_of(error)}."
        )
    return None


def _context(ca: str | None, certificate: str | None = None, key: str | None = None) -> ssl.SSLContext:
    """Returns a context with the files. They are read for each connection, so they can be replaced while the service
    runs."""
    context = ssl.create_default_context(cafile=ca)
    if certificate is not None:
        # An empty passphrase: otherwise OpenSSL would prompt for that of an encrypted key at the terminal.
        context.load_cert_chain(certificate, key, password="")
    return context


def _absolute(path: Path | None) -> str | None:
    return None if path is None else str(path.expanduser().absolute())


def _cause_of(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        return error.reason.replace("_", " ").lower() if error.reason else "cannot be read as PEM"
    return error.strerror or type(error).__name__


def announces_job(message: Any) -> bool:
    """Returns whether a decoded message announces a job. Logs one that does not, which the caller drops.

    A message of a newer version may have more arguments and headers.
    """
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
        return "it names an unknown task"
    if any(headers.get(name) is not None for name in ("eta", "expires", "group")) or not isinstance(headers["id"], str):
        return "it has headers that Evenkeel does not set"
    if not isinstance(properties["delivery_tag"], str) or not isinstance(properties["delivery_info"], dict):
        return "it has properties that Evenkeel does not set"
    if len(message["body"]) > _MAX_BODY_BYTES:
        return "it is too large"
    arguments, keywords, _ = json.loads(base64.b64decode(message["body"], validate=True))
    if not isinstance(arguments, list) or not isinstance(keywords, dict) or not isinstance(arguments[0], str):
        return "it contains no job id"
    return None


_SETTLED_NS = 2_000_000_000
"""Age of a modification time after which a further change has another one. Some file systems store whole seconds."""


class FolderChannel(filesystem.Channel):  # type: ignore[misc]
    """A channel over a folder: `data_folder_in` and `data_folder_out` are the same.

    Waiting for a message takes one look at the folder's modification time for each queue, instead of its listing.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._empty_as_of: dict[str, int] = {}
        """The modification time of the folder when it had no message for a queue."""

    def _put(self, queue: str, payload: dict[str, Any], **_: Any) -> None:
        # The names sort by time: all processes run on one machine and read the same clock.
        name = f"{time.monotonic_ns():020d}_{uuid.uuid4()}.{queue}.msg"
        content = dumps(payload).encode()
        temporary = os.path.join(self.data_folder_out, f".{name}.part")  # noqa: PTH118 - several times faster here
        try:
            with open(temporary, "xb", buffering=0) as file:  # noqa: PTH123
                if file.write(content) < len(content):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.replace(temporary, os.path.join(self.data_folder_out, name))  # noqa: PTH105, PTH118
        except OSError as error:
            with suppress(OSError):
                os.unlink(temporary)  # noqa: PTH108
            raise ChannelError(f"cannot add a message to {self.data_folder_out}") from error

    def _get(self, queue: str) -> Any:
        folder = Path(self.data_folder_in)
        changed_at = folder.stat().st_mtime_ns
        if self._empty_as_of.get(queue) == changed_at:
            raise Empty
        is_settled = time.time_ns() - changed_at > _SETTLED_NS
        for name in sorted(entry.name for entry in folder.iterdir()):
            if name.partition(".")[2] != f"{queue}.msg":
                continue
            taken = folder / f".{name}.taken"
            try:
                # Only one process can rename the file. If it ends before it claims the job, the sweeper announces the
                # job again.
                (folder / name).rename(taken)
            except FileNotFoundError:
                continue
            content = taken.read_bytes()
            taken.unlink(missing_ok=True)
            try:
                return loads(content.decode())
            except ValueError as error:
                _log.error("message_dropped", reason=f"it is not JSON ({type(error).__name__})", file=name)
        if is_settled:
            self._empty_as_of[queue] = changed_at
        raise Empty

    def _queue_bind(self, exchange: str, routing_key: str, pattern: str, queue: str) -> None:
        binding = filesystem.exchange_queue_t(routing_key or "", pattern or "", queue or "")
        file: Path = self._exchange_file(exchange)
        if binding in self.get_table(exchange):
            return  # checked without the lock, so that a suspended process that holds it blocks only new bindings
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
        if announces_job(message):
            super()._deliver(message, queue)


def _replace(file: Path, content: Any) -> None:
    """Atomically replaces `file` by `content` as JSON."""
    temporary = file.with_name(f".{file.name}.{uuid.uuid4()}.part")
    temporary.write_text(dumps(content), encoding="utf-8")
    temporary.replace(file)


class RedisChannel(kombu_redis.Channel):  # type: ignore[misc]
    """A channel that drops messages that are not JSON."""

    connection_class_ssl = VerifiedConnection

    def _brpop_read(self, **options: Any) -> Any:
        try:
            return super()._brpop_read(**options)
        except ValueError as error:
            # BRPOP has already removed the message from Redis.
            _log.error("message_dropped", reason=f"it is not JSON ({type(error).__name__})")
            return True


class RedisTransport(kombu_redis.Transport):  # type: ignore[misc]
    """`redis://`, `rediss://` and `redis+socket://` with `RedisChannel`."""

    Channel = RedisChannel

    def _deliver(self, message: Any, queue: str) -> None:
        if announces_job(message):
            super()._deliver(message, queue)


def register() -> None:
    """Registers RedisTransport for `redis`, whose transport kombu also uses for `redis+socket`, and for `rediss`."""
    name = f"{__name__}:{RedisTransport.__name__}"
    TRANSPORT_ALIASES.update(redis=name, rediss=name)
