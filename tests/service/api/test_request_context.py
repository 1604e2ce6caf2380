"""What is answered around all handlers."""

from __future__ import annotations

import asyncio
import json

from starlette.types import Message, Receive, Scope, Send

from service.api.metrics import HttpMetrics
from service.api.request_context import RequestContext

SCOPE = {"type": "http", "method": "GET", "path": "/v1/jobs/1", "headers": []}


async def given_up(begins: bool) -> tuple[list[Message], bool]:
    """What a client gets of a request whose task is cancelled, as the server does when it stops, after the answer's
    beginning or before; and whether the cancellation went on."""
    sent: list[Message] = []
    waiting = asyncio.Event()

    async def wait_for_ever(scope: Scope, receive: Receive, send: Send) -> None:
        if begins:
            await send({"type": "http.response.start", "status": 200, "headers": []})
        waiting.set()
        await asyncio.Event().wait()

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    task = asyncio.create_task(RequestContext(wait_for_ever, HttpMetrics())(dict(SCOPE), receive, send))
    await waiting.wait()
    task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        return sent, True
    return sent, False


def test_a_request_that_the_server_gives_up_is_told_so() -> None:
    (start, body), cancelled = asyncio.run(given_up(begins=False))
    headers = dict(start["headers"])
    assert (start["status"], headers[b"retry-after"], cancelled) == (503, b"1", False)
    assert headers[b"content-type"] == b"application/problem+json"
    assert json.loads(body["body"])["code"] == "stopping"


def test_an_answer_that_has_begun_is_cut_off() -> None:
    (start,), cancelled = asyncio.run(given_up(begins=True))
    assert (start["status"], cancelled) == (200, True)
