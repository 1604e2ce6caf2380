"""How commands fail: in one or two lines that say what to do, with a documented exit code and no traceback.

Exit codes
    0    done
    1    the answer is no: a check failed, a number was wrong, a job did not succeed
    2    the command line or an EVENKEEL_ variable is wrong
    3    something needed is missing or in the way: Java, pyspark, a free port, a writable directory
    4    a child process could not be started or did not become ready
    130  interrupted before the work was done
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from enum import IntEnum
from typing import ParamSpec, TypeVar

import typer

P = ParamSpec("P")
R = TypeVar("R")


class ExitCode(IntEnum):
    """What the process tells its caller."""

    OK = 0
    FAILED = 1
    USAGE = 2
    MISSING = 3
    CHILD = 4
    INTERRUPTED = 130


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

    return run
