"""Output: tables, progress, times, safe text, and the validation of responses and events."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from rich.console import Console

from service.cli import results
from service.cli.connection import read
from service.cli.display import ago, duration_text
from service.cli.results import event_data
from service.cli.session import Output
from service.cli.terminal import CliError, ExitCode
from service.cli.waiting import shown_progress
from service.client.responses import Job, JobPage, JobSummary
from service.client.text import safe_chunks, safe_json, safe_line, safe_text, shortened
from service.contract.reports import Progress, SkewReport

WIDE = "word " * 60


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Replaces standard output with a terminal of 80 columns."""
    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "dumb")
    return screen


def show(output: Output) -> None:
    output.say(WIDE)
    output.table(("id", "share", "name"), [("x" * 36, 5, "n" * 200)], numbers=("share",), whole=("id",), cut="name")
    output.pairs((("sql", "s" * 200), ("none", None)))


def test_lines_are_not_wrapped_in_a_pipe(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    show(Output())
    assert capsys.readouterr().out.splitlines() == [
        WIDE.rstrip(),
        f"id{' ' * 34}  share  name",
        f"{'x' * 36}      5  {'n' * 200}",
        f"sql  {'s' * 200}",
    ]


def test_lines_fit_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_a_terminal(monkeypatch)
    show(Output())
    lines = terminal.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert sum("n…" in line for line in lines) == 1
    assert "x" * 36 in terminal.getvalue()


def test_json_is_indented_and_safe_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_a_terminal(monkeypatch)
    document = {"a": [1, "ü\x9b\u202e"]}
    output = Output(as_json=True)
    output.document(document)
    printed = terminal.getvalue()
    assert printed.count("\n") > 1
    assert (json.loads(printed), "\x9b" in printed) == (document, False)


def test_json_is_one_line_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    output = Output(as_json=True)
    output.document({"a": 1})
    output.json_line({"b": "x\ny"})
    output.note("a [red]note[/]")
    captured = capsys.readouterr()
    assert captured.out == '{"a": 1}\n{"b": "x\\ny"}\n'
    assert captured.err == "a [red]note[/]\n"


def test_downloads_are_escaped_on_a_terminal() -> None:
    raw = "ü\x1b[2J\n".encode()
    assert "".join(safe_chunks(raw[at : at + 1] for at in range(len(raw)))) == "ü\\x1b[2J\n"


HOSTILE = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202egpj.exe\u2028\r\x08"


@pytest.mark.withstands(
    "terminal escape sequences in names",
    how="names and messages with escape sequences, C1 control characters and bidirectional control characters",
    times=1,
    guaranteed="they are printed escaped, for example as `\\x1b`, also in JSON",
    kind="attack",
)
def test_control_characters_are_escaped() -> None:
    for output_text in (safe_line(HOSTILE), safe_text(HOSTILE)):
        assert output_text.isprintable()
        assert "owned" in output_text
    assert safe_line("a\nb\tc") == r"a\x0ab\x09c"
    assert safe_text("a\n\tb") == "a\n    b"


def test_escaped_json_has_the_same_value() -> None:
    printed = safe_json(json.dumps({"name": HOSTILE}, ensure_ascii=False))
    assert printed.isprintable()
    assert json.loads(printed) == {"name": HOSTILE}


def test_other_characters_are_unchanged() -> None:
    assert safe_line("Größe 大きさ 😀") == "Größe 大きさ 😀"


def test_shortened() -> None:
    assert shortened("abcdef", 4) == "abc…"
    assert shortened("abcd", 4) == "abcd"


NOW = datetime(2026, 1, 31, tzinfo=UTC)


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (-1, "0.0 s"),
        (0.44, "0.4 s"),
        (12.3, "12 s"),
        (59.7, "1 min 0 s"),
        (185, "3 min 5 s"),
        (7_800, "2 h 10 min"),
        (300_000, "3 d"),
    ],
)
def test_duration_text(seconds: float, expected: str) -> None:
    assert duration_text(timedelta(seconds=seconds)) == expected


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(-5, "just now"), (1, "just now"), (42, "42 s ago"), (61, "1 min ago"), (7_300, "2 h ago"), (200_000, "2 d ago")],
)
def test_ago(seconds: int, expected: str) -> None:
    assert ago(NOW - timedelta(seconds=seconds), NOW) == expected
    assert ago(None, NOW) == ""


def course() -> Iterator[JobSummary]:
    yield JobSummary(id="1", status="QUEUED", finished=False, waiting_for="slot")
    yield JobSummary(id="1", status="QUEUED", finished=False, waiting_for="worker")
    yield JobSummary(id="1", status="QUEUED", finished=False, waiting_for="\x1b[2J")
    for done in range(9):
        progress = Progress(tasks_done=done, tasks_total=8)
        yield JobSummary(id="1", status="RUNNING", finished=False, progress=progress)
    yield JobSummary(id="1", status="SUCCEEDED", finished=True)


def test_progress_lines_for_states_and_quarters() -> None:
    said: list[str] = []
    with shown_progress(Console(file=io.StringIO()), said.append) as see:
        for job in course():
            see(job)
            see(job)
    assert [line.strip() for line in said] == [
        "QUEUED waiting for a free worker, or for Spark to start",
        "QUEUED no worker listens to its queue",
        "QUEUED \\x1b[2J",
        "RUNNING 0/8 tasks",
        "RUNNING 2/8 tasks",
        "RUNNING 4/8 tasks",
        "RUNNING 6/8 tasks",
        "RUNNING 8/8 tasks",
        "SUCCEEDED",
    ]


def test_progress_bar_on_a_terminal() -> None:
    screen = io.StringIO()
    said: list[str] = []
    with shown_progress(Console(file=screen, force_terminal=True, width=80), said.append) as see:
        for job in course():
            see(job)
    assert "SUCCEEDED" in screen.getvalue()
    assert said == []


JOB = {"id": "1", "status": "DREAMING", "finished": False, "queue": "wide", "mode": "lucid", "new": {"x": 1}}


def test_unknown_fields_and_states_are_accepted() -> None:
    assert read(JobPage, {"jobs": [JOB], "new": 1}).jobs[0].status == "DREAMING"
    progress = {"stages_done": 1, "stages_total": 1, "tasks_done": 1, "tasks_total": 2, "new": 1}
    job = read(Job, {**JOB, "progress": progress})
    assert job.progress is not None
    assert job.progress.tasks_total == 2
    report = {"skewed": False, "keys": [], "stages": [], "lost_ms": 0, "advice": "x", "new": 1}
    assert read(SkewReport, report).advice == "x"


@pytest.mark.parametrize("document", [None, [], {}, {"id": 1}, {**JOB, "progress": {"\x1b[2J": 1, "tasks_done": "x"}}])
def test_other_responses_are_refused(document: object) -> None:
    with pytest.raises(CliError, match="does not have the expected form") as raised:
        read(Job, document)
    assert raised.value.code == ExitCode.CRASHED
    assert raised.value.message.isprintable()


STREAM = ': hello\n\nid: 1\nevent: a\ndata: {"x": "ü\u2028\x85"}\n\ndata:two\r\ndata: lines\r\n\r\n\ndata: cut'.encode()


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_events_are_parsed_across_chunks(size: int) -> None:
    chunks = [STREAM[at : at + size] for at in range(0, len(STREAM), size)]
    assert list(event_data(chunks)) == ['{"x": "ü\u2028\x85"}', "two\nlines"]


@pytest.mark.parametrize("chunk", [b"data: " + b"x" * 1000, b"data: " + b"x" * 1000 + b"\n"])
def test_size_of_an_event_is_limited(monkeypatch: pytest.MonkeyPatch, chunk: bytes) -> None:
    monkeypatch.setattr(results, "_MAX_EVENT_BYTES", 100_000)

    def endless() -> Iterator[bytes]:
        while True:
            yield chunk

    with pytest.raises(CliError, match="too long"):
        list(event_data(endless()))
