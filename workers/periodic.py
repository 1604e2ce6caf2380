"""Threads that do one thing over and over, survive its failures and stop when told."""

from __future__ import annotations

import threading
from collections.abc import Callable

import structlog

from service.store.session import fault_of

_log = structlog.get_logger(__name__)


class Loop:
    """Calls `step` every `period` seconds in a daemon thread; after failures the pauses double, up to `longest`."""

    def __init__(self, name: str, period: float, step: Callable[[], None], longest: float = 30.0) -> None:
        self._name = name
        self._period = period
        self._longest = max(period, longest)
        self._step = step
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Starts the thread; the first step comes at once."""
        self._thread.start()

    def ask_to_stop(self) -> None:
        """The thread ends after the step it is at; never waits."""
        self._stopping.set()

    def join(self, timeout: float) -> None:
        """Waits for the thread to end, at most `timeout` seconds; at once for a loop that never started."""
        if self._thread.is_alive():
            self._thread.join(timeout)

    def _run(self) -> None:
        failures = 0
        while not self._stopping.is_set():
            try:
                self._step()
                failures = 0
            except Exception as error:  # noqa: BLE001 - whatever it was, a worker without this thread would be worse
                failures += 1
                # A database that is away says the same in every round of every loop.
                told = failures > 1 and fault_of(error) is not None
                _log.warning("loop_failed", loop=self._name, failures=failures, exc_info=None if told else error)
            self._stopping.wait(min(self._period * 2 ** min(failures, 10), self._longest))
