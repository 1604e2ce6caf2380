"""A table that is rewritten repeatedly while others read it, in several ways.

All rows of a version contain its number, so the result of a join shows which version it used.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

CHANGE_SECONDS = 0.3
"""How long a table is partially written at most, unless this process is delayed."""


class ChangingTable:
    """Rows `k STRING, version BIGINT`, one for each key, in a single file: Parquet, or CSV without header."""

    def __init__(self, directory: Path, suffix: str, keys: Sequence[str], seed: int) -> None:
        self.version = 1
        """The newest version, which is complete unless it is being replaced."""
        self.longest = 0.0
        """The duration of the longest change in seconds."""
        self._directory = directory
        self._suffix = suffix
        self._keys = keys
        self._random = random.Random(seed)
        self._ways = (self._rename, self._write_new_file, self._write_in_place, self._remove_first)
        self._lock = threading.RLock()
        self._stopped = threading.Event()
        directory.mkdir()
        self._put(self._path_of(1), self._content(1))

    def change(self, *, at_once: bool = False) -> None:
        """Writes the next version in a random way; `at_once` without a pause in the middle."""
        with self._lock:
            begun, number = time.monotonic(), self.version + 1
            pause = 0.0 if at_once else self._random.uniform(0.0, CHANGE_SECONDS)
            self._random.choice(self._ways)(number, lambda: time.sleep(pause))
            self.version = number
            self.longest = max(self.longest, time.monotonic() - begun)

    @contextmanager
    def at_rest(self) -> Iterator[None]:
        """Prevents other changes during the block."""
        with self._lock:
            yield

    @contextmanager
    def changing(self, seconds: tuple[float, float]) -> Iterator[None]:
        """Changes the table repeatedly during the block, with random pauses between `seconds`."""
        self._stopped.clear()
        thread = threading.Thread(target=self._change_repeatedly, args=(seconds,), name="changes", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._stopped.set()
            thread.join(60)
        assert not thread.is_alive()

    def _change_repeatedly(self, seconds: tuple[float, float]) -> None:
        while not self._stopped.wait(self._random.uniform(*seconds)):
            self.change()

    def _content(self, version: int) -> bytes:
        if self._suffix == "csv":
            return "".join(f"{key},{version}\n" for key in self._keys).encode()
        sink = pa.BufferOutputStream()
        versions = pa.array([version] * len(self._keys), pa.int64())
        pq.write_table(pa.table({"k": list(self._keys), "version": versions}), sink)
        return bytes(sink.getvalue())

    def _file(self) -> Path:
        (file,) = self._directory.glob(f"[0-9]*.{self._suffix}")
        return file

    def _path_of(self, version: int) -> Path:
        return self._directory / f"{version:04}.{self._suffix}"

    def _rename(self, version: int, pause: Callable[[], None]) -> None:
        """Replaces the file atomically."""
        hidden = self._directory / ".new"
        self._put(hidden, self._content(version), pause)
        hidden.rename(self._file())

    def _write_new_file(self, version: int, pause: Callable[[], None]) -> None:
        """Rows of both versions exist for a moment."""
        before = self._file()
        self._put(self._path_of(version), self._content(version), pause)
        before.unlink()

    def _write_in_place(self, version: int, pause: Callable[[], None]) -> None:
        """Only half of the rows exist for a moment."""
        self._put(self._file(), self._content(version), pause)

    def _remove_first(self, version: int, pause: Callable[[], None]) -> None:
        """No file exists for a moment."""
        self._file().unlink()
        pause()
        self._put(self._path_of(version), self._content(version))

    @staticmethod
    def _put(path: Path, content: bytes, pause: Callable[[], None] = lambda: None) -> None:
        half = len(content) // 2
        with path.open("wb") as file:
            file.write(content[:half])
            file.flush()
            pause()
            file.write(content[half:])
