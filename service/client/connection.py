"""Connections, which run the steps of `exchange.py`: `Connection` blocks, `AsyncConnection` awaits.

The API key is sent to the named service only: redirects are not followed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import httpx

from .address import is_loopback
from .exchange import Exchange, Pause, Send, Steps, http_error
from .requests import Request

T = TypeVar("T")

_CHUNK_BYTES = 1 << 20


def _options(exchange: Exchange) -> dict[str, Any]:
    return {
        "base_url": exchange.url,
        "headers": exchange.headers,
        # A redirect may lead to another host, which must not get the key.
        "follow_redirects": False,
        # A proxy would connect to the loopback interface of its own machine.
        "trust_env": not is_loopback(exchange.url),
        "verify": httpx.create_ssl_context() if exchange.url.startswith("https:") else True,
        # A pool that is exhausted by many threads makes requests wait, and is not a failure of the service.
        "limits": httpx.Limits(max_connections=None, max_keepalive_connections=20),
    }


def _arguments(step: Send) -> dict[str, Any]:
    request = step.request
    return {
        "method": request.method,
        "url": request.path,
        "params": request.params or None,
        "headers": request.headers,
        "content": request.content,
        "timeout": step.timeout,
    }


class Connection:
    """Sends requests to one service. Several threads may use it."""

    def __init__(self, exchange: Exchange, transport: httpx.BaseTransport | None = None) -> None:
        self.exchange = exchange
        try:
            self._http = httpx.Client(**_options(exchange), transport=transport)
        except (ImportError, OSError, ValueError) as error:
            raise http_error(error) from None

    def run(self, steps: Steps[T]) -> T:
        """Runs the steps and returns their result. Raises what they raise."""
        try:
            step = next(steps)
            while True:
                try:
                    response = self._do(step)
                except httpx.HTTPError as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(response)
        except StopIteration as end:
            result: T = end.value
            return result

    @contextmanager
    def stream(self, request: Request) -> Iterator[httpx.Response]:
        """Yields the successful response before its body is read; closes it at the end of the block.

        Raises EvenkeelError for other responses, and `httpx.TransportError` if the body is cut off.
        """
        response = self.run(self.exchange.send(request, is_stream=True))
        try:
            yield response
        finally:
            response.close()

    def close(self) -> None:
        """Closes the connections."""
        self._http.close()

    def _do(self, step: Send | Pause) -> httpx.Response | None:
        if isinstance(step, Pause):
            time.sleep(step.seconds)
            return None
        response = self._http.send(
            self._http.build_request(**_arguments(step)), stream=step.is_stream or step.sink is not None
        )
        if response.is_success and step.is_stream:
            return response
        try:
            if response.is_success and step.sink is not None:
                for chunk in response.iter_bytes(_CHUNK_BYTES):
                    step.sink.write(chunk)
            else:
                response.read()
        finally:
            response.close()
        return response


class AsyncConnection:
    """Sends requests to one service from the coroutines of one event loop."""

    def __init__(self, exchange: Exchange, transport: httpx.AsyncBaseTransport | None = None) -> None:
        self.exchange = exchange
        try:
            self._http = httpx.AsyncClient(**_options(exchange), transport=transport)
        except (ImportError, OSError, ValueError) as error:
            raise http_error(error) from None

    async def run(self, steps: Steps[T]) -> T:
        """Runs the steps and returns their result. Raises what they raise."""
        try:
            step = next(steps)
            while True:
                try:
                    response = await self._do(step)
                except httpx.HTTPError as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(response)
        except StopIteration as end:
            result: T = end.value
            return result

    async def close(self) -> None:
        """Closes the connections."""
        await self._http.aclose()

    async def _do(self, step: Send | Pause) -> httpx.Response | None:
        if isinstance(step, Pause):
            await asyncio.sleep(step.seconds)
            return None
        response = await self._http.send(
            self._http.build_request(**_arguments(step)), stream=step.is_stream or step.sink is not None
        )
        try:
            if response.is_success and step.sink is not None:
                async for chunk in response.aiter_bytes(_CHUNK_BYTES):
                    await asyncio.to_thread(step.sink.write, chunk)
            else:
                await response.aread()
        finally:
            await response.aclose()
        return response
