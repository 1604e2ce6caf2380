"""The embedded broker's transport: kombu's folders, with messages that appear whole or not at all.

kombu writes a message or a binding into the file that others already look for. Whoever looks in between reads half of
it, or nothing, and a worker ends with a JSONDecodeError. Here both are written beside it and renamed into place.
"""

from __future__ import annotations

import fcntl
import time
import uuid
from pathlib import Path
from queue import Empty
from typing import Any

import structlog
from kombu.exceptions import ChannelError
from kombu.transport import filesystem
from kombu.utils.json import dumps, loads

from service.messages import is_ours

_log = structlog.get_logger(__name__)


class FolderChannel(filesystem.Channel):  # type: ignore[misc]
    """A channel over two folders: `data_folder_in` and `data_folder_out` are the same one here."""

    def _put(self, queue: str, payload: dict[str, Any], **_: Any) -> None:
        # Names sort by time; the clock is the machine's, as all who share a folder are on it.
        name = f"{time.monotonic_ns():020d}_{uuid.uuid4()}.{queue}.msg"
        try:
            _replace(Path(self.data_folder_out) / name, payload)
        except OSError as error:
            raise ChannelError(f"cannot add a message to {self.data_folder_out}") from error

    def _get(self, queue: str) -> Any:
        folder = Path(self.data_folder_in)
        for name in sorted(entry.name for entry in folder.iterdir()):
            if name.partition(".")[2] != f"{queue}.msg":
                continue
            taken = folder / f".{name}.taken"
            try:
                # One of those who look succeeds. It may die before the job is claimed: the sweeper rings again.
                (folder / name).rename(taken)
            except FileNotFoundError:
                continue
            content = taken.read_bytes()
            taken.unlink(missing_ok=True)
            try:
                return loads(content.decode())
            except ValueError as error:
                _log.error("message_dropped", reason=f"it is no JSON ({type(error).__name__})", file=name)
        raise Empty

    def _queue_bind(self, exchange: str, routing_key: str, pattern: str, queue: str) -> None:
        binding = filesystem.exchange_queue_t(routing_key or "", pattern or "", queue or "")
        file: Path = self._exchange_file(exchange)
        if binding in self.get_table(exchange):
            return  # a process that stands still with the lock in its hands then holds up nobody but newcomers
        try:
            with (self.control_folder / "bindings.lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                known = self.get_table(exchange)
                if binding not in known:
                    _replace(file, [binding, *known])
        except OSError as error:
            raise ChannelError(f"cannot bind a queue in {self.control_folder}") from error


class FolderTransport(filesystem.Transport):  # type: ignore[misc]
    """`filesystem://` with `FolderChannel`."""

    Channel = FolderChannel

    def _deliver(self, message: Any, queue: str) -> None:
        if is_ours(message):
            super()._deliver(message, queue)


def _replace(file: Path, content: Any) -> None:
    """Writes `content` as JSON so that `file` is either as it was or complete."""
    beside = file.with_name(f".{file.name}.{uuid.uuid4()}.part")
    beside.write_text(dumps(content), encoding="utf-8")
    beside.replace(file)
