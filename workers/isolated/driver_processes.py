"""Starts, watches and ends the processes of attempts that have a Spark driver of their own.

The process of an attempt (`python -m workers.isolated`) plans and runs it. The worker keeps the lease, decides when the
attempt must stop, and publishes its end, as for all others. A process that ends without a verdict is a lost driver.
"""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import IO, cast

import psutil
import structlog
from pydantic import ValidationError

from service.config.processes import PARENT_PID
from service.config.settings import Settings
from service.contract import problems
from service.contract.enums import AttemptStatus
from service.store.attempts import Claim
from workers.isolated.messages import ALIVE_SECONDS, Message, line_of_claim, message_in
from workers.jobs.attempt import Attempt, StopReason
from workers.jobs.outcome import HandBack, Verdict, verdict_of_reason
from workers.process.batch_runner import AttemptDurations

_COMMAND = (sys.executable, "-P", "-m", "workers.isolated")
_MEASURED = frozenset({StopReason.CANCELLED, StopReason.TIMED_OUT, StopReason.RESULT_TOO_LARGE})
"""The reasons to stop after which the metrics of the run so far are stored."""
_CHECK_SECONDS = 0.1
_MISSED = 10
"""After so many missing messages, a process counts as hanging, however short the lease is."""
_LEAVE_SECONDS = 10.0
"""How long a process may take to stop Spark after its verdict."""
_END_SECONDS = 5.0
"""How long to wait for killed processes. A killed JVM frees its memory first."""

_log = structlog.get_logger(__name__)


class DriverProcesses:
    """Runs attempts of batch jobs in processes of their own, in the threads that call it. Safe to share between
    threads.
    """

    def __init__(
        self,
        settings: Settings,
        durations: AttemptDurations,
        remove_leftovers: Callable[[], object] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`remove_leftovers` removes the files of drivers whose process has ended."""
        self._durations = durations
        self._remove_leftovers = remove_leftovers
        self._start_seconds = settings.spark.start_timeout_seconds
        self._silence_seconds = max(settings.worker.lease_seconds, _MISSED * ALIVE_SECONDS)
        self._stop_seconds = settings.spark.task_kill_seconds
        self._clock = clock
        self._running: frozenset[_Process] = frozenset()
        self._lock = threading.Lock()

    def run(self, attempt: Attempt) -> Verdict:
        """Runs the attempt in a new process, and returns the verdict about it once the process and its JVM have ended.

        Must be called in a thread that does not end before that: the kernel ends the process with its thread.
        """
        try:
            process = _Process(attempt.claim)
        except (OSError, RuntimeError):
            # No memory, or no further process or thread.
            _log.error("isolated_driver_not_started", exc_info=True)
            return _lost(attempt)
        with self._lock:
            self._running |= {process}
        try:
            verdict = self._follow(process, attempt)
            if verdict is not None:
                process.leave(_LEAVE_SECONDS)
                return verdict
        finally:
            process.kill()
            with self._lock:
                self._running -= {process}
            self._remove_leftovers()
        return _lost(attempt) if attempt.reason is None else verdict_of_reason(attempt.reason, attempt)

    def memory(self) -> int:
        """Returns the resident memory of the processes and their JVMs in bytes. Never waits."""
        return sum(process.memory() for process in self._running)

    def _follow(self, process: _Process, attempt: Attempt) -> Verdict | None:
        """Returns the verdict of the process. None if it gives none: it has ended or does not answer, or the attempt
        must stop at once.
        """
        heard, has_metrics, is_asked = self._clock(), False, False
        # A new process imports its modules first, which takes long on a busy machine.
        most_silent = self._start_seconds
        while True:
            with suppress(queue.Empty):
                message = process.messages.get(timeout=_CHECK_SECONDS)
                if message is None:
                    _log.error("isolated_driver_lost", exit_code=process.exit_code(), pid=process.pid)
                    return None
                if message.verdict is not None:
                    return message.verdict
                heard, most_silent = self._clock(), self._silence_seconds
                has_metrics = has_metrics or message.planning_ms is not None
                self._record(message)
            if attempt.reason is not None:
                is_over = attempt.seconds_since_stop() > self._stop_seconds
                if attempt.reason not in _MEASURED or not has_metrics or is_over:
                    return None
                if not is_asked:
                    process.stop(attempt.reason)
                    is_asked = True
            elif self._clock() - heard > most_silent:
                _log.error("isolated_driver_silent", seconds=round(self._clock() - heard), pid=process.pid)
                return None

    def _record(self, message: Message) -> None:
        if message.planning_ms is not None:
            self._durations.planned(message.planning_ms)
        if message.execution_ms is not None:
            self._durations.executed(message.execution_ms)


def _lost(attempt: Attempt) -> HandBack:
    return HandBack(AttemptStatus.CRASHED, problems.driver_lost(attempt.claim.worker))


class _Process:
    """The process of an attempt, which is the leader of a process group. Its JVM belongs to the group too."""

    def __init__(self, claim: Claim) -> None:
        """Raises OSError if the process cannot be started, RuntimeError if its thread cannot."""
        self._process = subprocess.Popen(  # noqa: S603 - this program
            _COMMAND,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, PARENT_PID: str(os.getpid())},
            process_group=0,
        )
        self._orders = cast("IO[bytes]", self._process.stdin)
        self.messages: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        """Ends with None when the process has ended."""
        try:
            threading.Thread(target=self._talk, args=(claim,), name="isolated-driver", daemon=True).start()
        except RuntimeError:
            self.kill()
            raise

    @property
    def pid(self) -> int:
        """The process id, which is also that of the group."""
        return self._process.pid

    def stop(self, reason: StopReason) -> None:
        """Makes the attempt stop. The verdict about it then follows, with the metrics of the run so far."""
        self._write(f"{reason.value}\n".encode())

    def leave(self, seconds: float) -> None:
        """Waits at most `seconds` for the process to end by itself."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)

    def exit_code(self) -> int | None:
        """Returns the exit code of a process that has just ended; negative for the number of a signal."""
        self.leave(_END_SECONDS)
        return self._process.returncode

    def kill(self) -> None:
        """Kills the process and its JVM, even if they hang, and waits for a limited time until they have ended."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.leave(_END_SECONDS)
        until = time.monotonic() + _END_SECONDS
        while _members(self.pid) and time.monotonic() < until:
            time.sleep(_CHECK_SECONDS / 2)
        with suppress(OSError):  # as in `_write`
            self._orders.close()

    def memory(self) -> int:
        """Returns the resident memory of the group in bytes."""
        found = 0
        for member in _members(self.pid):
            with suppress(psutil.Error):
                found += int(member.memory_info().rss)
        return found

    def _talk(self, claim: Claim) -> None:
        self._write(line_of_claim(claim))
        try:
            with cast("IO[bytes]", self._process.stdout) as lines:
                for line in lines:
                    self.messages.put(message_in(line))
        except (ValidationError, OSError):
            _log.exception("isolated_driver_not_understood", job_id=claim.job_id, attempt=claim.fence)
        self.messages.put(None)

    def _write(self, line: bytes) -> None:
        with suppress(OSError, ValueError):  # the process has ended or was killed, which `messages` reports
            self._orders.write(line)
            self._orders.flush()


def _members(group: int) -> list[psutil.Process]:
    """Returns the processes of a group that have not ended."""
    found = []
    for pid in psutil.pids():
        with suppress(OSError, psutil.Error):
            if os.getpgid(pid) == group and (process := psutil.Process(pid)).status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found
