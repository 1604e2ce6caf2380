"""Ctrl-C, SIGTERM and a closed terminal: the first asks for a stop, the second for a quick one."""

from __future__ import annotations

import signal
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Self

from service.cli.errors import StopRequestedError

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StopSignals:
    """While entered, the first signal raises StopRequestedError in the main thread; later ones are counted."""

    def __init__(self) -> None:
        self._count = 0
        self._before: dict[signal.Signals, signal._HANDLER] = {}

    @property
    def hurried(self) -> bool:
        """Whether a second signal has come."""
        return self._count > 1

    def __enter__(self) -> Self:
        for number in _SIGNALS:
            self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            with suppress(TypeError):  # a handler that was not set from Python cannot be set again
                signal.signal(number, handler)

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        self._count += 1
        if self._count == 1:
            raise StopRequestedError
