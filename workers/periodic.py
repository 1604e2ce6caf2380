"""Threads that call a function periodically, continue after its failures, and can be stopped.

`Durations` measures in their steps for how long something has been true.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterable

import structlog

from service.store.session import fault_of

_log = structlog.get_logger(__name__)


class Loop:
    """Calls `step` every `period` seconds in a daemon thread. Each failure doubles the pause, up to `longest`."""

    def __init__(self, name: str, period: float, step: Callable[[], None], longest: float = 30.0) -> None:
        self._name = name
        self._period = period
        self._longest = max(period, longest)
        self._step = step
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Starts the thread, which runs the first step at once."""
        self._thread.start()

    def ask_to_stop(self) -> None:
        """Makes the thread end after its current step. Returns at once."""
        self._stopping.set()

    def join(self, timeout: float) -> None:
        """Waits at most `timeout` seconds for the thread to end. Returns at once if it was never started."""
        if self._thread.is_alive():
            self._thread.join(timeout)

    def _run(self) -> None:
        failures = 0
        while not self._stopping.is_set():
            try:
                self._step()
                failures = 0
            except Exception as error:  # noqa: BLE001 - the worker needs this thread, whatever the error is
                failures += 1
                # The traceback of an unavailable database is logged only once.
                is_logged = failures > 1 and fault_of(error) is not None
                _log.warning("loop_failed", loop=self._name, failures=failures, exc_info=None if is_logged else error)
            self._stopping.wait(min(self._period * 2 ** min(failures, 10), self._longest))


class Durations:
    """Measures for how many seconds each item has been in every collection that was passed to `update`."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._since: dict[Hashable, float] = {}

    def update(self, items: Iterable[Hashable]) -> list[float]:
        """Returns the seconds for each of `items`, and removes all others."""
        now = self._clock()
        self._since = {item: self._since.get(item, now) for item in items}
        return [now - since for since in self._since.values()]

    def longest(self, items: Iterable[Hashable]) -> float:
        """Like `update`, but returns the largest number; 0 without items."""
        return max(self.update(items), default=0.0)

    def restart(self, item: Hashable) -> None:
        """Measures the time of an item from now on."""
        self._since[item] = self._clock()
