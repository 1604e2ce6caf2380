"""Connections to Redis over TLS: each checks the server's certificate and its name, and nothing turns that off."""

from __future__ import annotations

import socket
import ssl
from pathlib import Path
from typing import Any

import redis

from service.broker_settings import BrokerSettings


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
