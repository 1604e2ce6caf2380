"""Tests of invalid input over HTTP: each has a stable code and a helpful message, and nothing is stored."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.service import Service
from tests.support.tables import parquet

pytestmark = pytest.mark.e2e

ORDERS = {"o": parquet("orders")}
COUNT = "SELECT COUNT(*) AS n FROM o"


def job(sql: str = COUNT, *, tables: Mapping[str, Any] = ORDERS, **more: Any) -> dict[str, Any]:
    return {"tables": dict(tables), "sql": sql, **more}


def at(path: str, form: str = "parquet") -> dict[str, Any]:
    return {"o": {"format": form, "path": path}}


@pytest.fixture(scope="module", autouse=True)
def _bad_files(service: Service) -> None:
    (service.data / "empty").mkdir()
    corrupt = service.data / "corrupt"
    corrupt.mkdir()
    (corrupt / "part.parquet").write_bytes(b"PAR1 and then nothing of the kind")
    mixed = service.data / "mixed"
    mixed.mkdir()
    pq.write_table(pa.table({"a": [1]}), mixed / "1.parquet")
    pq.write_table(pa.table({"a": ["x"]}), mixed / "2.parquet")
    (service.data / "way_out").symlink_to("/etc", target_is_directory=True)


CASES: dict[str, tuple[dict[str, Any], str]] = {
    "unknown table": (job("SELECT COUNT(*) AS n FROM nowhere"), "unknown_table"),
    "unknown column": (job("SELECT COUNT(o.categroy) AS n FROM o"), "unknown_column"),
    "ambiguous column": (
        job(
            "SELECT COUNT(uid) AS n FROM a JOIN b ON a.uid = b.uid",
            tables={"a": parquet("orders"), "b": parquet("orders")},
        ),
        "ambiguous_column",
    ),
    "type mismatch": (job("SELECT COUNT(*) AS n FROM o WHERE o.uid"), "type_mismatch"),
    "unsupported construct": (
        job("SELECT uid, ROW_NUMBER() OVER () AS r FROM o"),
        "unsupported_construct",
    ),
    "unsupported function": (
        job("SELECT COUNT(reflect('java.lang.System', 'exit')) AS n FROM o"),
        "unsupported_function",
    ),
    "sql syntax": (job("SELECT COUNT(* FROM o"), "sql_syntax"),
    "path outside": (job(tables=at("../../etc")), "path_outside_data_roots"),
    "absolute path outside": (job(tables=at("/etc")), "path_outside_data_roots"),
    "symbolic link outside": (job(tables=at("way_out")), "path_outside_data_roots"),
    "missing path": (job(tables=at("missing")), "path_not_found"),
    "empty directory": (job(tables=at("empty")), "empty_directory"),
    "corrupt file": (job(tables=at("corrupt")), "corrupt_file"),
    "schema mismatch": (job(tables=at("mixed")), "schema_mismatch"),
    "setting out of range": (job(settings={"distinct_split": {"bucket_num": 0}}), "invalid_request"),
    "unknown setting": (job(settings={"agg_phaes": "AUTO"}), "unknown_setting"),
    "contradicting settings": (
        job(settings={"agg_phase": "ONE_PHASE", "table.optimizer.agg-phase-strategy": "TWO_PHASE"}),
        "contradicting_settings",
    ),
    "neither sql nor query": ({"tables": ORDERS}, "sql_or_query"),
    "csv read as parquet": (job(tables=at("users", "parquet")), "corrupt_file"),
    "unknown field": (job(priority=1), "invalid_request"),
    "no tables": (job(tables={}), "invalid_request"),
}


@pytest.mark.parametrize("case", CASES)
def test_invalid_job_is_refused_and_not_stored(service: Service, case: str) -> None:
    body, code = CASES[case]
    before = newest(service)
    answer = service.http.post("/v1/jobs", json=body)
    assert answer.status_code == 422, answer.text
    assert_problem(answer, code)
    assert newest(service) == before
    assert service.http.post("/v1/explain", json=body).json()["code"] == code


def test_unknown_column_has_position_and_similar_names(service: Service) -> None:
    (issue, *_) = service.http.post("/v1/jobs", json=CASES["unknown column"][0]).json()["errors"]
    assert "o.category" in issue["suggestions"]
    assert (issue["line"], issue["pointer"]) == (1, "/sql")


def test_syntax_error_has_line_and_column(service: Service) -> None:
    (issue, *_) = service.http.post("/v1/jobs", json=job("SELECT COUNT(*) AS n\nFROM o WHRE x")).json()["errors"]
    assert issue["line"] == 2
    assert issue["column"] > 0


@pytest.mark.parametrize(
    ("content", "headers", "status", "code"),
    [
        (b"{", {}, 400, "malformed_json"),
        (b" " * (2 << 20), {}, 413, "body_too_large"),
        (b"[" * 100_000, {}, 422, "nesting_too_deep"),
        (json.dumps(job()).encode(), {"Content-Type": "text/plain"}, 415, "unsupported_media_type"),
        (json.dumps(job()).encode(), {"Host": "evil.example"}, 421, "host_not_allowed"),
        (json.dumps(job()).encode(), {"Origin": "https://evil.example"}, 403, "origin_not_allowed"),
    ],
)
def test_invalid_request_is_refused(
    service: Service, content: bytes, headers: dict[str, str], status: int, code: str
) -> None:
    answer = service.http.post("/v1/jobs", content=content, headers={"Content-Type": "application/json", **headers})
    assert answer.status_code == status, answer.text
    assert_problem(answer, code)


def test_deeply_nested_query_is_refused(service: Service) -> None:
    answer = service.http.post("/v1/jobs", json=job(f"SELECT {'(' * 20_000}1{')' * 20_000} AS n FROM o"))
    assert answer.status_code == 422
    assert_problem(answer, "query_too_deep")


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/v1/jobs/no-such-job", 404, "job_not_found"),
        ("POST", "/v1/jobs/no-such-job/cancel", 404, "job_not_found"),
        ("DELETE", "/v1/jobs/no-such-job", 404, "job_not_found"),
        ("GET", "/v1/jobs/no-such-job/result", 404, "job_not_found"),
        ("GET", "/v1/nowhere", 404, "not_found"),
        ("GET", "/v1/jobs?cursor=forged", 400, "invalid_cursor"),
        ("GET", "/v1/jobs?page_size=0", 422, "invalid_request"),
    ],
)
def test_unknown_path_is_a_problem(service: Service, method: str, path: str, status: int, code: str) -> None:
    answer = service.http.request(method, path)
    assert answer.status_code == status, answer.text
    assert_problem(answer, code)


def assert_problem(answer: httpx.Response, code: str) -> None:
    """Checks that the response is a problem of RFC 9457 with this code and the id of the request in the logs."""
    assert answer.headers["Content-Type"] == "application/problem+json"
    problem = answer.json()
    assert problem["code"] == code, problem
    assert problem["type"] == f"/problems/{code}"
    assert problem["status"] == answer.status_code
    assert problem["detail"]
    assert problem["request_id"] == answer.headers["X-Request-Id"]
    assert str(Path.cwd()) not in answer.text


def newest(service: Service) -> list[str]:
    return [listed["id"] for listed in service.http.get("/v1/jobs", params={"page_size": 1}).json()["jobs"]]
