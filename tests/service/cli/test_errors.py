"""Expected failures become lines and exit codes, never a traceback."""

from __future__ import annotations

import pytest
import typer

from service.cli.errors import CliError, ExitCode, StopRequestedError, told_plainly


def run(error: BaseException) -> int:
    @told_plainly
    def command() -> None:
        raise error

    with pytest.raises(typer.Exit) as raised:
        command()
    return int(raised.value.exit_code)


def test_an_expected_failure_is_told_with_advice(capsys: pytest.CaptureFixture[str]) -> None:
    code = run(CliError("the port is taken", "Take another.", code=ExitCode.MISSING, details="the log's end"))
    assert code == 3
    assert capsys.readouterr().err == "the log's end\nevenkeel: the port is taken\n  Take another.\n"


@pytest.mark.parametrize("interruption", [KeyboardInterrupt(), StopRequestedError()])
def test_an_interruption_is_no_traceback(interruption: KeyboardInterrupt) -> None:
    assert run(interruption) == ExitCode.INTERRUPTED


def test_what_is_not_expected_is_not_hidden() -> None:
    @told_plainly
    def command() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        command()
