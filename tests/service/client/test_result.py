"""`evenkeel result`: tables and files."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
import time
from functools import partial
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from service.cli.connection import Connection
from service.client import exchange
from service.client.retries import RetryBudget
from tests.support import lifecycle
from tests.support.clocks import ManualSeconds
from tests.support.scripted import answers, breaks_off_amid_the_body, scripted
from tests.support.served import Evenkeel, Served

ROWS = pa.table(
    {
        "uid": pa.array(range(2500), pa.int64()),
        "name": pa.array([None if i == 1 else f"=name\x1b[31m {i}" for i in range(2500)], pa.string()),
    }
)


@pytest.fixture
def job_id(served: Served) -> str:
    job_id = lifecycle.insert(served.database)
    lifecycle.run_whole(served.database, job_id, served.settings.results_dir, ROWS, files=3)
    return job_id


def test_table_shows_the_first_rows(job_id: str, evenkeel: Evenkeel) -> None:
    result = evenkeel("result", job_id, "--rows", "3")
    assert result.stdout.splitlines() == [
        "uid  name",
        "  0  =name\\x1b[31m 0",
        "  1  NULL",
        "  2  =name\\x1b[31m 2",
    ]
    assert "2,497 more of 2,500 rows" in result.stderr


def test_option_names_a_format(job_id: str, evenkeel: Evenkeel) -> None:
    as_csv = evenkeel("result", job_id, "-o", "csv").stdout.splitlines()
    assert (as_csv[0], len(as_csv)) == ('"uid","name"', 2501)
    assert evenkeel("result", job_id, "-o", "markdown", "--rows", "2").stdout.splitlines() == [
        "| uid | name |",
        "| ---: | --- |",
        r"| 0 | =name\x1b\[31m 0 |",
        "| 1 | NULL |",
    ]


def test_id_may_be_shortened(served: Served, job_id: str, evenkeel: Evenkeel) -> None:
    assert evenkeel("result", job_id[:8], "-o", "csv").stdout.count("\n") == 2501
    assert evenkeel("job", job_id[:13].upper(), "--json").exit_code == 0
    unknown = evenkeel("job", "0000-0000")
    assert (unknown.exit_code, "no job whose id starts with 0000-0000" in unknown.stderr) == (8, True)
    assert unknown.stderr.endswith("List the jobs: evenkeel jobs\n")
    none = evenkeel("result", "00000000-0000-4000-8000-000000000000")
    assert "No job has the id '00000000-0000-4000-8000-000000000000'; it may have been deleted." in none.stderr
    assert (none.exit_code, none.stderr.endswith("List the jobs: evenkeel jobs\n")) == (8, True)
    for last in "12":
        lifecycle.insert(served.database, f"abcd0000-0000-4000-8000-00000000000{last}")
    several = evenkeel("job", "abcd")
    assert (several.exit_code, "several jobs" in several.stderr) == (2, True)


def test_file_has_all_rows(job_id: str, evenkeel: Evenkeel, tmp_path: Path, subtests: pytest.Subtests) -> None:
    for ending in ("csv", "json", "arrow", "parquet"):
        with subtests.test(ending=ending):
            file = tmp_path / f"rows.{ending}"
            result = evenkeel("result", job_id, "-o", str(file), "--json")
            assert result.exit_code == 0, result.output
            assert json.loads(result.stdout) == {"file": str(file), "format": ending, "bytes": file.stat().st_size}
            assert uids(file) == list(range(2500))
            assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def uids(file: Path) -> list[int]:
    match file.suffix:
        case ".csv":
            with file.open(newline="") as opened:
                return [int(row["uid"]) for row in csv.DictReader(opened)]
        case ".json":
            return [row[0] for row in json.loads(file.read_bytes())["rows"]]
        case ".arrow":
            table = pa.ipc.open_stream(file.read_bytes()).read_all()
        case _:
            table = pq.read_table(file)
    found: list[int] = table["uid"].to_pylist()
    return found


def test_formulas_are_escaped_by_default(job_id: str, evenkeel: Evenkeel, tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    evenkeel("result", job_id, "-o", str(file))
    assert "\"'=name" in file.read_text()
    evenkeel("result", job_id, "-o", str(file), "--keep-formulas")
    assert '"=name' in file.read_text()


def test_bytes_are_written_to_a_pipe(job_id: str, served: Served) -> None:
    for options in ((), ("-o", "/dev/stdout")):
        command = [sys.executable, "-m", "service.cli", "result", job_id, "--format", "parquet", *options]
        done = subprocess.run(command, capture_output=True, check=True, timeout=60)
        assert pq.read_table(pa.BufferReader(done.stdout)).num_rows == 2500


@pytest.mark.parametrize("options", [(), ("--json",), ("--format", "csv")], ids=" ".join)
def test_errors_of_standard_output(job_id: str, served: Served, options: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "service.cli", "result", job_id, *options]
    read_end, closed_pipe = os.pipe()
    os.close(read_end)
    with Path("/dev/full").open("wb") as full:
        to_full, to_pipe = (
            subprocess.Popen(command, stdout=sink, stderr=subprocess.PIPE, text=True) for sink in (full, closed_pipe)
        )
    os.close(closed_pipe)
    assert to_full.communicate(timeout=60)[1] == (
        "evenkeel: standard output cannot be written: No space left on device\n"
    )
    assert to_pipe.communicate(timeout=60)[1] == ""
    assert (to_full.returncode, to_pipe.returncode) == (74, 74)


def test_json_has_all_rows(job_id: str, evenkeel: Evenkeel) -> None:
    document = json.loads(evenkeel("result", job_id, "--json").stdout)
    assert (len(document["rows"]), document["total_rows"], document["columns"][0]["name"]) == (2500, 2500, "uid")


def test_empty_result(served: Served, evenkeel: Evenkeel) -> None:
    job_id = lifecycle.insert(served.database)
    lifecycle.run_whole(served.database, job_id, served.settings.results_dir, ROWS.slice(0, 0))
    assert "The result has no rows." in evenkeel("result", job_id).stderr
    assert json.loads(evenkeel("result", job_id, "--json").stdout)["rows"] == []


@pytest.mark.withstands(
    "a download breaks off",
    how="each time, the connection breaks while a result is saved over a file",
    times=3,
    guaranteed="the file stays as it was, no partial file is left, and the exit code reports the failure",
    kind="fault",
)
def test_file_is_unchanged_after_a_failed_download(
    evenkeel: Evenkeel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "rows.csv"
    file.write_text("before")
    monkeypatch.setenv("EVENKEEL_RETRY_SECONDS", "1")
    clock = ManualSeconds()

    def pause(_connection: Connection, seconds: float, _reason: str) -> None:
        clock.now += seconds

    # Only the pauses take time: a slow machine has as many tries as a fast one.
    monkeypatch.setattr(exchange, "RetryBudget", partial(RetryBudget, clock=clock))
    monkeypatch.setattr(Connection, "pause", pause)
    with scripted(breaks_off_amid_the_body) as service:
        monkeypatch.setenv("EVENKEEL_URL", service.url)
        result = evenkeel("result", "1", "-o", str(file))
    assert result.exit_code == 10, result.output
    assert len(service.seen) == 3
    assert file.read_text() == "before"
    assert list(tmp_path.glob(".*")) == []


def test_interrupted_download_starts_again(evenkeel: Evenkeel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with scripted(breaks_off_amid_the_body, answers(200, {"a": 1})) as service:
        monkeypatch.setenv("EVENKEEL_URL", service.url)
        assert evenkeel("result", "1", "-o", str(tmp_path / "rows.csv")).exit_code == 0
    assert (tmp_path / "rows.csv").read_text() == '{"a": 1}'


def test_late_interruption_starts_again(evenkeel: Evenkeel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # For so long a service is asked that has not answered yet; this one has.
    monkeypatch.setattr(exchange, "_FIRST_SECONDS", 0.1)

    def breaks_off_late(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", "1000")
        handler.end_headers()
        handler.wfile.write(b"half")
        handler.wfile.flush()
        time.sleep(0.4)
        handler.close_connection = True

    with scripted(breaks_off_late, breaks_off_late, answers(200, {"a": 1})) as service:
        monkeypatch.setenv("EVENKEEL_URL", service.url)
        assert evenkeel("result", "1", "-o", str(tmp_path / "rows.csv")).exit_code == 0
    assert (tmp_path / "rows.csv").read_text() == '{"a": 1}'


def test_job_without_result(served: Served, evenkeel: Evenkeel, tmp_path: Path) -> None:
    result = evenkeel("result", lifecycle.insert(served.database), "-o", str(tmp_path / "rows.csv"))
    assert (result.exit_code, "[result_not_ready]" in result.stderr) == (11, True)
    assert list(tmp_path.glob("*.csv")) == []


def test_invalid_options(evenkeel: Evenkeel, subtests: pytest.Subtests) -> None:
    cases: list[tuple[tuple[str, ...], str]] = [
        (("--format", "xlsx"), "unknown format 'xlsx'"),
        (("--format", "csv", "--json"), "conflicts with"),
        (("-o", "rows"), "neither a format"),
        (("-o", "rows.csv", "--format", "table"), "neither a format"),
        (("-o", "csv", "--json"), "conflicts with"),
    ]
    for options, expected in cases:
        with subtests.test(options=options, expected=expected):
            result = evenkeel("result", "1", *options)
            assert (result.exit_code, expected in result.stderr) == (2, True)


def test_unwritable_file(job_id: str, evenkeel: Evenkeel, tmp_path: Path) -> None:
    result = evenkeel("result", job_id, "-o", str(tmp_path / "nowhere" / "rows.csv"))
    assert (result.exit_code, "No such file or directory" in result.stderr) == (3, True)


def test_links_are_followed_and_devices_are_written_directly(job_id: str, evenkeel: Evenkeel, tmp_path: Path) -> None:
    (tmp_path / "target.csv").touch()
    (tmp_path / "link.csv").symlink_to(tmp_path / "target.csv")
    assert evenkeel("result", job_id, "-o", str(tmp_path / "link.csv")).exit_code == 0
    assert (tmp_path / "link.csv").is_symlink()
    assert uids(tmp_path / "target.csv") == list(range(2500))
    assert evenkeel("result", job_id, "--format", "csv", "-o", "/dev/null").exit_code == 0
    assert Path("/dev/null").is_char_device()
