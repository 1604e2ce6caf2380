"""HEAD wherever there is GET: the same status and headers, without the body."""

from __future__ import annotations

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send


class HeadAsGet:
    """ASGI middleware, the outermost. The application sees a GET whose client leaves once it has the headers."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hands the request on, a HEAD as a GET."""
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return
        answered = asyncio.Event()
        pending: list[Message] = [{"type": "http.request", "body": b"", "more_body": False}]

        async def receive_until_answered() -> Message:
            if pending:
                return pending.pop()
            # An endless stream of events ends by this.
            await answered.wait()
            return {"type": "http.disconnect"}

        async def send_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                await send(message)
                await send({"type": "http.response.body", "body": b"", "more_body": False})
                answered.set()

        await self._app({**scope, "method": "GET"}, receive_until_answered, send_headers)
