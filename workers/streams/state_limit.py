"""Stops a stream before a mini-batch if its state takes too much disk space, or if its disk is almost full.

Otherwise a full disk ends the stream within a mini-batch, with the error of whichever program could not write.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar

from service.contract.model import format_bytes
from workers.engine.streaming.query import BatchDone, BatchFence

_SECONDS = 10.0
"""How often the files of the state are measured: there may be thousands."""


class StateLimitError(Exception):
    """The state of a stream takes more disk space than it may. The message says what to change."""

    code: ClassVar[str] = "state_limit_exceeded"


class StateLimit:
    """A `BatchFence` that also limits the state, whose files are below `directories`.

    `most` is the limit of their bytes, None for none; `free` is the disk space that must be left, 0 for any.
    """

    def __init__(
        self,
        inner: BatchFence,
        directories: Sequence[Path],
        most: int | None,
        free: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._inner = inner
        self._directories = directories
        self._most = most
        self._free = free
        self._clock = clock
        self._next = clock()

    def begin(self, batch_id: int) -> None:
        """See `BatchFence`. Raises StateLimitError."""
        self._inner.begin(batch_id)
        if self._clock() >= self._next:
            self._check()
            self._next = self._clock() + _SECONDS

    def finish(self, done: BatchDone) -> None:
        """See `BatchFence`."""
        self._inner.finish(done)

    def _check(self) -> None:
        known = [directory for directory in self._directories if directory.is_dir()]
        size = 0 if self._most is None else sum(map(bytes_below, known))
        if self._most is not None and size > self._most:
            raise StateLimitError(
                f"The state takes {_rounded(size)} of disk space, more than 'state.limit', "
                f"{format_bytes(self._most)}. Resume the job with a larger 'state.limit', or with "
                '{"from": "scratch"}.'
            )
        for directory in known:
            left = shutil.disk_usage(directory).free
            if left < self._free:
                raise StateLimitError(
                    f"The disk of the state has {_rounded(left)} of free space, less than "
                    f"EVENKEEL_LIMITS_FREE_BYTES, {format_bytes(self._free)}. Free some space, and resume the job."
                )


def _rounded(size: int) -> str:
    return format_bytes(size >> 20 << 20 or size)


def bytes_below(directory: Path) -> int:
    """Returns the sizes of the files below a directory, without those that are removed meanwhile."""
    total, pending = 0, [str(directory)]
    while pending:
        try:
            with os.scandir(pending.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(entry.path)
                    else:
                        total += entry.stat(follow_symlinks=False).st_size
        except FileNotFoundError:
            continue
    return total
