"""Jobs whose data is elsewhere, or has gone since they were submitted."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from service.settings import Settings
from tests.support.object_store import ObjectStore

if TYPE_CHECKING:
    from tests.workers.conftest import Bench

pytestmark = pytest.mark.spark

SQL = "SELECT category, COUNT(*) AS n FROM orders GROUP BY category"


def job_on(path: str) -> dict[str, object]:
    return {"tables": {"orders": {"format": "parquet", "path": path}}, "sql": SQL}


@pytest.fixture
def orders_in_a_bucket(object_store: ObjectStore) -> ObjectStore:
    sink = io.BytesIO()
    pq.write_table(pa.table({"category": ["a", "b"]}), sink)
    object_store.make_bucket("failures")
    object_store.put("failures", {"orders/1.parquet": sink.getvalue(), "orders/2.parquet": b"PAR1 no more"})
    return object_store


def configured(bench: Bench) -> Bench:
    """A worker like this one, with the settings of now."""
    return type(bench)(Settings(), bench.database, bench.driver)


def end_of(bench: Bench, path: str) -> str:
    """The code with which a job on the table at `path` fails."""
    job_id = bench.submit(job_on(path))
    bench.runner.run(job_id)
    job = bench.job(job_id)
    assert job.status == "FAILED"
    assert job.error is not None
    return str(job.error["code"])


def test_a_root_by_its_uri(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVENKEEL_DATA_ROOTS", (bench.settings.state_dir / "data").as_uri())
    bench = configured(bench)
    job_id = bench.submit(job_on("orders"))
    bench.runner.run(job_id)
    assert bench.job(job_id).status == "SUCCEEDED"


def test_objects_that_are_missing_or_broken_or_that_spark_cannot_reach(
    bench: Bench, orders_in_a_bucket: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = orders_in_a_bucket
    for name, value in store.variables("s3a://failures").items():
        monkeypatch.setenv(name, value)
    bench = configured(bench)
    assert end_of(bench, "orders/2.parquet") == "corrupt_file"
    # The file is found and its columns are read: Spark alone lacks the jar.
    assert end_of(bench, "orders/1.parquet") == "unsupported_filesystem"
    store.delete("failures", "orders/1.parquet", "orders/2.parquet")
    assert end_of(bench, "orders/1.parquet") == "path_not_found"
    assert end_of(bench, "orders") == "path_not_found"


def test_a_store_that_is_away(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVENKEEL_DATA_ROOTS", "s3a://failures")
    monkeypatch.setenv("EVENKEEL_DATA_S3_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv("EVENKEEL_DATA_STORE_ATTEMPTS", "1")
    assert end_of(configured(bench), "orders") == "storage_unavailable"
