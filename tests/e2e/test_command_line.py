"""Tests of the commands against a running service with a worker, as scripts and users call them."""

from __future__ import annotations

import csv
import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.support.command_line import SECONDS, CommandLine
from tests.support.processes import wait_for
from tests.support.production import Production, running_production
from tests.support.tables import ENDLESS, parquet, write_endless, write_orders

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

ROOT = Path(__file__).parents[2]

PER_USER = """SELECT o.uid, COUNT(*) AS orders,
  COUNT(DISTINCT o.category) AS categories
FROM o GROUP BY o.uid
ORDER BY o.uid NULLS FIRST
"""
ORDERS = ("--table", "o=parquet:orders/")


@pytest.fixture(scope="module")
def production(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Production]:
    """An API that requires keys, and a worker."""
    environment = {"EVENKEEL_API_AUTHENTICATION": "on", "EVENKEEL_SPARK_MASTER": "local[2]"}
    directory = tmp_path_factory.mktemp("production")
    with running_production(directory, None, apis=1, workers=1, environment=environment) as running:
        write_orders(running.data)
        write_endless(running.data)
        yield running


@pytest.fixture
def evenkeel(production: Production, tmp_path: Path) -> CommandLine:
    return CommandLine(tmp_path, production.apis[0].address, production.key())


@pytest.fixture
def per_user(evenkeel: CommandLine) -> str:
    """The id of a job that has succeeded."""
    (evenkeel.directory / "per user.sql").write_text(PER_USER)
    done = evenkeel.run("submit", "per user.sql", *ORDERS, "--wait")
    assert done.code == 0, done.stderr
    assert "SUCCEEDED" in done.stderr
    # 101 groups: a hundred users, and NULL; the first twenty are shown.
    assert len(done.stdout.splitlines()) == 21
    return id_in(done.stderr)


def id_in(messages: str) -> str:
    """Returns the id of the job in the messages of a waiting `submit`."""
    (job_id,) = re.findall(r"^Job ([0-9a-f-]{36})$", messages, re.MULTILINE)
    return str(job_id)


def test_job_from_file_to_rows(evenkeel: CommandLine, per_user: str) -> None:
    saved = {
        ending: evenkeel.run("result", per_user, "-o", f"rows.{ending}", "--json").document
        for ending in ("csv", "parquet", "json")
    }
    assert {form["format"]: form["bytes"] for form in saved.values()} == {
        ending: (evenkeel.directory / f"rows.{ending}").stat().st_size for ending in saved
    }
    with (evenkeel.directory / "rows.csv").open(newline="") as opened:
        rows = list(csv.DictReader(opened))
    # 101 groups: a hundred users, and NULL for every thousandth order, all of user 99.
    assert len(rows) == 101
    assert rows[0] == {"uid": "", "orders": "10", "categories": rows[0]["categories"]}
    assert [(row["uid"], row["orders"]) for row in rows[1:]] == [
        (str(uid), "90" if uid == 99 else "100") for uid in range(100)
    ]
    table = pq.read_table(evenkeel.directory / "rows.parquet")
    assert table["orders"].to_pylist() == [int(row["orders"]) for row in rows]
    document = json.loads((evenkeel.directory / "rows.json").read_text())
    assert [row[1] for row in document["rows"]] == table["orders"].to_pylist()
    shown = evenkeel.run("result", per_user, "--rows", "2").stdout.splitlines()
    assert shown[0].split() == ["uid", "orders", "categories"]
    assert shown[1].split()[:2] == ["NULL", "10"]


def test_every_output_is_available_as_json(evenkeel: CommandLine, per_user: str) -> None:
    (evenkeel.directory / "job.json").write_text(json.dumps({"tables": {"o": parquet("orders")}, "sql": PER_USER}))
    found = {
        command[0]: evenkeel.run(*command, "--json")
        for command in (
            ("jobs",),
            ("job", per_user),
            ("events", per_user),
            ("result", per_user),
            ("plan", per_user),
            ("metrics", per_user),
            ("skew", per_user),
            ("workers",),
            ("whoami",),
            ("keys", "list"),
            ("explain", "job.json"),
        )
    }
    assert {name: (done.code, done.stderr) for name, done in found.items()} == dict.fromkeys(found, (0, ""))
    documents = {name: done.document for name, done in found.items()}
    assert per_user in {job["id"] for job in documents["jobs"]["jobs"]}
    assert (documents["job"]["status"], documents["job"]["name"]) == ("SUCCEEDED", "per user")
    assert documents["events"]["complete"] is True
    assert documents["result"]["total_rows"] == len(documents["result"]["rows"]) == 101
    assert documents["metrics"]["skew"] == documents["skew"]
    assert [rule["rule"] for rule in documents["plan"]["rules"]] == [
        rule["rule"] for rule in documents["explain"]["rules"]
    ]
    assert [worker["status"] for worker in documents["workers"]["workers"]] == ["READY"]
    assert "admin" in documents["whoami"]["scopes"]
    # The same for users.
    for command in found:
        arguments = ("keys", "list") if command == "keys" else (command,)
        about = [per_user] if command in {"job", "events", "result", "plan", "metrics", "skew"} else []
        done = evenkeel.run(*arguments, *(["job.json", "--show-sql"] if command == "explain" else about))
        assert (done.code, bool(done.stdout)) == (0, True), done.stderr


def test_a_failed_job(evenkeel: CommandLine) -> None:
    done = evenkeel.run("submit", "--sql", "SELECT SUM(o.price / (o.uid - o.uid)) AS s FROM o", *ORDERS, "--wait")
    assert done.code == 1
    assert "FAILED" in done.stderr
    assert re.search(r"\[\w+\]$", done.stderr, re.MULTILINE)
    job_id = id_in(done.stderr)
    shown = evenkeel.run("job", job_id)
    assert "FAILED" in shown.stdout
    again = evenkeel.run("job", job_id, "--wait", "--json")
    assert (again.code, again.document["error"]["status"]) == (1, 422)


def test_refused_job_shows_the_position_of_the_error(evenkeel: CommandLine) -> None:
    (evenkeel.directory / "bad.sql").write_text(PER_USER.replace("o.category", "o.categroy"))
    done = evenkeel.run("submit", "bad.sql", *ORDERS, "--wait")
    assert (done.code, done.stdout) == (2, "")
    told = done.stderr.splitlines()
    assert told[0].endswith("[unknown_column]")
    assert told[1:] == ["  bad.sql:2:18", "    COUNT(DISTINCT o.categroy) AS categories", " " * 19 + "^"]


def test_job_is_followed_and_cancelled(evenkeel: CommandLine) -> None:
    waiting = evenkeel.start("submit", "-", "--wait", "--json", text=json.dumps(ENDLESS))
    wait_for("the job to run", lambda: "RUNNING" in waiting.error_output, SECONDS)
    (job,) = evenkeel.run("jobs", "--status", "RUNNING", "--name", "endless", "--json").document["jobs"]
    following = evenkeel.start("events", job["id"], "--follow", "--json")
    assert evenkeel.run("cancel", job["id"]).code == 0
    done = waiting.done()
    assert (done.code, done.document["status"]) == (5, "CANCELLED")
    followed = following.done()
    assert followed.code == 0
    told = [event["data"]["status"] for event in followed.lines if event["type"] == "status"]
    assert told == ["QUEUED", "PLANNING", "RUNNING", "CANCELLING", "CANCELLED"]
    assert evenkeel.run("result", job["id"]).code == 11
    assert evenkeel.run("delete", job["id"]).code == 0
    assert evenkeel.run("job", job["id"]).code == 8


def test_a_job_that_takes_too_long(evenkeel: CommandLine) -> None:
    job = {**ENDLESS, "limits": {"timeout": "2s"}}
    assert evenkeel.run("submit", "-", "--wait", text=json.dumps(job)).code == 6


def test_interruption_continues_or_cancels_the_job(evenkeel: CommandLine) -> None:
    waiting = evenkeel.start("submit", "-", "--wait", text=json.dumps(ENDLESS))
    wait_for("the job to run", lambda: "RUNNING" in waiting.error_output, SECONDS)
    waiting.process.send_signal(signal.SIGINT)
    done = waiting.done()
    job_id = id_in(done.stderr)
    assert done.code == 130
    assert f"evenkeel cancel {job_id}" in done.stderr
    assert evenkeel.run("job", job_id, "--json").document["status"] == "RUNNING"
    again = evenkeel.start("job", job_id, "--wait", "--cancel-on-interrupt")
    wait_for("the job to be shown", lambda: "RUNNING" in again.error_output, SECONDS)
    again.process.send_signal(signal.SIGTERM)
    assert again.done().code == 5


def test_permissions_of_keys(evenkeel: CommandLine, production: Production) -> None:
    anonymous = CommandLine(evenkeel.directory, evenkeel.url)
    assert anonymous.run("jobs").code == 9
    reader = evenkeel.run("keys", "create", "reader", "--scope", "read")
    (evenkeel.directory / "key").write_text(reader.stdout)
    assert anonymous.run("jobs", "--key-file", "key").code == 0
    refused = anonymous.run("submit", "--sql", PER_USER, *ORDERS, "--key-file", "key")
    assert (refused.code, "[missing_scope]" in refused.stderr) == (9, True)
    assert evenkeel.run("keys", "revoke", reader.stdout.strip()).code == 0
    wait_for("the key to be refused", lambda: anonymous.run("whoami", "--key-file", "key").code == 9)


def test_keys_are_counted_exactly_on_request(evenkeel: CommandLine) -> None:
    done = evenkeel.run("profile", "parquet:orders/", "uid", "category,uid", "--exact", "--limit", "2", "--json")
    assert done.code == 0, done.stderr
    by_user, by_both = done.document["keys"]
    assert (by_user["rows"], by_user["distinct_keys"], by_user["null_share"]) == (10_000, 101, 0.001)
    assert [hot["estimated_rows"] for hot in by_user["hot_keys"]] == [100, 100]
    assert by_both["distinct_keys"] > 700
    assert "100" in evenkeel.run("profile", "parquet:orders/", "uid", "--exact").stdout


def test_progress_bar_on_a_terminal_of_80_columns(evenkeel: CommandLine) -> None:
    ours, theirs = pty.openpty()
    environment = {**evenkeel.environment, "COLUMNS": "80", "TERM": "xterm-256color"}
    command = [sys.executable, "-P", "-m", "service.cli", "submit", "--sql", PER_USER, *ORDERS, "--wait"]
    process = subprocess.Popen(
        command, env=environment, cwd=evenkeel.directory, stdin=theirs, stdout=theirs, stderr=theirs, close_fds=True
    )
    os.close(theirs)
    told = b""
    with suppress(OSError):  # The terminal closes with its last open descriptor.
        while chunk := os.read(ours, 65536):
            told += chunk
    os.close(ours)
    assert process.wait(SECONDS) == 0
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", told.decode())
    assert "━" in plain
    assert re.search(r"SUCCEEDED, took .*, 101 rows", plain)
    assert max(len(line) for line in re.split(r"[\r\n]+", plain)) <= 80


@pytest.mark.withstands(
    "the API is killed while commands wait",
    how="`kill -9` while `submit --wait` and `events --follow` and the job run; it is started again later",
    times=1,
    guaranteed="both commands continue when it is back, each event is printed once, and the exit code is the job's",
    kind="fault",
)
def test_commands_survive_a_killed_api(evenkeel: CommandLine, production: Production) -> None:
    waiting = evenkeel.start("submit", "-", "--wait", "--json", text=json.dumps(ENDLESS))
    wait_for("the job to run", lambda: "RUNNING" in waiting.error_output, SECONDS)
    (job,) = evenkeel.run("jobs", "--status", "RUNNING", "--name", "endless", "--json").document["jobs"]
    following = evenkeel.start("events", job["id"], "--follow", "--json")
    wait_for("the first events", lambda: "RUNNING" in following.output_text, SECONDS)
    part = production.apis[0].part
    production.kill(part)
    wait_for("both to notice", lambda: "again" in waiting.error_output and "again" in following.error_output, SECONDS)
    # A new command fails soon.
    assert evenkeel.run("whoami").code == 10
    production.start_again(part)
    assert evenkeel.run("cancel", job["id"]).code == 0
    assert waiting.done().code == 5
    followed = following.done()
    assert followed.code == 0, followed.stderr
    ids = [event["id"] for event in followed.lines]
    assert ids == sorted(set(ids))
    assert followed.lines[-1]["data"]["status"] == "CANCELLED"
