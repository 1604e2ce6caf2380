"""Test of TPC-DS query 64 over HTTP: 18 joins in a common table expression that is used twice."""

from __future__ import annotations

import io
from collections.abc import Callable

import duckdb
import pyarrow as pa
import pytest

from tests.support.rows import difference_from_duckdb
from tests.support.service import Service
from tests.support.tables import parquet
from tests.support.tpcds import QUERY_64, write_tpcds

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

TIMEOUT_SECONDS = 120


def test_query_64_equals_duckdb(service: Service, record_testsuite_property: Callable[[str, object], None]) -> None:
    root = service.data / "tpcds"
    names = write_tpcds(root)
    with duckdb.connect() as duck:
        for name in names:
            duck.execute(f"CREATE VIEW {name} AS FROM '{root / name}/*.parquet'")
        expected = duck.execute(QUERY_64).fetchall()
    assert len(expected) > 100
    tables = {name: parquet(f"tpcds/{name}") for name in names}
    spec = {"name": "query-64", "tables": tables, "sql": QUERY_64, "limits": {"timeout": f"{TIMEOUT_SECONDS}s"}}
    job_id = service.submit(spec)
    job = service.wait(job_id, seconds=TIMEOUT_SECONDS + 30)
    assert job["status"] == "SUCCEEDED", job["error"]
    planning_ms = service.http.get(f"/v1/jobs/{job_id}/metrics").json()["planning_ms"]
    record_testsuite_property("planning_ms of TPC-DS query 64", planning_ms)
    assert 0 < planning_ms < TIMEOUT_SECONDS * 1000
    arrow = service.http.get(
        f"/v1/jobs/{job_id}/result", headers={"Accept": "application/vnd.apache.arrow.stream"}
    ).content
    rows = [tuple(row.values()) for row in pa.ipc.open_stream(io.BytesIO(arrow)).read_all().to_pylist()]
    assert difference_from_duckdb(expected, rows) is None
