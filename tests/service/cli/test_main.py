"""The command line: help, exit codes, signals, and errors without a traceback."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from service.cli.main import app
from service.cli.terminal import CliError, ExitCode, StopRequestedError, StopSignals, prints_errors
from service.client.text import amount, size
from service.store.migrate import head_revision

ROOT = Path(__file__).parents[3]

COMMANDS = (
    *("submit", "explain", "profile", "jobs", "job", "events", "result", "plan", "metrics", "skew"),
    *("cancel", "stop", "resume", "delete", "workers", "whoami", "keys"),
    *("up", "demo", "doctor", "health", "serve", "worker", "migrate", "purge", "backup", "restore", "openapi"),
)


def test_help_names_every_command() -> None:
    result = CliRunner().invoke(app, ["--help"])
    assert result.exit_code == 0
    assert all(command in result.output for command in COMMANDS)


def test_every_command_has_help(subtests: pytest.Subtests) -> None:
    for command in COMMANDS:
        with subtests.test(command=command):
            result = CliRunner().invoke(app, [command, "--help"])
            assert result.exit_code == 0
            assert f"Usage: evenkeel {command}" in result.output


def test_help_imports_nothing_heavy(tmp_path: Path) -> None:
    script = (
        "import sys, service.cli.main as m; "
        "heavy = {'pyspark', 'pandas', 'pyarrow', 'sqlalchemy', 'celery', 'fastapi', 'httpx', 'pydantic_settings'}; "
        "sys.exit(', '.join(heavy & set(sys.modules)) or 0)"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"imported for help alone: {done.stderr}"


def test_openapi_document_is_written_to_a_file(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["openapi", "-o", str(tmp_path / "openapi.yaml")])
    assert (result.exit_code, result.output) == (0, "")
    assert (tmp_path / "openapi.yaml").read_text(encoding="utf-8") == (ROOT / "openapi.yaml").read_text(
        encoding="utf-8"
    )


def test_version() -> None:
    result = CliRunner().invoke(app, ["--version"])
    assert result.output == f"evenkeel {version('evenkeel')}\n"


def test_migrate_prints_the_revision(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["migrate"], env={"EVENKEEL_STATE_DIR": str(tmp_path / "state")})
    assert result.exit_code == 0
    assert head_revision() in result.output
    assert (tmp_path / "state" / "evenkeel.db").exists()


def test_migrate_explains_database_errors() -> None:
    result = CliRunner().invoke(app, ["migrate"], env={"EVENKEEL_DATABASE_URL": "sqlite:////proc/jobs.db"})
    assert result.exit_code == 3
    assert "unable to open database file" in result.output
    assert "EVENKEEL_DATABASE_URL" in result.output
    assert "Traceback" not in result.output


def test_doctor_prints_json_and_fails_for_failed_checks(tmp_path: Path) -> None:
    good = {"EVENKEEL_STATE_DIR": str(tmp_path), "EVENKEEL_API_PORT": "0"}
    result = CliRunner().invoke(app, ["doctor", "--json"], env=good)
    assert result.exit_code == 0
    assert {finding["level"] for finding in json.loads(result.output)} <= {"OK", "WARN"}
    bad = {**good, "EVENKEEL_DATA_ROOTS": "/nowhere"}
    result = CliRunner().invoke(app, ["doctor"], env=bad)
    assert result.exit_code == 1
    assert "FAIL  data root" in result.output
    assert "Create it, or correct EVENKEEL_DATA_ROOTS." in result.output


@pytest.mark.parametrize("command", ["up", "demo", "worker"])
def test_missing_java_is_an_error_before_the_start(command: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, [command], env={"JAVA_HOME": str(tmp_path), "EVENKEEL_STATE_DIR": str(tmp_path)})
    assert result.exit_code == 3
    assert "which contains no bin/java" in result.output


def test_invalid_variable_is_a_usage_error() -> None:
    result = CliRunner().invoke(app, ["doctor"], env={"EVENKEEL_API_PORT": "x"})
    assert result.exit_code == 2
    assert "EVENKEEL_API_PORT" in result.output


def run(error: BaseException) -> int:
    @prints_errors
    def command() -> None:
        raise error

    with pytest.raises(typer.Exit) as raised:
        command()
    return int(raised.value.exit_code)


def test_cli_error_is_printed_with_advice(capsys: pytest.CaptureFixture[str]) -> None:
    code = run(CliError("the port is in use", "Choose another.", code=ExitCode.MISSING, details="the log's end"))
    assert code == 3
    assert capsys.readouterr().err == "the log's end\nevenkeel: the port is in use\n  Choose another.\n"


@pytest.mark.parametrize("interruption", [KeyboardInterrupt(), StopRequestedError()])
def test_interruption_has_no_traceback(interruption: KeyboardInterrupt) -> None:
    assert run(interruption) == ExitCode.INTERRUPTED


def test_unexpected_errors_are_not_caught() -> None:
    @prints_errors
    def command() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        command()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_first_signal_raises_and_later_ones_are_counted(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with StopSignals() as signals:
        with pytest.raises(StopRequestedError):
            os.kill(os.getpid(), number)
        assert not signals.is_repeated
        os.kill(os.getpid(), number)
        assert signals.is_repeated
    assert signal.getsignal(number) == before


def test_amounts() -> None:
    assert [amount(number, "job") for number in (0, 1, 1200)] == ["0 jobs", "1 job", "1,200 jobs"]
    assert amount(2, "directory", "directories") == "2 directories"


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (1_234_567, "1.23 MB"), (999_999, "1 MB"), (5 * 10**15, "5,000 TB")],
)
def test_sizes(number: int, text: str) -> None:
    assert size(number) == text
