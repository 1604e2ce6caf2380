"""What an error of a connection to Redis means, in words, and what to do about it. No secret is in either."""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass

import redis

from service.causes import causes_of

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
