"""`evenkeel submit`: the request and the messages."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from typer.testing import Result

from service.client.requests import new_idempotency_key
from tests.support import lifecycle
from tests.support.scripted import breaks_off, scripted
from tests.support.served import Evenkeel, Served

TABLE = ("--table", "o=orders.parquet")
JOB = """
name: [red]nightly[/]
tables: {o: {format: parquet, path: orders.parquet}}
sql: SELECT o.uid FROM o
settings: {skew: {factor: 2, threshold: 1MB}}
"""


def spec_of(result: Result) -> dict[str, object]:
    assert result.exit_code == 0, result.output
    document: dict[str, dict[str, object]] = json.loads(result.stdout)
    return document["spec"]


def test_standard_output_has_only_the_id(served: Served, evenkeel: Evenkeel) -> None:
    result = evenkeel("submit", "--sql", "SELECT COUNT(*) AS n FROM o", *TABLE)
    assert result.exit_code == 0
    (job_id,) = result.stdout.split()
    assert f"evenkeel job {job_id} --wait" in result.stderr


def test_sql_file_names_the_job(served: Served, evenkeel: Evenkeel, tmp_path: Path) -> None:
    (tmp_path / "daily.sql").write_text("SELECT o.uid FROM o")
    spec = spec_of(evenkeel("submit", str(tmp_path / "daily.sql"), *TABLE, "--json"))
    assert (spec["name"], spec["sql"]) == ("daily", "SELECT o.uid FROM o")


def test_options_override_the_file(served: Served, evenkeel: Evenkeel, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(JOB.replace("[red]nightly[/]", "nightly"))
    options = (
        "--name",
        "x",
        "--set",
        "skew.factor=8",
        "--set",
        "agg_phase=TWO_PHASE",
        "--sql",
        "SELECT SUM(o.amount) AS s FROM o",
    )
    spec = spec_of(evenkeel("submit", str(tmp_path / "job.yaml"), *options, "--json"))
    settings = spec["settings"]
    assert isinstance(settings, dict)
    assert (spec["name"], spec["sql"]) == ("x", "SELECT SUM(o.amount) AS s FROM o")
    assert (settings["agg_phase"], settings["skew"]) == ("TWO_PHASE", {"factor": 8.0, "threshold": "1MB"})


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("SELECT o.uid\nFROM o", TABLE),
        (JOB.replace("[red]nightly[/]", "'[red]nightly[/]'"), ()),
        ('{"tables": {"o": {"format": "parquet", "path": "orders.parquet"}}, "sql": "SELECT o.uid FROM o"}', ()),
    ],
    ids=["sql", "yaml", "json"],
)
def test_standard_input(served: Served, evenkeel: Evenkeel, text: str, options: tuple[str, ...]) -> None:
    assert "o.uid" in str(spec_of(evenkeel("submit", "-", *options, "--json", text=text))["sql"])


def test_same_idempotency_key_returns_the_same_job(served: Served, evenkeel: Evenkeel) -> None:
    key = new_idempotency_key()
    options = ("--sql", "SELECT o.uid FROM o", *TABLE, "--idempotency-key", key)
    first, second = (evenkeel("submit", *options) for _ in range(2))
    assert first.stdout == second.stdout
    assert "was submitted with this key before" in second.stderr
    other = evenkeel("submit", *options, "--name", "other")
    assert (other.exit_code, "[idempotency_key_reused]" in other.stderr) == (2, True)


def test_error_is_shown_in_the_sql(served: Served, evenkeel: Evenkeel, tmp_path: Path) -> None:
    file = tmp_path / "bad.sql"
    file.write_text("SELECT\n  COUNT(o.ammount)\nFROM o")
    result = evenkeel("submit", str(file), *TABLE)
    assert result.exit_code == 2
    assert result.stdout == ""
    printed = result.stderr.splitlines()
    assert printed[0] == "evenkeel: There is no column o.ammount. Did you mean o.amount? [unknown_column]"
    assert printed[1:] == [f"  {file}:2:9", "    COUNT(o.ammount)", "          ^"]


def test_all_errors_are_shown(served: Served, evenkeel: Evenkeel) -> None:
    result = evenkeel("submit", "-", text='{"tables": {"o": {"format": "excel"}}, "sql": 1, "nmae": "x"}')
    assert result.exit_code == 2
    printed = result.stderr.splitlines()
    assert printed[0] == "evenkeel: the request has 3 errors [invalid_request]"
    assert {line.strip() for line in printed if line.startswith("  at ")} == {
        "at tables.o.format",
        "at sql",
        "at nmae",
    }


@pytest.mark.parametrize(
    ("sql", "options", "advice", "accepted"),
    [
        ("SELECT 1 FROM o", ("--table", "o=csv:orders.parquet"), "--table o=parquet:orders.parquet", ()),
        ("SELECT 1 FROM o WHERE date :d > '2026'", TABLE, "--param d:DATE=VALUE", TABLE),
    ],
)
def test_advice_about_a_field_names_the_option(
    served: Served, evenkeel: Evenkeel, sql: str, options: tuple[str, ...], advice: str, accepted: tuple[str, ...]
) -> None:
    result = evenkeel("submit", "--sql", sql, *options)
    assert result.exit_code == 2
    assert f"as an option: {advice}" in result.stderr
    option = advice.replace("VALUE", "2026-01-01").split(" ")
    assert evenkeel("submit", "--sql", sql.replace("date :d", ":d"), *accepted, *option).exit_code == 0


def test_errors_name_the_option_or_the_key_that_was_written(
    served: Served, evenkeel: Evenkeel, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    (tmp_path / "job.yaml").write_text(JOB.replace("[red]nightly[/]", "x").replace("factor: 2", "factor: -2"))
    sql = ("--sql", "SELECT COUNT(*) AS n FROM o WHERE o.amount < :m")
    cases: list[tuple[tuple[str, ...], str]] = [
        ((*sql, "--param", "m=1", "--table", "o=nowhere/x"), "\n  at --table o=nowhere/x\n"),
        (
            (*sql, "--param", "m=1", *TABLE, "--read", "o.delimeter=;"),
            "evenkeel: --read o.delimeter=;: There is no field",
        ),
        ((*sql, "--param", "m=1", *TABLE, "--set", "join.ship=X"), "evenkeel: --set join.ship=X: Write 'AUTO'"),
        ((*sql, "--param", "m=1", *TABLE, "--set", "join.shp=X"), "evenkeel: --set join.shp=X: There is no setting"),
        ((*sql, "--param", "m=x", *TABLE), "is compared with o.amount, which is "),
        ((*sql, "--param", "m=x", *TABLE), "\n  at --param m=x\n"),
        ((str(tmp_path / "job.yaml"),), "evenkeel: settings.skew.factor: "),
    ]
    for arguments, expected in cases:
        with subtests.test(arguments=arguments, expected=expected):
            result = evenkeel("submit", *arguments)
            assert result.exit_code == 2
            assert expected in result.stderr


def test_invalid_input_is_not_sent(evenkeel: Evenkeel, subtests: pytest.Subtests) -> None:
    cases: list[tuple[tuple[str, ...], str]] = [
        ((), "no job is given"),
        (("--sql", "SELECT 1"), "has no tables"),
        (("nowhere.yaml",), "nowhere.yaml: No such file or directory"),
        (("/",), "Is a directory"),
        (("--sql", "SELECT 1", "--table", "orders"), "invalid option --table 'orders'"),
    ]
    for arguments, expected in cases:
        with subtests.test(arguments=arguments, expected=expected):
            result = evenkeel("submit", *arguments)
            assert result.exit_code == 2
            assert expected in result.stderr


def test_binary_file_is_refused(evenkeel: Evenkeel, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_bytes(b"\xff\xfe")
    assert "is not UTF-8 text" in evenkeel("submit", str(tmp_path / "job.yaml")).stderr


@pytest.mark.parametrize("authentication", ["on"])
def test_missing_api_key(served: Served, evenkeel: Evenkeel) -> None:
    result = evenkeel("submit", "--sql", "SELECT o.uid FROM o", *TABLE)
    assert result.exit_code == 9
    assert "EVENKEEL_API_KEY" in result.stderr


def test_wait_for_a_job_that_has_ended(served: Served, evenkeel: Evenkeel) -> None:
    options = ("--sql", "SELECT o.uid FROM o", *TABLE, "--idempotency-key", "k")
    job_id = evenkeel("submit", *options).stdout.strip()
    lifecycle.fail(served.database, lifecycle.claim(served.database, job_id))
    result = evenkeel("submit", *options, "--wait")
    assert (result.exit_code, result.stdout) == (1, "")
    assert f"Job {job_id}" in result.stderr
    assert "[DIVIDE_BY_ZERO] [engine_error]" in result.stderr


def test_rows_of_a_job_that_has_ended(served: Served, evenkeel: Evenkeel, tmp_path: Path) -> None:
    options = ("--sql", "SELECT o.uid FROM o", *TABLE, "--idempotency-key", "k")
    job_id = evenkeel("submit", *options).stdout.strip()
    rows = pa.table({"uid": pa.array([1, 2], pa.int64())})
    lifecycle.run_whole(served.database, job_id, served.settings.results_dir, rows, files=1)
    waited = evenkeel("submit", *options, "--wait")
    assert waited.stdout.splitlines() == ["uid", "  1", "  2"]
    assert "SUCCEEDED" in waited.stderr
    assert evenkeel("submit", *options, "--wait", "-o", "csv").stdout.splitlines() == ['"uid"', "1", "2"]
    assert evenkeel("submit", *options, "--wait", "-o", str(tmp_path / "rows.parquet")).stdout == ""
    assert (tmp_path / "rows.parquet").stat().st_size > 0
    assert json.loads(evenkeel("submit", *options, "--wait", "--json").stdout)["status"] == "SUCCEEDED"
    for refused in (("-o", "csv"), ("--wait", "--json", "-o", "csv")):
        assert evenkeel("submit", *options, *refused).exit_code == 2


def test_lost_response_shows_the_idempotency_key(evenkeel: Evenkeel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVENKEEL_RETRY_SECONDS", "0")
    with scripted(breaks_off) as service:
        monkeypatch.setenv("EVENKEEL_URL", service.url)
        result = evenkeel("submit", "--sql", "SELECT o.uid FROM o", *TABLE)
    assert result.exit_code == 10
    assert f"--idempotency-key {service.seen[0].headers['idempotency-key'].strip(chr(34))}" in result.stderr
