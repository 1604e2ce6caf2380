"""`evenkeel jobs` and `evenkeel job`."""

from __future__ import annotations

import json
from operator import itemgetter

import pyarrow as pa
import pytest

from service.spec.problem import Problem
from tests.support import lifecycle
from tests.support.served import Evenkeel, Served

pytestmark = pytest.mark.one_database


@pytest.mark.not_quick
def test_a_list_is_filtered_and_cut(served: Served, evenkeel: Evenkeel) -> None:
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


def test_all_pages_and_the_way_on(served: Served, evenkeel: Evenkeel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.cli.client.service.PAGE", 2)
    ids = [lifecycle.insert(served.database) for _ in range(5)]
    everything = json.loads(evenkeel("jobs", "--limit", "0", "--json").stdout)
    # Newest first; of the same millisecond, by id.
    assert everything["jobs"] == sorted(everything["jobs"], key=itemgetter("submitted_at", "id"), reverse=True)
    assert {job["id"] for job in everything["jobs"]} == set(ids)
    assert everything["next_cursor"] == ""
    some = json.loads(evenkeel("jobs", "--limit", "3", "--json").stdout)
    rest = json.loads(evenkeel("jobs", "--cursor", some["next_cursor"], "--json").stdout)
    assert [*some["jobs"], *rest["jobs"]] == everything["jobs"]


def test_a_wrong_filter_is_told(served: Served, evenkeel: Evenkeel) -> None:
    result = evenkeel("jobs", "--status", "asleep")
    assert (result.exit_code, "[invalid_request]" in result.stderr) == (2, True)


def test_a_job_with_all_that_is_known(served: Served, evenkeel: Evenkeel) -> None:
    job_id = lifecycle.insert(served.database, name="per user")
    lifecycle.run_whole(served.database, job_id, served.settings.results_dir, pa.table({"uid": pa.array([1])}))
    told = evenkeel("job", job_id).stdout
    for text in (job_id, "per user", "SUCCEEDED", "1 row", "FROM orders GROUP BY uid"):
        assert text in told
    assert json.loads(evenkeel("job", job_id, "--json").stdout)["status"] == "SUCCEEDED"


def test_why_a_job_failed_is_shown_in_its_sql(served: Served, evenkeel: Evenkeel) -> None:
    job_id = lifecycle.insert(served.database)
    issue = {"code": "engine_error", "detail": "It divides by zero.", "pointer": "/sql", "line": 1, "column": 8}
    error = Problem.model_validate({**lifecycle.FAILURE.model_dump(), "errors": [issue]})
    lifecycle.fail(served.database, lifecycle.claim(served.database, job_id), error)
    told = evenkeel("job", job_id).stdout
    assert "[DIVIDE_BY_ZERO] [engine_error]" in told
    assert "  sql:1:8\n  SELECT uid, COUNT(*)" in told
    assert "\n         ^\n" in told


def test_a_name_commands_no_terminal(served: Served, evenkeel: Evenkeel) -> None:
    job_id = lifecycle.insert(served.database, name="\x1b[2Jgone\u202e[bold]")
    for result in (evenkeel("jobs"), evenkeel("job", job_id)):
        assert r"\x1b[2Jgone\u202e[bold]" in result.stdout
        assert "\x1b" not in result.stdout
    told = evenkeel("jobs", "--json").stdout
    assert "\u202e" not in told
    assert json.loads(told)["jobs"][0]["name"] == "\x1b[2Jgone\u202e[bold]"


def test_no_such_job(served: Served, evenkeel: Evenkeel, subtests: pytest.Subtests) -> None:
    for job_id in ("0b9f6c1e-6a44-4b7e-9d0e-0f6d5a3c2b1a", "../keys", "x"):
        with subtests.test(job_id=job_id):
            result = evenkeel("job", job_id)
            assert (result.exit_code, result.stdout) == (8, "")
