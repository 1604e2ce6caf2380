"""Threads for submissions, which may take a second of processor time each: reads never wait for one of them, and
neither does the end of the process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from typing import ParamSpec, TypeVar

from service.daemon_pool import DaemonPool

P = ParamSpec("P")
T = TypeVar("T")

_THREADS = 32
"""Most of the time of a usual submission goes to files and the database; the compiler limits itself."""


class Submissions:
    """Runs submissions on threads of their own."""

    def __init__(self) -> None:
        self._pool = DaemonPool(_THREADS, "submission")

    async def run(self, submit: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Returns what `submit` returns, and raises what it raises."""
        call = partial(copy_context().run, submit, *args, **kwargs)
        return await asyncio.wrap_future(self._pool.submit(call))

    def close(self) -> None:
        """Drops the submissions that have not begun. Waits for none: one may hang, in the listing of a directory."""
        self._pool.close()
