"""Calls that many requests want at the same moment are made once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class SharedCalls(Generic[K, T]):
    """Whoever asks for what is being found out already gets that answer. For one event loop."""

    def __init__(self) -> None:
        self._under_way: dict[K, asyncio.Task[T]] = {}

    async def share(self, key: K, call: Callable[[], Awaitable[T]]) -> T:
        """What `call` gives, or the one for the same key that began before. Raises what it raises."""
        under_way = self._under_way.get(key)
        if under_way is None:
            under_way = asyncio.create_task(_task(call))
            self._under_way[key] = under_way
            under_way.add_done_callback(lambda _: self._under_way.pop(key, None))
        # One that gives up must not take the answer away from the others.
        return await asyncio.shield(under_way)


async def _task(call: Callable[[], Awaitable[T]]) -> T:
    return await call()
