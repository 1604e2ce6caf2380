"""The log: one JSON object per line with its context, from structlog and from libraries."""

from __future__ import annotations

import io
import json
import logging

import pytest
import structlog

from service.config.settings import LogSettings
from service.monitoring.logs import configure_logging


def written(capsys: pytest.CaptureFixture[str]) -> list[dict[str, object]]:
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


def test_context_is_in_every_line(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging(LogSettings())
    with structlog.contextvars.bound_contextvars(request_id="r1", job_id="j1"):
        structlog.get_logger("service.x").info("submitted", rows=3)
        logging.getLogger("celery.worker").warning("lost %s", "redis")
    structlog.get_logger("service.x").info("later")
    ours, theirs, later = written(capsys)
    assert (ours["event"], ours["rows"], ours["request_id"], ours["job_id"]) == ("submitted", 3, "r1", "j1")
    assert (theirs["event"], theirs["level"], theirs["request_id"]) == ("lost redis", "warning", "r1")
    assert "request_id" not in later


def test_an_exception_stays_on_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging(LogSettings())
    try:
        raise ValueError("two\nlines")
    except ValueError:
        structlog.get_logger("service.x").exception("failed")
        logging.getLogger("uvicorn.error").exception("failed too")
    assert all("ValueError: two\nlines" in str(line["exception"]) for line in written(capsys))


def test_a_failed_mini_batch_is_logged_once(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging(LogSettings())
    logging.getLogger("py4j.clientserver").error("There was an exception while executing the Python Proxy")
    logging.getLogger("py4j.java_gateway").warning("another")
    assert [line["event"] for line in written(capsys)] == ["another"]


def test_the_level_is_obeyed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVENKEEL_LOG_LEVEL", "WARNING")
    configure_logging(LogSettings())
    structlog.get_logger("service.x").info("quiet")
    logging.getLogger("uvicorn").info("quiet")
    assert written(capsys) == []


def test_logging_can_be_configured_again(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging(LogSettings())
    configure_logging(LogSettings())
    structlog.get_logger("service.x").info("once")
    assert len(written(capsys)) == 1


def test_console_format(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVENKEEL_LOG_FORMAT", "console")
    configure_logging(LogSettings())
    structlog.get_logger("service.x").info("submitted", rows=3)
    assert "submitted" in capsys.readouterr().err


def test_a_replaced_standard_error_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    configure_logging(LogSettings())
    replacement = io.StringIO()
    monkeypatch.setattr("sys.stderr", replacement)
    structlog.get_logger("service.x").info("still")
    assert json.loads(replacement.getvalue())["event"] == "still"


@pytest.mark.withstands(
    "log injection",
    kind="attack",
    how="line breaks, terminal escape sequences and bidirectional control characters in what clients send",
    times=2,
    guaranteed="one line per event, with these characters escaped",
)
@pytest.mark.parametrize("form", ["json", "console"])
def test_texts_of_clients_begin_no_new_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    monkeypatch.setenv("EVENKEEL_LOG_FORMAT", form)
    configure_logging(LogSettings())
    nasty = "a\nb\rc\x1b[31md\x85e\u2028f\u202eg\u2066h\x7fi\x00"
    structlog.get_logger("service.x").info("request", path=nasty)
    logging.getLogger("uvicorn.error").warning("said %s", nasty)
    told = capsys.readouterr().err
    assert len(told.splitlines()) == 2
    assert not set(told) & set("\r\x1b\x85\u2028\u202e\u2066\x7f\x00")


def test_a_traceback_stays_readable(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVENKEEL_LOG_FORMAT", "console")
    configure_logging(LogSettings())
    try:
        raise ValueError("lost")
    except ValueError:
        structlog.get_logger("service.x").exception("failed")
    assert len(capsys.readouterr().err.splitlines()) > 3


@pytest.mark.parametrize("form", ["json", "console"])
def test_exceptions_contain_no_control_characters(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    monkeypatch.setenv("EVENKEEL_LOG_FORMAT", form)
    configure_logging(LogSettings())
    try:
        raise ValueError("\x1b[2J\x1b[31m\r\x9b2K\u202e")
    except ValueError:
        structlog.get_logger("service.x").exception("failed")
    assert not set(capsys.readouterr().err) & set("\r\x1b\x9b\u202e")


@pytest.mark.parametrize("form", ["json", "console"])
def test_a_traceback_has_no_values_of_variables(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    monkeypatch.setenv("EVENKEEL_LOG_FORMAT", form)
    configure_logging(LogSettings())
    password = "".join(("hun", "ter2"))
    try:
        raise ValueError(len(password))
    except ValueError:
        structlog.get_logger("service.x").exception("failed")
        logging.getLogger("uvicorn.error").exception("failed too")
    told = capsys.readouterr().err
    assert "ValueError: 7" in told
    assert password not in told
