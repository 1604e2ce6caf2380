"""How commands end: exit codes, expected errors and signals."""

from __future__ import annotations

import errno
import functools
import os
import shlex
import shutil
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from enum import IntEnum
from pathlib import Path
from types import FrameType, TracebackType
from typing import ParamSpec, Self, TypeVar

import typer

P = ParamSpec("P")
R = TypeVar("R")

_OUTPUT_ERRORS = frozenset({errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""Errors of writing to standard output. Errors of named files are reported by the code that names them."""

_NAME = "evenkeel"
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

CONFIGURATION_ADVICE = 'See "Configuration" in the documentation: docs/reference/configuration.md.'
"""Advice for an error in a variable or in the file of Spark properties."""


class ExitCode(IntEnum):
    """Exit codes of the commands, with their meaning in the documentation."""

    meaning: str

    def __new__(cls, number: int, meaning: str) -> Self:
        """Returns a member with its number and meaning."""
        member = int.__new__(cls, number)
        member._value_ = number
        member.meaning = meaning
        return member

    OK = 0, "success; a job that the command waited for SUCCEEDED or is STOPPED"
    FAILED = 1, "the job FAILED, a check failed, or the demo found a wrong number"
    USAGE = 2, "the command line, a variable or the posted job is invalid; the message has code, line and column"
    MISSING = 3, "a requirement is missing or blocked: Java, pyspark, a free port, a writable file"
    CHILD = 4, "a process could not be started or did not become ready"
    CANCELLED = 5, "the job was CANCELLED"
    TIMED_OUT = 6, "the job TIMED_OUT"
    CRASHED = 7, "the job CRASHED, or the service had an internal error or sent an invalid response"
    NOT_FOUND = 8, "the job, key or worker does not exist, or the job has no plan, metrics or files"
    DENIED = 9, "the API key is missing or not valid, or lacks the scope"
    UNREACHABLE = 10, "the service is unreachable or too busy, even after retries; try again later"
    CONFLICT = 11, "the state of the job does not allow it: it has no result yet, or has already ended"
    OUTPUT = 74, "standard output could not be written: its disk is full, or its reader has closed it"
    INTERRUPTED = 130, "interrupted; a job that the command waited for continues"


def program() -> str:
    """Returns the command as it was started, for commands to copy: `evenkeel` if the shell finds it, else its path."""
    started = Path(sys.argv[0])
    if started.name != _NAME or not started.exists():
        return _NAME
    found = shutil.which(_NAME)
    return _NAME if found is not None and started.samefile(found) else shlex.quote(sys.argv[0])


class CliError(Exception):
    """An expected failure: a message, advice on what to do, and the exit code."""

    def __init__(self, message: str, advice: str = "", *, code: ExitCode = ExitCode.FAILED, details: str = "") -> None:
        self.message = message
        self.advice = advice
        self.code = code
        self.details = details
        """Lines to print before the message, such as the end of a log."""
        super().__init__(message)


class StopRequestedError(KeyboardInterrupt):
    """Ctrl-C or SIGTERM. It is a KeyboardInterrupt so that `except Exception` does not catch it."""


def prints_errors(command: Callable[P, R]) -> Callable[P, R]:
    """Decorates a command: prints expected failures to standard error, without traceback, and exits with their code."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except CliError as error:
            if error.details:
                typer.echo(error.details, err=True)
            typer.echo(f"evenkeel: {error.message}", err=True)
            if error.advice:
                typer.echo(f"  {error.advice}", err=True)
            raise typer.Exit(error.code) from None
        except KeyboardInterrupt:
            typer.echo("evenkeel: interrupted", err=True)
            raise typer.Exit(ExitCode.INTERRUPTED) from None
        except OSError as error:
            if error.errno not in _OUTPUT_ERRORS or error.filename is not None:
                raise
            _discard_output()
            if error.errno != errno.EPIPE:
                typer.echo(f"evenkeel: standard output cannot be written: {error.strerror}", err=True)
            raise typer.Exit(ExitCode.OUTPUT) from None

    return run


def _discard_output() -> None:
    # Buffered output would otherwise fail again when the process ends.
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)


class StopSignals:
    """A block in which the first SIGINT, SIGTERM or SIGHUP raises StopRequestedError in the main thread.

    Later signals are only counted.
    """

    def __init__(self) -> None:
        self._count = 0
        self._previous: dict[signal.Signals, signal._HANDLER] = {}

    @property
    def is_repeated(self) -> bool:
        """Whether a second signal was received."""
        return self._count > 1

    def __enter__(self) -> Self:
        for number in _SIGNALS:
            self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            with suppress(TypeError):  # a handler that was not set from Python cannot be restored
                signal.signal(number, handler)

    def _handle(self, _number: int, _frame: FrameType | None) -> None:
        self._count += 1
        if self._count == 1:
            raise StopRequestedError
