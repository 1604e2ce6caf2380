"""A TLS proxy in front of a server, like stunnel, with certificates that the test creates."""

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
    """The files of a certificate chain and of its key."""

    certificate: Path
    key: Path


def write_ca(ca: trustme.CA, path: Path) -> Path:
    """Writes the certificate of a CA to a file."""
    ca.cert_pem.write_to_path(path)
    return path


def write_pair(issued: trustme.LeafCert, directory: Path, name: str) -> Pair:
    """Writes a certificate and its key to files."""
    pair = Pair(directory / f"{name}.pem", directory / f"{name}.key")
    for number, blob in enumerate(issued.cert_chain_pems):
        blob.write_to_path(pair.certificate, append=number > 0)
    issued.private_key_pem.write_to_path(pair.key)
    return pair


def server_context(issued: trustme.LeafCert, clients: trustme.CA | None = None) -> ssl.SSLContext:
    """Returns the TLS context of a server with this certificate, for `TlsFront.context`."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    issued.configure_cert(context)
    if clients is not None:
        clients.configure_trust(context)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


class TlsFront(socketserver.ThreadingTCPServer):
    """A proxy on loopback that terminates TLS and connects to the port `server_port`. A new `context` applies to new
    connections."""

    daemon_threads = True

    def __init__(self, server_port: int, context: ssl.SSLContext) -> None:
        super().__init__(("127.0.0.1", 0), _Connection)
        self.server_port = server_port
        self.context = context
        self.heard = b""
        """The decrypted bytes of all clients."""
        self.refused = 0
        """The errors of failed handshakes."""

    @property
    def port(self) -> int:
        """The port on which the proxy listens."""
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
        with suppress(OSError), client, socket.create_connection(("127.0.0.1", self.server.server_port)) as server:
            pass_on(client, server, self._hear)

    def _hear(self, chunk: bytes) -> None:
        self.server.heard += chunk


def pass_on(client: socket.socket, server: socket.socket, hear: Callable[[bytes], None] = lambda _: None) -> None:
    """Copies bytes between two sockets in both directions, until one of them closes."""
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
    """Waits until the client has closed: closing with unread bytes could discard the TLS alert."""
    with suppress(OSError), socket.socket(fileno=client.detach()) as raw:
        raw.settimeout(_WAIT_SECONDS)
        raw.shutdown(socket.SHUT_WR)
        while raw.recv(_CHUNK):
            pass


@contextmanager
def behind_tls(port: int, issued: trustme.LeafCert, clients: trustme.CA | None = None) -> Iterator[TlsFront]:
    """Runs a TLS proxy in front of a local port. `clients` is the CA of the accepted clients; by default, all are."""
    with TlsFront(port, server_context(issued, clients)) as front:
        thread = threading.Thread(target=front.serve_forever, kwargs={"poll_interval": 0.05}, name="tls")
        thread.start()
        try:
            yield front
        finally:
            front.shutdown()
            thread.join(_WAIT_SECONDS)
