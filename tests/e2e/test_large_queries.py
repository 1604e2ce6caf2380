"""Tests of the largest accepted queries: they end on one worker, which then runs the next job."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.processes import wait_for
from tests.support.service import Service, running_service
from tests.support.shapes import ACCEPTED, MANY_JOINS, TABLE, sql

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

TABLES = {TABLE: {"format": "parquet", "path": "t.parquet"}}
SECONDS = 600
"""A limit for a busy machine."""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with running_service(tmp_path_factory.mktemp("large")) as service:
        rows = {"a": pa.array([1, 2, 3], pa.int64()), "b": pa.array([1, 2, 3], pa.int32())}
        pq.write_table(pa.table({**rows, "s": ["x", "y", "z"], "ok": [True, False, None]}), service.data / "t.parquet")
        wait_for("the driver", lambda: all(application for _, application in workers(service) or [("", "")]), SECONDS)
        yield service


def workers(service: Service) -> list[tuple[str, str]]:
    """Returns each worker and its Spark application, which changes with a new driver."""
    listed = service.http.get("/v1/workers").json()["workers"]
    return [(worker["id"], worker["app_id"]) for worker in listed]


@pytest.mark.sampled(10)
@pytest.mark.parametrize("shape", [*ACCEPTED, *MANY_JOINS])
def test_large_query_ends(service: Service, shape: str) -> None:
    before = workers(service)
    ended = service.wait(service.submit({"tables": TABLES, **{**ACCEPTED, **MANY_JOINS}[shape]}), seconds=SECONDS)
    assert ended["attempts"] == 1
    assert ended["status"] == "SUCCEEDED" or ended["error"]["code"] == "query_too_complex", ended["error"]
    assert service.run({"tables": TABLES, **sql("SELECT COUNT(*) AS n FROM t")})[1] == [{"n": 3}]
    assert workers(service) == before
