"""The scratch directories of workers, in which their Spark drivers keep shuffle files and other temporary files.

    <root>/scratch-<32 hexadecimal digits>/owner.json    of a worker that runs, or ended without removing it
    <root>/.new-<32 hexadecimal digits>/                 a directory that is being created

A worker removes its directory at its end. `sweep_scratch` removes the directories of workers that were killed; its
docstring says how the owner of a directory is found to be dead.
"""

from __future__ import annotations

import errno
import fcntl
import json
import math
import os
import re
import shutil
import socket
import threading
import uuid
from collections.abc import Iterator
from contextlib import suppress
from enum import Enum
from pathlib import Path

import psutil

from workers.periodic import Loop

QUIET_SECONDS = 600.0
STALE_SECONDS = 24 * 3600.0
"""After these times without a heartbeat, an owner is dead: after the first one if its lock would be visible here."""

STALE_LEGACY_SECONDS = 7 * 24 * 3600.0
"""The same for directories of earlier versions, whose only sign of life is the files that Spark writes."""

_BEAT_SECONDS = 60.0
_SWEEP_EVERY = 10
"""How many heartbeats there are between two sweeps of a running worker."""

_OWNER = "owner.json"
_NAME = re.compile(r"scratch-[0-9a-f]{32}")
_NEW = re.compile(r"\.new-[0-9a-f]{32}")
_LEGACY_NAME = re.compile(r"(?P<host>.+)-(?P<pid>\d+)-(?P<started>\d+)")


class _Lock(Enum):
    """The result of an attempt to lock a file."""

    TAKEN = "taken"
    HELD_BY_OTHER = "held by another process"
    UNSUPPORTED = "unsupported by the file system"


class Scratch:
    """One new directory below `root`, and its heartbeat until `remove`. Removes the directories of dead workers, at
    once and then every few minutes.

    Raises OSError if the directory cannot be created.
    """

    def __init__(self, root: Path) -> None:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._root = root
        name = uuid.uuid4().hex
        new, self.path = root / f".new-{name}", root / f"scratch-{name}"
        new.mkdir(mode=0o700)
        self._owner = os.open(new / _OWNER, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        is_locked = _lock(self._owner) is _Lock.TAKEN
        process = psutil.Process()
        owner = {"kernel": _kernel(), "namespace": _namespace(), "pid": process.pid, "started": _started(process)}
        os.write(self._owner, json.dumps({**owner, "locked": is_locked}).encode())
        # The directory gets its name only after it was locked.
        new.rename(self.path)
        self._beats, self._is_removed = 0, False
        self._lock = threading.Lock()
        self.sweep()
        self._loop = Loop("scratch", _BEAT_SECONDS, self.beat)
        self._loop.start()

    def beat(self) -> None:
        """Updates the time of `owner.json`; sweeps from time to time. Raises OSError."""
        if self._touch() is None:
            return
        self._beats += 1
        if self._beats % _SWEEP_EVERY == 0:
            self.sweep()

    def clear(self) -> None:
        """Removes the files of a killed driver; Spark removes its files only if it is stopped. Raises OSError."""
        _clear(self.path)

    def remove(self) -> None:
        """Ends the heartbeat and removes the directory as far as possible. May be called twice."""
        self._loop.ask_to_stop()
        with self._lock:
            if not self._is_removed:
                self._is_removed = True
                with suppress(OSError):
                    _remove(self.path)
                os.close(self._owner)

    def sweep(self) -> None:
        """Removes the directories of dead workers. Raises OSError."""
        now = self._touch()
        if now is not None:
            sweep_scratch(self._root, now)

    def _touch(self) -> float | None:
        """Sets the time of `owner.json` and returns it, in seconds since the epoch; None after `remove`."""
        # A heartbeat after `remove` would prevent other workers from removing the rest.
        with self._lock:
            if self._is_removed:
                return None
            owner = self.path / _OWNER
            os.utime(owner)
            return owner.stat().st_mtime


def sweep_scratch(root: Path, now: float) -> None:
    """Removes the directories below `root` whose owners are certainly dead. `now` is the time by the clock of the file
    system, in seconds since the epoch.

    Host names and process numbers do not identify an owner: containers get new names, share names, and use the same
    process numbers, and several hosts may share the volume. Two signs show that the owner of a directory is alive:

    - It holds a lock (`flock`) on `owner.json`. The kernel releases the lock at the end of the process. All processes
      of a kernel see each other's locks, in any container; on a network file system, other hosts may not see them.
    - It sets the time of `owner.json` every minute. Its age is measured against a file that the sweeper has just
      touched in the same file system, so both times are from the same clock, whatever the clocks of the hosts are.

    A directory whose lock is free is removed

    - at once, if its owner ran in this process namespace of this kernel, and does not run any more;
    - after `QUIET_SECONDS` without a heartbeat, if its owner ran on this kernel, for example in a container that was
      replaced. On some file systems the locks of one mount are not visible in another, so a free lock does not suffice;
    - after `STALE_SECONDS` without a heartbeat in all other cases: an owner on another host or before a restart of this
      machine, or a file system without locks.

    Directories of earlier versions have neither sign: see `_is_leftover`.
    """
    for directory in root.iterdir():
        # Other workers sweep as well, and a directory may belong to another user.
        with suppress(OSError):
            if _NAME.fullmatch(directory.name):
                _sweep_owned(directory, now)
            elif _NEW.fullmatch(directory.name):
                if now - directory.stat().st_mtime > STALE_SECONDS:
                    _remove(directory)
            elif (match := _LEGACY_NAME.fullmatch(directory.name)) and _is_leftover(directory, match, now):
                _remove(directory)


def _sweep_owned(directory: Path, now: float) -> None:
    try:
        owner = os.open(directory / _OWNER, os.O_RDWR | os.O_NOFOLLOW)
    except FileNotFoundError:
        # A sweep of this directory was interrupted.
        if now - directory.stat().st_mtime > STALE_SECONDS:
            _remove(directory)
        return
    try:
        lock = _lock(owner)
        if lock is _Lock.HELD_BY_OTHER:
            return
        timeout = _timeout_of(os.read(owner, 4096)) if lock is _Lock.TAKEN else STALE_SECONDS
        if now - os.fstat(owner).st_mtime > timeout:
            _remove(directory)
    finally:
        os.close(owner)


def _timeout_of(written: bytes) -> float:
    """Returns after how many seconds without a heartbeat the owner that wrote this is dead, if its lock is free."""
    try:
        owner = json.loads(written)
        if owner["locked"] is not True or owner["kernel"] is None or owner["kernel"] != _kernel():
            return STALE_SECONDS
        is_here = owner["namespace"] is not None and owner["namespace"] == _namespace()
        is_gone = is_here and not _is_running(owner["pid"], owner["started"])
    except (ValueError, KeyError, TypeError):
        return STALE_SECONDS
    return -math.inf if is_gone else QUIET_SECONDS


def _remove(directory: Path) -> None:
    """Removes a directory. `owner.json` is removed last, and only if nothing else is left, since the next sweep needs
    it to remove the rest at once.
    """
    _clear(directory)
    if all(path.name == _OWNER for path in directory.iterdir()):
        shutil.rmtree(directory, ignore_errors=True)


def _clear(directory: Path) -> None:
    for path in directory.iterdir():
        if path.name != _OWNER:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)


def _lock(descriptor: int) -> _Lock:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        is_held = error.errno in {errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES}
        return _Lock.HELD_BY_OTHER if is_held else _Lock.UNSUPPORTED
    return _Lock.TAKEN


def _kernel() -> str | None:
    """Returns the id of the running kernel, which is the same in all its containers and changes with a restart; None if
    the system has none.
    """
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return None


def _namespace() -> str | None:
    """Returns the id of this process's PID namespace; None if the system has none."""
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return None


def _is_leftover(directory: Path, match: re.Match[str], now: float) -> bool:
    """Whether a directory of an earlier version, which is named after its host and process, is left over. On this host:
    its process does not run. From another host: nothing in it has changed for a long time.
    """
    if match["host"] == socket.gethostname():
        return not _is_running(int(match["pid"]), int(match["started"]))
    return all(now - changed > STALE_LEGACY_SECONDS for changed in _times(directory))


def _times(directory: Path) -> Iterator[float]:
    yield directory.stat().st_mtime
    for path in directory.rglob("*"):
        yield path.lstat().st_mtime


def _is_running(pid: int, started: int) -> bool:
    try:
        # The start time distinguishes a process from a later one with the same number.
        return abs(_started(psutil.Process(pid)) - started) < 1000
    except psutil.NoSuchProcess:
        return False
    except psutil.AccessDenied:
        return True


def _started(process: psutil.Process) -> int:
    """Returns the start time in milliseconds since the epoch."""
    return int(process.create_time() * 1000)
