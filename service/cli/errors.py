"""How commands fail: in one or two lines that say what to do, with a documented exit code and no traceback."""

from __future__ import annotations

import errno
import functools
import os
import sys
from collections.abc import Callable
from enum import IntEnum
from typing import ParamSpec, Self, TypeVar

import typer

P = ParamSpec("P")
R = TypeVar("R")


class ExitCode(IntEnum):
    """What the process tells its caller; the README's table is made from this."""

    meaning: str

    def __new__(cls, number: int, meaning: str) -> Self:
        """A member: the number, and when a command ends with it."""
        member = int.__new__(cls, number)
        member._value_ = number
        member.meaning = meaning
        return member

    OK = 0, "done; the job that was waited for SUCCEEDED, or is at rest STOPPED"
    FAILED = 1, "the answer is no: the job FAILED, a check failed, a number was wrong"
    USAGE = 2, "the command line, a variable or what was posted is wrong: told with code, line and column"
    MISSING = 3, "something needed here is missing or in the way: Java, pyspark, a free port, a writable file"
    CHILD = 4, "a process could not be started or did not become ready"
    CANCELLED = 5, "the job was CANCELLED"
    TIMED_OUT = 6, "the job TIMED_OUT"
    CRASHED = 7, "the job CRASHED, or the service failed to answer as it should: no fault of the caller"
    NOT_FOUND = 8, "there is no such job, key or worker, or no plan, metrics or files of it"
    DENIED = 9, "no API key, one that does not hold, or one that may not do that"
    UNREACHABLE = 10, "the service cannot be reached or is too busy, also after some tries: try again later"
    CONFLICT = 11, "as the job stands, that cannot be done: it has no result yet, or has ended already"
    OUTPUT = 74, "standard output could not be written, its disk is full or its reader is gone"
    INTERRUPTED = 130, "interrupted before the work was done; a job that was waited for goes on"


class CliError(Exception):
    """An expected failure: what happened, what to do about it, and the exit code."""

    def __init__(self, message: str, advice: str = "", *, code: ExitCode = ExitCode.FAILED, details: str = "") -> None:
        self.message = message
        self.advice = advice
        self.code = code
        self.details = details
        """More lines to show before the message, such as the end of a log."""
        super().__init__(message)


class StopRequestedError(KeyboardInterrupt):
    """Ctrl-C or SIGTERM. A KeyboardInterrupt, so that no `except Exception` on the way swallows it."""


_OF_OUTPUT = frozenset({errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""What writing to standard output may end with: files that are named are told of by those who name them."""


def _give_up_output() -> None:
    """What is left of the output would fail once more when the process ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def told_plainly(command: Callable[P, R]) -> Callable[P, R]:
    """Turns expected failures of a command into lines on standard error and an exit code."""

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
            if error.errno not in _OF_OUTPUT or error.filename is not None:
                raise
            _give_up_output()
            if error.errno != errno.EPIPE:
                typer.echo(f"evenkeel: standard output cannot be written: {error.strerror}", err=True)
            raise typer.Exit(ExitCode.OUTPUT) from None

    return run
