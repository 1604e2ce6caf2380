"""Parameters of SQL in running jobs: each is a literal, in batch jobs, streaming jobs and explanations."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.service import Service
from tests.support.tables import parquet

pytestmark = pytest.mark.e2e

NASTY = "a'b\\'; -- \"`${env:HOME}` \u2028\n:most ? 🙂"
"""A text that would end a quoted string, begin a comment or name a variable, if it were pasted into the SQL."""

SQL = (
    "SELECT o.category, COUNT(*) AS n, MAX(:text) AS text, MAX(:day) AS day, SUM(o.price * :factor) AS total "
    "FROM o WHERE o.uid <= :most AND o.category IN (:one, :other, :text) GROUP BY o.category ORDER BY o.category"
)
PARAMETERS: dict[str, Any] = {
    "text": NASTY,
    "day": {"type": "DATE", "value": "2024-02-29"},
    "factor": 0.5,
    "most": {"type": "BIGINT", "value": "49"},
    "one": "c1",
    "other": "c6",
}
BATCH = {"tables": {"o": parquet("orders")}, "sql": f"{SQL} LIMIT :rows", "parameters": {**PARAMETERS, "rows": 5}}


def expected() -> list[dict[str, Any]]:
    found = []
    for category in (1, 6):
        numbers = [i for i in range(category, 10_000, 7) if i % 100 <= 49 and i % 1000 != 999]
        total = sum(numbers) / 4
        found.append(
            {"category": f"c{category}", "n": len(numbers), "text": NASTY, "day": "2024-02-29", "total": total}
        )
    return found


def test_a_batch_job(service: Service) -> None:
    job_id, rows = service.run(BATCH)
    assert rows == expected()
    assert service.job(job_id)["spec"]["parameters"]["day"] == PARAMETERS["day"]
    assert "o.uid <= 49L" in service.http.get(f"/v1/jobs/{job_id}/plan").json()["after"]["text"]


def test_a_list_of_values(service: Service) -> None:
    sql = "SELECT COUNT(*) AS n FROM o WHERE o.category = ? AND o.price > ?"
    _, rows = service.run({"tables": {"o": parquet("orders")}, "sql": sql, "parameters": ["c1", 4_000]})
    assert rows == [{"n": sum(1 for i in range(1, 10_000, 7) if i / 2 > 4_000)}]


def test_explain(service: Service) -> None:
    answer = service.http.post("/v1/explain", json=BATCH)
    assert answer.status_code == 200, answer.text
    assert "2024-02-29" in answer.json()["after"]["text"]


def test_a_streaming_job_keeps_them_over_its_runs(service: Service) -> None:
    spec = {**BATCH, "mode": "incremental", "sql": SQL.partition(" ORDER BY")[0], "parameters": PARAMETERS}
    job_id = service.submit(spec)
    try:
        service.wait(job_id, "STOPPED")
        assert sorted(service.rows(job_id), key=lambda row: str(row["category"])) == expected()
        resumed = service.http.post(f"/v1/jobs/{job_id}/resume", json={"from": "scratch"})
        assert resumed.status_code == 202, resumed.text
        assert resumed.json()["spec"]["parameters"] == service.job(job_id)["spec"]["parameters"]
        service.wait(job_id, "STOPPED")
        assert sorted(service.rows(job_id), key=lambda row: str(row["category"])) == expected()
    finally:
        service.http.post(f"/v1/jobs/{job_id}/cancel")
