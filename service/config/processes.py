"""Child processes that end with their parent, daemon threads, and the search for the Java that Spark uses.

The parent sets `EVENKEEL_PARENT_PID` to its process id, and the child calls `die_with_parent()` first. The child then
ends even if its parent is killed by `kill -9`. Without the variable, nothing happens: a service manager starts and
stops workers and API processes itself.

`DaemonPool` is for calls that may hang: unlike those of `ThreadPoolExecutor`, its threads do not delay the end of the
process.
"""

from __future__ import annotations

import ctypes
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

PARENT_PID = "EVENKEEL_PARENT_PID"
"""Environment variable with the process id of the parent."""

OLDEST_JAVA = 17
_VERSION = re.compile(r'version "(\d+)(?:\.(\d+))?')
_JAVA_ADVICE = f"Install a JDK or JRE of version {OLDEST_JAVA} or newer, or set JAVA_HOME to one."

_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
_POLL_SECONDS = 0.5

T = TypeVar("T")

_Call = tuple[Callable[[], Any], "Future[Any]"]


def die_with_parent() -> None:
    """Makes this process end (SIGKILL) as soon as the process in `EVENKEEL_PARENT_PID` has ended.

    Call it from the main thread of a child that this process has started. On Linux the kernel ends the child when the
    *thread* that started it ends, so that thread must run as long as the child is needed. Elsewhere a thread checks
    twice a second. Further calls have no effect.

    Raises RuntimeError outside the main thread, since the kernel drops the request when the calling thread ends, and
    ValueError if the variable is not a process id.
    """
    text = os.environ.get(PARENT_PID)
    if not text:
        return
    if not text.isdigit():
        raise ValueError(f"{PARENT_PID} must be a process id, not {text!r}")
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError("die_with_parent() must be called from the main thread")
    parent = int(text)
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    else:
        threading.Thread(target=_watch_parent, args=(parent,), name="parent-watch", daemon=True).start()
    # The parent may have ended before the request was made.
    _die_if_orphaned(parent)


def _watch_parent(parent: int) -> None:
    while True:
        _die_if_orphaned(parent)
        time.sleep(_POLL_SECONDS)


def _die_if_orphaned(parent: int) -> None:
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


class DaemonPool:
    """Runs calls, in order, in at most `max_threads` daemon threads. Safe to share between threads."""

    def __init__(self, max_threads: int, name: str) -> None:
        self._max_threads = max_threads
        self._name = name
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._threads = 0
        self._closed = False
        self._lock = threading.Lock()

    def submit(self, call: Callable[[], T]) -> Future[T]:
        """Queues a call, which is cancelled if the pool is closed before it begins. Returns at once.

        Raises RuntimeError if the pool has no thread and cannot start one. The call does not run then.
        """
        future: Future[T] = Future()
        with self._lock:
            if self._closed:
                future.cancel()
                return future
            if self._threads < self._max_threads:
                self._start_thread()
            self._calls.put((call, future))
        return future

    def close(self) -> None:
        """Cancels the calls that have not begun. Does not wait: each thread ends after its call."""
        with self._lock:
            self._closed = True
            with suppress(queue.Empty):
                while True:
                    dropped = self._calls.get_nowait()
                    if dropped is not None:
                        dropped[1].cancel()
            for _ in range(self._threads):
                self._calls.put(None)

    def _start_thread(self) -> None:
        thread = threading.Thread(target=self._run, name=f"{self._name}-{self._threads + 1}", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            # The operating system refuses another thread. The existing threads of the pool run the calls.
            if not self._threads:
                raise
        else:
            self._threads += 1

    def _run(self) -> None:
        while (taken := self._calls.get()) is not None:
            _complete(*taken)
            # Otherwise the idle thread would keep the call and its result in memory.
            del taken


def _complete(call: Callable[[], T], future: Future[T]) -> None:
    if future.set_running_or_notify_cancel():
        try:
            result = call()
        except BaseException as error:  # noqa: BLE001 - raised where the result is read
            future.set_exception(error)
        else:
            future.set_result(result)


class JavaError(RuntimeError):
    """No usable Java was found. `message` says what is wrong, `advice` what to do."""

    def __init__(self, message: str, advice: str) -> None:
        self.message = message
        self.advice = advice
        super().__init__(f"{message}. {advice}")


@dataclass(frozen=True)
class Java:
    """A Java executable and its major version."""

    path: Path
    version: int


def find_java(environment: Mapping[str, str]) -> Java:
    """Returns the Java that Spark starts: `$JAVA_HOME/bin/java` if that is set, else `java` on PATH.

    Raises JavaError if there is none, it cannot be run, or it is too old.
    """
    path = _locate(environment)
    try:
        answer = subprocess.run(  # noqa: S603 - the executable that Spark would start as well
            [path, "-version"], capture_output=True, text=True, timeout=20, check=False, env=dict(environment)
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _unusable(f"{path} cannot be run: {error}") from None
    version = parse_version(answer.stderr + answer.stdout)
    if answer.returncode != 0 or version is None:
        raise _unusable(f"{path} -version printed no version")
    if version < OLDEST_JAVA:
        raise _unusable(f"{path} is Java {version}; Spark needs {OLDEST_JAVA} or newer")
    return Java(path, version)


def parse_version(text: str) -> int | None:
    """Returns the major version in the output of `java -version`: 8 for `1.8.0_392`, 17 for `17.0.15`, 21 for `21`."""
    match = _VERSION.search(text)
    if match is None:
        return None
    first, second = match.groups()
    return int(second) if first == "1" and second is not None else int(first)


def _locate(environment: Mapping[str, str]) -> Path:
    home = environment.get("JAVA_HOME")
    if home:
        path = Path(home) / "bin" / "java"
        if not path.is_file():
            raise _unusable(f"JAVA_HOME is {home}, which contains no bin/java")
        return path
    found = shutil.which("java", path=environment.get("PATH"))
    if found is None:
        raise _unusable("Java was not found: JAVA_HOME is not set, and no java is on PATH")
    return Path(found)


def _unusable(message: str) -> JavaError:
    return JavaError(message, _JAVA_ADVICE)
