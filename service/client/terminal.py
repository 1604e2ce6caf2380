"""How commands fail: in one or two lines that say what to do, with a documented exit code and no traceback.

Ctrl-C, SIGTERM and a closed terminal: the first asks for a stop, the second for a quick one.

Text that others wrote, for a terminal: what would command the terminal is shown instead of obeyed.

Numbers for people.
"""

from __future__ import annotations

import errno
import functools
import os
import re
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from enum import IntEnum
from types import FrameType, TracebackType
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


_CONTROLS = "\x00-\x1f\x7f-\x9f"
_UNSEEN = "\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff"
"""Marks that turn the direction of writing, break lines or take no room; and halves of characters."""

_IN_A_LINE = re.compile(f"[{_CONTROLS}{_UNSEEN}]")
_IN_JSON = re.compile(f"[\x7f-\x9f{_UNSEEN}]")


def safe_line(value: object) -> str:
    r"""One line of it, control characters as `\xNN` or `\uNNNN`.

    >>> safe_line("a\x1b]0;title\x07b\nc")
    'a\\x1b]0;title\\x07b\\x0ac'
    """
    return _IN_A_LINE.sub(_named, str(value))


def safe_text(value: object) -> str:
    r"""The same with its lines kept; a tab is four spaces.

    >>> safe_text("a\n\tb\x9b31m")
    'a\n    b\\x9b31m'
    """
    lines = str(value).replace("\r\n", "\n").replace("\t", "    ").split("\n")
    return "\n".join(safe_line(line) for line in lines)


def safe_json(text: str) -> str:
    """JSON with what a terminal might obey written as escapes, which mean the same to whoever reads the JSON."""
    return _IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def shortened(text: str, most: int) -> str:
    """At most so many characters."""
    return text if len(text) <= most else text[: most - 1] + "…"


def _named(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def amount(number: int, one: str, many: str = "") -> str:
    """`1 job`, `1,200 jobs`; `many` where that is not `one` with an s."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def size(number: int) -> str:
    """Bytes to three digits: `999 B`, `1.2 GB` (powers of 1000)."""
    value = float(number)
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if value < 999.5 or unit == "TB":
            break
        value /= 1000
    return f"{value:.3g} {unit}" if value < 1000 else f"{value:,.0f} {unit}"
