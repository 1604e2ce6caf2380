"""Threads for submissions, which may take a second of processor time each: reads never wait for one of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_THREADS = 32
"""Most of the time of a usual submission goes to files and the database; the compiler limits itself."""


class Submissions:
    """Runs submissions on threads of their own."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="submission")

    async def run(self, submit: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Returns what `submit` returns, and raises what it raises."""
        call = partial(copy_context().run, submit, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._pool, call)

    def close(self) -> None:
        """Ends the threads once they have done what they were given."""
        self._pool.shutdown()
