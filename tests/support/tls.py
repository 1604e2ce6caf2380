"""A server behind TLS: what stands before it ends TLS, as stunnel does, with certificates that the test makes."""

from __future__ import annotations

import select
import socket
import socketserver
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import trustme

_WAIT_SECONDS = 10
_CHUNK = 64 << 10


@dataclass(frozen=True)
class Pair:
    """Files of a certificate, with those of the CAs below the root, and of its key."""

    certificate: Path
    key: Path


def write_ca(ca: trustme.CA, path: Path) -> Path:
    """The certificate of a CA as a file."""
    ca.cert_pem.write_to_path(path)
    return path


def write_pair(issued: trustme.LeafCert, directory: Path, name: str) -> Pair:
    """A certificate and its key as files."""
    pair = Pair(directory / f"{name}.pem", directory / f"{name}.key")
    for number, blob in enumerate(issued.cert_chain_pems):
        blob.write_to_path(pair.certificate, append=number > 0)
    issued.private_key_pem.write_to_path(pair.key)
    return pair


def server_context(issued: trustme.LeafCert, clients: trustme.CA | None = None) -> ssl.SSLContext:
    """Of a server with this certificate, for `TlsFront.context`."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    issued.configure_cert(context)
    if clients is not None:
        clients.configure_trust(context)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


class TlsFront(socketserver.ThreadingTCPServer):
    """A port of loopback where TLS ends, which leads to the port `behind`. Another `context` is for connections to
    come."""

    daemon_threads = True

    def __init__(self, behind: int, context: ssl.SSLContext) -> None:
        super().__init__(("127.0.0.1", 0), _Connection)
        self.behind = behind
        self.context = context
        self.heard = b""
        """All that clients said, out of TLS."""
        self.refused = 0
        """Handshakes that failed."""

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self.server_address[1])


class _Connection(socketserver.BaseRequestHandler):
    server: TlsFront
    request: socket.socket

    def handle(self) -> None:
        self.request.settimeout(_WAIT_SECONDS)
        context = self.server.context
        client = context.wrap_socket(self.request, server_side=True, do_handshake_on_connect=False)
        try:
            client.do_handshake()
        except OSError:
            self.server.refused += 1
            _leave_last_word(client)
            return
        with suppress(OSError), client, socket.create_connection(("127.0.0.1", self.server.behind)) as server:
            pass_on(client, server, self._hear)

    def _hear(self, chunk: bytes) -> None:
        self.server.heard += chunk


def pass_on(client: socket.socket, server: socket.socket, hear: Callable[[bytes], None] = lambda _: None) -> None:
    """Hands on what each of two sockets says to the other one, until one has said all."""
    while True:
        waiting = isinstance(client, ssl.SSLSocket) and client.pending()
        ready = [client] if waiting else select.select([client, server], [], [])[0]
        for source in ready:
            chunk = source.recv(_CHUNK)
            if not chunk:
                return
            if source is client:
                hear(chunk)
            (server if source is client else client).sendall(chunk)


def _leave_last_word(client: ssl.SSLSocket) -> None:
    """Closes once the client has: to close over what it still says would take the alert from it, now and then."""
    with suppress(OSError), socket.socket(fileno=client.detach()) as raw:
        raw.settimeout(_WAIT_SECONDS)
        raw.shutdown(socket.SHUT_WR)
        while raw.recv(_CHUNK):
            pass


@contextmanager
def behind_tls(port: int, issued: trustme.LeafCert, clients: trustme.CA | None = None) -> Iterator[TlsFront]:
    """TLS in front of a port of loopback; `clients` is the CA of those that may connect, anybody may by default."""
    with TlsFront(port, server_context(issued, clients)) as front:
        thread = threading.Thread(target=front.serve_forever, kwargs={"poll_interval": 0.05}, name="tls")
        thread.start()
        try:
            yield front
        finally:
            front.shutdown()
            thread.join(_WAIT_SECONDS)
