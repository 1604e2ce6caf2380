"""What a command works with: the output, and a session with the service that the options or the environment name.

Results are written to standard output, everything else to standard error. On a terminal, lines are at most as wide as
the terminal; otherwise they are as long as necessary and have no colours.
"""

from __future__ import annotations

import errno
import io
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from pydantic import ValidationError
from rich.cells import cell_len, set_cell_size
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from service.cli.connection import Connection, M, as_cli_errors, read
from service.cli.operations import Service
from service.cli.terminal import CONFIGURATION_ADVICE, CliError, ExitCode
from service.client.address import api_key, checked_url, refuse_key_over_http
from service.client.text import safe_json, safe_line, safe_text
from service.config.client import ClientSettings
from service.contract.validation_texts import text_of

_UNLIMITED_WIDTH = 100_000
_INDENT = "  "
_GAP = "  "
_MIN_WIDTH = 8


class Output:
    """Writes the output of one command. With `as_json`, standard output has JSON only."""

    def __init__(self, *, as_json: bool = False) -> None:
        self.as_json = as_json
        self._out = _console(sys.stdout)
        self.errors = _console(sys.stderr)

    @property
    def is_terminal(self) -> bool:
        """Whether standard output is a terminal."""
        return self._out.is_terminal

    @property
    def width(self) -> int:
        """Maximum number of columns of a line on standard output."""
        return self._out.width

    def document(self, document: object) -> None:
        """Prints the JSON document of a command."""
        self._write(_json(document, indent=2 if self.is_terminal else None))

    def json_line(self, document: object) -> None:
        """Prints one of several JSON objects, on one line."""
        self._write(_json(document, indent=None))

    def show(self, document: object, kind: type[M], display: Callable[[Output, M], None]) -> None:
        """Prints a response: the JSON with `as_json`, otherwise what `display` prints."""
        if self.as_json:
            self.document(document)
        else:
            display(self, read(kind, document))

    def plain(self, text: str) -> None:
        """Prints a line without formatting, for scripts."""
        self._write(safe_line(text))

    def say(self, text: str = "", style: str = "") -> None:
        """Prints text for people."""
        self.print(Text(safe_text(text), style=style))

    def heading(self, text: str) -> None:
        """Prints the heading of a section."""
        self.say()
        self.say(text, "bold")

    def indented(self, text: str) -> None:
        """Prints indented lines, which are not wrapped."""
        self._write("\n".join(f"{_INDENT}{line}".rstrip() for line in safe_text(text).rstrip().split("\n")))

    def note(self, text: str) -> None:
        """Prints a message on standard error."""
        self.errors.print(Text(safe_text(text)), soft_wrap=not self.errors.is_terminal)

    def table(
        self,
        head: Sequence[str],
        rows: Iterable[Sequence[object]],
        *,
        numbers: Sequence[str] = (),
        whole: Sequence[str] = (),
        cut: str = "",
        styles: Sequence[tuple[str, str]] = (),
        indent: int = 0,
    ) -> None:
        """Prints a table, without the header if all its names are blank.

        The columns `numbers` are right-aligned, and the columns `whole` are not wrapped. The cells of the column `cut`
        are shortened to the width of the terminal. `styles` has pairs of a word and the style of cells with that word.
        """
        style_of = dict(styles)
        table = Table(
            box=None,
            pad_edge=False,
            show_header=any(name.strip() for name in head),
            header_style="bold",
            padding=(0, len(_GAP), 0, 0),
        )
        for name in head:
            is_number = name in numbers
            table.add_column(
                Text(safe_line(name)),
                justify="right" if is_number else "left",
                no_wrap=is_number or name in whole,
                overflow="fold",
            )
        lines = [[safe_line("" if cell is None else cell) for cell in row] for row in rows]
        if cut and self.is_terminal:
            _cut(head, lines, head.index(cut), self.width - indent)
        for cells in lines:
            table.add_row(*(Text(cell, style=style_of.get(cell, "")) for cell in cells))
        self.print(Padding(table, (0, 0, 0, indent)))

    def pairs(self, rows: Iterable[tuple[str, object]]) -> None:
        """Prints names with their values, except those without a value."""
        shown = [(name, value) for name, value in rows if value not in (None, "")]
        self.table(("", " "), shown, whole=("",))

    def print(self, renderable: RenderableType) -> None:
        """Prints an object of `rich`."""
        if self.is_terminal:
            self._out.print(renderable)
            return
        with self._out.capture() as captured:
            self._out.print(renderable)
        # Without a terminal, lines end without the spaces that fill a column.
        self._write("\n".join(line.rstrip() for line in captured.get().rstrip("\n").split("\n")))

    def _write(self, text: str) -> None:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()


def _cut(head: Sequence[str], lines: list[list[str]], column: int, width: int) -> None:
    """Shortens the cells of one column to the width that the other columns leave."""
    others = [max(map(cell_len, (name, *(line[at] for line in lines)))) for at, name in enumerate(head) if at != column]
    room = max(width - sum(others) - len(_GAP) * len(others), _MIN_WIDTH)
    for line in lines:
        if cell_len(line[column]) > room:
            line[column] = set_cell_size(line[column], room - 1).rstrip() + "…"


def _json(document: object, indent: int | None) -> str:
    return safe_json(json.dumps(document, ensure_ascii=False, indent=indent))


class _Console(Console):
    def on_broken_pipe(self) -> None:
        # Rich would end the process with exit code 1, which means FAILED here.
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


def _console(stream: IO[str]) -> Console:
    if isinstance(stream, io.TextIOWrapper) and stream.encoding.lower() != "utf-8":
        # Characters that the locale lacks are replaced instead of raising an error.
        stream.reconfigure(errors="replace")
    console = _Console(file=stream, highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = _UNLIMITED_WIDTH
    return console


@dataclass(frozen=True)
class Session:
    """The service to use, and the output."""

    service: Service
    output: Output


@contextmanager
def opened(url: str | None, key_file: Path | None, *, as_json: bool = False) -> Iterator[Session]:
    """Opens a session with the service that the options name, or else the environment. Raises CliError if either is
    invalid.
    """
    settings = client_settings()
    output = Output(as_json=as_json)
    with as_cli_errors():
        address, key = checked_url(settings.url if url is None else url), api_key(settings, key_file)
        refuse_key_over_http(address, key, is_allowed=settings.insecure_http)
    with Connection(
        address,
        key,
        retry_seconds=settings.retry_seconds,
        timeout_seconds=settings.timeout_seconds,
        notify=output.note,
    ) as connection:
        yield Session(Service(connection), output)


def client_settings() -> ClientSettings:
    """Returns the settings of the client from the environment. Raises CliError that names invalid variables."""
    try:
        return ClientSettings()
    except ValidationError as error:
        message = "; ".join(
            f"EVENKEEL_{'_'.join(map(str, problem['loc'])).upper()}: {text_of(problem)}" for problem in error.errors()
        )
        raise CliError(message, CONFIGURATION_ADVICE, code=ExitCode.USAGE) from None
