"""What goes where, on a terminal and elsewhere."""

from __future__ import annotations

import io
import json
import sys

import pytest

from service.cli.client.output import Output, text_chunks

WIDE = "word " * 60


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Standard output from now on: of 80 columns."""
    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "dumb")
    return screen


def show(output: Output) -> None:
    output.say(WIDE)
    output.table(("id", "share", "name"), [("x" * 36, 5, "n" * 200)], numbers=("share",), whole=("id",), cut="name")
    output.pairs((("sql", "s" * 200), ("none", None)))


def test_lines_are_as_long_as_they_need_to_be_in_a_pipe(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    show(Output())
    assert capsys.readouterr().out.splitlines() == [
        WIDE.rstrip(),
        f"id{' ' * 34}  share  name",
        f"{'x' * 36}      5  {'n' * 200}",
        f"sql  {'s' * 200}",
    ]


def test_a_terminal_is_not_written_beyond(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_a_terminal(monkeypatch)
    show(Output())
    lines = terminal.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert sum("n…" in line for line in lines) == 1
    assert "x" * 36 in terminal.getvalue()


def test_json_is_for_whoever_reads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_a_terminal(monkeypatch)
    document = {"a": [1, "ü\x9b\u202e"]}
    output = Output(as_json=True)
    output.document(document)
    told = terminal.getvalue()
    assert told.count("\n") > 1
    assert (json.loads(told), "\x9b" in told) == (document, False)


def test_one_line_a_document_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    output = Output(as_json=True)
    output.document({"a": 1})
    output.json_line({"b": "x\ny"})
    output.note("beside [red]it[/]")
    captured = capsys.readouterr()
    assert captured.out == '{"a": 1}\n{"b": "x\\ny"}\n'
    assert captured.err == "beside [red]it[/]\n"


def test_a_download_commands_no_terminal() -> None:
    raw = "ü\x1b[2J\n".encode()
    assert "".join(text_chunks(raw[at : at + 1] for at in range(len(raw)))) == "ü\\x1b[2J\n"
