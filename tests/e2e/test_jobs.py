"""Tests of jobs over HTTP with real processes and checked results."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.processes import wait_for
from tests.support.service import Service
from tests.support.tables import ENDLESS, USERS, parquet

pytestmark = pytest.mark.e2e

PER_CATEGORY = {
    "name": "orders-per-category",
    "tables": {"o": parquet("orders")},
    "sql": "SELECT o.category, COUNT(*) AS n, COUNT(DISTINCT o.uid) AS users, SUM(o.price) AS total, "
    "MIN(o.uid) AS first FROM o GROUP BY o.category ORDER BY o.category",
}
PER_USER = {
    "name": "orders-per-user",
    "tables": {"o": parquet("orders"), "u": USERS},
    "sql": "SELECT u.name, COUNT(*) AS n, AVG(o.price) AS mean FROM o JOIN u ON o.uid = u.uid "
    "GROUP BY u.name HAVING COUNT(*) < 100 ORDER BY u.name LIMIT 3",
}


def per_category() -> list[dict[str, Any]]:
    """Returns the expected result of `PER_CATEGORY`."""
    expected = []
    for category in range(7):
        numbers = range(category, 10_000, 7)
        users = {i % 100 for i in numbers if i % 1000 != 999}
        expected.append(
            {
                "category": f"c{category}",
                "n": len(numbers),
                "users": len(users),
                "total": sum(numbers) / 2,
                "first": min(users),
            }
        )
    return expected


@pytest.fixture(scope="module")
def finished(service: Service) -> str:
    """The id of `PER_CATEGORY` after it has run."""
    return service.run(PER_CATEGORY)[0]


def test_result_of_an_aggregation(service: Service, finished: str) -> None:
    assert service.rows(finished) == per_category()
    job = service.job(finished)
    assert job["status"] == "SUCCEEDED"
    assert job["attempts"] == 1
    assert job["result"]["rows"] == 7


def test_a_join_of_parquet_and_csv(service: Service) -> None:
    _, rows = service.run(PER_USER)
    # User 99 has no order where i mod 1000 = 999: 90 of 100.
    numbers = [i for i in range(10_000) if i % 100 == 99 and i % 1000 != 999]
    assert rows == [{"name": "user 99", "n": len(numbers), "mean": sum(numbers) / 2 / len(numbers)}]


@pytest.mark.parametrize("phase", ["AUTO", "ONE_PHASE", "TWO_PHASE"])
@pytest.mark.parametrize("split", ["auto", "true"])
def test_every_setting_has_the_same_result(service: Service, phase: str, split: str) -> None:
    settings = {
        # Flink's old and new keys.
        "sql.optimizer.agg.phase.enforcer": "NONE" if phase == "AUTO" else phase,
        "table.optimizer.distinct-agg.split.enabled": split,
        "distinct_split.bucket_num": 8,
    }
    _, rows = service.run({**PER_CATEGORY, "settings": settings})
    assert rows == per_category()


def test_structured_query_has_the_result_of_the_sql(service: Service) -> None:
    query = {
        "source": {"kind": "table", "table": "o", "alias": "o"},
        "group_by": [{"expression": "o.category", "name": "category"}],
        "aggregates": [
            {"function": "COUNT", "name": "n"},
            {"function": "COUNT", "arguments": ["o.uid"], "distinct": True, "name": "users"},
        ],
    }
    _, rows = service.run({"tables": {"o": parquet("orders")}, "query": query})
    assert sorted((row["category"], row["n"], row["users"]) for row in rows) == [
        (row["category"], row["n"], row["users"]) for row in per_category()
    ]


def test_pages_of_json_contain_all_rows(service: Service, finished: str) -> None:
    cursor, rows = "", []
    while True:
        page = service.http.get(f"/v1/jobs/{finished}/result", params={"page_size": 3, "cursor": cursor}).json()
        assert len(page["rows"]) <= 3
        assert page["total_rows"] == 7
        rows += page["rows"]
        cursor = page["next_cursor"]
        if not cursor:
            break
    assert rows == [list(row.values()) for row in per_category()]


def test_csv_arrow_and_parquet_have_the_same_rows(service: Service, finished: str) -> None:
    def download(media_type: str) -> bytes:
        answer = service.http.get(f"/v1/jobs/{finished}/result", headers={"Accept": media_type})
        assert answer.status_code == 200, answer.text
        assert answer.headers["Content-Type"].startswith(media_type)
        return answer.content

    expected = per_category()
    lines = list(csv.DictReader(io.StringIO(download("text/csv").decode())))
    assert [(line["category"], int(line["n"]), float(line["total"])) for line in lines] == [
        (row["category"], row["n"], row["total"]) for row in expected
    ]
    assert pa.ipc.open_stream(download("application/vnd.apache.arrow.stream")).read_all().to_pylist() == expected
    assert pq.read_table(io.BytesIO(download("application/vnd.apache.parquet"))).to_pylist() == expected


def test_plan_report_has_rules_and_reasons(service: Service) -> None:
    job_id, _ = service.run({**PER_CATEGORY, "settings": {"distinct_split": {"enabled": True, "bucket_num": 8}}})
    plan = service.http.get(f"/v1/jobs/{job_id}/plan").json()
    outcomes = {trace["rule"]: trace["outcome"] for trace in plan["rules"]}
    assert outcomes["split_distinct_aggregate"] == "fired"
    assert all(trace["reason"] for trace in plan["rules"])
    # The split decides the phases of its aggregates; the phase rule is skipped with that reason.
    assert outcomes["two_phase_aggregate"] == "skipped"
    assert plan["before"]["text"] != plan["after"]["text"]
    assert plan["physical_plan"]
    (table,) = plan["tables"]
    assert (table["rows"], table["files"], table["rows_are_exact"]) == (10_000, 4, True)


def test_metrics_count_rows_read(service: Service, finished: str) -> None:
    metrics = service.http.get(f"/v1/jobs/{finished}/metrics").json()
    assert metrics["result_rows"] == 7
    assert sum(stage["input_rows"] for stage in metrics["stages"]) >= 10_000
    assert all(stage["duration_ms"] for stage in metrics["stages"])
    assert metrics["skew"]["advice"]


def test_events_are_complete_and_can_be_resumed(service: Service) -> None:
    job_id = service.submit(PER_CATEGORY)
    with service.http.stream("GET", f"/v1/jobs/{job_id}/events") as stream:
        assert stream.headers["Content-Type"].startswith("text/event-stream")
        lines = [line for line in stream.iter_lines() if line.startswith("data: ")]
    events = [json.loads(line.removeprefix("data: ")) for line in lines]
    statuses = [event["data"]["status"] for event in events if event["type"] == "status"]
    assert statuses == ["QUEUED", "PLANNING", "RUNNING", "SUCCEEDED"]
    middle = events[1]["id"]
    headers = {"Last-Event-ID": str(middle), "Accept": "application/json"}
    rest = service.http.get(f"/v1/jobs/{job_id}/events", headers=headers).json()
    assert [event["id"] for event in rest["events"]] == [event["id"] for event in events if event["id"] > middle]
    assert rest["complete"]


def test_explain_plans_and_stores_nothing(service: Service) -> None:
    before = service.http.get("/v1/jobs", params={"page_size": 1}).json()["jobs"]
    answer = service.http.post("/v1/explain", json={**PER_CATEGORY, "name": "explained"})
    assert answer.status_code == 200, answer.text
    report = answer.json()
    assert {trace["rule"] for trace in report["rules"]} >= {"two_phase_aggregate", "split_distinct_aggregate"}
    assert "Aggregate" in report["after"]["text"]
    after = service.http.get("/v1/jobs", params={"page_size": 1}).json()["jobs"]
    assert [job["id"] for job in after] == [job["id"] for job in before]


def test_idempotency_key_returns_the_same_job(service: Service) -> None:
    headers = {"Idempotency-Key": "end-to-end"}
    first = service.http.post("/v1/jobs", json=PER_CATEGORY, headers=headers)
    again = service.http.post("/v1/jobs", json=PER_CATEGORY, headers=headers)
    other = service.http.post("/v1/jobs", json=PER_USER, headers=headers)
    assert first.status_code == again.status_code == 202
    assert first.json()["id"] == again.json()["id"]
    assert (other.status_code, other.json()["code"]) == (422, "idempotency_key_reused")


def test_known_version_gets_304(service: Service, finished: str) -> None:
    first = service.http.get(f"/v1/jobs/{finished}")
    again = service.http.get(f"/v1/jobs/{finished}", headers={"If-None-Match": first.headers["ETag"]})
    assert again.status_code == 304
    assert again.content == b""


def test_running_job_and_its_tasks_are_cancelled(service: Service) -> None:
    job_id = service.submit(ENDLESS)
    assert service.wait(job_id, "RUNNING")["status"] == "RUNNING"
    wait_for("tasks to run", lambda: (service.job(job_id)["progress"] or {}).get("tasks_total", 0) > 0)
    assert service.http.post(f"/v1/jobs/{job_id}/cancel").status_code == 202
    job = service.wait(job_id, seconds=15)
    assert job["status"] == "CANCELLED"
    # The executors are free again, so another job can run.
    assert service.run(PER_CATEGORY)[1] == per_category()
    again = service.http.post(f"/v1/jobs/{job_id}/cancel")
    assert (again.status_code, again.json()["code"]) == (409, "job_already_finished")


def test_a_job_that_takes_too_long_is_timed_out(service: Service) -> None:
    job = service.wait(service.submit({**ENDLESS, "limits": {"timeout": "2s"}}))
    assert job["status"] == "TIMED_OUT"
    assert job["error"]["code"] == "timed_out"


def test_error_of_spark_fails_the_job_with_its_message(service: Service) -> None:
    sql = "SELECT SUM(CAST(o.category AS BIGINT)) AS s FROM o"
    job = service.wait(service.submit({"tables": {"o": parquet("orders")}, "sql": sql}))
    assert job["status"] == "FAILED"
    assert job["error"]["code"] == "invalid_cast"
    assert "cannot be cast" in job["error"]["detail"]
    (issue,) = job["error"]["errors"]
    assert (issue["pointer"], issue["line"], issue["column"]) == ("/sql", 1, 12)
    assert "at org.apache.spark" not in json.dumps(job["error"])
    assert service.http.get(f"/v1/jobs/{job['id']}/result").json()["code"] == "result_not_ready"


def test_deleting_a_job_deletes_its_data(service: Service) -> None:
    job_id, _ = service.run(PER_CATEGORY)
    assert list(service.state_dir.glob(f"results/**/{job_id}*"))
    assert service.http.delete(f"/v1/jobs/{job_id}").status_code == 204
    for path in ("", "/result", "/plan", "/metrics", "/events"):
        assert service.http.get(f"/v1/jobs/{job_id}{path}").status_code == 404
    assert list(service.state_dir.glob(f"results/**/{job_id}*")) == []


def test_concurrent_jobs_have_their_own_results(service: Service) -> None:
    def count(uid: int) -> dict[str, Any]:
        sql = f"SELECT COUNT(*) AS n, MAX(o.uid) AS uid FROM o WHERE o.uid = {uid}"
        return {"name": f"count-{uid}", "tables": {"o": parquet("orders")}, "sql": sql}

    submitted = {service.submit(count(uid)): uid for uid in range(8)}
    for job_id, uid in submitted.items():
        assert service.wait(job_id)["status"] == "SUCCEEDED"
        assert service.rows(job_id) == [{"n": 100, "uid": uid}]
    listed = service.http.get("/v1/jobs", params={"name": "count-", "status": "SUCCEEDED"}).json()["jobs"]
    assert {job["id"] for job in listed} == set(submitted)


def test_health_and_metrics_for_operators(service: Service, finished: str) -> None:
    assert service.http.get("/healthz").json()["status"] == "alive"
    assert service.http.get("/readyz").json()["workers"] == 1
    text = service.http.get("/metrics").text
    assert "evenkeel" in text
    assert httpx.get(f"{service.address}/docs", trust_env=False).json()["code"] == "not_found"
