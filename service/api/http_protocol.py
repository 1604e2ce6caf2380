"""Parses HTTP/1.1 with httptools, which is faster than uvicorn's other parser, and limits the size of a request's head.

httptools itself keeps a head of any size in memory.
"""

from __future__ import annotations

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD_BYTES = 64 << 10
"""How many bytes may follow each other that are no part of a body: request line and headers, trailers, extensions of
chunks. The limit of uvicorn's other parser. Both check it after each read, of at most 256 KB: a head that arrives
complete in one read may be larger."""


class BoundedHttpProtocol(HttpToolsProtocol):
    """A connection. Answers 400 and closes it if a head is too large, or is not HTTP/1.1."""

    _pending_bytes = 0
    """Bytes received since the last head, part of a body, or end of a request."""

    def data_received(self, data: bytes) -> None:
        """Reads the next bytes of the client."""
        self._pending_bytes += len(data)
        super().data_received(data)
        if self._pending_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response("The head of the request is too large.")

    def on_headers_complete(self) -> None:
        """Starts the application with a request whose head is complete."""
        self._pending_bytes = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Passes a part of a body to the application."""
        self._pending_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Ends a request."""
        self._pending_bytes = 0
        super().on_message_complete()
