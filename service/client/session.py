"""Where a command writes: what was asked for on standard output, everything else on standard error.

On a terminal, as wide as that is; elsewhere lines are as long as they need to be, without colours.

What one command works with: the service and the output. Settings and options come together here.
"""

from __future__ import annotations

import errno
import io
import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

from service.client.terminal import safe_json, safe_line, safe_text

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from service.client.operations import Service
    from service.config.client import ClientSettings

_AS_WIDE_AS_NEEDED = 100_000
_INDENT = "  "
_GAP = "  "
_LEAST_ROOM = 8


class Output:
    """Writes what one command has to say. `as_json`: JSON alone on standard output."""

    def __init__(self, *, as_json: bool = False) -> None:
        self.as_json = as_json
        self._out = _console(sys.stdout)
        self.errors = _console(sys.stderr)

    @property
    def is_terminal(self) -> bool:
        """Whether somebody looks at standard output."""
        return self._out.is_terminal

    @property
    def width(self) -> int:
        """Columns that a line on standard output may take."""
        return self._out.width

    def document(self, document: object) -> None:
        """The one JSON document of a command."""
        self._write(_json(document, indent=2 if self.is_terminal else None))

    def json_line(self, document: object) -> None:
        """One JSON object of several, on a line, at once."""
        self._write(_json(document, indent=None))

    def plain(self, text: str) -> None:
        """A line as it is, for scripts to take."""
        self._write(safe_line(text))

    def say(self, text: str = "", style: str = "") -> None:
        """Lines for people."""
        from rich.text import Text

        self.show(Text(safe_text(text), style=style))

    def heading(self, text: str) -> None:
        """The start of a part."""
        self.say()
        self.say(text, "bold")

    def indented(self, text: str) -> None:
        """Lines that keep their breaks, however long."""
        self._write("\n".join(f"{_INDENT}{line}".rstrip() for line in safe_text(text).rstrip().split("\n")))

    def note(self, text: str) -> None:
        """Lines beside the matter, on standard error."""
        from rich.text import Text

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
        """Rows under their heads; where all are blank, without.

        Columns of `numbers` stand to the right, those of `whole` are never broken, and `cut` ends where the line of a
        terminal does. `styles` are words and how they look where a cell is just that.
        """
        from rich.padding import Padding
        from rich.table import Table
        from rich.text import Text

        looks = dict(styles)
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
            table.add_row(*(Text(cell, style=looks.get(cell, "")) for cell in cells))
        self.show(Padding(table, (0, 0, 0, indent)))

    def pairs(self, rows: Iterable[tuple[str, object]]) -> None:
        """Names with what they stand for; those without anything are left out."""
        shown = [(name, value) for name, value in rows if value not in (None, "")]
        self.table(("", " "), shown, whole=("",))

    def show(self, what: RenderableType) -> None:
        """Anything that rich can draw."""
        if self.is_terminal:
            self._out.print(what)
            return
        with self._out.capture() as captured:
            self._out.print(what)
        # Elsewhere nobody wants the spaces that fill a column.
        self._write("\n".join(line.rstrip() for line in captured.get().rstrip("\n").split("\n")))

    def _write(self, text: str) -> None:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()


def _cut(head: Sequence[str], lines: list[list[str]], column: int, width: int) -> None:
    """Shortens the cells of one column to what the others leave of the line."""
    from rich.cells import cell_len, set_cell_size

    others = [max(map(cell_len, (name, *(line[at] for line in lines)))) for at, name in enumerate(head) if at != column]
    room = max(width - sum(others) - len(_GAP) * len(others), _LEAST_ROOM)
    for line in lines:
        if cell_len(line[column]) > room:
            line[column] = set_cell_size(line[column], room - 1).rstrip() + "…"


def _json(document: object, indent: int | None) -> str:
    return safe_json(json.dumps(document, ensure_ascii=False, indent=indent))


def _console(stream: IO[str]) -> Console:
    from rich.console import Console

    class Plain(Console):
        def on_broken_pipe(self) -> None:
            # Rich would end the process with 1, which says that the answer is no.
            raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))

    if isinstance(stream, io.TextIOWrapper) and stream.encoding.lower() != "utf-8":
        # A locale without a sign for it is no reason to fail.
        stream.reconfigure(errors="replace")
    console = Plain(file=stream, highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = _AS_WIDE_AS_NEEDED
    return console


def text_chunks(chunks: Iterable[bytes]) -> Iterator[str]:
    """UTF-8 in pieces as text that a terminal does not obey."""
    from codecs import getincrementaldecoder

    decoder = getincrementaldecoder("utf-8")(errors="replace")
    for chunk in chunks:
        yield safe_text(decoder.decode(chunk))
    yield safe_text(decoder.decode(b"", final=True))


@dataclass(frozen=True)
class Session:
    """The service that was asked for, and where to write."""

    service: Service
    output: Output


@contextmanager
def opened(url: str | None, key_file: Path | None, *, as_json: bool = False) -> Iterator[Session]:
    """A session with the service of the options, else of the environment. Raises CliError where either is wrong."""
    from service.client.connection import Connection, api_key, checked_url, is_here
    from service.client.operations import Service
    from service.client.terminal import CliError, ExitCode

    settings = client_settings()
    output = Output(as_json=as_json)
    asked, key = checked_url(settings.url if url is None else url), api_key(settings, key_file)
    if key is not None and not settings.insecure_http and asked.startswith("http:") and not is_here(asked):
        raise CliError(
            "the API key would go over http, where others hear it",
            "Write https://HOST in --url or EVENKEEL_URL; or, where nobody listens, set EVENKEEL_INSECURE_HTTP=true.",
            code=ExitCode.USAGE,
        )
    with Connection(
        asked,
        key,
        retry_seconds=settings.retry_seconds,
        timeout_seconds=settings.timeout_seconds,
        tell=output.note,
    ) as connection:
        yield Session(Service(connection, settings.timeout_seconds), output)


def client_settings() -> ClientSettings:
    """The variables of these commands. Raises CliError that names the wrong one."""
    from pydantic import ValidationError

    from service.client.terminal import CliError, ExitCode
    from service.config.client import ClientSettings

    try:
        return ClientSettings()
    except ValidationError as error:
        told = "; ".join(
            f"EVENKEEL_{'_'.join(map(str, problem['loc'])).upper()}: {problem['msg']}" for problem in error.errors()
        )
        raise CliError(told, "The README lists every variable.", code=ExitCode.USAGE) from None
