"""The commands about jobs and workers, and `evenkeel whoami`."""

from __future__ import annotations

import json
from operator import itemgetter
from pathlib import Path

import pyarrow as pa
import pytest

from service.contract.problems import Problem
from service.keys.administration import KeyRequest, issue_key
from tests.support import lifecycle
from tests.support.served import Evenkeel, Served


def test_filters_and_limit(served: Served, evenkeel: Evenkeel) -> None:
    ids = [lifecycle.insert(served.database, name=f"job {number}") for number in range(3)]
    lifecycle.fail(served.database, lifecycle.claim(served.database, ids[0]))
    table = evenkeel("jobs", "--limit", "2")
    assert all(job_id in table.stdout for job_id in ids[1:])
    assert ids[0] not in table.stdout
    assert "There are more" in table.stderr
    assert ids[0] in evenkeel("jobs", "--status", "failed").stdout
    assert evenkeel("jobs", "--status", "failed").stdout.count("\n") == 2
    assert ids[2] in evenkeel("jobs", "--name", "job 2").stdout
    nothing = evenkeel("jobs", "--queue", "LONG")
    assert (nothing.exit_code, nothing.stdout) == (0, "")


def test_all_pages_and_cursor(served: Served, evenkeel: Evenkeel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.cli.operations.PAGE", 2)
    ids = [lifecycle.insert(served.database) for _ in range(5)]
    everything = json.loads(evenkeel("jobs", "--limit", "0", "--json").stdout)
    # Newest first; of the same millisecond, by id.
    assert everything["jobs"] == sorted(everything["jobs"], key=itemgetter("submitted_at", "id"), reverse=True)
    assert {job["id"] for job in everything["jobs"]} == set(ids)
    assert everything["next_cursor"] == ""
    some = json.loads(evenkeel("jobs", "--limit", "3", "--json").stdout)
    rest = json.loads(evenkeel("jobs", "--cursor", some["next_cursor"], "--json").stdout)
    assert [*some["jobs"], *rest["jobs"]] == everything["jobs"]


def test_invalid_filter(served: Served, evenkeel: Evenkeel) -> None:
    result = evenkeel("jobs", "--status", "asleep")
    assert (result.exit_code, "[invalid_request]" in result.stderr) == (2, True)


def test_job_details(served: Served, evenkeel: Evenkeel) -> None:
    job_id = lifecycle.insert(served.database, name="per user")
    lifecycle.run_whole(served.database, job_id, served.settings.results_dir, pa.table({"uid": pa.array([1])}))
    printed = evenkeel("job", job_id).stdout
    for text in (job_id, "per user", "SUCCEEDED", "1 row", "FROM orders GROUP BY uid"):
        assert text in printed
    assert json.loads(evenkeel("job", job_id, "--json").stdout)["status"] == "SUCCEEDED"


def test_error_of_a_job_is_shown_in_its_sql(served: Served, evenkeel: Evenkeel) -> None:
    job_id = lifecycle.insert(served.database)
    issue = {"code": "engine_error", "detail": "It divides by zero.", "pointer": "/sql", "line": 1, "column": 8}
    error = Problem.model_validate({**lifecycle.FAILURE.model_dump(), "errors": [issue]})
    lifecycle.fail(served.database, lifecycle.claim(served.database, job_id), error)
    printed = evenkeel("job", job_id).stdout
    assert "[DIVIDE_BY_ZERO] [engine_error]" in printed
    assert "  sql:1:8\n  SELECT uid, COUNT(*)" in printed
    assert "\n         ^\n" in printed


def test_names_are_escaped(served: Served, evenkeel: Evenkeel) -> None:
    job_id = lifecycle.insert(served.database, name="\x1b[2Jgone\u202e[bold]")
    for result in (evenkeel("jobs"), evenkeel("job", job_id)):
        assert r"\x1b[2Jgone\u202e[bold]" in result.stdout
        assert "\x1b" not in result.stdout
    printed = evenkeel("jobs", "--json").stdout
    assert "\u202e" not in printed
    assert json.loads(printed)["jobs"][0]["name"] == "\x1b[2Jgone\u202e[bold]"


def test_unknown_job(served: Served, evenkeel: Evenkeel, subtests: pytest.Subtests) -> None:
    for job_id in ("0b9f6c1e-6a44-4b7e-9d0e-0f6d5a3c2b1a", "../keys", "x"):
        with subtests.test(job_id=job_id):
            result = evenkeel("job", job_id)
            assert (result.exit_code, result.stdout) == (8, "")


STREAM = json.dumps(
    {
        "mode": "incremental",
        "tables": {"o": {"format": "parquet", "path": "arriving/"}},
        "sql": "SELECT o.uid, COUNT(*) AS n FROM o GROUP BY o.uid",
    }
)


def test_cancel_and_delete(served: Served, evenkeel: Evenkeel) -> None:
    job_id = lifecycle.insert(served.database)
    assert evenkeel("delete", job_id).exit_code == 11
    cancelled = evenkeel("cancel", job_id)
    assert (cancelled.exit_code, cancelled.stdout) == (0, "CANCELLED\n")
    again = evenkeel("cancel", job_id, "--json")
    assert again.exit_code in {0, 11}
    assert json.loads(evenkeel("delete", job_id, "--json").stdout) == {"deleted": job_id}
    assert evenkeel("job", job_id).exit_code == 8


def test_stop_and_resume(served: Served, evenkeel: Evenkeel) -> None:
    arriving = served.settings.data_roots[0] / "arriving"
    arriving.mkdir()
    (served.settings.data_roots[0] / "orders.parquet").rename(arriving / "0.parquet")
    job_id = evenkeel("submit", "-", text=STREAM).stdout.strip()
    assert evenkeel("stop", job_id).stdout == "STOPPED\n"
    assert evenkeel("job", job_id, "--wait").exit_code == 0
    options = ("--from", "scratch", "--set", "mini_batch.size=7", "--json")
    resumed = json.loads(evenkeel("resume", job_id, *options).stdout)
    assert (resumed["status"], resumed["spec"]["settings"]["mini_batch"]["size"]) == ("QUEUED", 7)
    assert evenkeel("resume", job_id).exit_code == 11


def test_batch_job_cannot_be_resumed(served: Served, evenkeel: Evenkeel) -> None:
    result = evenkeel("resume", lifecycle.insert(served.database))
    assert (result.exit_code, "[not_a_stream]" in result.stderr) == (11, True)


def test_workers(served: Served, evenkeel: Evenkeel) -> None:
    assert "No worker" in evenkeel("workers").stderr
    lifecycle.beat(served.database)
    assert lifecycle.WORKER in evenkeel("workers").stdout
    assert json.loads(evenkeel("workers", "--json").stdout)["workers"][0]["id"] == lifecycle.WORKER


def test_whoami_without_authentication(served: Served, evenkeel: Evenkeel) -> None:
    printed = evenkeel("whoami").stdout
    assert served.url in printed
    assert "none required" in printed


@pytest.mark.parametrize("authentication", ["on"])
def test_whoami_with_a_key(served: Served, evenkeel: Evenkeel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    denied = evenkeel("whoami")
    assert (denied.exit_code, "[unauthenticated]" in denied.stderr) == (9, True)
    issued = issue_key(served.database, KeyRequest(name="x", tenant="sales"), None)
    (tmp_path / "key").write_text(issued.key)
    me = json.loads(evenkeel("whoami", "--key-file", str(tmp_path / "key"), "--json").stdout)
    assert (me["tenant"], me["key_id"]) == ("sales", issued.id)
    monkeypatch.setenv("EVENKEEL_API_KEY", issued.key)
    assert "sales" in evenkeel("whoami").stdout


def test_invalid_variable_is_named(evenkeel: Evenkeel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVENKEEL_RETRY_SECONDS", "soon")
    result = evenkeel("whoami")
    assert (result.exit_code, "EVENKEEL_RETRY_SECONDS" in result.stderr) == (2, True)


@pytest.mark.parametrize("url", ["localhost:8080", "http://me:hunter2@localhost"])
def test_invalid_address(evenkeel: Evenkeel, url: str) -> None:
    result = evenkeel("whoami", "--url", url)
    assert (result.exit_code, "hunter2" in result.output) == (2, False)
